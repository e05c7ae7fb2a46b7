"""Dumps of tokens as optimizer steps: slime's own (--save-debug-train-data), of slime 0.3.1 and of the later ones, and
those of a lab run, in the later form.

Nothing of a file is run: torch.load with weights_only takes tensors, numbers, text, lists and dicts and refuses all
else. Tensors are mapped, not read, so that routed experts and token ids cost nothing.

- Format 2 (slime after 0.3.1) is one file per rollout: `samples`, a dict each in the order of the rollout, and
  `dp_shards`, which micro-batch of which optimizer step and rank each was in. In that of a lab run samples have columns
  of MORE too, and beside them stand the `method` and whether it trains with R3 (`routing_replay`).
- slime 0.3.1 writes a file per rank: `rollout_data`, a list per column. Tensor-parallel ranks write the same twice,
  data-parallel ones a part of the rollout each.
"""

from __future__ import annotations

import pickletools
import re
import shlex
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sat_slime.rollout.validation import LEAST_LOG_PROB
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.reading import is_lab

COLUMNS = ("log_probs", "rollout_log_probs", "advantages", "loss_masks")
"""Columns with a tensor for each response, of as many values as the response has tokens."""
MORE = (
    *("lags", "checkpoint_log_probs", "proximal_log_probs", "log_probs_own_routing", "log_probs_replayed"),
    *(f"checkpoint_log_probs_{name}" for name in ("own_routing", "replayed", "engine_dtype")),
)
"""Such columns that only dumps of a lab run hold, as far as they were measured, log-probs in nats:

lags: optimizer updates between the weights that generated each token and those in training. checkpoint_log_probs: log
pi_l, the trainer's under the weights that generated the token. proximal_log_probs: the trainer's before the first
optimizer step on this rollout, where that is not log_probs. Of a diagnosed step: log_probs_own_routing and
log_probs_replayed, of the weights in training with the trainer's own experts and with the engine's;
checkpoint_log_probs_own_routing and checkpoint_log_probs_replayed, of the weights that generated;
checkpoint_log_probs_engine_dtype, the latter in the engine's data type."""
MOST_LOG_PROB = 0.1
"""Nats. What is above 0 by less is rounding, of bfloat16 at worst."""
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
    microbatches: list[int]
    """Responses of each micro-batch, sum R."""
    more: Mapping[str, Tensor] = field(default_factory=dict)
    """(N,) float32 columns of MORE, as far as the dump holds them."""
    replayed: bool = False
    """The method trains with R3, as far as the dump says."""
    truncated: Tensor | None = None
    """(R,) bool: responses that were cut at the length limit; None where the dump does not tell."""
    left_out: tuple[str, ...] = ()
    """Sentences about what the dump lacks, and about tokens that `mask` leaves out."""

    def part(self, first: int, last: int) -> StepBatch:
        """Return the micro-batches from number `first` to before `last` as a step of their own."""
        sizes = self.microbatches
        a, b = sum(sizes[:first]), sum(sizes[:last])
        tokens = slice(int(self.lengths[:a].sum()), int(self.lengths[:b].sum()))
        columns = ("log_probs", "rollout_log_probs", "advantages", "mask")
        cut_out: dict[str, Any] = {name: getattr(self, name)[tokens] for name in columns}
        cut_out["more"] = {name: column[tokens] for name, column in self.more.items()}
        return replace(self, **cut_out, lengths=self.lengths[a:b], microbatches=sizes[first:last], truncated=None)

    def spans(self, at_least: int) -> list[StepBatch]:
        """Return the step cut into parts of whole micro-batches, of at least so many tokens each but the last."""
        cuts, tokens = [0], 0
        for number, part in enumerate(self.lengths.split(self.microbatches), 1):
            tokens += int(part.sum())
            if tokens >= at_least or number == len(self.microbatches):
                cuts.append(number)
                tokens = 0
        return [self.part(first, last) for first, last in pairwise(cuts)]


