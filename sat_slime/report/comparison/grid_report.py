"""The report of several runs or of a grid: its figures and page, its summary in words and its limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sat_slime.report.comparison.compared_runs import Collection, ComparedRun, differing_settings
from sat_slime.report.comparison.comparison_figures import (
    OVERLAID,
    draw_departure,
    draw_drift,
    draw_learning,
    draw_overview,
    draw_parts,
    draw_sat,
    draw_scores,
    lag_name,
)
from sat_slime.report.comparison.comparison_tables import main_table, paper_table, run_table
from sat_slime.report.comparison.contrasts import Comparison, Contrast
from sat_slime.report.comparison.method_names import PAPER_ORDER, key_to, label_of
from sat_slime.report.comparison.mismatch_tail import draw_tail, gate_table, lag_table
from sat_slime.report.comparison.paper_contrasts import AGAINST_BASE, AGAINST_BASELINES, paper_contrasts
from sat_slime.report.comparison.paper_numbers import ANSWERS_PER_EVALUATION, LAGS
from sat_slime.report.comparison.statistics import LEVEL
from sat_slime.report.number_text import count_of, minus
from sat_slime.report.page import Figure, Page, Sheet, listed
from sat_slime.runs import collapse


def fill(page: Page, comparison: Comparison, command: str, rules: str) -> tuple[str, Iterator[str]]:
    """Put the report's tables and figures on the page; returns its subtitle and its summary. command: makes the page
    again. rules: HTML of what is tested and how."""
    ours = ours_label(comparison.collection)
    every = {figure.name: figure for figure in figures(comparison)}
    few = len(comparison.collection.runs) <= OVERLAID
    if first := every.pop("overview" if few else "scores", None):  # a chart before the tables
        page.figure(first, f"{command} --figure {first.name}")
    for lag in comparison.collection.lags:
        page.sheet(main_table(comparison, lag, ours, explain=lag == comparison.collection.lags[0]))
    contrasts = paper_contrasts(comparison)
    if (differences := paper_table(contrasts)) is not None:
        page.sheet(differences)
    for figure in every.values():
        if figure.name != "overview" and (comparison.paper or figure.name not in DATALESS):
            page.figure(figure, f"{command} --figure {figure.name}")
        if figure.name == "tail":
            for sheet in tail_tables(comparison):
                page.sheet(sheet)
    page.section("limits", "What the figures do not show", f"<ul>{listed(limits(comparison))}</ul>")
    page.section("rules", "Rules and tests", rules)
    page.sheet(run_table(comparison))
    return f"{ours}{'; beside them: paper, 30B, one seed' * comparison.paper}", summary(comparison, contrasts)


DATALESS = ("geometry", "token_weights")
"""Figures of no run: they stand beside the paper's numbers, and are drawn alone when asked for."""


def figures(comparison: Comparison) -> Iterator[Figure]:
    """List all figures, which are drawn when asked for."""
    # it imports torch
    from sat_slime.report.comparison.objective_figures import draw_geometry, draw_token_weights

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
    yield Figure(
        "departure",
        "Mismatch and KL: who leaves the low band, and when",
        "Every run, those that broke off too; grey lines stay in their band. The marker and its label stand at the "
        f"first step at which the level reached {collapse.MISMATCH_RISE:g} times its lowest (d_pi; or "
        f"{collapse.MISMATCH_CEILING:g} nats), {collapse.KL_RISE:g} times (KL).",
        partial(draw_departure, comparison),
    )
    yield Figure(
        "geometry",
        "Update geometry",
        "Drawn from the objective's own functions, no data: where the gradient of a sampled token acts. DPPO's δ is "
        "0.001. SAT's radius depends on the token's d and the batch's q; the third panel holds the factor fixed as "
        "the paper's figure does.",
        draw_geometry,
    )
    yield Figure(
        "token_weights",
        "What a token weighs",
        "From the objective's own functions, no data: v = g / A, what a method puts in the place of 1 on the token's "
        "own A ∇log π, by the ratio. Dotted: the ratio itself. Left out are methods whose weight is no function of the "
        "token alone: those that judge the response, the state or the batch, as SAT does, and A-3PO, by its lag.",
        draw_token_weights,
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
        "d = log π − log μ of single tokens, from the histograms of all runs at the highest lag. The realized lag is "
        "that of the batch, and cycles from 1 to the configured one. The sliders choose a step, of all runs together.",
        partial(draw_tail, collection),
    )
    yield Figure(
        "parts",
        "What the mismatch is made of",
        "Means of the last quarter: d_pi, its policy part (updates since generation) and its implementation part "
        "(what the engines compute differently), and tokens routed to other experts. Means of absolute values: the "
        "parts do not add up to d_pi.",
        partial(draw_parts, comparison),
    )


def tail_tables(comparison: Comparison) -> Iterator[Sheet]:
    """Make the tables of what the gate does by realized lag and |d|."""
    if rows := lag_table(comparison.collection):
        yield Sheet(
            "lag_gate",
            "Realized lag, |d| and the gate",
            "Means over the optimizer steps of that lag, all runs of the method pooled; |d| and q in nats. With the "
            "sequence ratio q and the gate are of the responses' mean d.",
            rows[0],
            rows[1:],
        )
    if rows := gate_table(comparison.collection):
        yield Sheet(
            "lag_d_gate",
            "Realized lag x |d| x gate rate",
            "SAT-GRPO with and without R3 at the highest lag, pooled: the share of a lag's tokens in a range of |d| "
            "(nats), and for how many of those the gate is open. From the histograms and q of each step: exact but "
            "for the bin that holds q.",
            rows[0],
            rows[1:],
        )


# ------------------------------------------------------------------------------------------------------ in words


def _get(config: dict[str, Any], section: str, key: str) -> Any:
    values = config.get(section)
    return values.get(key, "?") if isinstance(values, dict) else "?"


def seeds_text(collection: Collection) -> str:
    """Return how many seeds a cell has: `3 seeds`, `1 to 3 seeds`."""
    counts = {len(collection.of(method, lag)) for method in collection.methods for lag in collection.lags} - {0}
    if not counts:
        return "no whole run"
    least, most = min(counts), max(counts)
    return f"{most} seed{'s' * (most > 1)}" if least == most else f"{least} to {most} seeds"


def ours_label(collection: Collection) -> str:
    """Return how our numbers are marked beside the paper's."""
    kinds = {_kind(run) for run in collection.runs}
    kind = kinds.pop() if len(kinds) == 1 else "several models"
    return f"ours, {kind}, {seeds_text(collection)}"


def _kind(run: ComparedRun) -> str:
    if run.config.get("runtime") == "embedded":
        return "embedded model"
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
    parts = [f"{whole} whole run{'s' * (whole != 1)} of {count_of(len(collection.run_methods), 'method')}"]
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
    if config.get("runtime") == "embedded":
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
    warmups = {str(_get(config, "warmup", "seed")) for config in configs if config.get("runtime") == "embedded"}
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
