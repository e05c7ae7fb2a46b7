"""The report of several runs or of a grid, the paper's numbers beside them where asked for: one page, and figures and
tables beside it as files."""

from __future__ import annotations

import html
import itertools
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from sat_slime.grid.plan import Cell
from sat_slime.grid.state import GridFolder
from sat_slime.report import histogram
from sat_slime.report.averages import finite_mean, smooth, window_of
from sat_slime.report.compared_runs import Collection, ComparedRun, collect, differing_settings
from sat_slime.report.drawing import (
    Drawing,
    Panel,
    Plot,
    Table,
    column_of,
    grid_of,
    in_colour,
    joined,
    layered,
    lines,
    log_axis,
    markers,
    pointed,
    rows,
    steps_axis,
    tip,
)
from sat_slime.report.looks import BLACK, BLUE, CROSS, GREEN, ORANGE, VERMILION, Look, apart
from sat_slime.report.method_names import (
    OWN_COLOURS,
    PAPER_ORDER,
    has,
    key_to,
    label_of,
    looks_of,
    method_called,
    own_colours,
)
from sat_slime.report.number_text import DASH, count_of, decimals, minus
from sat_slime.report.page import Figure, Heading, Page, Sheet, Strong, check_out, listed
from sat_slime.report.panels import axis_of
from sat_slime.report.paper_numbers import (
    ANSWERS_PER_EVALUATION,
    BASE_MODEL_SCORE,
    LAGS,
    PAPER_LABEL,
    SOURCE,
    PaperCell,
)
from sat_slime.report.stats import (
    AGAINST_BASE,
    AGAINST_BASELINES,
    LEVEL,
    TEST,
    Comparison,
    Contrast,
    Difference,
    Estimate,
    Summary,
    paper_contrasts,
    score_curve,
)
from sat_slime.runs import collapse
from sat_slime.runs.collapse import KL_RISE, MISMATCH_CEILING, MISMATCH_RISE, first_departure
from sat_slime.runs.folder import RunFolderError, writable
from sat_slime.runs.reading import section


def write_comparison(paths: Sequence[str | Path], out: str | Path | None = None, paper: bool = False) -> Path:
    """Write report.html, figures/ and tables/ about `paths`; returns the page.

    out: folder to write to. Default: the grid itself where a single one is given, else `report`. paper: whether the
    paper's numbers stand beside those of the runs.

    Raises:
        RunFolderError: a path without runs, or a folder of something else.
    """
    folder = _folder(paths, out)
    collection = collect(paths)
    if not collection.runs and not collection.planned:
        raise RunFolderError(f"{paths[0]} holds no run yet: there is nothing to report")
    comparison = Comparison(collection, paper)
    with writable(folder):
        return _write_page(comparison, paths, folder)


def _folder(paths: Sequence[str | Path], out: str | Path | None) -> Path:
    if out is None and len(paths) == 1 and GridFolder(paths[0]).is_grid():
        return Path(paths[0])
    folder = Path(out) if out is not None else Path("report")
    check_out(folder)
    return folder


def _write_page(comparison: Comparison, paths: Sequence[str | Path], folder: Path) -> Path:
    command = "sat-slime report " + shlex.join(map(str, paths))
    if len(paths) > 1 or folder != Path(paths[0]):
        command += f" --out {shlex.quote(str(folder))}"
    if comparison.paper:
        command += " --paper"
    page = Page(folder)
    rules = _rules(command, f"<p>Paper: {html.escape(SOURCE)}.</p>" if comparison.paper else "")
    subtitle, summary = fill(page, comparison, rules)
    name = Path(paths[0]).resolve().name
    others = [Path(path).resolve().name for path in paths[1:]]
    title = " · ".join([name, *others]) if len(others) < 3 else f"{name} and {len(others)} more"
    return page.write("report.html", title=title, subtitle=subtitle, summary=summary)


def _rules(command: str, more: str = "") -> str:
    """Return the HTML of what is tested and by which rules. more: HTML."""
    test, rule = f"Differences: {TEST}.", str(collapse.__doc__).strip().replace("**", "")
    again = f"<p>This page again: <code>{html.escape(command)}</code></p>"
    return f"<p>{html.escape(test)}</p><pre>{html.escape(rule)}</pre>{more}{again}"


def fill(page: Page, comparison: Comparison, rules: str) -> tuple[str, Iterator[str]]:
    """Put the report's tables and figures on the page; returns its subtitle and its summary. rules: HTML of what is
    tested and how."""
    ours = ours_label(comparison.collection)
    every = {figure.name: figure for figure in figures(comparison)}
    few = len(comparison.collection.runs) <= OVERLAID
    if first := every.pop("overview" if few else "scores", None):  # a chart before the tables
        page.figure(first)
    for lag in comparison.collection.lags:
        page.sheet(main_table(comparison, lag, ours, explain=lag == comparison.collection.lags[0]))
    contrasts = paper_contrasts(comparison)
    if (differences := paper_table(contrasts)) is not None:
        page.sheet(differences)
    for figure in every.values():
        if figure.name != "overview":
            page.figure(figure)
        if figure.name == "tail":
            for sheet in filter(None, (lag_table(comparison.collection), gate_table(comparison.collection))):
                page.sheet(sheet)
    page.section("limits", "What the figures do not show", f"<ul>{listed(limits(comparison))}</ul>")
    page.section("rules", "Rules and tests", rules)
    page.sheet(run_table(comparison))
    return f"{ours}{'; beside them: paper, 30B, one seed' * comparison.paper}", summary(comparison, contrasts)


def figures(comparison: Comparison) -> Iterator[Figure]:
    """List all figures, which are drawn when asked for."""
    collection = comparison.collection
    few = len(collection.runs) <= OVERLAID
    key = "Each method has its own colour, the same in every figure." if few else key_to(collection.methods)
    yield Figure(
        "overview",
        "The runs over each other",
        "Step by step, without averages; accuracy by the updates of the weights that were measured.",
        partial(draw_overview, comparison),
    )
    paper = "Left the paper, right ours, each with an axis of its own. " if comparison.paper else ""
    yield Figure(
        "scores",
        "Best scores with their intervals",
        f"{paper}Bars: 95 % interval over seeds (Student's t); small dots: the seeds. A cross marks a collapse.",
        partial(draw_scores, comparison),
    )
    yield Figure(
        "drift",
        "d_pi over training",
        f"Mean over seeds, smoothed over whole lag cycles. {key}",
        partial(draw_drift, comparison),
    )
    yield Figure(
        "accuracy",
        "Held-out accuracy over training",
        f"Mean over seeds; the band goes from the lowest seed to the highest. By the updates of the weights that were "
        f"measured, not by when. {key}",
        partial(draw_learning, comparison, "accuracy"),
    )
    yield Figure(
        "reward",
        "Training reward over training",
        f"As above, averaged over whole lag cycles; under lag the weights that earned it are older. {key}",
        partial(draw_learning, comparison, "reward/mean"),
    )
    for lag in collection.lags:
        yield Figure(
            f"sat_{lag_name(lag).replace(' ', '_')}",
            f"What SAT does over training, {lag_name(lag)}",
            "Mean over seeds, band from the lowest to the highest. Newly clipped tokens are the only ones that make "
            "a run differ from its base. Strongest contraction: the smallest factor of a step.",
            partial(draw_sat, comparison, lag),
        )
    yield Figure(
        "tail",
        "Tail of |d| by realized lag",
        "d = log π − log μ of single tokens: the share of them above a value, from the histograms of all runs at the "
        "highest lag. The realized lag is that of the batch, and cycles from 1 to the configured one.",
        partial(draw_tail, collection),
    )


