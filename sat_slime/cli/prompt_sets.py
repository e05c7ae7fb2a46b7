"""Prompts for a run of slime: prepared from public data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from sat_slime.config import ConfigError
from sat_slime.prompts import PromptError
from sat_slime.prompts import build as building
from sat_slime.prompts.build import AIME24, CHOICES, DAPO, DOLCI, PAPER_PROMPTS, Choice, Gathered, Problem
from sat_slime.prompts.labels import need_verifier, new_pool
from sat_slime.prompts.locations import fetch, find_source
from sat_slime.prompts.output import MANIFEST, Written, check_out, manifest, staged, write_json, write_jsonl
from sat_slime.prompts.text import find_template
from sat_slime.prompts.tokenizer import ChatTokenizer
from sat_slime.reward import MODES

TRAIN, EVALUATION, DOUBTS = "train.jsonl", "aime24.jsonl", "doubts.jsonl"
NO_SET = "none"
Value = TypeVar("Value", bound=str)


@dataclass(frozen=True)
class Preparation:
    """The options of `data prepare`."""

    out: Path
    sources: dict[str, str]
    """The place of each set: a path, an id of the hub, or `none`. A set that is not named is the paper's."""
    template: str
    chat_template: str | None
    repeated: str
    bad_labels: str
    verifier: str
    seed: int
    workers: int | None
    allow_counts: bool
    overwrite: bool


def prepare(options: Preparation, console: Console) -> bool:
    """Prepare the folder, and return whether it was written. Raises ConfigError."""
    try:
        return _prepare(options, console)
    except PromptError as error:
        raise ConfigError([str(error)]) from error


def _prepare(options: Preparation, console: Console) -> bool:
    # All that can be wrong without a download comes before the first.
    repeated = _one_of(CHOICES, "repeated", options.repeated)
    bad_labels = _one_of(CHOICES, "bad-labels", options.bad_labels)
    mode = _one_of(MODES, "verifier", options.verifier)
    template = find_template(options.template)
    check_out(options.out, options.overwrite)
    need_verifier()
    given = {data_set.name: options.sources.get(data_set.name, data_set.default) for data_set in (DAPO, DOLCI, AIME24)}
    sets = [data_set for data_set in (DAPO, DOLCI, AIME24) if given[data_set.name] != NO_SET]
    if not {DAPO, DOLCI} & set(sets):
        raise PromptError("--dapo and --dolci are both none: name at least one set to train on")
    sources = {data_set.name: find_source(given[data_set.name]) for data_set in sets}
    tokenizer = ChatTokenizer(options.chat_template) if options.chat_template else None

    gathered = []
    for data_set in sets:
        source = sources[data_set.name]
        console.print(f"{data_set.name}: {'reading' if source.path else 'fetching and reading'} {source.given}")
        gathered.append(building.gather(data_set, fetch(source)))
    train_sets = [gathered_set for gathered_set in gathered if gathered_set.data_set is not AIME24]
    eval_sets = [gathered_set for gathered_set in gathered if gathered_set.data_set is AIME24]
    console.print("labels: each is verified against itself")
    with new_pool(options.workers) as pool:
        train = building.choose(train_sets, repeated, bad_labels, mode, pool)
        evaluation = building.integer_labels(building.choose(eval_sets, "drop", "keep", mode, pool))
    if not train:
        raise PromptError("no training prompt is left: give --bad-labels keep, or name other sets")
    leaks = building.in_evaluation(train, evaluation)

    console.print(_account_table(gathered), soft_wrap=False)
    for line in _summary(train_sets, train, repeated, bad_labels):
        console.print(line)
    if leaks:
        console.print(f"warning: {len(leaks)} training prompts are, or nearly are, problems of aime24: see {DOUBTS}")
    different = building.differences(gathered)
    for line in different:
        console.print(f"not the paper's: {line}")
    if different and not options.allow_counts:
        console.print("nothing is written: name the paper's sets, or give --allow-counts")
        return False

    doubts = [*(doubt for gathered_set in gathered for doubt in gathered_set.doubts), *leaks]
    shuffled = building.shuffled(train, options.seed)
    with staged(options.out) as stage:
        written = {
            name: write_jsonl(stage / name, (building.prompt_row(problem, template, tokenizer) for problem in problems))
            for name, problems in ((TRAIN, shuffled), (EVALUATION, evaluation))
            if problems
        }
        written[DOUBTS] = write_jsonl(stage / DOUBTS, map(dataclasses.asdict, doubts))
        settings = {
            "template": template,
            "chat_template": tokenizer and {"tokenizer": tokenizer.given, "text": tokenizer.chat_template},
            "repeated": repeated,
            "bad_labels": bad_labels,
            "verifier": mode,
            "seed": options.seed,
        }
        write_json(stage / MANIFEST, manifest(gathered, settings, different, written))
    _say_written(options.out, written, tokenizer, console)
    return True


def _one_of(values: Sequence[Value], option: str, given: str) -> Value:
    for value in values:
        if given == value:
            return value
    raise PromptError(f"--{option} is {given!r}: it has to be one of {', '.join(values)}")


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


def _summary(gathered: list[Gathered], train: list[Problem], repeated: Choice, bad_labels: Choice) -> list[str]:
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
    if bad_labels == "drop" and (
        dropped := sum(gathered_set.account.bad_labels + gathered_set.account.two_labels for gathered_set in gathered)
    ):
        parts.append(f"up to {dropped:,} are dropped for their labels")
    paper = "as in the paper" if len(train) == PAPER_PROMPTS else f"the paper has {PAPER_PROMPTS:,}"
    return [f"{len(train):,} training prompts; {paper}", *(f"  {part}" for part in parts)]


def _say_written(out: Path, written: dict[str, Written], tokenizer: ChatTokenizer | None, console: Console) -> None:
    for name, file in written.items():
        console.print(f"{out / name}: {file.rows:,} rows")
    settings = [f"data.prompts={(out / TRAIN).absolute()}"]
    if EVALUATION in written:
        settings.append(f"eval.prompts.aime24={(out / EVALUATION).absolute()}")
    if tokenizer is not None:
        settings.append("data.chat_template=false")
    console.print("use them:", *(f"--set {setting}" for setting in settings))
