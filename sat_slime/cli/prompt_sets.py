"""Prompts for a run of slime: prepared from public data sets, and checked."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sat_slime.config import ConfigError
from sat_slime.prompts import PromptError
from sat_slime.prompts import build as building
from sat_slime.prompts import check as checking
from sat_slime.prompts.build import AIME24, CHOICES, DAPO, DOLCI, PAPER_PROMPTS, Choice, Gathered, Problem
from sat_slime.prompts.labels import need_verifier, new_pool
from sat_slime.prompts.locations import fetch, find_source
from sat_slime.prompts.manifest import manifest
from sat_slime.prompts.output import MANIFEST, Written, check_out, staged, write_json, write_jsonl
from sat_slime.prompts.text import find_template
from sat_slime.prompts.tokenizer import ChatTokenizer
from sat_slime.reward import MODES, Mode

TRAIN, EVALUATION, DOUBTS = "train.jsonl", "aime24.jsonl", "doubts.jsonl"
NO_SET = "none"
SHOWN = 5
"""Rows of a kind that are shown one by one unless all are asked for."""


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


def prepare(asked: Preparation, console: Console) -> bool:
    """Prepare the folder, and return whether it was written. Raises ConfigError."""
    try:
        return _prepare(asked, console)
    except PromptError as error:
        raise ConfigError([str(error)]) from error


def _prepare(asked: Preparation, console: Console) -> bool:
    # All that can be wrong without a download comes before the first.
    repeated, bad_labels = _choice("repeated", asked.repeated), _choice("bad-labels", asked.bad_labels)
    mode = _mode(asked.verifier)
    template = find_template(asked.template)
    check_out(asked.out, asked.overwrite)
    need_verifier()
    given = {one.name: asked.sources.get(one.name, one.default) for one in (DAPO, DOLCI, AIME24)}
    sets = [one for one in (DAPO, DOLCI, AIME24) if given[one.name] != NO_SET]
    if not {DAPO, DOLCI} & set(sets):
        raise PromptError("--dapo and --dolci are both none: name at least one set to train on")
    sources = {one.name: find_source(given[one.name]) for one in sets}
    tokenizer = ChatTokenizer(asked.chat_template) if asked.chat_template else None

    gathered = []
    for one in sets:
        source = sources[one.name]
        console.print(f"{one.name}: {'reading' if source.path else 'fetching and reading'} {source.given}")
        gathered.append(building.gather(one, fetch(source)))
    train_sets = [one for one in gathered if one.data_set is not AIME24]
    eval_sets = [one for one in gathered if one.data_set is AIME24]
    console.print("labels: each is verified against itself")
    with new_pool(asked.workers) as pool:
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
    if different and not asked.allow_counts:
        console.print("nothing is written: name the paper's sets, or give --allow-counts")
        return False

    doubts = [*(doubt for one in gathered for doubt in one.doubts), *leaks]
    shuffled = building.shuffled(train, asked.seed)
    with staged(asked.out) as stage:
        written = {
            name: write_jsonl(stage / name, (building.prompt_row(one, template, tokenizer) for one in problems))
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
            "seed": asked.seed,
        }
        write_json(stage / MANIFEST, manifest(gathered, settings, different, written))
    _say_written(asked.out, written, tokenizer, console)
    return True


def _choice(option: str, given: str) -> Choice:
    for choice in CHOICES:
        if given == choice:
            return choice
    raise PromptError(f"--{option} is {given!r}: it has to be one of {', '.join(CHOICES)}")


def _mode(given: str) -> Mode:
    for mode in MODES:
        if given == mode:
            return mode
    raise PromptError(f"--verifier is {given!r}: it has to be one of {', '.join(MODES)}")


def _account_table(gathered: list[Gathered]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for one in gathered:
        table.add_column(one.data_set.name, justify="right")
    headings = {
        "rows": "rows",
        "unusable": "  no problem or label",
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
        for one in gathered:
            count, expected = getattr(one.account, name), one.data_set.expected
            paper = "" if one.data_set.counted != name else " = paper" if count == expected else f" ≠ {expected:,}"
            cells.append(f"{count:,}{paper}")
        table.add_row(heading, *cells)
    return table


def _summary(gathered: list[Gathered], train: list[Problem], repeated: Choice, bad_labels: Choice) -> list[str]:
    """Return how many prompts there are, and where the rest of the paper's went."""
    parts = []
    if repeated == "drop":
        for one in gathered:
            account, counted = one.account, one.data_set.counted
            if again := getattr(account, counted) - account.unusable * (counted == "rows") - account.problems:
                parts.append(f"{again:,} {counted} of {account.name} repeat a problem of it")
            if account.elsewhere:
                parts.append(f"{account.elsewhere:,} problems of {account.name} are in a set before")
    if repeated == "drop" and parts:
        parts.append("--repeated keep leaves them in, as the paper's sum does")
    if bad_labels == "drop" and (dropped := sum(one.account.bad_labels + one.account.two_labels for one in gathered)):
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


# ----------------------------------------------------------------------------------------------------- checking


@dataclass(frozen=True)
class Inspection:
    """The options of `data check`."""

    file: Path
    evaluation: Path | None
    tokenizer: str | None
    max_tokens: int | None
    input_key: str
    label_key: str
    verifier: str
    workers: int | None


def check(asked: Inspection) -> checking.Found:
    """Everything wrong with a file. Raises ConfigError."""
    if (asked.tokenizer is None) != (asked.max_tokens is None):
        raise ConfigError(["--tokenizer and --max-tokens go together: give both, or none"])
    try:
        need_verifier()
        tokenizer = ChatTokenizer(asked.tokenizer) if asked.tokenizer else None
        settings = checking.Settings(
            asked.input_key, asked.label_key, _mode(asked.verifier), tokenizer, asked.max_tokens
        )
        with new_pool(asked.workers) as pool:
            return checking.check_file(asked.file, settings, pool, asked.evaluation)
    except PromptError as error:
        raise ConfigError([str(error)]) from error


def show(found: checking.Found, show_all: bool, as_json: bool, console: Console) -> None:
    """Print the table, or a line of JSON per fault."""
    if as_json:
        for fault in found.faults:
            print(json.dumps(checking.as_dict(fault), ensure_ascii=False))
        return
    counts = Counter(fault.kind for fault in found.faults)
    if found.faults:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("found", no_wrap=True)
        table.add_column("rows", justify="right", no_wrap=True)
        table.add_column("row", justify="right", no_wrap=True)
        table.add_column("", overflow="fold")
        for kind, faults in itertools.groupby(found.faults, lambda fault: fault.kind):
            table.add_row(kind, f"{counts[kind]:,}", "", checking.KINDS[kind])
            for fault in itertools.islice(faults, None if show_all else SHOWN):
                table.add_row("", "", str(fault.row), Text(fault.detail))
        console.print(table)
    rows = len({fault.row for fault in found.faults})
    more = "" if show_all or max(counts.values(), default=0) <= SHOWN else "; --all shows every one"
    console.print(f"{found.rows:,} rows, {rows:,} with something found{more}")
