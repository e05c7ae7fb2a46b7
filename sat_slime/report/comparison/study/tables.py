"""The tables of a study: text for the page, plain numbers for CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sat_slime.report.comparison.methods import label_of
from sat_slime.report.comparison.statistics import mean_interval
from sat_slime.report.comparison.study.effects import Effect
from sat_slime.report.comparison.study.grids import Study, StudyGrid
from sat_slime.report.comparison.study.tolerance import KEPT, Tolerance, tolerated_lag
from sat_slime.report.comparison.tables import DASH, NATS, PERCENT, difference_text, estimate_text
from sat_slime.report.page import Heading, Sheet


def tolerance_of(grid: StudyGrid, method: str) -> Tolerance | None:
    """The tolerated lag of a method in a sweep."""
    scores = {lag: grid.scores(method, lag, "late") for lag in grid.lags}
    return tolerated_lag({lag: found for lag, found in scores.items() if found})


def tolerance_table(study: Study) -> Sheet:
    """The tolerated lag of every method in every sweep."""
    rows, numbers = [], [["sweep", "method", "tolerated lag", "low", "high", "largest lag run", "seeds"]]
    for grid in study.sweeps:
        for method in grid.methods:
            one = tolerance_of(grid, method)
            if one is None:
                continue
            interval = f"[{_bounded(one.low, one)}, {_bounded(one.high, one)}]" if one.n > 1 else DASH
            rows.append([grid.name, label_of(method), _bounded(one.lag, one), interval, str(one.n)])
            numbers.append([grid.name, method, *map(str, (one.lag, one.low, one.high, one.largest, one.n))])
    return Sheet(
        "tolerance",
        "Tolerated lag",
        f"The largest lag at which mean late accuracy keeps {KEPT:.0%} of the method's own at lag 1; ≥: no larger lag "
        "was run by all seeds. In brackets the 95 % bootstrap interval over the seeds.",
        ["sweep", "method", "tolerated lag", "interval", "seeds"],
        rows,
        numbers=numbers,
    )


def _bounded(lag: int, one: Tolerance) -> str:
    return f"≥ {lag}" if lag == one.largest else str(lag)


def level_table(grid: StudyGrid) -> Sheet:
    """Late accuracy and d_pi of every method of a grid at every lag."""
    rows: list[list[str]] = []
    numbers: list[list[Any]] = [["method", "lag", "seeds"]]
    numbers[0] += [f"{q} {part}" for q in ("late", "d_pi") for part in ("mean", "low", "high")]
    numbers[0] += ["clipped", "collapsed"]
    for method in grid.methods:
        rows.append([Heading(label_of(method)), "", "", "", "", ""])
        for lag in grid.lags:
            late, d_pi = (mean_interval(list(grid.scores(method, lag, q).values())) for q in ("late", "d_pi"))
            if not late.n and not d_pi.n:
                continue
            collapsed = grid.comparison.summary(method, lag).collapsed
            clipped = mean_interval(list(grid.clipped(method, lag).values()))
            told = [estimate_text(late, PERCENT, 1), estimate_text(d_pi, NATS, 4)]
            told.append(f"{100 * clipped.mean:.2f}" if clipped.n else DASH)
            rows.append([f"lag {lag}", *told, str(max(late.n, d_pi.n)), str(collapsed) if collapsed else DASH])
            estimates = [value for one in (late, d_pi) for value in (one.mean, one.low, one.high)]
            numbers.append([method, lag, max(late.n, d_pi.n), *estimates, clipped.mean, collapsed])
    return Sheet(
        f"levels_{grid.name}",
        f"{grid.name}: late accuracy and d_pi",
        "Means over seeds [95 % interval, Student's t]: late accuracy in %, d_pi in nats; the share of the tokens that "
        "the clip takes the gradient of, mean over all steps; runs that collapsed by the rule.",
        ["", "late, %", "d_pi", "clipped, %", "seeds", "collapsed"],
        rows,
        numbers=numbers,
    )


def effect_table(name: str, heading: str, sentence: str, effects: Sequence[Effect]) -> Sheet:
    """Differences of one group, which were corrected together."""
    rows: list[list[str]] = []
    numbers: list[list[Any]] = [["difference", "where"]]
    numbers[0] += [
        f"{q} {part}" for q in ("late", "d_pi") for part in ("mean", "low", "high", "p", "p Holm", "verdict")
    ]
    numbers[0].append("pairs")
    for effect in effects:
        pairs = max(effect.late.n, effect.d_pi.n)
        told = [difference_text(effect.late, PERCENT, 1), difference_text(effect.d_pi, NATS, 4)]
        rows.append([effect.label, effect.where, *told, str(pairs)])
        row: list[Any] = [effect.label, effect.where]
        for one in (effect.late, effect.d_pi):
            row += [one.mean, one.low, one.high, one.p_value, one.p_holm, one.verdict if one.n else ""]
        numbers.append([*row, pairs])
    return Sheet(
        name, heading, sentence, ["difference", "where", "late, points", "d_pi", "pairs"], rows, numbers=numbers
    )


def grid_table(study: Study) -> Sheet:
    """What each grid changes, and how many of its runs there are."""
    rows = []
    for grid in study.grids:
        collection = grid.comparison.collection
        changed = study.changed(grid)
        told = ", ".join(f"{key}: {value}" for key, value in changed.items()) or (
            "the base" if grid is study.base else DASH
        )
        whole = sum(run.counts for run in collection.runs)
        failed = sum(not run.counts for run in collection.runs)
        collapsed = sum(run.collapse.met for run in collection.runs)
        planned = len(collection.runs) + len(collection.not_run)
        rows.append(
            [grid.name, told, str(planned), str(whole), str(failed), str(len(collection.not_run)), str(collapsed)]
        )
    return Sheet(
        "grids",
        "Every grid",
        "Runs that are planned, whole, not whole, and not begun. Every whole run is in the means and differences, but "
        "for those that ran alone, which are in the times.",
        ["grid", "changes", "planned", "whole", "not whole", "not run", "collapsed"],
        rows,
    )
