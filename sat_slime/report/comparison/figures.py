"""The figures of a comparison, each a function to a drawing and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sat_slime.objective.metrics import axis_of
from sat_slime.report.comparison.collection import ComparedRun
from sat_slime.report.comparison.contrasts import Comparison, score_curve
from sat_slime.report.comparison.curves import draw_seeds, metric_curve, style_of
from sat_slime.report.comparison.methods import label_of
from sat_slime.report.comparison.paper_numbers import paper_cell
from sat_slime.report.drawing import GREY, NARROW_WIDTH, STYLE, Drawing, Table, column_of
from sat_slime.report.smoothing import smooth
from sat_slime.runs.collapse import KL_RISE, MISMATCH_CEILING, MISMATCH_RISE, first_departure


def lag_name(lag: int | None) -> str:
    return "lag unknown" if lag is None else f"lag {lag}"


def draw_scores(comparison: Comparison) -> Drawing | None:
    """Best scores: the paper's on the left, ours with intervals and seeds on the right, a row of panels per lag."""
    lags = [
        lag
        for lag in comparison.collection.lags
        if any(comparison.summary(method, lag).best.n for method in comparison.collection.methods)
    ]
    if not lags:
        return None
    methods = comparison.collection.methods[::-1]
    table: Table = {"method": np.array([label_of(method) for method in methods])}
    with matplotlib.rc_context(STYLE):
        size = (NARROW_WIDTH, (0.6 + 0.23 * len(methods)) * len(lags) + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(lags), 2, squeeze=False, sharey=True, sharex="col", width_ratios=(2, 3))
        for (left, right), lag in zip(grid, lags, strict=True):
            _paper_dots(left, table, methods, lag)
            _our_dots(right, table, comparison, methods, lag)
            left.set_yticks(range(len(methods)), [label_of(method) for method in methods])
            left.set_ylim(-0.6, len(methods) - 0.4)
            left.set_title(f"{lag_name(lag)}: paper")
            right.set_title(f"{lag_name(lag)}: ours")
        grid[-1, 0].set_xlabel("best AIME24, %")
        grid[-1, 1].set_xlabel("best held-out accuracy, %")
        return Drawing(figure, table)


def _paper_dots(axes: Axes, table: Table, methods: Sequence[str], lag: int | None) -> None:
    cells = [paper_cell(method, lag) for method in methods]
    for place, cell in enumerate(cells):
        if cell is not None:
            style = style_of(cell.method) | {"linestyle": "", "markersize": 6}
            axes.plot(cell.score, place, **style | ({"marker": "X"} if cell.collapsed else {}))
    table[f"{lag_name(lag)}: paper %"] = np.array([cell.score if cell else np.nan for cell in cells])


def _our_dots(axes: Axes, table: Table, comparison: Comparison, methods: Sequence[str], lag: int | None) -> None:
    rows = [comparison.summary(method, lag) for method in methods]
    for place, row in enumerate(rows):
        style = style_of(row.method)
        seeds = [100 * comparison.of(run).best for run in comparison.collection.of(row.method, lag)]
        axes.plot(seeds, [place + 0.24] * len(seeds), ".", color=style["color"], markersize=3.5)
        if np.isfinite(row.best.low):
            low, high = max(0.0, 100 * row.best.low), min(100.0, 100 * row.best.high)
            axes.plot([low, high], [place, place], color=style["color"], linewidth=1.6)
        if row.best.n:
            marker = "X" if row.collapsed else style["marker"]
            axes.plot(100 * row.best.mean, place, **style | {"linestyle": "", "marker": marker, "markersize": 6})
    table |= {
        f"{lag_name(lag)}: ours mean %": np.array([100 * row.best.mean for row in rows]),
        f"{lag_name(lag)}: ours low %": np.array([100 * row.best.low for row in rows]),
        f"{lag_name(lag)}: ours high %": np.array([100 * row.best.high for row in rows]),
        f"{lag_name(lag)}: ours seeds": np.array([float(row.best.n) for row in rows]),
    }


def draw_drift(comparison: Comparison) -> Drawing | None:
    """d_pi over training, all methods, a panel per lag."""
    panels = [partial(_lines, comparison, lag, None, "mismatch/d_pi") for lag in comparison.collection.lags]
    return column_of(panels, "optimizer step", height=3.6)


