"""`sat-slime data prepare`: the prompts of a run from public data sets, each problem once, with one instruction, each
label verified against itself, and an account of every row that is left out."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

import sat_slime
from sat_slime.config.checksums import sha256
from sat_slime.prompts import PromptError
from sat_slime.prompts.odd import odd_label, odd_text
from sat_slime.prompts.sets import (
    Files,
    fetch,
    find_columns,
    find_source,
    label_text,
    missing_columns,
    problem_text,
    read_jsonl,
    read_pairs,
)
from sat_slime.prompts.text import Problems, digest, fill, find_template, normalize, strip_instruction
from sat_slime.reward import KILLED, Limits, Verdict, VerifierPool

MANIFEST, TRAIN, EVALUATION, DOUBTS = "manifest.json", "train.jsonl", "aime24.jsonl", "doubts.jsonl"
NO_SET = "none"
SEED = 1234
"""Seed of the order."""
PACKAGES = ("huggingface-hub", "pyarrow", "math-verify")
MAX_WORKERS = 8
MAX_NOTED = 1000
"""Rows of a source without problem or label that are noted one by one; all are counted."""
Repeated = Literal["keep", "drop"]
Count = Literal["rows", "texts", "problems"]


@dataclass(frozen=True)
class DataSet:
    """One of the sets that a run's prompts come from."""

    name: str
    default: str
    """Its place on the hub or on disk; with a revision where the one of the paper's time is known."""
    counted: Count
    """The column of the account that the paper counted."""
    expected: int
    """The paper's count."""


DAPO = DataSet("dapo", "BytedTsinghua-SIA/DAPO-Math-17k@65877096c24ffa7abc4e4fa5edb95cf3413a5674", "texts", 17_398)
DOLCI = DataSet("dolci", "allenai/Dolci-RL-Zero-Math-7B", "rows", 13_314)
AIME24 = DataSet("aime24", "BytedTsinghua-SIA/AIME-2024@aa49075e24ad594b79fdf0bdcefa735c2181be67", "problems", 30)
PAPER_PROMPTS = DAPO.expected + DOLCI.expected


@dataclass
class Text:
    """A problem in a set's words."""

    problem: str
    key: bytes
    """A digest that is equal for the same problem in other words; see `normalize`."""
    row: str
    """The first row that has it, FILE:NUMBER."""
    labels: Counter[str] = field(default_factory=Counter)
    """The number of rows with each label."""


@dataclass(frozen=True)
class Problem:
    """A problem that becomes a prompt."""

    source: str
    row: str
    problem: str
    label: str
    key: bytes


@dataclass(frozen=True)
class Doubt:
    """Something that may be wrong with a row."""

    source: str
    row: str
    what: str
    label: str | None
    problem: str | None
    kept: bool


@dataclass
class Account:
    """An account of what became of a set's rows."""

    name: str
    rows: int = 0
    unusable: int = 0
    """Rows without a problem or a label, or with odd ones."""
    instructed: int = 0
    """Rows with an instruction around the problem, which was taken off."""
    texts: int = 0
    """Different texts, without the instruction."""
    problems: int = 0
    """Different problems."""
    elsewhere: int = 0
    """Problems among these that an earlier set has too."""
    two_labels: int = 0
    """Problems that have several labels, which are not one answer."""
    bad_labels: int = 0
    """Prompts, before any is dropped, whose label the verifier cannot read or does not reward."""
    prompts: int = 0


@dataclass
class Gathered:
    """A set that was read."""

    data_set: DataSet
    files: Files
    account: Account
    texts: list[Text]
    doubts: list[Doubt]


