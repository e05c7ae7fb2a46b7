"""`sat-slime data prepare`: the prompts of a run from public data sets, each problem once, with slime's instruction,
and an account of the rows that are left out. Never a whole file is in memory."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

import sat_slime
from sat_slime.config.disk import sha256
from sat_slime.config.jsonl import write_atomically
from sat_slime.config.source import ConfigError
from sat_slime.prompts.text import digest, instructed, list_in_text, odd_file, odd_label, odd_text, strip_instruction
from sat_slime.reward.extraction import unboxed
from sat_slime.reward.pool import LABEL_CHARS

MANIFEST, TRAIN, EVALUATION = "manifest.json", "train.jsonl", "aime24.jsonl"
SEED = 1234
"""Seed of the order."""
SUFFIXES = (".parquet", ".jsonl")
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
PROBLEM_COLUMNS = ("problem", "question", "prompt", "messages")
LABEL_COLUMNS = ("label", "ground_truth", "answer", "reward_model", "solution")
"""The label's column is the first of these that a set has. In `reward_model` the label is the `ground_truth`."""
LOOKED_FOR = (
    f"a problem is looked for in {', '.join(PROBLEM_COLUMNS)}, a label in {', '.join(LABEL_COLUMNS)}: rename a column"
)
_BATCH = 8192


class Counted(NamedTuple):
    """A set of the paper."""

    place: str
    """Its id on the hub, with a revision where the one of the paper's time is known."""
    what: Literal["rows", "texts"]
    """The column of the account that the paper counted."""
    expected: int


PAPER = {
    "dapo": Counted("BytedTsinghua-SIA/DAPO-Math-17k@65877096c24ffa7abc4e4fa5edb95cf3413a5674", "texts", 17_398),
    "dolci": Counted("allenai/Dolci-RL-Zero-Math-7B", "rows", 13_314),
    "aime24": Counted("BytedTsinghua-SIA/AIME-2024@aa49075e24ad594b79fdf0bdcefa735c2181be67", "texts", 30),
}
"""The sets that a run's prompts come from. The last is for evaluation."""
AIME_LABEL = re.compile("[0-9]{1,3}")


@dataclass
class Problem:
    """A problem in a set's words."""

    source: str
    row: str
    """The first row that has it, FILE:NUMBER."""
    text: str
    """Without the instruction."""
    key: bytes
    """A digest that is equal for the same problem in other words; see `normalize`."""
    labels: Counter[str] = field(default_factory=Counter)
    """The number of rows with each label."""

    @property
    def label(self) -> str:
        """The label that most rows have, or the first of several such; AIME's without the zeros before it, since a
        model writes 25 where the set has 025, and rules of slime compare texts."""
        label = self.labels.most_common(1)[0][0]
        return str(int(label)) if self.source == "aime24" else label


COUNTS = ("rows", "unusable", "texts", "two_labels", "prompts")
"""What became of a set's rows. unusable: without a problem or a label, or with odd ones. texts: different ones, without
the instruction. two_labels: problems of several labels, of which that of most rows is taken."""