def _lines(comparison: Comparison, lag: int | None, family: str | None, key: str, axes: Axes, table: Table) -> bool:
    """Draw a line for each method at a lag. family: only methods with that ratio; None: all."""
    drawn = False
    methods = [m for m in comparison.collection.methods if family is None or family_of(m) == family]
    for place, method in enumerate(methods):
        runs = comparison.collection.of(method, lag)
        column = f"{method} {lag_name(lag)}"
        if key == "accuracy":
            curves, scale = [score_curve(run) for run in runs], 100.0
        elif key == "reward/mean":
            curves, scale = [reward_by_version(run) for run in runs], 1.0
        else:
            curves, scale = [metric_curve(run, key) for run in runs], 1.0
        drawn |= draw_seeds(axes, table, method, curves, place, column, band=family is not None, scale=scale)
    names = {
        "accuracy": "held-out accuracy, %",
        "reward/mean": "mean reward",
        "mismatch/d_pi": f"d_pi, {axis_of('mismatch/d_pi')[0]}",
    }
    axes.set_title(f"{lag_name(lag)}{'' if family is None else ', ' + family}")
    axes.set_ylabel(names[key])
    if key == "mismatch/d_pi" and drawn:
        top, bottom = axes.dataLim.y1, axes.dataLim.y0
        if bottom > 0 and top > 8 * bottom:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    return drawn


def family_of(method: str) -> str:
    return "sequence ratio" if any(name in method for name in ("gspo", "seqclip")) else "token ratio"


def reward_by_version(run: ComparedRun) -> tuple[np.ndarray, np.ndarray]:
    """(updates of the weights that generated, mean reward of what they earned), smoothed: the weights that
    earned a batch's reward are one lag old. By step where the lag is not known."""
    metrics = run.data.metrics
    if "reward/mean" not in metrics or not np.isfinite(metrics["reward/mean"]).any():
        return np.zeros(0), np.zeros(0)
    steps, reward = metrics["step"], metrics["reward/mean"]
    if "lag/mean" in metrics:
        versions = np.round(steps - 1 - metrics["lag/mean"])
        steps = np.unique(versions[np.isfinite(versions)])
        reward = np.array([np.nanmean(reward[versions == version]) for version in steps])
    return steps, smooth(reward, max(1, round(len(reward) / 20)))


def draw_learning(comparison: Comparison, key: str) -> Drawing | None:
    """Reward or accuracy, with the range of the seeds; panels by lag and ratio."""
    panels = [
        partial(_lines, comparison, lag, family, key)
        for lag in comparison.collection.lags
        for family in ("token ratio", "sequence ratio")
    ]
    return column_of(panels, "optimizer updates of the weights that were measured")


def draw_departure(comparison: Comparison) -> Drawing | None:
    """d_pi and KL of every run; where one first left its low band it is marked and named."""
    keys = (("mismatch/d_pi", "d_pi"), ("mismatch/k3_kl", "K3 KL"))
    panels = [
        partial(_departure_panel, comparison, lag, key, f"{label}, {axis_of(key)[0]}")
        for lag in comparison.collection.lags
        for key, label in keys
    ]
    return column_of(panels, "optimizer step", legend=True)


def departure_of(run: ComparedRun, key: str) -> int | None:
    """First step at which a run's d_pi or KL left its low band."""
    metrics = run.data.metrics
    if key not in metrics:
        return None
    rise, ceiling = (KL_RISE, np.inf) if key.endswith("kl") else (MISMATCH_RISE, MISMATCH_CEILING)
    return first_departure(metrics["step"], metrics[key], run.data.period, rise, float(ceiling))


_NAME: Any = {
    "xytext": (-7, 7),
    "textcoords": "offset points",
    "ha": "right",
    "fontsize": 7,
    "zorder": 4,
    "bbox": {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
}


def _departure_panel(comparison: Comparison, lag: int | None, key: str, label: str, axes: Axes, table: Table) -> bool:
    # runs that broke off are drawn too: what broke them may be seen here
    runs = [run for run in comparison.collection.runs if run.lag == lag and len(metric_curve(run, key)[0])]
    left = 0
    for run in runs:
        steps, values = metric_curve(run, key)
        at = departure_of(run, key)
        seed = "" if run.seed is None else f" seed {run.seed}"
        style = style_of(run.method) | {"marker": ""}
        if at is None:
            axes.plot(steps, values, color=GREY, linewidth=0.7, zorder=1)
            continue
        axes.plot(steps, values, **style, zorder=2, label=label_of(run.method))
        index = int(np.searchsorted(steps, at))
        mark = {"marker": style_of(run.method)["marker"], "markersize": 8, "markerfacecolor": "white"}
        axes.plot(at, values[index], color=style["color"], markeredgewidth=1.6, zorder=3, linestyle="", **mark)
        if left < 8:  # more names than that would cover each other; the table has them all
            axes.annotate(f"{run.label}{seed}, {at}", (at, values[index]), **_NAME)
        left += 1
    if not runs:
        return False
    for run in runs:
        column = f"{run.method} {lag_name(lag)} seed {run.seed}: {key}"
        steps, values = metric_curve(run, key)
        table |= {f"{column}: step": steps, column: values}
        table[f"{column}: departed at"] = np.array([departure_of(run, key) or np.nan])
    axes.set_yscale("log", nonpositive="mask")
    axes.set_title(f"{lag_name(lag)}: {left} of {len(runs)} runs left their low band")
    axes.set_ylabel(label)
    return True