def prepare(
    out: Path,
    sources: Mapping[str, str],
    template: str,
    repeated: Repeated,
    overwrite: bool,
    console: Console,
    pool: VerifierPool | None = None,
) -> None:
    """Prepare the folder, and print the account.

    Args:
        sources: the place of each set by its name: a path, an id of the hub, or `none`. A set that is not named is the
            paper's.
        template: as in find_template.
        repeated: as in `choose`.
        overwrite: replace prompts that were prepared there.
        pool: of verifiers; default: one of its own.

    Raises:
        PromptError: something that was given cannot be used. What can be known without a download is told before it.
    """
    wording = find_template(template)
    check_out(out, overwrite)
    if importlib.util.find_spec("math_verify") is None:
        raise PromptError(
            "math-verify is not installed, which labels are verified with: pip install '.[reward]' in a checkout"
        )
    given = {data_set.name: sources.get(data_set.name, data_set.default) for data_set in (DAPO, DOLCI, AIME24)}
    sets = [data_set for data_set in (DAPO, DOLCI, AIME24) if given[data_set.name] != NO_SET]
    if not {DAPO, DOLCI} & set(sets):
        raise PromptError("--dapo and --dolci are both none: name at least one set to train on")
    found = {data_set.name: find_source(given[data_set.name]) for data_set in sets}

    gathered = []
    for data_set in sets:
        source = found[data_set.name]
        console.print(f"{data_set.name}: {'reading' if source.path else 'fetching and reading'} {source.given}")
        gathered.append(gather(data_set, fetch(source)))
    train_sets = [gathered_set for gathered_set in gathered if gathered_set.data_set is not AIME24]
    eval_sets = [gathered_set for gathered_set in gathered if gathered_set.data_set is AIME24]
    console.print("labels: each is verified against itself")
    with contextlib.nullcontext(pool) if pool else new_pool() as verifiers:
        train = choose(train_sets, repeated, verifiers)
        evaluation = integer_labels(choose(eval_sets, "drop", verifiers))
    leaks = in_evaluation(train, evaluation)

    console.print(_account_table(gathered), soft_wrap=False)
    for line in _summary(train_sets, train, repeated):
        console.print(line)
    if leaks:
        console.print(f"warning: {len(leaks)} training prompts are, or nearly are, problems of aime24: see {DOUBTS}")
    different = differences(gathered)
    for line in different:
        console.print(f"not the paper's: {line}")

    doubts = [*(doubt for gathered_set in gathered for doubt in gathered_set.doubts), *leaks]
    with staged(out) as stage:
        written = {
            name: write_jsonl(stage / name, (prompt_row(problem, wording) for problem in problems))
            for name, problems in ((TRAIN, shuffled(train)), (EVALUATION, evaluation))
            if problems
        }
        written[DOUBTS] = write_jsonl(stage / DOUBTS, map(dataclasses.asdict, doubts))
        settings = {"template": wording, "repeated": repeated}
        write_json(stage / MANIFEST, manifest(gathered, settings, different, written))
    for name, file in written.items():
        console.print(f"{out / name}: {file.rows:,} rows")
    uses = [f"data.prompts={(out / TRAIN).absolute()}"]
    if EVALUATION in written:
        uses.append(f"eval.prompts.aime24={(out / EVALUATION).absolute()}")
    console.print("use them:", *(f"--set {setting}" for setting in uses))


# ------------------------------------------------------------------------------------------------- rows to problems


def gather(data_set: DataSet, files: Files) -> Gathered:
    """Reads a set row by row; the memory that it takes grows with the number of different texts. Raises PromptError."""
    account = Account(data_set.name)
    doubts: list[Doubt] = []
    by_raw: dict[bytes, tuple[Text | None, bool]] = {}
    by_text: dict[str, Text] = {}
    for path in files.paths:
        name = files.name(path)
        for number, problem, label in read_pairs(path):
            account.rows += 1
            raw, answer = problem_text(problem), label_text(label)
            text = None
            odd = (raw and odd_text(raw, templated=True)) or odd_label(answer)
            if raw is not None and answer is not None and not odd:
                if (known := by_raw.get(raw_digest := digest(raw))) is None:
                    stripped, instructed = strip_instruction(raw)
                    if stripped:
                        text = by_text.get(stripped)
                        if text is None:
                            text = by_text[stripped] = Text(stripped, digest(normalize(stripped)), f"{name}:{number}")
                    known = by_raw[raw_digest] = (text, instructed)
                text = known[0]
                account.instructed += known[1]
            if text is None or answer is None:
                account.unusable += 1
                if account.unusable <= MAX_NOTED:
                    lacking = ["no problem"] * (raw is None) + ["no label"] * (answer is None)
                    what = odd or ", ".join(lacking) or "no problem beside the instruction"
                    shown = raw and raw.encode("utf-8", "backslashreplace").decode()
                    doubts.append(Doubt(data_set.name, f"{name}:{number}", what, answer, shown, False))
            else:
                text.labels[answer] += 1
    if account.rows == 0:
        raise PromptError(f"{files.source.given} has no rows: name another with --{data_set.name}")
    if account.unusable == account.rows:
        raise PromptError(f"{files.source.given}: {_no_row(files)}")
    account.texts = len(by_text)
    return Gathered(data_set, files, account, list(by_text.values()), doubts)