@dataclass
class PromptSet:
    """A set of prompts: where it is, and what is read of it."""

    name: str
    given: str
    file: Path | None = None
    """None: it is on the hub, not fetched yet."""
    hub: dict[str, str] = field(default_factory=dict)
    """Of a set on the hub its `repository`, its `revision`, and once it is fetched the `commit`."""
    problems: dict[bytes, Problem] = field(default_factory=dict)
    account: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is wrong with unusable rows: how many `rows` have it, and the `first` of them."""


def prepare(out: Path, sources: Mapping[str, str], overwrite: bool, console: Console) -> None:
    """Prepare the folder, and print the account. Raises ConfigError where something that was given cannot be used; what
    can be known without a download is told before it.

    Args:
        sources: the place of each set by its name: a file, an id of the hub, or `none`. A set that is not named is the
            paper's.
        overwrite: replace prompts that were prepared there.
    """
    if unknown := sorted(sources.keys() - PAPER.keys()):
        raise ConfigError(f"--source {unknown[0]}=...: the sets are {', '.join(PAPER)}")
    places = {name: sources.get(name, paper.place) for name, paper in PAPER.items()}
    sets = [find_set(name, place) for name, place in places.items() if place != "none"]
    if not any(one.name != "aime24" for one in sets):
        raise ConfigError("--source dapo=none and dolci=none: name at least one set to train on")
    check_folder(out, overwrite)
    for one in sets:
        console.print(f"{one.name}: {'reading' if one.file else 'fetching and reading'} {one.given}")
        gather(one)
    train = each_once([one for one in sets if one.name != "aime24"])
    evaluation = each_once([one for one in sets if one.name == "aime24"])
    for one in sets:
        counts = (f"{count:,} {what.replace('_', ' ')}" for what, count in one.account.items())
        console.print(f"{one.name}: {', '.join(counts)}")
    papers = PAPER["dapo"].expected + PAPER["dolci"].expected
    paper = "as in the paper" if len(train) == papers else f"the paper has {papers:,}"
    console.print(f"{len(train):,} training prompts; {paper}, whose sum leaves in what comes again")
    for one in sets:
        for what, out_of in one.left_out.items():
            console.print(f"{one.name}: {out_of['rows']:,} rows left out, from {out_of['first']} on: {what}")
    evaluated = {problem.key for problem in evaluation}
    if leaks := [f"{problem.source} {problem.row}" for problem in train if problem.key in evaluated]:
        console.print(f"warning: {len(leaks)} training prompts are problems of aime24: {', '.join(leaks[:10])}")
    for line in differences(sets):
        console.print(f"not the paper's: {line}")

    prompts = {TRAIN: shuffled(train), EVALUATION: evaluation}
    texts = {name: "".join(map(prompt_line, problems)) for name, problems in prompts.items() if problems}
    texts[MANIFEST] = json.dumps(manifest(sets), ensure_ascii=False, indent=2) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST, *(prompts.keys() - texts.keys())):  # the manifest is there again once all others are
        (out / name).unlink(missing_ok=True)
    for name, text in texts.items():
        write_atomically(out / name, text)
        if name in prompts:
            console.print(f"{out / name}: {len(prompts[name]):,} rows")
    uses = [f"slime.prompt-data={(out / TRAIN).absolute()}"]
    if evaluation:
        uses.append(f"slime.eval-prompt-data=[aime24,{(out / EVALUATION).absolute()}]")
    console.print("use them:", *(f"--set {shlex.quote(setting)}" for setting in uses))


def check_folder(out: Path, overwrite: bool) -> None:
    """Raises ConfigError where `out` is in the way, or cannot be made."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: name a folder with --out")
    if out.is_dir() and (holds := {path.name for path in out.iterdir() if not path.name.endswith(".tmp")}):
        if MANIFEST not in holds and holds - {TRAIN, EVALUATION}:  # without it: of one that broke off
            raise ConfigError(f"{out} is not empty and holds no prepared prompts: name another --out")
        if not overwrite:
            raise ConfigError(f"{out} holds prepared prompts: give --overwrite, or name another --out")
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise ConfigError(f"{out} cannot be written: name another --out")


# ------------------------------------------------------------------------------------------------- rows to problems


