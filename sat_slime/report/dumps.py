"""Dumps of tokens as optimizer steps: slime's own (--save-debug-train-data), of slime 0.3.1 and of the later ones, and
those of a lab run.

Nothing of a file is run: torch.load with weights_only takes tensors, numbers, text, lists and dicts and refuses all
else. Tensors are mapped, not read, so that routed experts and token ids cost nothing.

- Format 2 (slime after 0.3.1) is one file per rollout: `samples`, a dict each in the order of the rollout, and
  `dp_shards`, which micro-batch of which optimizer step and rank each was in.
- slime 0.3.1 writes a file per rank: `rollout_data`, a list per column. Tensor-parallel ranks write the same twice,
  data-parallel ones a part of the rollout each.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sat_slime.rollout.token_dump import FOLDER, DumpError, TokenDump, dump_paths, read_dump, usable
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.reading import is_lab, read_yaml, section

TOKENS_PER_MICROBATCH = 32_768
"""Bound on the tokens of a micro-batch where nothing else is known: the paper's."""


Column = Literal["checkpoint_log_probs", "lags"]
"""A column that some methods read and only some dumps hold: log pi_l, and what TokenBatch calls a Need."""


class DumpFault(ValueError):
    """A file that cannot be read as a dump. The message says what is wrong and what helps, without the file's name."""


@dataclass(frozen=True, eq=False)
class StepBatch:
    """One optimizer step: R responses, their N tokens in a row, micro-batch after micro-batch. Where a token is active,
    every column is finite."""

    name: str
    log_probs: Tensor
    """(N,) float32 log pi, the trainer's at the start of the step."""
    rollout_log_probs: Tensor
    """(N,) float32 log mu."""
    advantages: Tensor
    """(N,) float32."""
    mask: Tensor
    """(N,) bool, active tokens."""
    lengths: Tensor
    """(R,) int64 tokens of each response."""
    microbatches: list[int] | None = None
    """Responses of each micro-batch, sum R; None where the dump does not say."""
    checkpoint_log_probs: Tensor | None = None
    """(N,) log pi_l, the trainer's under the generating weights."""
    proximal_log_probs: Tensor | None = None
    """(N,) the trainer's before the first optimizer step on this rollout, where that is not log_probs."""
    lags: Tensor | None = None
    """(N,) float32: optimizer updates between the weights that generated each token and those in training."""
    truncated: Tensor | None = None
    """(R,) bool: responses that were cut at the length limit; None where the dump does not tell."""

    left_out: tuple[str, ...] = ()
    """Sentences about what the dump lacks, and about tokens that `mask` leaves out."""

    @property
    def lag(self) -> float | None:
        """Mean of `lags` over the active tokens; None where they are not known, or no token is active."""
        return None if self.lags is None or not self.mask.any() else float(self.lags[self.mask].mean())

    @property
    def columns(self) -> frozenset[Column]:
        """The columns that it holds of those that only some dumps have."""
        return frozenset(name for name in get_args(Column) if getattr(self, name) is not None)

    def part(self, first: int, last: int) -> StepBatch:
        """Return the micro-batches from number `first` to before `last` as a step of their own."""
        sizes = self.microbatches or [len(self.lengths)]
        a, b = sum(sizes[:first]), sum(sizes[:last])
        tokens = slice(int(self.lengths[:a].sum()), int(self.lengths[:b].sum()))
        columns = ("log_probs", "rollout_log_probs", "advantages", "mask", *OPTIONAL)
        cut_out: dict[str, Any] = {
            name: column[tokens] for name in columns if (column := getattr(self, name)) is not None
        }
        return replace(self, **cut_out, lengths=self.lengths[a:b], microbatches=sizes[first:last], truncated=None)

    def spans(self, at_least: int) -> list[StepBatch]:
        """Return the step cut into parts of whole micro-batches, of at least so many tokens each but the last."""
        cuts, tokens, response = [0], 0, 0
        sizes = self.microbatches or [len(self.lengths)]
        for number, size in enumerate(sizes, 1):
            tokens += int(self.lengths[response : response + size].sum())
            response += size
            if tokens >= at_least or number == len(sizes):
                cuts.append(number)
                tokens = 0
        return [self.part(first, last) for first, last in pairwise(cuts)]


OPTIONAL = ("checkpoint_log_probs", "proximal_log_probs", "lags")
"""Columns of (N,) that only some dumps hold."""