def _no_row(files: Files) -> str:
    first: Any = next((row for _, row in read_jsonl(files.paths[0])), {}) if files.paths[0].suffix == ".jsonl" else {}
    if isinstance(first, dict) and None in find_columns(tuple(first)):
        return missing_columns(first)
    return "no row has both a problem and a label: name another set"


def choose(gathered: Sequence[Gathered], repeated: Repeated, pool: VerifierPool) -> list[Problem]:
    """Return the problems of all sets, in their order, each with the label that most of its rows have.

    It adds to the accounts and the doubts of `gathered`; what is doubtful is kept.

    Args:
        repeated: `drop` takes each problem once, from the first set that has it. `keep` takes what the paper's numbers
            count: each text of DAPO-Math-17k, each row of Dolci.
    """
    label_of: dict[bytes, str] = {}
    chosen: list[Problem] = []
    for gathered_set in gathered:
        worded: dict[bytes, list[Text]] = {}
        for text in gathered_set.texts:
            worded.setdefault(text.key, []).append(text)
        gathered_set.account.problems = len(worded)
        for key, texts in worded.items():
            label, others = _labels(texts)
            elsewhere = key in label_of
            gathered_set.account.elsewhere += elsewhere
            others += [label_of[key]] if elsewhere else []
            if rivals := [other for other in dict.fromkeys(others) if not same_answer(other, label, pool)]:
                gathered_set.account.two_labels += 1
                what = f"other labels too: {', '.join(map(repr, rivals))}"
                gathered_set.doubts.append(
                    Doubt(gathered_set.data_set.name, texts[0].row, what, label, texts[0].problem, True)
                )
            if not elsewhere or repeated == "keep":
                chosen += _problems(gathered_set.data_set, texts, repeated)
        label_of = {key: _labels(texts)[0] for key, texts in worded.items()} | label_of
    faults = label_faults((problem.label for problem in chosen), pool)
    accounts = {gathered_set.data_set.name: gathered_set for gathered_set in gathered}
    for problem in chosen:
        gathered_set = accounts[problem.source]
        gathered_set.account.prompts += 1
        if fault := faults.get(problem.label):
            gathered_set.account.bad_labels += 1
            gathered_set.doubts.append(Doubt(problem.source, problem.row, fault, problem.label, problem.problem, True))
    return chosen


def differences(gathered: Sequence[Gathered]) -> list[str]:
    """Return in what the sets differ from those that the paper counted, a sentence each."""
    sets = [(gathered_set.data_set, gathered_set.account) for gathered_set in gathered]
    return [
        f"{data_set.name} has {count:,} {data_set.counted}, not {data_set.expected:,}"
        for data_set, account in sets
        if (count := getattr(account, data_set.counted)) != data_set.expected
    ]


def integer_labels(problems: Iterable[Problem]) -> list[Problem]:
    """Return AIME's problems with labels that have no leading zeros: a model writes 25, and strings are compared.

    Raises PromptError where a label is no integer from 0 to 999.
    """
    relabelled = []
    for problem in problems:
        if not re.fullmatch(r"[0-9]{1,3}", problem.label):
            raise PromptError(
                f"{problem.row} has the label {problem.label!r}, and AIME's are integers from 0 to 999: name another "
                "set with --aime24"
            )
        relabelled.append(dataclasses.replace(problem, label=str(int(problem.label))))
    return relabelled