def gather(one: PromptSet) -> None:
    """Reads a set row by row; the memory that it takes grows with the number of different texts. Raises ConfigError."""
    account, texts, file = one.account, set[str](), fetch(one)

    @functools.cache
    def read(raw: str) -> tuple[str, str | None, bytes]:
        """Return the problem in a text, what is odd about it, and its key."""
        bare = strip_instruction(raw)
        return bare, odd_text(raw, templated=True), digest(bare)

    for number, problem, label in read_pairs(file):
        account["rows"] += 1
        row = f"{file.name}:{number}"
        raw, answer = problem_text(problem), label_text(label)
        bare, odd, key = read(raw) if raw else ("", "no problem", b"")
        what = odd or (odd_label(answer) if answer else "no label")
        if answer and not what and one.name == "aime24" and not AIME_LABEL.fullmatch(answer):
            what = "a label that is no integer from 0 to 999"
        if answer and not what and len(answer) > LABEL_CHARS:
            what = "a label that is too long for the verifier"
        if bare and answer and not what:
            texts.add(bare)
            one.problems.setdefault(key, Problem(one.name, row, bare, key)).labels[answer] += 1
        else:
            account["unusable"] += 1
            what = what or "no problem beside the instruction"
            one.left_out.setdefault(what, {"rows": 0, "first": row})["rows"] += 1
    if account["rows"] == account["unusable"]:
        odd = max(one.left_out, key=lambda what: one.left_out[what]["rows"], default="no problem")
        what = "no row has both a problem and a label" if account["rows"] else "it has no rows"
        why = f"{what}: {LOOKED_FOR}" if odd in ("no problem", "no label") else f"no row can be used: {odd}"
        raise ConfigError(f"{one.given}: {why}, or name another with --source {one.name}=SET")
    account["texts"] = len(texts)
    account["two_labels"] = sum(len(problem.labels) > 1 for problem in one.problems.values())


def each_once(sets: Sequence[PromptSet]) -> list[Problem]:
    """Return the problems of all sets, each from the first set that has it; it adds to the accounts."""
    chosen: dict[bytes, Problem] = {}
    for one in sets:
        new = {key: problem for key, problem in one.problems.items() if key not in chosen}
        one.account["prompts"] = len(new)
        chosen |= new
    return list(chosen.values())


def differences(sets: Sequence[PromptSet]) -> list[str]:
    """Return in what the sets, one that is left out with them, differ from the paper's counts, a sentence each."""
    counts = {one.name: one.account[PAPER[one.name].what] for one in sets}
    return [
        f"{name} has {counts.get(name, 0):,} {paper.what}, not {paper.expected:,}"
        for name, paper in PAPER.items()
        if counts.get(name, 0) != paper.expected
    ]


def shuffled(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems in an order that follows from the problems alone, whatever copy and order they came in."""
    key = str(SEED).encode()
    return sorted(problems, key=lambda problem: hashlib.blake2b(problem.key, digest_size=16, key=key).digest())


def prompt_line(problem: Problem) -> str:
    """Return a line of slime's --prompt-data. slime tells sources apart by metadata.source_name."""
    row = {
        "prompt": [{"role": "user", "content": instructed(problem.text)}],
        "label": problem.label,
        "metadata": {"source_name": problem.source, "row": problem.row},
    }
    return json.dumps(row, ensure_ascii=False) + "\n"


def manifest(sets: Sequence[PromptSet]) -> dict[str, Any]:
    """Return where the prompts come from. It holds no time: the same input gives the same bytes."""

    def of(one: PromptSet) -> dict[str, Any]:
        file, paper = fetch(one), PAPER[one.name]
        return {
            "name": one.name,
            "given": one.given,
            **(one.hub or {"path": str(file.absolute())}),
            "file": {"name": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)},
            "counts": one.account,
            "paper": {paper.what: paper.expected},
            "left_out": one.left_out,
        }

    return {
        "schema": "sat_slime.prompts/3",
        "sat_slime": sat_slime.__version__,
        "differs_from_paper": differences(sets),
        "sources": [of(one) for one in sets],
    }


# --------------------------------------------------------------------------------------------------- a set and its rows


def find_set(name: str, given: str) -> PromptSet:
    """Return the set that is a file, or under an id of the hub: OWNER/NAME[@REVISION]. Raises ConfigError."""
    path, option = Path(os.path.expanduser(given)), f"--source {name}={given}"
    if path.exists():
        if path.is_dir() or path.suffix not in SUFFIXES:
            raise ConfigError(f"{option}: a set is one {' or '.join(SUFFIXES)} file: name it, or convert it")
        found = PromptSet(name, given, path)
    elif (match := _HUB_ID.fullmatch(given)) and not given.endswith(SUFFIXES):
        _need("huggingface_hub", f"to download {given}")
        found = PromptSet(name, given, hub={"repository": match[1], "revision": match[2] or "main"})
    else:
        raise ConfigError(f"{option}: there is no such file, and it is no id of the hub such as OWNER/NAME")
    if path.suffix != ".jsonl":
        _need("pyarrow", "to read parquet files")
    return found


