"""`sat-slime data prepare`: the prompts of a run from public data sets, each problem once, with one instruction, and
an account of every row that is left out."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

import sat_slime
from sat_slime.config.checksums import sha256
from sat_slime.config.jsonl import write_atomically
from sat_slime.prompts import PromptError
from sat_slime.prompts.sets import LOOKED_FOR, Source, fetch, find_source, label_text, problem_text, read_pairs
from sat_slime.prompts.text import digest, fill, find_template, normalize, odd_label, odd_text, strip_instruction

MANIFEST, TRAIN, EVALUATION, DOUBTS = "manifest.json", "train.jsonl", "aime24.jsonl", "doubts.jsonl"
NO_SET = "none"
SEED = 1234
"""Seed of the order."""
MAX_NOTED = 1000
"""Rows of a source without problem or label that are noted one by one; all are counted."""
Repeated = Literal["keep", "drop"]


class DataSet(NamedTuple):
    """One of the sets that a run's prompts come from."""

    name: str
    default: str
    """Its place on the hub or on disk; with a revision where the one of the paper's time is known."""
    counted: Literal["rows", "texts"]
    """The column of the account that the paper counted."""
    expected: int
    """The paper's count."""


DAPO = DataSet("dapo", "BytedTsinghua-SIA/DAPO-Math-17k@65877096c24ffa7abc4e4fa5edb95cf3413a5674", "texts", 17_398)
DOLCI = DataSet("dolci", "allenai/Dolci-RL-Zero-Math-7B", "rows", 13_314)
AIME24 = DataSet("aime24", "BytedTsinghua-SIA/AIME-2024@aa49075e24ad594b79fdf0bdcefa735c2181be67", "texts", 30)
PAPER_PROMPTS = DAPO.expected + DOLCI.expected


class Problem(NamedTuple):
    """A problem in a set's words; with a label, one that becomes a prompt."""

    source: str
    row: str
    """The first row that has it, FILE:NUMBER."""
    problem: str
    key: bytes
    """A digest that is equal for the same problem in other words; see `normalize`."""
    label: str = ""


def doubt(problem: Problem, what: str) -> dict[str, Any]:
    """Return a line of DOUBTS: something that may be wrong with a prompt."""
    of, row, text, label = problem.source, problem.row, problem.problem, problem.label
    return {"source": of, "row": row, "what": what, "label": label, "problem": text, "kept": True}


COUNTS = ("rows", "unusable", "texts", "two_labels", "prompts")
"""What became of a set's rows. unusable: without a problem or a label, or with odd ones. texts: different ones, without
the instruction. two_labels: problems of several labels."""


@dataclass
class Gathered:
    """A set that was read."""

    data_set: DataSet
    source: Source
    texts: dict[Problem, Counter[str]] = field(default_factory=dict)
    """The number of rows with each label, by the text."""
    account: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    doubts: list[dict[str, Any]] = field(default_factory=list)