# ------------------------------------------------------------------------------------------------------------- in words


def _get(config: dict[str, Any], part: str, key: str) -> Any:
    return section(config, part).get(key, "?")


def seeds_text(collection: Collection) -> str:
    """Return how many seeds a cell has: `3 seeds`, `1 to 3 seeds`."""
    counts = {len(collection.of(method, lag)) for method in collection.methods for lag in collection.lags} - {0}
    if not counts:
        return "no whole run"
    least, most = min(counts), max(counts)
    return count_of(most, "seed") if least == most else f"{least} to {most} seeds"


def ours_label(collection: Collection) -> str:
    """Return how our numbers are marked beside the paper's."""
    kinds = {_kind(run) for run in collection.runs}
    kind = kinds.pop() if len(kinds) == 1 else "several models"
    return f"ours, {kind}, {seeds_text(collection)}"


def _kind(run: ComparedRun) -> str:
    if run.config.get("runtime") == "lab":
        return "lab model"
    if run.config.get("runtime") == "slime":
        return f"slime, {str(_get(run.config, 'model', 'hf_checkpoint')).rstrip('/').rsplit('/', 1)[-1]}"
    return "model not stated"


def summary(comparison: Comparison, contrasts: Sequence[Contrast]) -> Iterator[str]:
    """Say which runs there are and what they show, a sentence each; every number in it is in a table too."""
    collection = comparison.collection
    yield from _lag_cost(contrasts)
    for methods in collection.by_task.values():
        best = [found for lag in collection.lags for found in _best_at(comparison, methods, lag)]
        if len(best) > NAMED_LAGS:
            yield f"Highest late accuracy: {'; '.join(f'{at} {what} ({rest})' for at, what, rest in best)}."
        else:
            yield from (f"Highest late accuracy at {at}: {what}; {rest}." for at, what, rest in best)
    for group in (AGAINST_BASE, AGAINST_BASELINES):
        yield from _told_apart([contrast for contrast in contrasts if contrast.group == group], group)
    whole = sum(run.counts for run in collection.runs)
    parts = [f"{count_of(whole, 'whole run')} of {count_of(len(collection.run_methods), 'method')}"]
    damaged = sum(bool(run.faults) for run in collection.runs)
    not_whole = f"not whole{f' ({damaged} with rows missing, doubled or misplaced)' if damaged else ''}"
    for count, what in ((len(collection.runs) - whole, not_whole), (len(collection.not_run), "planned and not run")):
        parts += [f"{count} {what}"] if count else []
    yield f"{', '.join(parts)}. Compared: {seeds_text(collection)} a cell."
    collapsed = [run for run in collection.runs if run.collapse.met]
    judged = [run for run in collection.runs if run.collapse.newest is not None]
    if judged:
        names = f": {'; '.join(run.where for run in collapsed)}" if collapsed else ""
        yield f"The collapse rule marks {len(collapsed)} of {len(judged)} runs with enough scores to tell{names}."


def _best_at(comparison: Comparison, methods: Sequence[str], lag: int | None) -> Iterator[tuple[str, str, str]]:
    """Yield the lag, its most accurate method with the mean, and how many others are within noise of it."""
    from_best = comparison.against_best(methods, lag, "late")
    if not from_best:
        return
    best = next(method for method, difference in from_best.items() if difference.n == 0 and difference.mean == 0)
    clear = sum(difference.verdict == "beyond noise" for difference in from_best.values())
    tested = sum(difference.n > 1 for difference in from_best.values())
    mean = comparison.summary(best, lag).late.mean
    few = " that share two seeds with it" * (tested < len(from_best) - 1)
    rest = f"{tested - clear} of {tested} others{few} within noise" if tested else "one common seed: no test"
    yield lag_name(lag), f"{label_of(best)} {mean:.1%}", rest


NAMED_LAGS = 3
"""Lags that have a sentence each, at most."""


def _lag_cost(contrasts: Sequence[Contrast]) -> Iterator[str]:
    """Say what the largest lag costs each method in accuracy, and what SAT changes there."""
    groups: dict[str, list[str]] = {}
    for contrast in contrasts:
        late = contrast["late"]
        if contrast.group.startswith("lag ") and late.n:
            verdict = f", {late.verdict}" if late.n > 1 else ""
            groups.setdefault(contrast.group, []).append(
                f"{contrast.label} {minus(f'{100 * late.mean:+.1f}')}{verdict}"
            )
    for group, texts in groups.items():
        if len(texts) <= NAMED_COSTS:
            yield f"{group[0].upper()}{group[1:]}, points of late accuracy: {'; '.join(texts)}."
    against_base = [
        contrast
        for contrast in contrasts
        if contrast.group == AGAINST_BASE and contrast["late"].n == 1 and " − " in contrast.label
    ]
    if against_base and len(against_base) <= NAMED_COSTS:
        for contrast in against_base:
            points = minus(f"{100 * contrast['late'].mean:+.1f}")
            yield f"{contrast.label} at lag {contrast.where}: {points} points of late accuracy, one seed."


NAMED_COSTS = 4
"""Differences that a sentence names, at most."""


def _told_apart(contrasts: list[Contrast], group: str) -> Iterator[str]:
    tested = [contrast for contrast in contrasts if contrast["late"].n > 1]
    if not tested:
        return
    parts = []
    for name, sign, unit in (("late", 1, "late accuracy"), ("d_pi", -1, "d_pi")):
        differences = [contrast[name] for contrast in tested]
        clear = [difference for difference in differences if difference.verdict == "beyond noise"]
        better = sum(sign * difference.mean > 0 for difference in clear)
        noise = len(tested) - len(clear)
        leads = sum(difference.verdict == "lead" for difference in differences)
        but = f" ({leads} of them leads)" if leads else ""
        parts.append(f"{unit}: {better} better, {len(clear) - better} worse, {noise} not told from noise{but}")
    yield f"{group}, {len(tested)} comparisons: {'; '.join(parts)}."


