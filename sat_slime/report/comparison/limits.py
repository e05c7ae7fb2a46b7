"""What a comparison shows in words, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sat_slime.report.comparison.collection import Collection, ComparedRun, differing_settings
from sat_slime.report.comparison.contrasts import Comparison, Contrast
from sat_slime.report.comparison.figures import lag_name
from sat_slime.report.comparison.methods import PAPER_ORDER, label_of
from sat_slime.report.comparison.paper_numbers import ANSWERS_PER_EVALUATION, LAGS
from sat_slime.report.comparison.statistics import LEVEL


def _get(config: dict[str, Any], section: str, key: str) -> Any:
    values = config.get(section)
    return values.get(key, "?") if isinstance(values, dict) else "?"


def seeds_text(collection: Collection) -> str:
    """`3 seeds`, `1 to 3 seeds`."""
    counts = {len(collection.of(method, lag)) for method in collection.methods for lag in collection.lags} - {0}
    if not counts:
        return "no whole run"
    least, most = min(counts), max(counts)
    return f"{most} seed{'s' * (most > 1)}" if least == most else f"{least} to {most} seeds"


def ours_label(collection: Collection) -> str:
    """How our numbers are marked beside the paper's."""
    kinds = {_kind(run) for run in collection.runs}
    kind = kinds.pop() if len(kinds) == 1 else "several models"
    return f"ours, {kind}, {seeds_text(collection)}"


def _kind(run: ComparedRun) -> str:
    if run.config.get("runtime") == "embedded":
        return "embedded model"
    if run.config.get("runtime") == "slime":
        return f"slime, {str(_get(run.config, 'model', 'hf_checkpoint')).rstrip('/').rsplit('/', 1)[-1]}"
    return "model not stated"


def summary(comparison: Comparison) -> Iterator[str]:
    """Which runs there are and what they say, a sentence each; every number in it is in a table too."""
    collection = comparison.collection
    whole = sum(run.counts for run in collection.runs)
    text = f"{whole} whole runs of {len(collection.methods)} methods"
    parts = [f"{len(collection.runs) - whole} not whole", f"{len(collection.not_run)} planned and not run"]
    yield f"{text}; {', '.join(parts)}. Compared: {seeds_text(collection)} a cell."
    for lag in collection.lags:
        yield from _best_at(comparison, lag)
    for group in ("SAT against its own base", "SAT-GSPO w/ R3 against the baselines"):
        yield from _told_apart([contrast for contrast in comparison.contrasts if contrast.group == group], group)
    collapsed = [run for run in collection.runs if run.collapse.met]
    judged = [run for run in collection.runs if run.collapse.newest is not None]
    if judged:
        names = f": {'; '.join(run.where for run in collapsed)}" if collapsed else ""
        yield f"The collapse rule marks {len(collapsed)} of {len(judged)} runs with enough scores to tell{names}."


def _best_at(comparison: Comparison, lag: int | None) -> Iterator[str]:
    from_best = comparison.against_best(lag, "late")
    if not from_best:
        return
    best = next(method for method, difference in from_best.items() if difference.n == 0 and difference.mean == 0)
    told = [method for method, difference in from_best.items() if difference.verdict == "beyond noise"]
    tested = sum(difference.n > 1 for difference in from_best.values())
    mean = comparison.summary(best, lag).late.mean
    if tested:
        rest = f"within noise of it: {tested - len(told)} of {tested} others with at least two common seeds"
    else:
        rest = "with one common seed nothing can be told apart from it"
    yield f"At {lag_name(lag)} {label_of(best)} has the highest late accuracy, {mean:.1%} in the mean; {rest}."


def _told_apart(contrasts: list[Contrast], group: str) -> Iterator[str]:
    tested = [one for one in contrasts if one.late.n > 1]
    if not tested:
        return
    parts = []
    for name, sign, unit in (("late", 1, "late accuracy"), ("d_pi", -1, "d_pi")):
        clear = [getattr(one, name) for one in tested if getattr(one, name).verdict == "beyond noise"]
        better = sum(sign * one.mean > 0 for one in clear)
        noise = len(tested) - len(clear)
        leads = sum(getattr(one, name).verdict == "lead" for one in tested)
        but = f" ({leads} of them leads)" if leads else ""
        parts.append(f"{unit}: {better} better, {len(clear) - better} worse, {noise} not told from noise{but}")
    yield f"{group}, {len(tested)} comparisons: {'; '.join(parts)}."