def prepare(
    out: Path, sources: Mapping[str, str], template: str, repeated: Repeated, overwrite: bool, console: Console
) -> None:
    """Prepare the folder, and print the account.

    Args:
        sources: the place of each set by its name: a path, an id of the hub, or `none`. A set that is not named is the
            paper's.
        template: as in find_template.
        repeated: as in `choose`.
        overwrite: replace prompts that were prepared there.

    Raises:
        PromptError: something that was given cannot be used. What can be known without a download is told before it.
    """
    wording = find_template(template)
    sets = [data_set for data_set in (DAPO, DOLCI, AIME24) if sources.get(data_set.name) != NO_SET]
    if unknown := sorted({*sources} - {DAPO.name, DOLCI.name, AIME24.name}):
        raise PromptError(f"--source {unknown[0]}=...: the sets are {DAPO.name}, {DOLCI.name} and {AIME24.name}")
    if not {DAPO, DOLCI} & {*sets}:
        raise PromptError("--source dapo=none and dolci=none: name at least one set to train on")
    found = [(data_set, find_source(sources.get(data_set.name, data_set.default))) for data_set in sets]
    check_folder(out, overwrite)
    gathered = []
    for data_set, source in found:
        console.print(f"{data_set.name}: {'reading' if source.path else 'fetching and reading'} {source.given}")
        gathered.append(gather(data_set, fetch(source)))
    train = choose([one for one in gathered if one.data_set is not AIME24], repeated)
    evaluation = integer_labels(choose([one for one in gathered if one.data_set is AIME24], "drop"))
    leaks = in_evaluation(train, evaluation)

    console.print(_account_table(gathered), soft_wrap=False)
    paper = "as in the paper" if len(train) == PAPER_PROMPTS else f"the paper has {PAPER_PROMPTS:,}"
    again = "; --repeated keep leaves in what comes again, as the paper's sum does" * (repeated == "drop")
    console.print(f"{len(train):,} training prompts; {paper}{again}")
    if leaks:
        console.print(f"warning: {len(leaks)} training prompts are problems of aime24: see {DOUBTS}")
    for line in differences(gathered):
        console.print(f"not the paper's: {line}")

    prompts = {TRAIN: shuffled(train), EVALUATION: evaluation}
    files = {name: [prompt_row(p, wording) for p in problems] for name, problems in prompts.items() if problems}
    files[DOUBTS] = [*(line for one in gathered for line in one.doubts), *leaks]
    texts = {name: jsonl(rows) for name, rows in files.items()}
    settings = {"template": wording, "repeated": repeated}
    texts[MANIFEST] = json.dumps(manifest(gathered, settings, texts), ensure_ascii=False, indent=2) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)  # it is there again once all others are
    for name, text in texts.items():
        write_atomically(out / name, text)
    for name, rows in files.items():
        console.print(f"{out / name}: {len(rows):,} rows")
    uses = [f"slime.prompt-data={(out / TRAIN).absolute()}"]
    if EVALUATION in files:
        uses.append(f"slime.eval-prompt-data=[aime24,{(out / EVALUATION).absolute()}]")
    console.print("use them:", *(f"--set {shlex.quote(setting)}" for setting in uses))


# ------------------------------------------------------------------------------------------------- rows to problems


def gather(data_set: DataSet, source: Source) -> Gathered:
    """Reads a set row by row; the memory that it takes grows with the number of different texts. Raises PromptError."""
    found = Gathered(data_set, source)
    account, texts = found.account, dict[str, Problem]()

    @functools.cache
    def read(raw: str) -> tuple[str, str | None]:
        """Return the problem in a text, and what is odd about it."""
        return strip_instruction(raw), odd_text(raw, templated=True)

    for path in source.files:
        for number, problem, label in read_pairs(path):
            account["rows"] += 1
            row = f"{source.name(path)}:{number}"
            raw, answer = problem_text(problem), label_text(label)
            bare, odd = read(raw) if raw else ("", "no problem")
            what = odd or (odd_label(answer) if answer else "no label")
            if bare and answer and not what:
                text = texts.setdefault(bare, Problem(data_set.name, row, bare, digest(normalize(bare))))
                found.texts.setdefault(text, Counter())[answer] += 1
                continue
            account["unusable"] += 1
            if account["unusable"] <= MAX_NOTED:
                shown = raw and raw.encode("utf-8", "backslashreplace").decode()
                noted = {"source": data_set.name, "row": row, "what": what or "no problem beside the instruction"}
                found.doubts.append(noted | {"label": answer, "problem": shown, "kept": False})
    if account["rows"] == account["unusable"]:
        what = "no row has both a problem and a label" if account["rows"] else "it has no rows"
        raise PromptError(f"{source.given}: {what}: {LOOKED_FOR}, or name another with --source {data_set.name}=SET")
    account["texts"] = len(texts)
    return found


