"""The tables of a comparison: text for the page, plain numbers for CSV."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sat_slime.grid.plan import Cell
from sat_slime.report.comparison.collection import ComparedRun
from sat_slime.report.comparison.contrasts import Comparison, Contrast, Summary
from sat_slime.report.comparison.figures import departure_of, lag_name
from sat_slime.report.comparison.methods import label_of
from sat_slime.report.comparison.paper_numbers import BASE_MODEL_SCORE, PAPER_LABEL, PaperCell, paper_cell
from sat_slime.report.comparison.statistics import Difference, Estimate
from sat_slime.report.page import Heading, Sheet, Strong

DASH = "–"
PERCENT, NATS = 100.0, 1.0


# ------------------------------------------------------------------------------------------------ main table


def main_table(comparison: Comparison, lag: int | None, ours: str, explain: bool = True) -> Sheet:
    """The paper's Table 1 with ours beside it, at one lag. explain: whether it says how it is read."""
    from_best = {quantity: comparison.against_best(lag, quantity) for quantity in ("best", "late", "d_pi")}
    rows = [["before training", f"{BASE_MODEL_SCORE:.2f}", "", _initial(comparison), "", "", ""]]
    numbers: list[list[Any]] = [_NUMBER_HEAD]
    for method in comparison.collection.methods:
        one, paper = comparison.summary(method, lag), paper_cell(method, lag)
        runs = f"{one.n}" + (f" (+{one.incomplete} not whole)" if one.incomplete else "")
        rows.append(
            [
                label_of(method),
                DASH if paper is None else f"{paper.score:.2f} ({paper.step}){' ‡' if paper.collapsed else ''}",
                DASH if paper is None else f"{paper.d_pi:.4f}",
                _mark(_best_text(one), from_best["best"].get(method)),
                _mark(estimate_text(one.late, PERCENT, 1), from_best["late"].get(method)),
                _mark(estimate_text(one.d_pi, NATS, 4), from_best["d_pi"].get(method)),
                runs,
            ]
        )
        numbers.append(_numbers(one, paper))
    tested = any(difference.n for difference in from_best["best"].values())
    return Sheet(
        f"main_{lag_name(lag).replace(' ', '_')}",
        f"Best score and mismatch, {lag_name(lag)}",
        _how_to_read(tested) if explain else "Read as the table above.",
        ["method", "AIME24, %", "d_pi", "best, %", "late, %", "d_pi", "runs"],
        rows,
        [(PAPER_LABEL, 2), (ours, 4)],
        numbers,
    )


def _how_to_read(tested: bool) -> str:
    return (
        "Two experiments side by side, never one scale: AIME24 of a 30B model, and our own task. Score: best "
        "evaluation of a run, in brackets its step; ‡ later collapse (the paper's own mark; in ours the rule below, "
        "with the number of seeds). Ours: mean over seeds [95 % interval, Student's t]; late: mean of the last "
        "quarter's evaluations; d_pi: mean of the last quarter (the paper's: last epoch). "
        + (
            "Bold: best mean of a column; ≈: within noise of it; ?: fewer than two seeds in common with it."
            if tested
            else "No seeds to tell differences by."
        )
    )


def _initial(comparison: Comparison) -> str:
    return f"{PERCENT * comparison.initial.mean:.1f}" if comparison.initial.n else DASH


_NUMBER_HEAD = [
    *("method", "lag", "paper AIME24 %", "paper step", "paper d_pi", "paper collapsed"),
    *("seeds", "collapsed", "not whole", "best mean", "best low", "best high", "median best step"),
    *("late mean", "late low", "late high", "d_pi mean", "d_pi low", "d_pi high"),
]