def limits(comparison: Comparison) -> Iterator[str]:
    """What a reader must not take from the figures, a sentence or two each."""
    collection = comparison.collection
    yield from _experiment(collection)
    yield from _seeds(comparison)
    yield (
        "The best score is the highest of many noisy evaluations, which lifts it, and lifts it more the noisier they "
        "are; the late accuracy is not picked. A single evaluation of the paper has "
        f"{ANSWERS_PER_EVALUATION} answers to 30 problems: a standard error of about 2 points."
    )
    yield (
        "The paper's d_pi is of the last epoch, ours of the last quarter of the steps; its collapse mark is its "
        "authors' judgement, ours the rule below. docs/reproduction.md lists what the paper leaves open and what was "
        "chosen."
    )
    if len(datasets := sorted({name for run in collection.runs for name in run.datasets})) > 1:
        yield f"Evaluated data sets: {', '.join(datasets)}. The score of a run is that of the first one it evaluated."
    differing = differing_settings(collection.runs)
    for key, values in differing.items():
        counts = ", ".join(f"{value} ({count} runs)" for value, count in values.items())
        yield f"Not the same in all runs, beside method, lag and seed: {key}: {counts}."
    if not differing and any(run.config for run in collection.runs):
        yield "Apart from method, lag and seed all runs have the same settings: no method's were tuned for it."
    yield from _not_run(collection)


def _experiment(collection: Collection) -> Iterator[str]:
    configs = [run.config for run in collection.runs if run.config]
    if not configs:
        yield "The runs come without their settings: model, task and budget are not known here."
        return
    one = configs[0]
    budget = (
        f"{_get(one, 'pipeline', 'iterations')} iterations of {_get(one, 'rollout', 'prompts_per_iteration')} "
        f"prompts x {_get(one, 'rollout', 'samples_per_prompt')} samples, learning rate {_get(one, 'train', 'lr')}"
    )
    paper = "the paper: Qwen3-30B-A3B-Base, mathematics, 544 iterations of 256 x 16, learning rate 1e-6"
    if one.get("runtime") == "embedded":
        model = (
            f"a Qwen3-MoE of {_get(one, 'model', 'layers')} layers, width {_get(one, 'model', 'hidden_size')}, "
            f"{_get(one, 'model', 'experts')} experts, on the task {_get(one, 'task', 'name')}"
        )
        yield (
            f"Ours: {model}, {budget}; {paper}. What happens at this size need not happen at that one; no run of the "
            "30B model is behind our columns."
        )
    else:
        yield f"Ours: {_kind(collection.runs[0])}, {budget}; {paper}."
    warmups = {str(_get(config, "warmup", "seed")) for config in configs if config.get("runtime") == "embedded"}
    seeds = {config.get("seed") for config in configs}
    if len(warmups) == 1 and len(seeds) > 1:
        yield (
            "All seeds start from one and the same initial model: the intervals hold the luck of prompts and sampling, "
            "not that of the initial weights."
        )


def _seeds(comparison: Comparison) -> Iterator[str]:
    most = max((len(comparison.collection.of(m, lag)) for m, lag in _cells(comparison.collection)), default=0)
    yield "The paper has one seed a cell, so its own differences carry no interval."
    if most == 1:
        yield "Ours has one seed a cell as well: no interval, and no difference is told from noise."
    elif 1 < most < 6:
        chance = 2 * 0.5**most
        yield (
            f"All of {most} differences have the same sign by luck in {chance:.0%} of the cases, and a bootstrap of "
            f"them then leaves out 0; so the t-test, which assumes normal differences, has to agree at {LEVEL:.0%}. "
            "Small effects cannot be seen: within noise is not the same as equal."
        )


def _cells(collection: Collection) -> list[tuple[str, int | None]]:
    return [(method, lag) for method in collection.methods for lag in collection.lags]


def _not_run(collection: Collection) -> Iterator[str]:
    there = {(run.method, run.lag) for run in collection.runs if run.counts}
    absent = [
        f"{label_of(method)} at lag {lag}" for method in PAPER_ORDER for lag in LAGS if (method, lag) not in there
    ]
    if absent:
        yield f"Cells of the paper without a whole run here: {', '.join(absent)}."
    broken = [run for run in collection.runs if not run.counts]
    for run in broken:
        error = f" ({run.error})" if run.error else ""
        lacks = f", without a row of step {run.missing[0]}" if run.missing else ""
        more = f" and {len(run.missing) - 1} more" if len(run.missing) > 1 else ""
        yield f"Not counted: {run.where}, {run.status} after {run.steps} steps{lacks}{more}{error}."
    if any(run.status == "failed" for run in broken):
        yield "If runs fail because of what is measured, such as a method that diverges, leaving them out flatters it."
    yield from collection.left_out