def usable(
    columns: Mapping[str, np.ndarray], lengths: np.ndarray, places: Sequence[int]
) -> tuple[np.ndarray, list[str]]:
    """Return (which tokens are active and have values that can be, a sentence about each column with others).

    Args:
        columns: (N,) each. `mask` is 0 or 1; where it is 1, log-probs lie between LEAST_LOG_PROB and MOST_LOG_PROB,
            lags are 0 or more, the others are finite.
        lengths: (R,) tokens of each response, sum N.
        places: (R,) numbers of the responses.
    """
    trained = active = columns["mask"] == 1
    ends, sentences = np.cumsum(lengths), []
    for name, values in columns.items():
        least, most = (LEAST_LOG_PROB, MOST_LOG_PROB) if "log_probs" in name else (-np.inf, np.inf)
        wrong = ~np.isfinite(values) | (values < (0 if name == "lags" else least)) | (values > most)
        bad = ~np.isin(values, (0, 1)) if name == "mask" else trained & wrong
        if count := int(bad.sum()):
            token = int(np.argmax(bad))
            response = int(np.searchsorted(ends, token, side="right"))
            place = token - int(ends[response] - lengths[response])
            more = f" and {count - 1} more" if count > 1 else ""
            where = f"at response {places[response]}, position {place}"
            sentences.append(f"{name} is {values[token]:g} {where}{more}: left out (from 0)")
            active = active & ~bad
    return active, sentences


# -------------------------------------------------------------------------------------------------------------- a dump


