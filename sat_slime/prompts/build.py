"""Makes prompts of data sets: each problem once, one instruction, and an account of every row that is left out."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sat_slime.prompts import PromptError
from sat_slime.prompts.labels import label_faults, same_answer
from sat_slime.prompts.locations import Files
from sat_slime.prompts.odd import odd_label, odd_text
from sat_slime.prompts.overlap import Problems
from sat_slime.prompts.set_rows import (
    find_columns,
    label_text,
    missing_columns,
    problem_text,
    read_jsonl,
    read_pairs,
)
from sat_slime.prompts.text import digest, fill, normalize, strip_instruction
from sat_slime.prompts.tokenizer import ChatTokenizer
from sat_slime.reward import Mode, VerifierPool

Choice = Literal["keep", "drop"]
CHOICES: tuple[Choice, ...] = ("keep", "drop")
Count = Literal["rows", "texts", "problems"]
MAX_NOTED = 1000
"""Rows of a source without problem or label that are noted one by one; all are counted."""


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


def choose(
    gathered: Sequence[Gathered], repeated: Choice, bad_labels: Choice, mode: Mode, pool: VerifierPool
) -> list[Problem]:
    """Return the problems of all sets, in their order, each with the label that most of its rows have.

    It adds to the accounts and the doubts of `gathered`.

    Args:
        repeated: `drop` takes each problem once, from the first set that has it. `keep` takes what the paper's numbers
            count: each text of DAPO-Math-17k, each row of Dolci.
        bad_labels: whether to keep a problem that has several labels, or one that the verifier cannot read or does not
            reward in `mode`.
    """
    label_of: dict[bytes, str] = {}
    doubtful: set[bytes] = set()
    chosen: list[Problem] = []
    kept = bad_labels == "keep"
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
                doubtful.add(key)
                what = f"other labels too: {', '.join(map(repr, rivals))}"
                gathered_set.doubts.append(
                    Doubt(gathered_set.data_set.name, texts[0].row, what, label, texts[0].problem, kept)
                )
            if not elsewhere or repeated == "keep":
                chosen += _problems(gathered_set.data_set, texts, repeated)
        label_of = {key: _labels(texts)[0] for key, texts in worded.items()} | label_of
    faults = label_faults((problem.label for problem in chosen), mode, pool)
    accounts = {gathered_set.data_set.name: gathered_set for gathered_set in gathered}
    sound = []
    for problem in chosen:
        gathered_set = accounts[problem.source]
        if fault := faults.get(problem.label):
            gathered_set.account.bad_labels += 1
            gathered_set.doubts.append(Doubt(problem.source, problem.row, fault, problem.label, problem.problem, kept))
        if kept or not (fault or problem.key in doubtful):
            gathered_set.account.prompts += 1
            sound.append(problem)
    return sound


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


def shuffled(problems: Iterable[Problem], seed: int) -> list[Problem]:
    """Return the problems in an order that follows from the seed and the problems, whatever copy and order they came
    in."""
    key = str(seed).encode()
    return sorted(problems, key=lambda problem: hashlib.blake2b(problem.key, digest_size=16, key=key).digest())


def prompt_row(problem: Problem, template: str, tokenizer: ChatTokenizer | None) -> dict[str, Any]:
    """Return a line of slime's --prompt-data. The prompt is a list of messages, or with a tokenizer the text of its
    chat template. slime tells sources apart by metadata.source_name."""
    messages = [{"role": "user", "content": fill(template, problem.problem)}]
    return {
        "prompt": messages if tokenizer is None else tokenizer.chat(messages),
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


def _problems(data_set: DataSet, texts: Sequence[Text], repeated: Choice) -> Iterator[Problem]:
    if repeated == "drop":
        yield Problem(data_set.name, texts[0].row, texts[0].problem, _labels(texts)[0], texts[0].key)
        return
    for text in texts:
        labels = text.labels.elements() if data_set.counted == "rows" else [_labels([text])[0]]
        yield from (Problem(data_set.name, text.row, text.problem, label, text.key) for label in labels)