def cut(lengths: Tensor, tokens: int) -> list[int]:
    """Return how many consecutive responses each micro-batch has: as many as fit `tokens` tokens; a longer response
    stands alone. lengths: (R,) tokens."""
    sizes: list[int] = []
    room = 0
    for length in lengths.tolist():
        if sizes and length <= room:
            sizes[-1] += 1
            room -= length
        else:
            sizes.append(1)
            room = tokens - length
    return sizes


# -------------------------------------------------------------------------------------------------------- slime's dumps


COLUMNS = ("log_probs", "rollout_log_probs", "advantages", "loss_masks")
"""Columns with a tensor for each response, of as many values as the response has tokens."""

_WITHOUT = {
    "log_probs": (
        "it holds no log_probs of the trainer, which slime does not compute with --use-rollout-logprobs: dump a run "
        "without that flag"
    ),
    "rollout_log_probs": "it holds no rollout_log_probs: the rollout function has to return the engine's log-probs",
    "advantages": "it holds no advantages: it is of a pipeline stage before the last; give the last stage's file",
    "loss_masks": "it holds no loss_masks, so that the active tokens are not known",
}
_WHOLE = "copy it again, or leave it out"


@dataclass(frozen=True)
class Dump:
    """Files that are read together: one file, or those that the ranks of slime 0.3.1 wrote of one rollout."""

    paths: tuple[Path, ...]
    columns: frozenset[Column] = frozenset()
    """What its head promises of that which only some dumps hold; reading it says what is true."""
    tokens_per_microbatch: int = TOKENS_PER_MICROBATCH
    """Bound on the tokens of a micro-batch where the dump does not say more."""
    rollout: tuple[Path, int] | None = None
    """Folder and number of the rollout of which slime 0.3.1 wrote a file per rank; None: the file is a whole one."""
    rank: int = 0


def read_header(path: Path) -> Dump:
    """Read the first entries of a file's pickle, none of which is run. Raises DumpFault."""
    numbers: dict[str, int] = {}
    key = ""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(name) as pickle:
                for operation, argument, _ in pickletools.genops(pickle):
                    if operation.name == "BINUNICODE":
                        key = str(argument)
                        if key in ("samples", "rollout_data"):
                            break
                    elif isinstance(argument, int) and operation.name.startswith("BININT"):
                        numbers[key] = argument
                    elif operation.name not in ("PROTO", "EMPTY_DICT", "BINPUT", "MARK"):
                        break
    except (OSError, zipfile.BadZipFile, zlib.error, StopIteration, ValueError, RuntimeError) as error:
        raise DumpFault(f"it is not a complete torch file ({_line(error)}): {_WHOLE}") from error
    if key not in ("samples", "rollout_data") or "rollout_id" not in numbers:
        raise DumpFault("it is a torch file, but no dump of --save-debug-train-data: give only those")
    if key == "samples" and "format_version" not in numbers:
        raise DumpFault(
            "it is a dump of --save-debug-rollout-data, which knows nothing of the trainer: give that of "
            "--save-debug-train-data (with --dump-details, the folder train_data)"
        )
    if key == "samples" and numbers["format_version"] != 2:
        raise DumpFault(f"its format_version is {numbers['format_version']}, and 2 is what can be read here")
    rollout = (path.parent, numbers["rollout_id"]) if key == "rollout_data" else None
    return Dump((path,), rollout=rollout, rank=numbers.get("rank", 0))


def read_rollout(paths: Sequence[Path]) -> list[StepBatch]:
    """Read the optimizer steps of one rollout, from its file or, of slime 0.3.1, the files of its ranks: the responses
    in the micro-batches in which they were trained, or in the order of the rollout where the files do not tell them.
    Raises DumpFault."""
    payloads = [load_payload(path) for path in paths]
    try:
        name = f"rollout {payloads[0]['rollout_id']}"
        ranks = _format_2(payloads[0]) if "samples" in payloads[0] else _format_1(payloads)
        responses = _trained(ranks)
        rollouts = len({str(one["rollout"]) for one in responses})
        wanted = max((sum(layout.get("global_batch_sizes") or ()) for _, layout in ranks), default=0)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DumpFault(f"its entries are not those of slime ({type(error).__name__} {_line(error)})") from error
    told = [f"it holds {rollouts} of the {wanted} rollouts that were trained: the files of some ranks are missing"]
    steps: dict[int, list[Response]] = {}
    for one in responses:
        steps.setdefault(one["trained"][0] if "trained" in one else 0, []).append(one)
    return [
        _step(f"{name}, step {i + 1}" if len(steps) > 1 else name, steps[i], told * (rollouts < wanted))
        for i in sorted(steps)
    ]