_WITHOUT = {
    "log_probs": (
        "it holds no log_probs of the trainer, which slime 0.3.1 does not keep with --use-rollout-logprobs: dump a run "
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
    """What a step of it holds of that which only some dumps hold."""
    rollout: tuple[Path, int] | None = None
    """Folder and number of the rollout of which slime 0.3.1 wrote a file per rank; None: the file is a whole one."""
    rank: int = 0


def known_dump(path: Path) -> Dump:
    """Return what kind of dump a file is, by its first entries: what follows takes seconds. Raises DumpFault."""
    numbers, key = _head(path)
    if key not in ("samples", "rollout_data") or "rollout_id" not in numbers:
        raise DumpFault("it is a torch file, but no dump of --save-debug-train-data: give only those")
    if key == "rollout_data":
        return Dump((path,), rollout=(path.parent, numbers["rollout_id"]), rank=numbers.get("rank", 0))
    if "format_version" not in numbers:
        raise DumpFault(
            "it is a dump of --save-debug-rollout-data, which knows nothing of the trainer: give that of "
            "--save-debug-train-data (with --dump-details, the folder train_data)"
        )
    if numbers["format_version"] != 2:
        raise DumpFault(f"its format_version is {numbers['format_version']}, and 2 is what can be read here")
    if "routing_replay" not in numbers:
        return Dump((path,))
    samples = load_payload(path).get("samples")  # of a lab run, which is small
    held = {key for one in (samples if isinstance(samples, list) else ()) if isinstance(one, dict) for key in one}
    return Dump((path,), frozenset(name for name in get_args(Column) if name in held))


def _head(path: Path) -> tuple[dict[str, int], str]:
    """Return the numbers before the samples in a file's pickle, of which nothing is run, and the key that follows them.
    Raises DumpFault."""
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
                    elif operation.name.startswith(("BININT", "NEWTRUE", "NEWFALSE")):
                        numbers[key] = int(argument or 0)
                    elif operation.name not in ("PROTO", "EMPTY_DICT", "BINPUT", "MARK"):
                        break
    except Exception as error:  # what a damaged archive raises is anything
        raise DumpFault(f"it is not a complete torch file ({_line(error)}): {_WHOLE}") from error
    return numbers, key


def read_rollout(paths: Sequence[Path]) -> list[StepBatch]:
    """Read the optimizer steps of one rollout, from its file or, of slime 0.3.1, the files of its ranks: the responses
    in the micro-batches in which they were trained. Raises DumpFault."""
    payloads = [load_payload(path) for path in paths]
    try:
        name = f"rollout {payloads[0]['rollout_id']}"
        ranks = _format_2(payloads[0]) if "samples" in payloads[0] else _format_1(payloads)
        steps = _trained(ranks)
        rollouts = len({str(one["rollout"]) for responses, _ in ranks for one in responses})
        wanted = max((sum(layout.get("global_batch_sizes") or ()) for _, layout in ranks), default=0)
        replayed = payloads[0].get("routing_replay") is True
        told = [f"it holds {rollouts} of the {wanted} rollouts that were trained: the files of some ranks are missing"]
        return [
            _step(f"{name}, step {number}" if len(steps) > 1 else name, parts, told * (rollouts < wanted), replayed)
            for number, parts in enumerate(steps, 1)
            if any(parts)
        ]
    except DumpFault:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise DumpFault(f"its entries are not those of slime ({type(error).__name__} {_line(error)})") from error


def load_payload(path: Path) -> dict[str, Any]:
    """Load the dictionary of a file, tensors mapped. Only tensors, numbers and text are made. Raises DumpFault."""
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
_PLACES = [f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")]
_SCALARS: list[Any] = [(_Kind, "numpy.dtype"), *((_scalar, place) for place in _PLACES)]
"""NumPy's names in a file, and what is called in their place: rewards are often such scalars."""


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:120]


Response = dict[str, Any]
"""COLUMNS, MORE and `truncated` of the file; `length`, its tokens; `place`, its number in the order of the rollout;
`rollout`, by which slime counts batches."""
Rank = tuple[list[Response], Mapping[str, Any]]
"""Responses of a data-parallel rank, and which of them were in which micro-batch of which step."""


def _format_2(payload: Mapping[str, Any]) -> list[Rank]:
    """Return the ranks of a file with samples in the order of the rollout, and beside them which rank trained which."""
    samples = payload["samples"]
    responses = [
        {key: sample.get(key) for key in (*COLUMNS, *MORE, "truncated")}
        | {"length": int(sample["response_lengths"]), "place": place, "rollout": sample.get("rollout_ids", place)}
        for place, sample in enumerate(samples)
    ]
    by_place = {sample["rollout_position"]: response for sample, response in zip(samples, responses, strict=True)}
    return [([by_place[place] for place in layout["partition"]], layout) for layout in payload["dp_shards"]]


def _format_1(payloads: Sequence[Mapping[str, Any]]) -> list[Rank]:
    """Return the ranks of slime 0.3.1, a file each. Ranks that hold the same responses count once; ranks before the
    last pipeline stage hold no log-probs and do not count."""
    parts = [payload["rollout_data"] for payload in payloads]
    parts = [part for part in parts if part.get("log_probs") is not None] or parts[:1]
    # Told apart by log mu: responses that a generate function made of one sample share its number.
    log_mu = [b"".join(mu.float().numpy().tobytes() for mu in part.get("rollout_log_probs") or ()) for part in parts]
    distinct = dict(zip(reversed(log_mu), reversed(parts), strict=True))
    numbers = [number for part in distinct.values() for number in part.get("sample_indices") or ()]
    numbered = None not in numbers and len(set(numbers)) == len(numbers)
    ranks: list[Rank] = []
    for part in reversed(distinct.values()):
        offset = sum(len(responses) for responses, _ in ranks)
        here = range(offset, offset + len(part["response_lengths"]))
        columns = {key: part[key] for key in (*COLUMNS, "truncated") if part.get(key) is not None}
        columns |= {"length": part["response_lengths"], "rollout": part.get("rollout_ids") or here}
        columns |= {"place": (numbered and part.get("sample_indices")) or here}
        ranks.append(([{key: values[i] for key, values in columns.items()} for i in range(len(here))], part))
    return ranks


def _check(response: Response) -> None:
    for key in (*COLUMNS, *(key for key in MORE if response.get(key) is not None)):
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


def _trained(ranks: Sequence[Rank]) -> list[list[list[Response]]]:
    """Return of each optimizer step its micro-batches, rank after rank."""
    steps: list[list[list[Response]]] = []
    for responses, layout in ranks:
        for response in responses:
            _check(response)
        microbatches, per_step = layout["micro_batch_indices"], layout["num_microbatches"]
        if sorted(i for part in microbatches for i in part) != list(range(len(responses))):
            raise DumpFault("its micro-batches do not hold every response once")
        if sum(per_step) != len(microbatches):
            raise DumpFault(f"it has {len(microbatches)} micro-batches where its optimizer steps have {sum(per_step)}")
        steps = steps or [[] for _ in per_step]
        if len(steps) != len(per_step):
            raise DumpFault("its ranks took different numbers of optimizer steps: give the files of one run's ranks")
        parts = iter(microbatches)
        for step, count in zip(steps, per_step, strict=True):
            step += [[responses[i] for i in part] for part in islice(parts, count) if part]
    places = Counter(one["place"] for step in steps for part in step for one in part)
    if not places:
        raise DumpFault("it holds no response that was trained: leave it out")
    if twice := sorted(place for place, times in places.items() if times > 1):
        raise DumpFault(f"{len(twice)} of its responses, the first {twice[0]}, are in more than one of its shards")
    whole = max(len(layout.get("raw_reward") or ()) for _, layout in ranks)  # slime 0.3.1 tells each rank all rewards
    if 0 < whole < len(places):
        raise DumpFault(f"it holds {len(places)} responses of {whole}: leave out the files of another run's ranks")
    return steps


def _step(name: str, parts: list[list[Response]], told: Sequence[str], replayed: bool) -> StepBatch:
    responses = [one for part in parts for one in part]
    lengths = torch.tensor([one["length"] for one in responses], dtype=torch.int64)
    held = [*COLUMNS, *(key for key in MORE if all(one.get(key) is not None for one in responses))]
    columns = {key: torch.cat([one[key].float() for one in responses]) for key in held}
    judged = {"mask": columns.pop("loss_masks").numpy()} | {key: values.numpy() for key, values in columns.items()}
    mask, left_out = usable(judged, lengths.numpy(), [one["place"] for one in responses])
    cut_off = [one.get("truncated") for one in responses]
    told_of_all = all(isinstance(flag, int) for flag in cut_off)
    return StepBatch(
        name=name,
        mask=torch.from_numpy(mask),
        lengths=lengths,
        microbatches=[len(part) for part in parts],
        truncated=torch.tensor([bool(flag) for flag in cut_off]) if told_of_all else None,
        left_out=(*told, *left_out),
        more={key: columns.pop(key) for key in held[len(COLUMNS) :]},
        replayed=replayed,
        **columns,
    )


# ------------------------------------------------------------------------------------------- what the command was given


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
    the files that were skipped. Raises RunFolderError where a path is not there, or a folder has no dump."""
    skipped: list[Skipped] = []
    dumps: dict[object, list[Dump]] = {}
    """By file, or by rollout where the ranks of slime 0.3.1 wrote a file each."""
    for file in (file for path in given for file in _files(Path(path))):
        try:
            dump = known_dump(file)
        except DumpFault as fault:
            skipped.append(Skipped(file, str(fault)))
        else:
            dumps.setdefault(dump.rollout or file, []).append(dump)
    joined = []
    for parts in dumps.values():
        parts.sort(key=lambda part: (part.rank, part.paths))
        joined.append(replace(parts[0], paths=tuple(dict.fromkeys(path for part in parts for path in part.paths))))
    return joined, skipped


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise RunFolderError(f"{path} is not there: give dumps, folders of them, or run folders")
    if path.is_file() and path.suffix in (".jsonl", ".csv", ".log", ".txt"):
        shown = shlex.quote(str(path))
        raise RunFolderError(f"{path} holds no tokens. If it has a run's metrics: sat-slime report {shown}")
    if path.is_file():
        return [path]
    run = RunFolder(path)
    if run.is_run() or run.dumps.is_dir():
        if files := files_in(run.dumps):
            return files
        raise RunFolderError(
            f"{path} holds no dumps: run it with --set dump.every_n_iterations=N"
            if is_lab(run)
            else f"{path} holds no dumps, since slime writes its own: run it with --set "
            "'slime.save-debug-train-data=DIR/{rollout_id}.pt' (slime 0.3.1: {rollout_id}_{rank}.pt), and give DIR"
        )
    if not (files := files_in(path)):
        raise RunFolderError(f"{path} holds no dump: no file there ends in .pt")
    return files


def files_in(folder: Path) -> list[Path]:
    """Return the dumps in a folder, which may be that of slime's --dump-details, or may be none; 9.pt before 10.pt."""
    folder = folder / "train_data" if (folder / "train_data").is_dir() else folder
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted((file for file in files if file.suffix == ".pt"), key=by_number)


def by_number(file: str | Path) -> list[tuple[int, str]]:
    """Return what sorts files by the numbers in their names."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", Path(file).name)]


def steps(dumps: Sequence[Dump], told: list[Skipped], needed: frozenset[Column] = frozenset()) -> Iterator[StepBatch]:
    """Read the optimizer steps of the dumps with their micro-batches, each when asked for. What is left out goes to
    `told`: a dump that cannot be read, lacks a needed column, holds a step again or no active token; single tokens."""
    first: dict[tuple[Path, str], Path] = {}
    for dump in dumps:
        path = dump.paths[0]
        try:
            batches = read_rollout(dump.paths)
        except DumpFault as fault:
            told.append(Skipped(path, str(fault)))
            continue
        while batches:  # each step is freed once it was used
            batch = batches.pop(0)
            if (same := first.setdefault((path.parent, batch.name), path)) != path:
                told.append(Skipped(path, f"it is {batch.name} again, which {same.name} holds"))
                continue
            if missing := sorted(needed - batch.more.keys()):
                what = f"does not hold {' and '.join(missing)}, which one of the methods reads: leave that out"
                told.append(Skipped(path, f"{batch.name} {what}"))
                continue
            told += [Skipped(path, f"{batch.name}: {text}", whole=False) for text in batch.left_out]
            if batch.mask.any():
                yield batch
            else:
                told.append(Skipped(path, f"{batch.name} has no active token"))