def choose(gathered: Sequence[Gathered], repeated: Repeated) -> list[Problem]:
    """Return the problems of all sets, in their order, each with the label that most of its rows have.

    It adds to the accounts and the doubts of `gathered`; what is doubtful is kept.

    Args:
        repeated: `drop` takes each problem once, from the first set that has it. `keep` takes what the paper's numbers
            count: each text of DAPO-Math-17k, each row of Dolci.
    """
    label_of: dict[bytes, str] = {}
    chosen: list[Problem] = []
    for one in gathered:
        worded: dict[bytes, list[Problem]] = {}
        for text in one.texts:
            worded.setdefault(text.key, []).append(text)
        for key, texts in worded.items():
            # first the label that most rows have, or the first of several such
            label, *others = (
                label for label, _ in sum((one.texts[text] for text in texts), Counter[str]()).most_common()
            )
            earlier = label_of.get(key)
            label_of.setdefault(key, label)
            others += [] if earlier in (None, label) else [earlier]
            if rivals := dict.fromkeys(others):
                one.account["two_labels"] += 1
                what = f"other labels too: {', '.join(map(repr, rivals))}"
                one.doubts.append(doubt(texts[0]._replace(label=label), what))
            if repeated == "drop":
                chosen += [texts[0]._replace(label=label)] if earlier is None else []
                continue
            for text in texts:
                labels = one.texts[text]
                of_rows = labels.elements() if one.data_set.counted == "rows" else [labels.most_common(1)[0][0]]
                chosen += (text._replace(label=label) for label in of_rows)
    for one in gathered:
        one.account["prompts"] = sum(problem.source == one.data_set.name for problem in chosen)
    return chosen


def differences(gathered: Sequence[Gathered]) -> list[str]:
    """Return in what the sets differ from those that the paper counted, a sentence each."""
    counts = ((one.data_set, one.account[one.data_set.counted]) for one in gathered)
    return [
        f"{data_set.name} has {count:,} {data_set.counted}, not {data_set.expected:,}"
        for data_set, count in counts
        if count != data_set.expected
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
                "set with --source aime24=SET"
            )
        relabelled.append(problem._replace(label=str(int(problem.label))))
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


def in_evaluation(train: Sequence[Problem], evaluation: Sequence[Problem]) -> list[dict[str, Any]]:
    """Return the training problems that are problems of the evaluation, perhaps in other words: see `normalize`."""
    same = {problem.key: problem for problem in evaluation}
    return [doubt(one, f"is {same[one.key].source}'s {same[one.key].row}") for one in train if one.key in same]


# ------------------------------------------------------------------------------------------------------- the folder


def check_folder(out: Path, overwrite: bool) -> None:
    """Raises PromptError where `out` is in the way, or cannot be made."""
    if out.exists() and not out.is_dir():
        raise PromptError(f"{out} is a file: name a folder with --out")
    if out.is_dir() and (holds := {path.name for path in out.iterdir()}):
        if MANIFEST not in holds and holds - {TRAIN, EVALUATION, DOUBTS}:  # without it: of one that broke off
            raise PromptError(f"{out} is not empty and holds no prepared prompts: name another --out")
        if not overwrite:
            raise PromptError(f"{out} holds prepared prompts: give --overwrite, or name another --out")
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise PromptError(f"{out} cannot be written: name another --out")


def jsonl(rows: Iterable[Any]) -> str:
    """Return one JSON value a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def manifest(gathered: Sequence[Gathered], settings: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the manifest of a folder with these texts by file. It holds no time: the same input gives the same
    bytes."""

    def of(one: Gathered) -> dict[str, Any]:
        source = one.source
        hub = {"repository": source.repository, "revision": source.revision, "commit": source.commit}
        return {
            "name": one.data_set.name,
            "given": source.given,
            **({"path": str(source.path.absolute())} if source.path else hub),
            "files": [{"name": source.name(f), "bytes": f.stat().st_size, "sha256": sha256(f)} for f in source.files],
            "counts": one.account,
            "paper": {one.data_set.counted: one.data_set.expected},
        }

    contents = {name: text.encode() for name, text in sorted(texts.items())}
    return {
        "schema": "sat_slime.prompts/1",
        "sat_slime": sat_slime.__version__,
        "settings": dict(settings),
        "differs_from_paper": differences(gathered),
        "sources": [of(one) for one in gathered],
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
        },
    }


def _account_table(gathered: list[Gathered]) -> Table:
    table = Table("", box=None, pad_edge=False, header_style="bold")
    for one in gathered:
        table.add_column(one.data_set.name, justify="right")
    for name in COUNTS:
        cells = []
        for one in gathered:
            count, expected = one.account[name], one.data_set.expected
            paper = " = paper" if count == expected else f" ≠ {expected:,}"
            cells.append(f"{count:,}{paper if one.data_set.counted == name else ''}")
        table.add_row(name.replace("_", " "), *cells)
    return table