def load_payload(path: Path) -> dict[str, Any]:
    """Load the dictionary of a file, its tensors mapped. Nothing but tensors, numbers and text is made. Raises
    DumpFault."""
    # An engine that is imported too may have allowed classes of its own, such as argparse.Namespace: not for this file.
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(_SCALARS)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # anyone may have written the file, and torch may raise anything
        if refused := re.search(r"GLOBAL ([\w.]+) was", str(error)):
            raise DumpFault(
                f"it holds an object of {refused[1]}, and nothing but tensors, numbers and text is read: leave that "
                "column out of the rollout data, or convert the file where you trust it"
            ) from error
        raise DumpFault(f"it is not a complete torch file ({_line(error)}): {_WHOLE}") from error
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)
    if not isinstance(payload, dict):
        raise DumpFault("it is a torch file, but no dump of --save-debug-train-data: give only those")
    return payload


class _Kind:
    """Stands for a NumPy data type in a file: its name and byte order."""

    def __init__(self, name: str, *flags: object):
        self.name, self.order = str(name), "="

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.order = str(state[1])


def _scalar(kind: _Kind, data: bytes) -> bool | int | float:
    """Return a NumPy scalar of a file as a plain number."""
    if kind.name not in _NUMBERS or kind.order not in "=<>|":
        raise ValueError(f"a NumPy scalar of type {kind.name:.20}")
    number: bool | int | float = np.frombuffer(data, np.dtype(kind.order + kind.name), 1)[0].item()
    return number


_NUMBERS = {f"{kind}{size}" for kind in "iuf" for size in (2, 4, 8)} | {"i1", "u1", "b1"}
_SCALARS: list[Any] = [(_Kind, "numpy.dtype")] + [
    (_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")
]
"""NumPy's names in a file, and what is called in their place: rewards are often such scalars."""


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:120]


Response = dict[str, Any]
"""COLUMNS and `truncated` of the file; `length`, its tokens; `place`, its number in the order of the rollout;
`rollout`, by which slime counts batches; `trained`, its optimizer step, data-parallel rank and micro-batch of that
rank, where the file tells."""
Rank = tuple[list[Response], Mapping[str, Any]]
"""Responses of a data-parallel rank, and which of them were in which micro-batch of which step."""


def _format_2(payload: Mapping[str, Any]) -> list[Rank]:
    """Return the ranks of a file with samples in the order of the rollout, and beside them which rank trained which."""
    samples = payload["samples"]
    responses = [
        {key: sample.get(key) for key in (*COLUMNS, "truncated")}
        | {"length": int(sample["response_lengths"]), "place": place, "rollout": sample.get("rollout_ids", place)}
        for place, sample in enumerate(samples)
    ]
    for key, column in (("rollout_position", "partition"), ("sample_index", "sample_indices")):
        if all(sample.get(key) is not None for sample in samples):
            by_id = {sample[key]: response for sample, response in zip(samples, responses, strict=True)}
            return [([by_id[i] for i in layout[column]], layout) for layout in payload["dp_shards"]]
    return [(responses, {})]


def _format_1(payloads: Sequence[Mapping[str, Any]]) -> list[Rank]:
    """Return the ranks of slime 0.3.1, a file each. Ranks that hold the same responses count once; ranks before the
    last pipeline stage hold no log-probs and do not count."""
    parts = [payload["rollout_data"] for payload in payloads]
    parts = [part for part in parts if part.get("log_probs") is not None] or parts[:1]
    distinct = {tuple(part.get("sample_indices") or part["total_lengths"]): part for part in reversed(parts)}
    ranks: list[Rank] = []
    for part in reversed(distinct.values()):
        offset = sum(len(responses) for responses, _ in ranks)
        here = range(offset, offset + len(part["response_lengths"]))
        columns = {key: part[key] for key in (*COLUMNS, "truncated") if part.get(key) is not None}
        columns |= {"length": part["response_lengths"], "rollout": part.get("rollout_ids") or here}
        columns |= {"place": part.get("partition") or part.get("sample_indices") or here}
        ranks.append(([{key: values[i] for key, values in columns.items()} for i in range(len(here))], part))
    return ranks


def _check(response: Response) -> None:
    for key in COLUMNS:
        values, length = response.get(key), response["length"]
        if values is None:
            raise DumpFault(_WITHOUT[key])
        if not isinstance(values, Tensor) or values.dim() != 1 or values.dtype.is_complex:
            raise DumpFault(f"{key} of a response is no row of numbers")
        if len(values) != length:
            hint = (
                ": slime 0.3.1 leaves the parts of context-parallel ranks apart; dump with a later slime, or with "
                "--context-parallel-size 1"
            )
            raise DumpFault(
                f"{key} has {len(values)} values for a response of {length} tokens{hint * (len(values) < length)}"
            )