def limits(comparison: Comparison) -> Iterator[str]:
    """Say what a reader must not take from the figures, a sentence or two each."""
    collection = comparison.collection
    yield from _experiment(collection, comparison.paper)
    yield from _seeds(comparison)
    yield (
        "The best score is the highest of many noisy evaluations, which lifts it, and lifts it more the noisier they "
        "are; the late accuracy is not picked."
    )
    if comparison.paper:
        yield (
            f"A single evaluation of the paper has {ANSWERS_PER_EVALUATION} answers to 30 problems: a standard error "
            "of about 2 points. Its d_pi is of the last epoch, ours of the last quarter of the steps; its collapse "
            "mark is its authors' judgement, ours the rule below. docs/reproduction.md lists what the paper leaves "
            "open and what was chosen."
        )
    if len(datasets := sorted({name for run in collection.runs for name in run.datasets})) > 1:
        yield f"Evaluated data sets: {', '.join(datasets)}. The score of a run is that of the first one it evaluated."
    if len(tasks := collection.tasks) > 1:
        yield (
            f"The runs are of different tasks, {' and '.join(tasks)}; methods without one in their names are on "
            f"{collection.task}. An accuracy on one says nothing about an accuracy on another, so only methods on the "
            "same task can be compared."
        )
    differing = differing_settings(collection.runs)
    for key, values in differing.items():
        counts = ", ".join(f"{value} ({count} runs)" for value, count in values.items())
        yield f"Not the same in all runs, beside method, lag and seed: {key}: {counts}."
    if not differing and any(run.config for run in collection.runs):
        yield "Apart from method, lag and seed all runs have the same settings: no method's were tuned for it."
    yield from _not_run(collection, comparison.paper)


def _experiment(collection: Collection, beside_paper: bool) -> Iterator[str]:
    configs = [run.config for run in collection.runs if run.config]
    if not configs:
        yield "The runs come without their settings: model, task and budget are not known here."
        return
    config = configs[0]
    budget = (
        f"{_get(config, 'pipeline', 'iterations')} iterations of {_get(config, 'rollout', 'prompts_per_iteration')} "
        f"prompts x {_get(config, 'rollout', 'samples_per_prompt')} samples, "
        f"learning rate {_get(config, 'train', 'lr')}"
    )
    paper = "; the paper: Qwen3-30B-A3B-Base, mathematics, 544 iterations of 256 x 16, learning rate 1e-6"
    paper = paper if beside_paper else ""
    if config.get("runtime") == "lab":
        experts, tasks = _get(config, "model", "experts"), " and ".join(collection.tasks)
        family = _get(config, "model", "family") or ("Qwen3-MoE" if experts else "dense Qwen3")
        model = (
            f"a {family} of {_get(config, 'model', 'layers')} layers, width {_get(config, 'model', 'hidden_size')}"
            f"{f', {experts} experts' if experts else ''}, on the task {tasks}"
        )
        yield (
            f"The runs: {model}, {budget}{paper}. What happens at this size need not happen at that of a large model; "
            "no run of one is behind these numbers."
        )
    else:
        yield f"The runs: {_kind(collection.runs[0])}, {budget}{paper}."
    warmups = {str(_get(config, "warmup", "seed")) for config in configs if config.get("runtime") == "lab"}
    seeds = {config.get("seed") for config in configs}
    if len(warmups) == 1 and len(seeds) > 1:
        yield (
            "All seeds start from one and the same initial model: the intervals hold the luck of prompts and sampling, "
            "not that of the initial weights."
        )


def _seeds(comparison: Comparison) -> Iterator[str]:
    collection = comparison.collection
    most = max((len(collection.of(m, lag)) for m in collection.methods for lag in collection.lags), default=0)
    if comparison.paper:
        yield "The paper has one seed a cell, so its own differences carry no interval."
    if most == 1:
        yield "There is one seed a cell: no interval, and no difference can be told from noise."
    elif 1 < most < 6:
        chance = 2 * 0.5**most
        yield (
            f"All of {most} differences have the same sign by luck in {chance:.0%} of the cases, and a bootstrap of "
            f"them then leaves out 0; so the t-test, which assumes normal differences, has to agree at {LEVEL:.0%}. "
            "Small effects cannot be seen: within noise is not the same as equal."
        )


def _not_run(collection: Collection, paper: bool) -> Iterator[str]:
    there = {(run.method, run.lag) for run in collection.runs if run.counts}
    absent = [
        f"{label_of(method)} at lag {lag}" for method in PAPER_ORDER for lag in LAGS if (method, lag) not in there
    ]
    if absent and paper:
        yield f"Cells of the paper without a whole run here: {', '.join(absent)}."
    broken = [run for run in collection.runs if not run.counts]
    for run in broken:
        error = f" ({run.error})" if run.error else ""
        faults = f": {' '.join(run.faults)}" if run.faults else "."
        yield f"Not counted: {run.where}, {run.status} after {run.steps} steps{error}{faults}"
    if any(run.status == "failed" for run in broken):
        yield "If runs fail because of what is measured, such as a method that diverges, leaving them out flatters it."
    yield from collection.left_out


# --------------------------------------------------------------------------------------------------------------- tables


PERCENT, NATS = 100.0, 1.0


def main_table(comparison: Comparison, lag: int | None, ours: str, explain: bool = True) -> Sheet:
    """Set the paper's Table 1 and ours side by side, at one lag. explain: the table says how it is read."""
    by_task = comparison.collection.by_task
    from_best: dict[str, dict[str, Difference]] = {"best": {}, "late": {}, "d_pi": {}}
    for quantity, methods in itertools.product(from_best, by_task.values()):
        from_best[quantity] |= comparison.against_best(methods, lag, quantity)
    before = (f"{BASE_MODEL_SCORE:.2f}", "") if comparison.paper else ()
    rows = [
        [f"before training{on}", *(("", "") if on and before else before), _initial(comparison, methods), "", "", ""]
        for on, methods in (by_task or {"": []}).items()
    ]
    numbers: list[list[Any]] = [_NUMBER_HEAD]
    methods = comparison.collection.methods if comparison.paper else comparison.collection.run_methods
    for method in methods:
        summary, paper = comparison.summary(method, lag), comparison.paper_cell(method, lag)
        runs = f"{summary.n}" + (f" (+{summary.incomplete} not whole)" if summary.incomplete else "")
        rows.append(
            [
                label_of(method),
                *(_paper_texts(paper) if comparison.paper else ()),
                _mark(_best_text(summary), from_best["best"].get(method)),
                _mark(_estimate_text(summary.late, PERCENT, 1), from_best["late"].get(method)),
                _mark(_estimate_text(summary.d_pi, NATS, 4), from_best["d_pi"].get(method)),
                runs,
            ]
        )
        numbers.append(_numbers(summary, paper))
    tested = any(difference.n for difference in from_best["best"].values())
    return Sheet(
        f"main_{lag_name(lag).replace(' ', '_')}",
        f"Best score and mismatch, {lag_name(lag)}",
        _how_to_read(tested, comparison.paper) if explain else "Read as the table above.",
        ["method", *(("AIME24, %", "d_pi") if comparison.paper else ()), "best, %", "late, %", "d_pi, nats", "runs"],
        rows,
        [(PAPER_LABEL, 2), (ours, 4)] if comparison.paper else [],
        numbers,
    )


def _paper_texts(paper: PaperCell | None) -> tuple[str, str]:
    if paper is None:
        return DASH, DASH
    return f"{paper.score:.2f} ({paper.step}){' ‡' if paper.collapsed else ''}", f"{paper.d_pi:.4f}"