def fetch(one: PromptSet) -> Path:
    """Return a set's file; downloads one of the hub that its cache does not have. Raises ConfigError."""
    if one.file is None:
        from huggingface_hub import snapshot_download

        repository, revision = one.hub["repository"], one.hub["revision"]
        patterns = [f"*{suffix}" for suffix in SUFFIXES]
        by_hand = f"download it elsewhere with `hf download --repo-type dataset {repository}` and name its file"
        # Only data is downloaded: no script of a repository reaches this machine.
        wanted: dict[str, Any] = {"repo_type": "dataset", "revision": revision, "allow_patterns": patterns}
        try:
            folder = Path(snapshot_download(repository, **wanted))
        except Exception as error:  # the hub's own errors, and those of whichever HTTP library it uses
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            told = f"{one.given} is not here and did not come from the hub ({type(error).__name__}: {reason})"
            raise ConfigError(f"{told}; {by_hand}") from error
        files = sorted(file for suffix in SUFFIXES for file in folder.rglob(f"*{suffix}"))
        if len(files) != 1:
            names = ", ".join(str(file.relative_to(folder)) for file in files) or "none"
            raise ConfigError(f"{one.given} has not one {' or '.join(SUFFIXES)} file but {names}; {by_hand}")
        one.file, one.hub["commit"] = files[0], folder.name  # the folder is named after the commit
    return one.file


def _need(module: str, purpose: str) -> None:
    if importlib.util.find_spec(module) is None:
        install = "pip install '.[data]' in a checkout"
        raise ConfigError(f"{module} is not installed, which is needed {purpose}: {install}")


def read_pairs(path: Path) -> Iterator[tuple[int, Any, Any]]:
    """Yield the number from 1, the problem and the label of each row as they stand there, None where a row has none.
    Raises ConfigError."""
    try:
        if what := odd_file(path):
            raise ConfigError(f"{path}: {what}")
        yield from _parquet_pairs(path) if path.suffix == ".parquet" else _jsonl_pairs(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _jsonl_pairs(path: Path) -> Iterator[tuple[int, Any, Any]]:
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ConfigError(f"{path}: line {number} is not a JSON object")
                problem, label = find_columns(tuple(row))
                yield number, row.get(problem), row.get(label)
    except ConfigError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 after line {number}") from error
    except (ValueError, RecursionError) as error:  # also of an integer of 4,300 digits
        raise ConfigError(f"{path}: line {number} is not JSON") from error


def _parquet_pairs(path: Path) -> Iterator[tuple[int, Any, Any]]:
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
        problem, label = find_columns(tuple(file.schema_arrow.names))
        if problem is None or label is None:
            raise ConfigError(f"{path}: its columns are {', '.join(file.schema_arrow.names)}: {LOOKED_FOR}")
        batches = file.iter_batches(batch_size=_BATCH, columns=[problem, label])
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            yield number, row[problem], row[label]
    except (OSError, ArrowException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from error


@functools.lru_cache(maxsize=64)
def find_columns(names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the columns of the problem and of the label, in any letter case; None where there is none."""
    by_name = {name.lower(): name for name in names}
    problem = next((by_name[name] for name in PROBLEM_COLUMNS if name in by_name), None)
    return problem, next((by_name[name] for name in LABEL_COLUMNS if name in by_name), None)


def problem_text(value: Any) -> str | None:
    """Return the problem in a value: a text, or the user's only message; None where it is neither."""
    if isinstance(value, list):
        said = [one.get("content") for one in value if isinstance(one, dict) and one.get("role") == "user"]
        value = said[0] if len(said) == 1 else None
    return value if isinstance(value, str) and value.strip() else None


def label_text(value: Any) -> str | None:
    r"""Return the label in a value, as text, out of `reward_model`, a list of one, or \boxed; None for none."""
    if isinstance(value, dict):
        value = value.get("ground_truth")
    value = list_in_text(value)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return unboxed(str(value)).strip() or None