def _trained(ranks: Sequence[Rank]) -> list[Response]:
    """Return the responses of all ranks in the order of training."""
    trained: list[Response] = []
    steps = set()
    for rank, (responses, layout) in enumerate(ranks):
        for response in responses:
            _check(response)
        microbatches, per_step = layout.get("micro_batch_indices"), layout.get("num_microbatches")
        if microbatches is None or per_step is None:
            trained, per_step = trained + responses, [1]
        elif sorted(i for part in microbatches for i in part) != list(range(len(responses))):
            raise DumpFault("its micro-batches do not hold every response once")
        elif sum(per_step) != len(microbatches):
            raise DumpFault(f"it has {len(microbatches)} micro-batches where its optimizer steps have {sum(per_step)}")
        else:
            step_of = [step for step, count in enumerate(per_step) for _ in range(count)]
            trained += [
                responses[i] | {"trained": (step_of[number], rank, number)}
                for number, part in enumerate(microbatches)
                for i in part
            ]
        steps.add(len(per_step))
    if len(steps) != 1:
        raise DumpFault("its ranks took different numbers of optimizer steps: files of one run's ranks belong together")
    if twice := sorted(place for place, times in Counter(one["place"] for one in trained).items() if times > 1):
        raise DumpFault(f"{len(twice)} of its responses, the first {twice[0]}, are in more than one of its shards")
    return trained


def _step(name: str, responses: list[Response], told: Sequence[str]) -> StepBatch:
    if not (own_layout := all("trained" in one for one in responses)):
        responses = sorted(responses, key=lambda one: one["place"])
    lengths = torch.tensor([one["length"] for one in responses], dtype=torch.int64)
    columns = {key: torch.cat([one[key].float() for one in responses]) for key in COLUMNS}
    masks = columns.pop("loss_masks").numpy()
    judged = {key: values.numpy() for key, values in columns.items()}
    mask, left_out = usable(masks, lengths.numpy(), judged, [one["place"] for one in responses])
    cut_off = [one.get("truncated") for one in responses]
    told_of_all = all(isinstance(flag, int) for flag in cut_off)
    return StepBatch(
        name=name,
        mask=torch.from_numpy(mask),
        lengths=lengths,
        microbatches=[*Counter(one["trained"] for one in responses).values()] if own_layout else None,
        truncated=torch.tensor([bool(flag) for flag in cut_off]) if told_of_all else None,
        left_out=(*told, *left_out),
        **columns,
    )


# ------------------------------------------------------------------------------------------- what the command was given


SUFFIXES = (".pt", ".safetensors")


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, or tokens of it, and why."""

    path: Path
    reason: str
    whole: bool = True
    """The whole file, or one step of it; else it was read but for what the reason names."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def find_dumps(given: Sequence[str | Path]) -> tuple[list[Dump], list[Skipped]]:
    """Return the dumps in files, folders of them and run folders, in the order given, within a folder by number, and
    the files that were skipped.

    Raises:
        RunFolderError: a path is not there, or a folder without a dump.
    """
    skipped: list[Skipped] = []
    dumps: dict[object, list[Dump]] = {}
    """By file, or by rollout where the ranks of slime 0.3.1 wrote a file each."""
    for path in map(Path, given):
        files, tokens = _files(path)
        for file in files:
            try:
                of_run = file.suffix == ".safetensors"
                dump = Dump((file,), _columns_of_run(file), tokens) if of_run else read_header(file)
            except DumpFault as fault:
                skipped.append(Skipped(file, str(fault)))
                continue
            dumps.setdefault(dump.rollout or file, []).append(dump)
    joined = []
    for parts in dumps.values():
        parts.sort(key=lambda part: (part.rank, part.paths))
        joined.append(replace(parts[0], paths=tuple(dict.fromkeys(path for part in parts for path in part.paths))))
    return joined, skipped