def shuffled(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems in an order that follows from the problems alone, whatever copy and order they came in."""
    key = str(SEED).encode()
    return sorted(problems, key=lambda problem: hashlib.blake2b(problem.key, digest_size=16, key=key).digest())


def prompt_row(problem: Problem, template: str) -> dict[str, Any]:
    """Return a line of slime's --prompt-data. slime tells sources apart by metadata.source_name."""
    return {
        "prompt": [{"role": "user", "content": fill(template, problem.problem)}],
        "label": problem.label,
        "metadata": {"source_name": problem.source, "row": problem.row},
    }


def in_evaluation(train: Sequence[Problem], evaluation: Sequence[Problem]) -> list[Doubt]:
    """Return the training problems that are, or nearly are, problems of the evaluation."""
    doubts = []
    problems = Problems((number, problem.problem) for number, problem in enumerate(evaluation))
    for problem in train:
        if (overlap := problems.overlap(problem.problem)) is not None:
            theirs = evaluation[overlap.of]
            what = "is" if overlap.same else f"holds {overlap.share:.0%} of"
            what = f"{what} {theirs.source}'s {theirs.row}"
            doubts.append(Doubt(problem.source, problem.row, what, problem.label, problem.problem, True))
    return doubts


def _labels(texts: Sequence[Text]) -> tuple[str, list[str]]:
    """Return the label that most rows have, or the first of several such; and the others."""
    labels: Counter[str] = Counter()
    for text in texts:
        labels.update(text.labels)
    (label, _), *others = labels.most_common()
    return label, [other for other, _ in others]


def _problems(data_set: DataSet, texts: Sequence[Text], repeated: Repeated) -> Iterator[Problem]:
    if repeated == "drop":
        yield Problem(data_set.name, texts[0].row, texts[0].problem, _labels(texts)[0], texts[0].key)
        return
    for text in texts:
        labels = text.labels.elements() if data_set.counted == "rows" else [_labels([text])[0]]
        yield from (Problem(data_set.name, text.row, text.problem, label, text.key) for label in labels)


# ----------------------------------------------------------------------------------------------------------- labels

_OTHER_ANSWER = r"\boxed{-7919}"
"""An answer that is compared with each label, so that the verifier has to read the label."""
_UNREAD = {
    "undefined_label": "it has no value, such as 1/0: no answer is equal to it",
    "unparsed_label": "the verifier cannot read it, and compares it as text",
    "unevaluated": "a sum, product, integral, limit or derivative, which is compared as text",
    "too_large": "larger than what the verifier works out",
} | {reason: f"the verifier is ended over it ({reason})" for reason in KILLED}


def new_pool() -> VerifierPool:
    """Return a pool of verifiers: of half as many processes as cores, as in a run, and at most MAX_WORKERS."""
    return VerifierPool(max(1, min(MAX_WORKERS, (os.cpu_count() or 2) // 2)), Limits())


def own_answer(label: str) -> str:
    """Return a response whose answer is the label."""
    return f"Answer: \\boxed{{{label}}}"


def label_faults(labels: Iterable[str], pool: VerifierPool) -> dict[str, str]:
    """Return what is wrong with labels, by label: not rewarded as their own answer by prime_math, or not read by it:
    a run never rewards such a prompt."""
    faults: dict[str, str] = {}
    waiting: list[tuple[str, Future[Verdict], Future[Verdict]]] = []
    for label in dict.fromkeys(labels):
        if len(label) > pool.limits.label_chars:
            faults[label] = f"{len(label)} characters, above the verifier's {pool.limits.label_chars}"
            continue
        waiting.append((label, pool.submit(own_answer(label), label, "prime_math"), pool.submit(_OTHER_ANSWER, label)))
    for label, own, other in waiting:
        if other.result().reason == "undefined_label":
            faults[label] = _UNREAD["undefined_label"]
        elif not own.result().reward:
            faults[label] = f"not rewarded as its own answer by prime_math ({own.result().reason})"
        elif (reason := other.result().reason) in _UNREAD:
            faults[label] = _UNREAD[reason]
    return faults


def same_answer(first: str, second: str, pool: VerifierPool) -> bool:
    """Return whether two labels are the same answer."""
    limit = pool.limits.label_chars
    return first == second or (
        max(len(first), len(second)) <= limit and bool(pool.verify(own_answer(first), second).reward)
    )


# ------------------------------------------------------------------------------------------------------- the folder


def check_out(out: Path, overwrite: bool) -> None:
    """Raises PromptError where `out` is in the way, or cannot be made."""
    if out.exists() and not out.is_dir():
        raise PromptError(f"{out} is a file: name a folder with --out")
    if out.is_dir() and any(out.iterdir()):
        if not (out / MANIFEST).is_file():
            raise PromptError(f"{out} is not empty and holds no prepared prompts: name another --out")
        if not overwrite:
            raise PromptError(f"{out} holds prepared prompts: give --overwrite, or name another --out")
    parent = out.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not os.access(out if out.is_dir() else parent, os.W_OK | os.X_OK):
        raise PromptError(f"{out} cannot be written: name another --out")


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Yield a folder to write into, which becomes `out` at the end, or after an error is gone.

    Files of an earlier `out` are replaced one by one; meanwhile it has no manifest.
    """
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    try:
        yield stage
        stage.chmod(0o777 & ~_umask())
        if out.is_dir():
            with contextlib.suppress(FileNotFoundError):
                (out / MANIFEST).unlink()
            for file in sorted(stage.iterdir(), key=lambda file: file.name == MANIFEST):
                os.replace(file, out / file.name)
        else:
            os.rename(stage, out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@dataclass(frozen=True)
class Written:
    """A file of the folder."""

    rows: int
    bytes: int
    sha256: str


def write_jsonl(path: Path, rows: Iterable[Any]) -> Written:
    """Writes one JSON value a line; all are on the disk when this returns."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
        _flush(file)
    return Written(count, path.stat().st_size, sha256(path))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file that people can read; it is on the disk when this returns."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        _flush(file)


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def manifest(
    gathered: Sequence[Gathered], settings: Mapping[str, Any], different: Sequence[str], written: Mapping[str, Written]
) -> dict[str, Any]:
    """Return the manifest of a folder. It holds no time: the same input gives the same bytes.

    Args:
        different: in what the sets differ from the paper's.
    """
    versions = {"sat-slime": sat_slime.__version__, "python": platform.python_version()}
    return {
        "schema": "sat_slime.prompts/1",
        "versions": versions | {package: _version(package) for package in PACKAGES},
        "settings": dict(settings),
        "differs_from_paper": list(different),
        "sources": [_source(gathered_set) for gathered_set in gathered],
        "files": {name: dataclasses.asdict(file) for name, file in written.items()},
    }


def _source(gathered_set: Gathered) -> dict[str, Any]:
    files, source = gathered_set.files, gathered_set.files.source
    hub = {"repository": source.repository, "revision": source.revision, "commit": files.commit}
    return {
        "name": gathered_set.data_set.name,
        "given": source.given,
        **({"path": str(source.path.absolute())} if source.path else hub),
        "files": [
            {"name": files.name(path), "bytes": path.stat().st_size, "sha256": sha256(path)} for path in files.paths
        ],
        "counts": {name: count for name, count in dataclasses.asdict(gathered_set.account).items() if name != "name"},
        "paper": {gathered_set.data_set.counted: gathered_set.data_set.expected},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------------------------------------------ what is said


def _account_table(gathered: list[Gathered]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for gathered_set in gathered:
        table.add_column(gathered_set.data_set.name, justify="right")
    headings = {
        "rows": "rows",
        "unusable": "  not usable",
        "instructed": "  instruction taken off",
        "texts": "texts",
        "problems": "problems",
        "elsewhere": "  in a set before",
        "two_labels": "  several labels",
        "bad_labels": "  bad label",
        "prompts": "prompts",
    }
    for name, heading in headings.items():
        cells = []
        for gathered_set in gathered:
            count, expected = getattr(gathered_set.account, name), gathered_set.data_set.expected
            paper = (
                "" if gathered_set.data_set.counted != name else " = paper" if count == expected else f" ≠ {expected:,}"
            )
            cells.append(f"{count:,}{paper}")
        table.add_row(heading, *cells)
    return table


def _summary(gathered: list[Gathered], train: list[Problem], repeated: Repeated) -> list[str]:
    """Return how many prompts there are, and where the rest of the paper's went."""
    parts = []
    if repeated == "drop":
        for gathered_set in gathered:
            account, counted = gathered_set.account, gathered_set.data_set.counted
            if again := getattr(account, counted) - account.unusable * (counted == "rows") - account.problems:
                parts.append(f"{again:,} {counted} of {account.name} repeat a problem of it")
            if account.elsewhere:
                parts.append(f"{account.elsewhere:,} problems of {account.name} are in a set before")
    if repeated == "drop" and parts:
        parts.append("--repeated keep leaves them in, as the paper's sum does")
    paper = "as in the paper" if len(train) == PAPER_PROMPTS else f"the paper has {PAPER_PROMPTS:,}"
    return [f"{len(train):,} training prompts; {paper}", *(f"  {part}" for part in parts)]
