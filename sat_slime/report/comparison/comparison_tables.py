"""The tables of comparisons: text for the page, plain numbers for CSV."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from sat_slime.grid.plan import Cell
from sat_slime.report.comparison.compared_runs import ComparedRun
from sat_slime.report.comparison.comparison_figures import departure_of, lag_name
from sat_slime.report.comparison.contrasts import Comparison, Contrast, Summary
from sat_slime.report.comparison.method_names import label_of
from sat_slime.report.comparison.paper_numbers import BASE_MODEL_SCORE, PAPER_LABEL, PaperCell
from sat_slime.report.comparison.statistics import Difference, Estimate
from sat_slime.report.number_text import DASH, decimals, minus
from sat_slime.report.page import Heading, Sheet, Strong

PERCENT, NATS = 100.0, 1.0


# ------------------------------------------------------------------------------------------------ main table


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


# ----------------------------------------------------------------------------------------------- differences


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


# ------------------------------------------------------------------------------------------------------ runs


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