def _how_to_read(tested: bool, paper: bool) -> str:
    beside = (
        "Two experiments side by side, never one scale: AIME24 of a 30B model (‡: its authors' mark of a later "
        "collapse; d_pi of the last epoch), and our own task. "
    )
    return (
        (beside if paper else "")
        + "Mean over seeds [95 % interval, Student's t]. Best: the highest evaluation of a run, in brackets its step; "
        "late: mean of the last quarter's evaluations; d_pi: mean of the last quarter; ‡: collapsed by the rule below, "
        "with the number of seeds. "
        + (
            "Bold: best mean of a column (each task); ≈: within noise of it; ?: fewer than two seeds in common with it."
            if tested
            else "Not enough seeds to compare."
        )
    )


def _initial(comparison: Comparison, methods: Sequence[str]) -> str:
    initial = comparison.initial(methods)
    return f"{PERCENT * initial.mean:.1f}" if initial.n else DASH


_NUMBER_HEAD = [
    *("method", "lag", "paper AIME24 %", "paper step", "paper d_pi", "paper collapsed"),
    *("seeds", "collapsed", "not whole", "best mean", "best low", "best high", "median best step"),
    *("late mean", "late low", "late high", "d_pi mean", "d_pi low", "d_pi high"),
]


def _numbers(summary: Summary, paper: PaperCell | None) -> list[Any]:
    published = [paper.score, paper.step, paper.d_pi, int(paper.collapsed)] if paper else [""] * 4
    ours = [*_ends(summary.late, PERCENT), *_ends(summary.d_pi, NATS)]
    steps = sorted(summary.best_steps)
    best = [*_ends(summary.best, PERCENT), steps[len(steps) // 2] if steps else ""]
    lag = "" if summary.lag is None else summary.lag
    return [summary.method, lag, *published, summary.n, summary.collapsed, summary.incomplete, *best, *ours]


def _best_text(summary: Summary) -> str:
    text = _estimate_text(summary.best, PERCENT, 1)
    if summary.best_steps:
        least, most = min(summary.best_steps), max(summary.best_steps)
        text += f" ({least:.0f})" if least == most else f" ({least:.0f}–{most:.0f})"
    return text + (f" ‡ {summary.collapsed}/{summary.n}" if summary.collapsed else "")


def _ends(estimate: Estimate, scale: float) -> tuple[float, float, float]:
    """Return mean and interval; a normal interval knows no bounds, but no score is below 0 or above 1, no |d| below
    0."""
    if math.isnan(estimate.low):
        return estimate.mean, estimate.low, estimate.high
    high = min(estimate.high, 1.0) if scale == PERCENT else estimate.high
    return estimate.mean, max(0.0, estimate.low), high


def _estimate_text(estimate: Estimate, scale: float, digits: int) -> str:
    """Return mean and interval, cut at what is possible."""
    if not estimate.n:
        return DASH
    mean, low, high = (f"{scale * end:.{digits}f}" for end in _ends(estimate, scale))
    return mean if math.isnan(estimate.low) else f"{mean} [{low}, {high}]"


def _mark(text: str, from_best: Difference | None) -> str:
    """Return `text` with a sign of its distance to the best of the column, which itself is the one of no pairs and
    exactly 0."""
    if from_best is None:
        return text
    if from_best.n == 0 and from_best.mean == 0:
        return Strong(text)
    signs = {"within noise": " ≈", "lead": " ≈", "one seed": " ?", "beyond noise": ""}
    return text + signs[from_best.verdict]


def paper_table(contrasts: Sequence[Contrast]) -> Sheet | None:
    """Tell the paper's comparisons in our data, and which of them are noise; None where there are none."""
    if not contrasts:
        return None
    paper = any(not math.isnan(value) for contrast in contrasts for value in contrast.paper)
    head = ["difference", "lag", *(("AIME24", "d_pi") if paper else ()), "best", "late", "d_pi, nats", "pairs"]
    numbers: list[list[Any]] = [["group", "difference", "lag", "paper AIME24", "paper d_pi"]]
    numbers[0] += _difference_head(("best", "late", "d_pi"))
    rows: list[list[str]] = []
    group = ""
    for contrast in contrasts:
        if contrast.group != group:
            group = contrast.group
            rows.append([Heading(group), *[""] * (len(head) - 1)])
        score, d_pi = contrast.paper
        published = [DASH if math.isnan(score) else minus(f"{score:+.2f}")]
        published.append(DASH if math.isnan(d_pi) else minus(f"{d_pi:+.4f}"))
        rows.append([contrast.label, contrast.where, *(published if paper else ()), *_difference_cells(contrast)])
        numbers.append([group, contrast.label, contrast.where, score, d_pi, *_difference_numbers(contrast)])
    return Sheet(
        "differences",
        "Differences, and which of them are noise",
        "Scores in percentage points, d_pi in nats. In brackets the 95 % bootstrap interval of the mean over pairs. "
        "Bold, beyond noise: bootstrap and t-test agree, also after Holm's correction within the group. Lead: they "
        "agree only if nothing else had been looked at. Everything else is within noise.",
        head,
        rows,
        [("", 1), (PAPER_LABEL, 2), ("ours, paired by seed", 4)] if paper else [],
        numbers,
    )


def _difference_head(quantities: Sequence[str]) -> list[str]:
    columns = ("mean", "low", "high", "p", "p Holm", "verdict")
    return [*(f"{quantity} {column}" for quantity in quantities for column in columns), "pairs"]


def _difference_cells(contrast: Contrast) -> list[str]:
    units = {"d_pi": (NATS, 4)}
    texts = (_difference_text(d, *units.get(quantity, (PERCENT, 1))) for quantity, d in contrast.differences.items())
    return [*texts, str(contrast.pairs)]


def _difference_numbers(contrast: Contrast) -> list[Any]:
    numbers: list[Any] = []
    for d in contrast.differences.values():
        numbers += [d.mean, d.low, d.high, d.p_value, d.p_holm, d.verdict if d.n else ""]
    return [*numbers, contrast.pairs]


def _difference_text(difference: Difference, scale: float, digits: int) -> str:
    """Return mean, interval and, on a line of its own, the verdict in words."""
    if not difference.n:
        return DASH
    mean = f"{scale * difference.mean:+.{digits}f}"
    if difference.n == 1:
        return f"{minus(mean)}\none seed"
    interval = f"[{scale * difference.low:+.{digits}f}, {scale * difference.high:+.{digits}f}]"
    text = f"{minus(f'{mean} {interval}')}\n{difference.verdict}"
    return Strong(text) if difference.verdict == "beyond noise" else text


def run_table(comparison: Comparison) -> Sheet:
    """List every run, also those that do not count, and every cell without one."""
    rows = []
    for run in sorted(comparison.collection.runs, key=_order_of(comparison)):
        numbers = comparison.of(run)
        of = f" of {run.planned_steps}" if run.planned_steps else ""
        rows.append(
            [
                run.label,
                DASH if run.lag is None else str(run.lag),
                DASH if run.seed is None else str(run.seed),
                run.status + ("" if run.counts else ", not counted"),
                f"{run.steps}{of}",
                DASH if math.isnan(numbers.best) else f"{PERCENT * numbers.best:.1f} ({numbers.best_step:.0f})",
                decimals(numbers.d_pi, 4),
                str(departure_of(run, "mismatch/d_pi") or DASH),
                _collapse_text(run),
                run.error or "",
            ]
        )
    for cell in sorted(comparison.collection.not_run if comparison.paper else (), key=_order_of(comparison)):
        rows.append([label_of(cell.method), str(cell.lag), str(cell.seed), "not run", "0", *[DASH] * 4, ""])
    head = ["method", "lag", "seed", "state", "steps", "best, % (step)", "d_pi, late", "d_pi left band at"]
    return Sheet(
        "runs",
        "Every run",
        "Runs that are not whole do not count in means and differences: they would be compared at another point of "
        "training. The rule for collapse is the same for all.",
        [*head, "collapse rule", "error"],
        rows,
    )


def _order_of(comparison: Comparison) -> Callable[[ComparedRun | Cell], tuple[int, int, int]]:
    methods = comparison.collection.methods
    return lambda run: (methods.index(run.method), -1 if run.lag is None else run.lag, run.seed or 0)


def _collapse_text(run: ComparedRun) -> str:
    watch = run.collapse
    if watch.met:
        return f"collapsed from {watch.since}"
    if watch.ever is not None:
        return f"held at {watch.ever}, recovered"
    if watch.newest is None:
        return "too few scores to tell"
    if watch.score_fell:
        known = "mismatch/d_pi" in run.data.metrics
        return "score fell, d_pi in its band" if known else "score fell, d_pi unknown"
    return "no"


# -------------------------------------------------------------------------------------------------------------- figures


def lag_name(lag: int | None) -> str:
    """Return how a lag is called in titles."""
    return "lag unknown" if lag is None else f"lag {lag}"


OVERLAID = 6
"""Runs of which each has a line of its own in the overview, at most."""


def looks_in(collection: Collection) -> dict[str, Look]:
    """Return how the methods of a report are drawn, the same in all its figures: where the overview draws single runs,
    each in a colour of its own; else as their stabilizers say."""
    few = len(collection.runs) <= OVERLAID
    return own_colours(collection.methods) if few else looks_of(collection.methods)


def draw_scores(comparison: Comparison) -> Drawing | None:
    """Draw the best scores with intervals and seeds, a row of panels per lag; the paper's on their left where they are
    asked for."""
    methods = comparison.collection.methods
    lags = [lag for lag in comparison.collection.lags if any(comparison.summary(m, lag).best.n for m in methods)]
    if not lags:
        return None
    looks = looks_in(comparison.collection)
    table: Table = {"method": np.array([label_of(method) for method in methods[::-1]])}
    grid = []
    for lag in lags:
        cells = [comparison.paper_cell(method, lag) for method in methods]
        if comparison.paper:
            table[f"{lag_name(lag)}: paper %"] = np.array([cell.score if cell else np.nan for cell in cells])[::-1]
        paper = [_paper_scores(cells, looks, lag)] if any(cells) else []
        grid.append([*paper, _our_scores(comparison, looks, lag, table, named=not paper)])
    return grid_of(grid, table)


def by_method(looks: Iterable[Look], *, column: str = "line", named: bool = True) -> alt.Y:
    """Return a y with the methods one below the other; named: with their names beside them."""
    return alt.Y(
        f"{column}:N", title=None, sort=[look.name for look in looks], axis=alt.Axis(labels=named, ticks=False)
    )


def _paper_scores(cells: list[PaperCell | None], looks: Mapping[str, Look], lag: int | None) -> alt.LayerChart:
    score = [cell.score if cell else np.nan for cell in cells]
    fell = [float(cell is not None and cell.collapsed) for cell in cells]
    data = rows(x=score, line=[look.name for look in looks.values()], fell=fell)
    x = alt.X("x:Q", title="best AIME24, %", scale=alt.Scale(zero=False))
    base = alt.Chart(data).encode(x, by_method(looks.values())).transform_filter("isValid(datum.x)")
    return _scores([], base, looks, f"{lag_name(lag)}: paper", [tip("x:Q", "best AIME24, %", ".2f")])


def _our_scores(
    comparison: Comparison, looks: Mapping[str, Look], lag: int | None, table: Table, *, named: bool
) -> alt.LayerChart:
    summaries = [comparison.summary(method, lag) for method in looks]
    mean, low, high = (
        np.array([100 * getattr(summary.best, end) for summary in summaries]) for end in ("mean", "low", "high")
    )
    count = [float(summary.best.n) for summary in summaries]
    columns = {"ours mean %": mean, "ours low %": low, "ours high %": high, "ours seeds": np.array(count)}
    table.update({f"{lag_name(lag)}: {name}": values[::-1] for name, values in columns.items()})
    names = [look.name for look in looks.values()]
    fell = [float(summary.collapsed > 0) for summary in summaries]
    data = rows(x=mean, low=np.clip(low, 0, None), high=np.clip(high, None, 100), line=names, seeds=count, fell=fell)
    runs = [(run, looks[run.method].name) for method in looks for run in comparison.collection.of(method, lag)]
    seeds = rows(
        x=[100 * comparison.of(run).best for run, _ in runs],
        line=[name for _, name in runs],
        seed=["unknown" if run.seed is None else str(run.seed) for run, _ in runs],
    )
    x = alt.X("x:Q", title="best held-out accuracy, %", scale=alt.Scale(zero=False, padding=10))
    y = by_method(looks.values(), named=named)
    base = alt.Chart(data).encode(x, y).transform_filter("isValid(datum.x)")
    dots = alt.Chart(seeds).mark_point(size=12, filled=True, yOffset=-6, opacity=1)
    dots = dots.encode(
        x,
        y,
        in_colour(list(looks.values())),
        tooltip=[tip("line:N", "method"), tip("seed:N", "seed"), tip("x:Q", "best, %")],
    )
    bars = base.mark_rule(strokeWidth=1.6, clip=True).encode(
        alt.X("low:Q", title=x["title"]), in_colour(list(looks.values())), x2="high:Q"
    )
    tips = [tip("x:Q", "mean of the best, %", ".2f"), tip("low:Q", "95 % interval from", ".2f")]
    tips += [tip("high:Q", "to", ".2f"), tip("seeds:Q", "seeds", "d")]
    title = f"{lag_name(lag)}: ours" if comparison.paper else lag_name(lag)
    return _scores([bars, dots], base, looks, title, tips)


def _scores(
    layers: list[alt.Chart], base: alt.Chart, looks: Mapping[str, Look], title: str, tips: list[alt.Tooltip]
) -> alt.LayerChart:
    """Draw a marker for each method; a cross where it collapsed."""
    every = list(looks.values())
    crosses = base.transform_filter("datum.fell").mark_point(shape=CROSS, size=70, filled=True, opacity=1)
    stands = markers(base.transform_filter("!datum.fell"), every)
    dots = pointed(base, [tip("line:N", "method"), *tips])
    return layered(*layers, stands, crosses.encode(in_colour(every)), dots, title=title, height=alt.Step(18))


def draw_overview(comparison: Comparison) -> Drawing | None:
    """Draw accuracy and d_pi of a few runs over each other, step by step, named by what differs; None of more."""
    runs = comparison.collection.runs
    if not 1 < len(runs) <= OVERLAID:
        return None
    methods, seen, looks = looks_in(comparison.collection), Counter[str](), list[Look]()
    for place, (run, name) in enumerate(zip(runs, names_by_difference(runs), strict=True)):
        dash = _RUN_DASHES[seen[run.method] % len(_RUN_DASHES)]
        # Runs of one method may take all colours: there is no other method whose they are.
        colour = methods[run.method].colour if len(methods) > 1 else OWN_COLOURS[place]
        looks.append(Look(name, colour, dash))
        seen[run.method] += 1
    looks = apart(looks)
    panels = [partial(_overlaid, runs, looks, key, title) for key, title in _OVERVIEW.items()]
    return column_of(panels, height=200)


_RUN_DASHES = ("-", "--", ":", "-.")
"""Of the runs of a method, which share its colour."""
_OVERVIEW = {"accuracy": "held-out accuracy, %", "mismatch/d_pi": "d_pi, nats"}


def names_by_difference(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the names of runs: method, lag and seed as far as these differ; where nothing does, the folder's."""
    parts: list[list[str]] = [
        [run.label for run in runs],
        [lag_name(run.lag) for run in runs],
        ["seed unknown" if run.seed is None else f"seed {run.seed}" for run in runs],
    ]
    differ = [part for part in parts if len(set(part)) > 1]
    names = [", ".join(words) for words in zip(*differ, strict=True)] or [run.label for run in runs]
    counts = Counter(names)
    return [f"{name}, {run.path.name}" if counts[name] > 1 else name for name, run in zip(names, runs, strict=True)]


def _overlaid(
    runs: Sequence[ComparedRun], looks: Sequence[Look], key: str, title: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    parts, drawn = [], []
    for run, look in zip(runs, looks, strict=True):
        x, y = score_curve(run) if key == "accuracy" else (_known(run, "step"), _known(run, key))
        if not np.isfinite(y).any():
            continue
        y = 100 * y if key == "accuracy" else y
        table |= {f"{look.name}: {key}, x": x, f"{look.name}: {key}": y}
        parts.append(rows(x=x, y=y, line=look.name))
        drawn.append(replace(look, marker="o", filled=True) if key == "accuracy" or len(y) < 3 else look)
    if not parts:
        return None
    base = alt.Chart().encode(steps_axis("optimizer step"), alt.Y("y:Q", title=title, scale=alt.Scale(zero=False)))
    tips = [tip("line:N", "run"), tip("x:Q", "step", "d"), tip("y:Q", title)]
    layers = lines(base.transform_filter(shown), drawn, tips, strokeWidth=1.2)
    return Plot(layered(*layers, data=joined(parts), title=title.partition(",")[0]), looks)


def _known(run: ComparedRun, key: str) -> np.ndarray:
    return run.data.metrics.get(key, np.zeros(0))


Y_TITLES = {
    "accuracy": "held-out accuracy, %",
    "reward/mean": "mean reward",
    "mismatch/d_pi": f"d_pi, {axis_of('mismatch/d_pi')[0]}",
}


def draw_drift(comparison: Comparison) -> Drawing | None:
    """Draw d_pi over training, all methods, a panel per lag."""
    panels = [partial(_lines, comparison, lag, None, "mismatch/d_pi") for lag in comparison.collection.lags]
    return column_of(panels, height=260)


def _lines(
    comparison: Comparison, lag: int | None, family: str | None, key: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    """Draw a line for each method at a lag. family: only methods with that ratio; None: all."""
    looks = looks_in(comparison.collection)
    methods = [method for method in looks if family is None or family_of(method) == family]
    parts, means = {}, []
    for place, method in enumerate(methods):
        runs = comparison.collection.of(method, lag)
        curve = seed_curve([curve_of(run, key) for run in runs], 100.0 if key == "accuracy" else 1.0)
        if curve is None:
            continue
        column = f"{method} {lag_name(lag)}"
        table |= {f"{column}: x": curve.x, f"{column}: mean": curve.mean}
        if family is not None and curve.seeds > 1:
            table |= {f"{column}: min": curve.low, f"{column}: max": curve.high}
        parts[looks[method]] = curve.rows(looks[method], place)
        means.append(curve.mean)
    if not parts:
        return None
    every = np.concatenate(means)
    wide = key == "mismatch/d_pi" and every.min() > 0 and every.max() > 8 * every.min()
    y = alt.Y("y:Q", title=Y_TITLES[key], **(log_axis() if wide else {"scale": alt.Scale(zero=key == "mismatch/d_pi")}))
    x = steps_axis("updates of the weights that were measured" if key == "accuracy" else "optimizer step")
    title = f"{lag_name(lag)}{'' if family is None else ', ' + family}"
    return curve_panel(parts, title, x, y, shown, band=family is not None)


def curve_of(run: ComparedRun, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y) of a run: the accuracy by the updates of the weights that were measured, a metric by step."""
    return score_curve(run) if key == "accuracy" else metric_curve(run, key)


def family_of(method: str) -> str:
    """Return by which ratio a method clips, by its name."""
    return "sequence ratio" if any(name in method for name in ("gspo", "seqclip")) else "token ratio"


def draw_learning(comparison: Comparison, key: str) -> Drawing | None:
    """Draw reward or accuracy, with the range of the seeds; panels by lag and ratio."""
    panels = [
        partial(_lines, comparison, lag, family, key)
        for lag in comparison.collection.lags
        for family in ("token ratio", "sequence ratio")
    ]
    return column_of(panels)


def departure_of(run: ComparedRun, key: str) -> int | None:
    """Return the first step at which a run's d_pi or KL left its low band; None where it did not."""
    metrics = run.data.metrics
    if key not in metrics:
        return None
    rise, ceiling = (KL_RISE, np.inf) if key.endswith("kl") else (MISMATCH_RISE, MISMATCH_CEILING)
    return first_departure(metrics["step"], metrics[key], run.data.period, rise, float(ceiling))


SAT_METRICS = (
    ("sat/q", "q"),
    ("sat/gate_rate", "gate open"),
    ("sat/newly_clipped", "newly clipped: gradient removed by SAT"),
    ("sat/radius_high", "the radius that SAT comes to, above 1"),
    ("sat/radius_low", "the same below 1"),
)
RADII = {"sat/radius_high": "eps_high", "sat/radius_low": "eps_low"}
"""The setting that SAT contracts, of each metric that tells what was left of it."""


def draw_sat(comparison: Comparison, lag: int | None) -> Drawing | None:
    """Draw SAT's own quantities over training at a lag, a line per SAT method, with the range of the seeds."""
    looks = _sat_looks(comparison.collection)
    panels = [partial(_sat_panel, comparison, looks, lag, key, title) for key, title in SAT_METRICS]
    return column_of(panels, height=150)


def _sat_looks(collection: Collection) -> dict[str, Look]:
    """Return looks that differ among SAT methods, which share colour and dash where each method has none of its own."""
    methods, looks = collection.methods, []
    if len(collection.runs) <= OVERLAID:
        return {method: look for method, look in looks_in(collection).items() if has(method, "sat")}
    for method, look in looks_of([method for method in methods if has(method, "sat")]).items():
        known = method_called(method)
        colour = VERMILION if known and known.ratio == "sequence" else BLUE
        looks.append(replace(look, colour=colour, dash="-" if look.filled else "--"))
    return dict(zip([method for method in methods if has(method, "sat")], apart(looks), strict=True))


def _sat_panel(
    comparison: Comparison,
    looks: Mapping[str, Look],
    lag: int | None,
    key: str,
    title: str,
    table: Table,
    shown: alt.Parameter,
) -> Plot | None:
    unit, scale = axis_of(key)
    parts: dict[Look, alt.InlineData] = {}
    for place, (method, look) in enumerate(looks.items()):
        curve = seed_curve([metric_curve(run, key) for run in comparison.collection.of(method, lag)], scale)
        if curve is None:
            continue
        table |= {f"{method}: step": curve.x, f"{method}: {key}, x{scale:g}": curve.mean}
        if curve.seeds > 1:
            table |= {f"{method}: {key} min": curve.low, f"{method}: {key} max": curve.high}
        parts[look] = curve.rows(look, place)
    if not parts:
        return None
    steps = [row["x"] for part in parts.values() for row in part.values]
    for radius in _base_radii(comparison, list(looks), lag, RADII.get(key, "")):
        base = Look(f"base radius {radius:g}", BLACK, ":")
        level = {"y": radius, "low": radius, "high": radius, "marked": 0, "seeds": np.nan}
        parts[base] = rows(x=[min(steps), max(steps)], line=base.name, **level)
    y = alt.Y("y:Q", title=unit, scale=alt.Scale(zero=False))
    return curve_panel(parts, title, steps_axis("optimizer step"), y, shown)


def _base_radii(comparison: Comparison, methods: list[str], lag: int | None, name: str) -> list[float]:
    """Return the radii of that name in the settings of the runs."""
    runs = [run for method in methods for run in comparison.collection.of(method, lag)]
    radii = {section(section(run.config, "method"), "clip").get(name) for run in runs}
    return sorted(radius for radius in radii if isinstance(radius, float))


# ------------------------------------------------------------------- curves of several seeds as one line with its range


MARKS = 6
"""Markers on a line."""


def marks(length: int, place: int) -> list[int]:
    """Return where a line of `length` points has markers; lines at other places have them elsewhere."""
    if length <= MARKS:
        return list(range(length))
    spacing = length / MARKS
    return sorted({min(length - 1, int(spacing * (i + 0.12 + 0.76 * (place % 7) / 7))) for i in range(MARKS)})


def aligned(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return (x (points,), values (curves, points)) over all x that occur, NaN where a curve has none."""
    curves = [(x[np.isfinite(x)], y[np.isfinite(x)]) for x, y in curves]
    grid = np.unique(np.concatenate([x for x, _ in curves] or [np.zeros(0)]))
    values = np.full((len(curves), len(grid)), np.nan)
    for row, (x, y) in zip(values, curves, strict=True):
        row[np.searchsorted(grid, x)] = y
    return grid, values


def metric_curve(run: ComparedRun, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, a metric smoothed over whole lag cycles); empty where the run lacks it."""
    if key not in run.data.metrics or not np.isfinite(run.data.metrics[key]).any():
        return np.zeros(0), np.zeros(0)
    return run.data.metrics["step"], smooth(run.data.metrics[key], window_of(run.data))


@dataclass(frozen=True)
class SeedCurve:
    """The mean over the seeds of a method and their range, at the x that all of them have."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    """The lowest seed at each x."""
    high: np.ndarray
    seeds: int

    def rows(self, look: Look, place: int) -> alt.InlineData:
        """Return the data of a chart. place: of the method among those of the panel."""
        marked = np.isin(np.arange(len(self.x)), marks(len(self.x), place)).astype(float)
        more = {"marked": marked, "seeds": self.seeds}
        return rows(x=self.x, y=self.mean, low=self.low, high=self.high, line=look.name, **more)


def seed_curve(curves: Sequence[tuple[np.ndarray, np.ndarray]], scale: float = 1.0) -> SeedCurve | None:
    """Return the curves of the seeds together; None where there is no x that all of them have."""
    curves = [curve for curve in curves if len(curve[0])]
    x, values = aligned(curves)
    if not len(values):
        return None
    mean = values.mean(axis=0)  # NaN where a curve has no point: where one ends, the mean of the others would jump
    known = np.isfinite(mean)
    if not known.any():
        return None
    values = scale * values[:, known]
    return SeedCurve(x[known], scale * mean[known], values.min(axis=0), values.max(axis=0), len(values))


def curve_panel(
    parts: Mapping[Look, alt.InlineData], title: str, x: alt.X, y: alt.Y, shown: alt.Parameter, *, band: bool = True
) -> Plot:
    """Draw a panel of the rows of seed curves, with their range as a band."""
    looks, unit = list(parts), str(y["title"])
    base = alt.Chart().encode(x, y).transform_filter(shown)
    tips = [tip("line:N", "method"), tip("x:Q", str(x["title"]), "d"), tip("y:Q", f"mean, {unit}")]
    tips += [tip("low:Q", "min over seeds"), tip("high:Q", "max over seeds"), tip("seeds:Q", "seeds", "d")]
    layers = lines(base, looks, tips, marks="datum.marked")
    if band:
        low = alt.Y("low:Q", title=unit)
        layers.insert(0, base.mark_area(opacity=0.13, clip=True).encode(low, in_colour(looks), y2="high:Q"))
    return Plot(layered(*layers, data=joined(parts.values()), title=title), looks)


# ------------------------------------------------------------------ the tail of |d| by realized lag, and the gate on it


BOUNDS = tuple(10.0**exponent for exponent in (-2, -1.5, -1, -0.5, 0))
"""Limits of the columns of |d| in the gate table, nats; each is an edge of the histograms."""
MEASURES = (
    ("mismatch/d_pi", "mean |d|"),
    ("mismatch/q90", "90 % quantile"),
    ("mismatch/q99", "99 % quantile"),
    ("sat/q", "q"),
    ("sat/gate_rate", "gate open"),
    ("sat/newly_clipped", "newly clipped"),
    ("sat/radius_high", "radius above 1"),
)
SHOWN_FROM = 1e-4
"""Nats: the figure starts here; its table has all."""
_LINES = ((BLACK, "-"), (BLUE, "--"), (ORANGE, ":"), (VERMILION, "-."), (GREEN, (0, (5, 1, 1, 1, 1, 1))))


@dataclass
class Pool:
    """Histograms of |d| of one realized lag, added up."""

    edges: np.ndarray
    counts: np.ndarray
    """(edges + 1,) tokens."""
    beyond_gate: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """(edges + 1,) tokens above the q of their step. Within the bin that holds q, tokens count as spread evenly in
    log |d|."""


def stalest(collection: Collection) -> list[ComparedRun]:
    """Return the runs at the highest configured lag, which meet every realized lag. Runs at a lower one learn
    otherwise: with them, two realized lags would differ by more than the lag."""
    lags = [lag for lag in collection.lags if lag is not None]
    return [run for run in collection.runs if not lags or run.lag == max(lags)]


def pool(runs: Sequence[ComparedRun]) -> dict[int, Pool]:
    """Return {realized lag: histograms added up over steps and runs}."""
    pools: dict[int, Pool] = {}
    for run in runs:
        for row in run.data.histograms:
            edges, counts = (np.array(row.get(key) or (), dtype=float) for key in ("edges", "counts"))
            if row.get("lag") is None or not len(edges) or len(counts) != len(edges) + 1:
                continue
            lag = round(row["lag"])
            if lag not in pools:
                pools[lag] = Pool(edges, np.zeros(len(counts)), np.zeros(len(counts)))
            if np.array_equal(pools[lag].edges, edges):
                pools[lag].counts += counts
                if isinstance(row.get("q"), (int, float)):
                    pools[lag].beyond_gate += counts * _share_above(edges, row["q"])
    return dict(sorted(pools.items()))


def _share_above(edges: np.ndarray, q: float) -> np.ndarray:
    """Return (edges + 1,) the share of each bin above q."""
    if q <= 0:
        return np.zeros(len(edges) + 1)
    low, high = np.log(edges[:-1]), np.log(edges[1:])
    inner = np.clip((high - np.log(q)) / (high - low), 0, 1)
    return np.concatenate([[0.0], inner, [float(q <= edges[-1])]])


def draw_tail(collection: Collection) -> Drawing | None:
    """Draw the share of the tokens above a |d|, a line per realized lag; with and without R3."""
    panels: list[Panel] = []
    for replayed, name in ((False, "without R3"), (True, "with R3")):
        runs = [run for run in stalest(collection) if has(run.method, "r3") == replayed]
        if pools := pool(runs):
            panels.append(partial(_tail_panel, pools, f"{count_of(len(runs), 'run')} {name}: tail"))
    return column_of(panels)


def _tail_panel(pools: dict[int, Pool], title: str, table: Table, shown: alt.Parameter) -> Plot:
    # lag 0 is the first batch alone, of weights that no training has touched
    lags = [lag for lag in pools if lag > 0] or list(pools)
    if len(lags) > len(_LINES):  # the ends and what lies evenly between them
        lags = [lags[round(i * (len(lags) - 1) / (len(_LINES) - 1))] for i in range(len(_LINES))]
    looks, parts = [], []
    for lag, (colour, dash) in zip(lags, _LINES, strict=False):
        looks.append(look := Look(f"realized lag {lag}", colour, dash))
        edges, share = pools[lag].edges, pools[lag].counts / max(pools[lag].counts.sum(), 1)
        above = share[::-1].cumsum()[::-1][1:]  # at each edge
        table |= {f"{title}, lag {lag}: x": edges, f"{title}, lag {lag}: share above x": above}
        seen = edges >= SHOWN_FROM
        parts.append(rows(x=edges[seen], y=np.where(above > 0, above, np.nan)[seen], line=look.name))
    name = "share above |d|"
    base = alt.Chart(joined(parts)).encode(histogram.X, alt.Y("y:Q", title=name, **log_axis())).transform_filter(shown)
    tips = [tip("line:N", "tokens at"), tip("x:Q", "|d|, nats"), tip("y:Q", name, ".3~%")]
    return Plot(layered(*lines(base, looks, tips), title=title), looks)


def lag_table(collection: Collection) -> Sheet | None:
    """Tell lag, realized lag, |d| and gate of every SAT method; None where there is none."""
    rows: list[list[str]] = []
    sat = [name for name in collection.methods if has(name, "sat")]
    for method, configured in itertools.product(sat, collection.lags):
        runs = [run for run in collection.of(method, configured, whole=False) if "lag/mean" in run.data.metrics]
        lags = [np.round(run.data.metrics["lag/mean"]) for run in runs]
        for lag in sorted({float(lag) for values in lags for lag in values[np.isfinite(values)]}):
            chosen = [(run.data.metrics, values == lag) for run, values in zip(runs, lags, strict=True)]
            numbers = []
            for key, _ in MEASURES:
                values = [metrics[key][at] for metrics, at in chosen if key in metrics]
                mean = finite_mean(np.concatenate(values or [np.zeros(0)]))
                percent = axis_of(key)[1] == 100
                numbers.append(DASH if np.isnan(mean) else f"{mean:.2%}" if percent else f"{mean:.4f}")
            steps = sum(int(at.sum()) for _, at in chosen)
            rows.append(
                [label_of(method), DASH if configured is None else str(configured), f"{lag:g}", str(steps), *numbers]
            )
    if not rows:
        return None
    return Sheet(
        "lag_gate",
        "Realized lag, |d| and the gate",
        "Means over the optimizer steps of that lag, all runs of the method pooled; |d| and q in nats. With the "
        "sequence ratio q and the gate are of the responses' mean d.",
        ["method", "lag", "realized", "steps", *(name for _, name in MEASURES)],
        rows,
    )


def gate_table(collection: Collection) -> Sheet | None:
    """Tell the share of tokens by |d| at each realized lag, and for how many of those the gate is open. Only of methods
    with a token ratio: under the sequence ratio the gate looks at the response's d, not at the token's."""
    runs = [run for run in stalest(collection) if run.method in ("sat-grpo", "sat-grpo-r3")]
    names = [f"|d| below {BOUNDS[0]:.2g}"]
    names += [f"to {high:.2g}" for high in BOUNDS[1:]] + [f"above {BOUNDS[-1]:.2g}"]
    rows: list[list[str]] = []
    for lag, pooled in pool(runs).items():
        total = pooled.counts.sum()
        if not total:
            continue
        # a bin begins at its lower edge; the first one at 0
        place = np.concatenate([[0], np.searchsorted(np.array(BOUNDS) * (1 - 1e-9), pooled.edges, side="right")])
        cells_of_row = []
        for column in range(len(names)):
            tokens, beyond = pooled.counts[place == column].sum(), pooled.beyond_gate[place == column].sum()
            opened = f", open {beyond / tokens:.0%}" if tokens else ""
            cells_of_row.append(f"{tokens / total:.2%}{opened}")
        rows.append([str(lag), f"{total:,.0f}", *cells_of_row])
    if not rows:
        return None
    return Sheet(
        "lag_d_gate",
        "Realized lag x |d| x gate rate",
        "SAT-GRPO with and without R3 at the highest lag, pooled: the share of a lag's tokens in a range of |d|, nats, "
        "and for how many of those the gate is open. From the histograms and q of each step: exact but for the bin "
        "that holds q.",
        ["realized lag", "tokens", *names],
        rows,
    )
