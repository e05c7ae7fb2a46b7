"""`sat-slime data prepare`: the prompts of a run from public data sets, each problem once, with slime's instruction,
and an account of the rows that are left out."""

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
from sat_slime.prompts.text import digest, instructed, normalize, odd_label, odd_text, strip_instruction

MANIFEST, TRAIN, EVALUATION = "manifest.json", "train.jsonl", "aime24.jsonl"
NO_SET = "none"
SEED = 1234
"""Seed of the order."""


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
        """The label that most rows have, or the first of several such."""
        return self.labels.most_common(1)[0][0]


COUNTS = ("rows", "unusable", "texts", "two_labels", "prompts")
"""What became of a set's rows. unusable: without a problem or a label, or with odd ones. texts: different ones, without
the instruction. two_labels: problems of several labels, of which that of most rows is taken."""


@dataclass
class Gathered:
    """A set that was read."""

    data_set: DataSet
    source: Source
    problems: dict[bytes, Problem] = field(default_factory=dict)
    account: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is wrong with unusable rows: how many `rows` have it, and the `first` of them."""


def prepare(out: Path, sources: Mapping[str, str], overwrite: bool, console: Console) -> None:
    """Prepare the folder, and print the account.

    Args:
        sources: the place of each set by its name: a path, an id of the hub, or `none`. A set that is not named is the
            paper's.
        overwrite: replace prompts that were prepared there.

    Raises:
        PromptError: something that was given cannot be used. What can be known without a download is told before it.
    """
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
    train = each_once([one for one in gathered if one.data_set is not AIME24])
    evaluation = integer_labels(each_once([one for one in gathered if one.data_set is AIME24]))

    console.print(_account_table(gathered), soft_wrap=False)
    paper = "as in the paper" if len(train) == PAPER_PROMPTS else f"the paper has {PAPER_PROMPTS:,}"
    console.print(f"{len(train):,} training prompts; {paper}, whose sum leaves in what comes again")
    for one in gathered:
        for what, out_of in one.left_out.items():
            console.print(f"{one.data_set.name}: {out_of['rows']:,} rows left out, from {out_of['first']} on: {what}")
    if leaks := in_evaluation(train, evaluation):
        console.print(f"warning: {len(leaks)} training prompts are problems of aime24: {', '.join(leaks[:10])}")
    for line in differences(gathered):
        console.print(f"not the paper's: {line}")

    prompts = {TRAIN: shuffled(train), EVALUATION: evaluation}
    texts = {name: "".join(map(prompt_line, problems)) for name, problems in prompts.items() if problems}
    texts[MANIFEST] = json.dumps(manifest(gathered), ensure_ascii=False, indent=2) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)  # it is there again once all others are
    for name in prompts.keys() - texts.keys():
        (out / name).unlink(missing_ok=True)
    for name, text in texts.items():
        write_atomically(out / name, text)
        if name in prompts:
            console.print(f"{out / name}: {len(prompts[name]):,} rows")
    uses = [f"slime.prompt-data={(out / TRAIN).absolute()}"]
    if evaluation:
        uses.append(f"slime.eval-prompt-data=[aime24,{(out / EVALUATION).absolute()}]")
    console.print("use them:", *(f"--set {shlex.quote(setting)}" for setting in uses))


# ------------------------------------------------------------------------------------------------- rows to problems


def gather(data_set: DataSet, source: Source) -> Gathered:
    """Reads a set row by row; the memory that it takes grows with the number of different texts. Raises PromptError."""
    found, texts = Gathered(data_set, source), set[str]()
    account = found.account

    @functools.cache
    def read(raw: str) -> tuple[str, str | None, bytes]:
        """Return the problem in a text, what is odd about it, and its key."""
        bare = strip_instruction(raw)
        return bare, odd_text(raw, templated=True), digest(normalize(bare))

    for path in source.files:
        for number, problem, label in read_pairs(path):
            account["rows"] += 1
            row = f"{source.name(path)}:{number}"
            raw, answer = problem_text(problem), label_text(label)
            bare, odd, key = read(raw) if raw else ("", "no problem", b"")
            what = odd or (odd_label(answer) if answer else "no label")
            if bare and answer and not what:
                texts.add(bare)
                found.problems.setdefault(key, Problem(data_set.name, row, bare, key)).labels[answer] += 1
            else:
                account["unusable"] += 1
                what = what or "no problem beside the instruction"
                found.left_out.setdefault(what, {"rows": 0, "first": row})["rows"] += 1
    if account["rows"] == account["unusable"]:
        what = "no row has both a problem and a label" if account["rows"] else "it has no rows"
        raise PromptError(f"{source.given}: {what}: {LOOKED_FOR}, or name another with --source {data_set.name}=SET")
    account["texts"] = len(texts)
    account["two_labels"] = sum(len(problem.labels) > 1 for problem in found.problems.values())
    return found


def each_once(gathered: Sequence[Gathered]) -> list[Problem]:
    """Return the problems of all sets, each from the first set that has it; it adds to the accounts."""
    chosen: dict[bytes, Problem] = {}
    for one in gathered:
        new = {key: problem for key, problem in one.problems.items() if key not in chosen}
        one.account["prompts"] = len(new)
        chosen |= new
    return list(chosen.values())


def differences(gathered: Sequence[Gathered]) -> list[str]:
    """Return in what the sets differ from those that the paper counted, a sentence each."""
    counts = ((one.data_set, one.account[one.data_set.counted]) for one in gathered)
    return [
        f"{data_set.name} has {count:,} {data_set.counted}, not {data_set.expected:,}"
        for data_set, count in counts
        if count != data_set.expected
    ]


def integer_labels(problems: Sequence[Problem]) -> list[Problem]:
    """Return AIME's problems with labels that have no leading zeros: a model writes 25, and strings are compared.

    Raises PromptError where a label is no integer from 0 to 999.
    """
    for problem in problems:
        if not re.fullmatch(r"[0-9]{1,3}", problem.label):
            raise PromptError(
                f"{problem.row} has the label {problem.label!r}, and AIME's are integers from 0 to 999: name another "
                "set with --source aime24=SET"
            )
        problem.labels = Counter([str(int(problem.label))])
    return list(problems)


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


def in_evaluation(train: Sequence[Problem], evaluation: Sequence[Problem]) -> list[str]:
    """Return the rows of training problems that are problems of the evaluation, perhaps in other words."""
    keys = {problem.key for problem in evaluation}
    return [f"{problem.source} {problem.row}" for problem in train if problem.key in keys]


# ------------------------------------------------------------------------------------------------------- the folder


def check_folder(out: Path, overwrite: bool) -> None:
    """Raises PromptError where `out` is in the way, or cannot be made."""
    if out.exists() and not out.is_dir():
        raise PromptError(f"{out} is a file: name a folder with --out")
    if out.is_dir() and (holds := {path.name for path in out.iterdir()}):
        if MANIFEST not in holds and holds - {TRAIN, EVALUATION}:  # without it: of one that broke off
            raise PromptError(f"{out} is not empty and holds no prepared prompts: name another --out")
        if not overwrite:
            raise PromptError(f"{out} holds prepared prompts: give --overwrite, or name another --out")
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise PromptError(f"{out} cannot be written: name another --out")


def manifest(gathered: Sequence[Gathered]) -> dict[str, Any]:
    """Return where the prompts come from. It holds no time: the same input gives the same bytes."""

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
            "left_out": one.left_out,
        }

    return {
        "schema": "sat_slime.prompts/2",
        "sat_slime": sat_slime.__version__,
        "differs_from_paper": differences(gathered),
        "sources": [of(one) for one in gathered],
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