def _numbers(one: Summary, paper: PaperCell | None) -> list[Any]:
    published = [paper.score, paper.step, paper.d_pi, int(paper.collapsed)] if paper else [""] * 4
    ours = [value for estimate in (one.late, one.d_pi) for value in (estimate.mean, estimate.low, estimate.high)]
    steps = sorted(one.best_steps)
    best = [one.best.mean, one.best.low, one.best.high, steps[len(steps) // 2] if steps else ""]
    lag = "" if one.lag is None else one.lag
    return [one.method, lag, *published, one.n, one.collapsed, one.incomplete, *best, *ours]


def _best_text(one: Summary) -> str:
    text = estimate_text(one.best, PERCENT, 1)
    if one.best_steps:
        least, most = min(one.best_steps), max(one.best_steps)
        text += f" ({least:.0f})" if least == most else f" ({least:.0f}–{most:.0f})"
    return text + (f" ‡ {one.collapsed}/{one.n}" if one.collapsed else "")


def estimate_text(estimate: Estimate, scale: float, digits: int) -> str:
    if not estimate.n:
        return DASH
    mean = f"{scale * estimate.mean:.{digits}f}"
    if math.isnan(estimate.low):
        return mean
    # a normal interval knows no bounds: no score is below 0 or above 100 %, no |d| below 0
    low, high = max(0.0, scale * estimate.low), scale * estimate.high
    return f"{mean} [{low:.{digits}f}, {min(high, PERCENT) if scale == PERCENT else high:.{digits}f}]"


def _mark(text: str, from_best: Difference | None) -> str:
    """`text` with a sign of its distance to the best of the column, which itself is the one of no pairs and exactly
    0."""
    if from_best is None:
        return text
    if from_best.n == 0 and from_best.mean == 0:
        return Strong(text)
    signs = {"within noise": " ≈", "lead": " ≈", "one seed": " ?", "beyond noise": ""}
    return text + signs[from_best.verdict]


# ----------------------------------------------------------------------------------------------- differences


def difference_table(comparison: Comparison) -> Sheet | None:
    """The paper's comparisons in our data, and which of them are noise; None where there are none."""
    if not comparison.contrasts:
        return None
    head = ["difference", "lag", "AIME24", "d_pi", "best", "late", "d_pi", "pairs"]
    numbers: list[list[Any]] = [
        ["group", "difference", "lag", "paper AIME24", "paper d_pi"]
        + [
            f"{q} {part}"
            for q in ("best", "late", "d_pi")
            for part in ("mean", "low", "high", "p", "p Holm", "verdict")
        ]
        + ["pairs"]
    ]
    rows: list[list[str]] = []
    group = ""
    for contrast in comparison.contrasts:
        if contrast.group != group:
            group = contrast.group
            rows.append([Heading(group), *[""] * (len(head) - 1)])
        rows.append(_difference_row(contrast))
        numbers.append(_difference_numbers(contrast))
    return Sheet(
        "differences",
        "Differences, and which of them are noise",
        "Scores in percentage points, d_pi in nats. In brackets the 95 % bootstrap interval of the mean over pairs. "
        "Bold, beyond noise: bootstrap and t-test agree, also after Holm's correction within the group. Lead: they "
        "agree only if nothing else had been looked at. Everything else is within noise.",
        head,
        rows,
        [("", 1), (PAPER_LABEL, 2), ("ours, paired by seed", 4)],
        numbers,
    )


def _difference_row(contrast: Contrast) -> list[str]:
    return [
        contrast.label,
        contrast.lag,
        DASH if math.isnan(contrast.paper_best) else _minus(f"{contrast.paper_best:+.2f}"),
        DASH if math.isnan(contrast.paper_d_pi) else _minus(f"{contrast.paper_d_pi:+.4f}"),
        difference_text(contrast.best, PERCENT, 1),
        difference_text(contrast.late, PERCENT, 1),
        difference_text(contrast.d_pi, NATS, 4),
        str(max(contrast.best.n, contrast.d_pi.n)),
    ]


def _difference_numbers(contrast: Contrast) -> list[Any]:
    row: list[Any] = [contrast.group, contrast.label, contrast.lag, contrast.paper_best, contrast.paper_d_pi]
    for one in (contrast.best, contrast.late, contrast.d_pi):
        row += [one.mean, one.low, one.high, one.p_value, one.p_holm, one.verdict if one.n else ""]
    return [*row, max(contrast.best.n, contrast.d_pi.n)]


def difference_text(one: Difference, scale: float, digits: int) -> str:
    """Mean, interval and, on a line of its own, the verdict in words."""
    if not one.n:
        return DASH
    mean = f"{scale * one.mean:+.{digits}f}"
    if one.n == 1:
        return f"{_minus(mean)}\none seed"
    text = f"{_minus(f'{mean} [{scale * one.low:+.{digits}f}, {scale * one.high:+.{digits}f}]')}\n{one.verdict}"
    return Strong(text) if one.verdict == "beyond noise" else text


def _minus(number: str) -> str:
    return number.replace("-", "−")


# ------------------------------------------------------------------------------------------------------ runs


def run_table(comparison: Comparison) -> Sheet:
    """Every run, also those that do not count, and every cell without one."""
    rows = []
    for run in sorted(comparison.collection.runs, key=_place(comparison)):
        one = comparison.of(run)
        of = f" of {run.planned_steps}" if run.planned_steps else ""
        rows.append(
            [
                run.label,
                DASH if run.lag is None else str(run.lag),
                DASH if run.seed is None else str(run.seed),
                run.status + ("" if run.counts else ", not counted"),
                f"{run.steps}{of}",
                DASH if math.isnan(one.best) else f"{PERCENT * one.best:.1f} ({one.best_step:.0f})",
                DASH if math.isnan(one.d_pi) else f"{one.d_pi:.4f}",
                str(departure_of(run, "mismatch/d_pi") or DASH),
                _collapse_text(run),
                run.error or "",
            ]
        )
    for cell in sorted(comparison.collection.not_run, key=_place(comparison)):
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


def _place(comparison: Comparison) -> Callable[[ComparedRun | Cell], tuple[int, int, int]]:
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