def _files(path: Path) -> tuple[list[Path], int]:
    """Return (files of one argument, the bound on a micro-batch's tokens in its run)."""
    if not path.exists():
        raise RunFolderError(f"{path} is not there: give dumps, folders of them, or run folders")
    if path.is_file() and path.suffix in (".jsonl", ".csv", ".log", ".txt"):
        raise RunFolderError(f"{path} holds no tokens. If it has a run's metrics: sat-slime report {path}")
    if path.is_file():
        return [path], TOKENS_PER_MICROBATCH
    if RunFolder(path).is_run() or (path / FOLDER).is_dir():
        files = dump_paths(path)
        if not files:
            raise RunFolderError(
                f"{path} holds no dumps: run it with --set dump.every_n_iterations=N"
                if is_lab(RunFolder(path))
                else f"{path} holds no dumps, since slime writes its own: run it with --set "
                "'slime.save-debug-train-data=DIR/{rollout_id}.pt' (slime 0.3.1: {rollout_id}_{rank}.pt), and give DIR"
            )
        tokens = section(read_yaml(RunFolder(path).config), "train").get("tokens_per_microbatch")
        return files, tokens if isinstance(tokens, int) and tokens > 0 else TOKENS_PER_MICROBATCH
    if not (files := files_in(path)):
        raise RunFolderError(f"{path} holds no dump: no file there ends in {' or '.join(SUFFIXES)}")
    return files, TOKENS_PER_MICROBATCH


def files_in(folder: Path) -> list[Path]:
    """Return the dumps in a folder, or below it in that of slime's --dump-details, 9.pt before 10.pt."""

    def number(path: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]

    folder = folder / "train_data" if (folder / "train_data").is_dir() else folder
    return sorted((file for file in folder.iterdir() if file.suffix in SUFFIXES), key=number)


def _columns_of_run(path: Path) -> frozenset[Column]:
    try:
        with safe_open(path, framework="numpy") as file:
            scored = "checkpoint_log_probs" in file.keys()  # noqa: SIM118
    except (SafetensorError, OSError):  # it is damaged: reading it says so
        scored = False
    return frozenset(get_args(Column) if scored else ("lags",))


def steps(dumps: Sequence[Dump], needed: frozenset[Column] = frozenset()) -> Iterator[StepBatch | Skipped]:
    """Read the optimizer steps of the dumps with their micro-batches, each when asked for. A dump that cannot be read,
    lacks a column that is needed, holds a step again or no active token, is a Skipped, which tells why; so are tokens
    that were left out."""
    first: dict[tuple[Path, str], Path] = {}
    for dump in dumps:
        path = dump.paths[0]
        try:
            batches = [_of_run(read_dump(path))] if path.suffix == ".safetensors" else read_rollout(dump.paths)
        except (DumpFault, DumpError) as fault:
            # a DumpError begins with the file's name
            yield Skipped(path, str(fault).removeprefix(f"{path}").lstrip(": "))
            continue
        missing = sorted(needed - batches[0].columns) if batches else []
        if missing:
            yield Skipped(
                path,
                f"it does not hold {' and '.join(missing)}, which one of the methods reads: leave that out",
            )
            continue
        while batches:  # each step is freed once it was used
            batch = batches.pop(0)
            if (same := first.setdefault((path.parent, batch.name), path)) != path:
                yield Skipped(path, f"it is {batch.name} again, which {same.name} holds")
                continue
            yield from (Skipped(path, f"{batch.name}: {text}", whole=False) for text in batch.left_out)
            if not batch.mask.any():
                yield Skipped(path, f"{batch.name} has no active token")
                continue
            yield replace(batch, microbatches=batch.microbatches or cut(batch.lengths, dump.tokens_per_microbatch))


def _of_run(dump: TokenDump) -> StepBatch:
    for name in ("checkpoint_log_probs", "proximal_log_probs"):
        if name in dump.more and (dump.more[name].ndim != 1 or dump.more[name].dtype.kind != "f"):
            raise DumpFault(f"{name} is no row of numbers")
    checkpoint, proximal = (
        torch.from_numpy(dump.more[name]).float() if name in dump.more else None
        for name in ("checkpoint_log_probs", "proximal_log_probs")
    )
    if checkpoint is not None and proximal is not None and torch.allclose(checkpoint, proximal, atol=1e-6):
        proximal = None  # a run with the denominator pi_l dumps it in both columns; it is not the trainer's own
    return StepBatch(
        name=f"iteration {dump.iteration}, update {dump.step}",
        log_probs=torch.from_numpy(dump.log_probs),
        rollout_log_probs=torch.from_numpy(dump.rollout_log_probs),
        advantages=torch.from_numpy(dump.advantages),
        mask=torch.from_numpy(dump.mask),
        lengths=torch.from_numpy(dump.lengths),
        lags=torch.from_numpy(dump.updates - dump.versions).float(),
        checkpoint_log_probs=checkpoint,
        proximal_log_probs=proximal,
        left_out=dump.left_out,
    )
