"""Figures of what SAT does over training, and of what the mismatch is made of."""

from __future__ import annotations

from functools import partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sat_slime.objective.metrics import axis_of
from sat_slime.report.comparison.contrasts import Comparison, late_mean
from sat_slime.report.comparison.curves import aligned, marks, metric_curve, seed_mean, style_of
from sat_slime.report.comparison.figures import lag_name
from sat_slime.report.comparison.methods import has, label_of, method_called
from sat_slime.report.drawing import BLACK, BLUE, NARROW_WIDTH, ORANGE, STYLE, VERMILION, Drawing, Table, column_of

SAT_METRICS = (
    ("sat/q", "q"),
    ("sat/gate_rate", "gate open"),
    ("sat/newly_clipped", "newly clipped: tokens whose gradient SAT removed"),
    ("sat/eps_high_mean", "mean upper radius"),
    ("sat/eps_low_mean", "mean lower radius"),
    ("sat/c_min", "strongest contraction of a token in a step"),
)
PARTS = (
    ("mismatch/d_pi", "d_pi", {"marker": "|", "color": BLACK, "markersize": 12, "markeredgewidth": 2}),
    ("mismatch/policy", "policy part", {"marker": "o", "color": BLUE}),
    ("mismatch/implementation", "implementation part", {"marker": "s", "color": VERMILION, "markerfacecolor": "white"}),
)


def draw_sat(comparison: Comparison, lag: int | None) -> Drawing | None:
    """SAT's own quantities over training at a lag, a line per SAT method, with the range of the seeds."""
    panels = [partial(_sat_panel, comparison, lag, key, title) for key, title in SAT_METRICS]
    return column_of(panels, "optimizer step", height=2.1)


def _sat_panel(comparison: Comparison, lag: int | None, key: str, title: str, axes: Axes, table: Table) -> bool:
    unit, scale = axis_of(key)
    methods = [method for method in comparison.collection.methods if has(method, "sat")]
    drawn = False
    for place, method in enumerate(methods):
        curves = [metric_curve(run, key) for run in comparison.collection.of(method, lag)]
        x, values = aligned([curve for curve in curves if len(curve[0])])
        if not len(x):
            continue
        style = style_of(method) | _apart(method)
        mean = scale * seed_mean(values)
        axes.plot(x, mean, label=label_of(method), markevery=marks(len(x), place), **style)
        table |= {f"{method}: step": x, f"{method}: {key}, x{scale:g}": mean}
        if len(values) > 1:
            low, high = scale * values.min(axis=0), scale * values.max(axis=0)
            axes.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)
            table |= {f"{method}: {key} least": low, f"{method}: {key} greatest": high}
        drawn = True
    axes.set_title(title)
    axes.set_ylabel(unit)
    return drawn


def _apart(method: str) -> dict[str, Any]:
    """SAT methods share colour and dash elsewhere; among themselves they differ."""
    known = method_called(method)
    colour = VERMILION if known and known.ratio == "sequence" else BLUE
    filled = has(method, "r3")
    face = colour if filled else "white"
    return {"color": colour, "linestyle": "-" if filled else "--", "markeredgecolor": colour, "markerfacecolor": face}


def draw_parts(comparison: Comparison) -> Drawing | None:
    """Policy and implementation part of d_pi (Eq. split), and tokens routed otherwise, late in training."""
    collection = comparison.collection
    lags = [lag for lag in collection.lags if any(collection.of(method, lag) for method in collection.methods)]
    parts: list[tuple[str, str, dict[str, Any]]] = [
        part for part in PARTS if any(part[0] in run.data.metrics for run in collection.runs)
    ]
    if len(parts) < 2 or not lags:
        return None
    methods = collection.methods[::-1]
    table: Table = {"method": np.array([label_of(method) for method in methods])}
    with matplotlib.rc_context(STYLE):
        size = (NARROW_WIDTH, (0.7 + 0.23 * len(methods)) * len(lags) + 0.4)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(lags), 2, squeeze=False, sharey=True, sharex="col", width_ratios=(3, 2))
        for (left, right), lag in zip(grid, lags, strict=True):
            for key, name, style in parts:
                values = _late(comparison, methods, lag, key)
                left.plot(values, range(len(methods)), **{"linestyle": "", "label": name} | style)
                table[f"{lag_name(lag)}: {name}, nats"] = values
            flips = 100 * _late(comparison, methods, lag, "routing/flip_rate")
            right.barh(range(len(methods)), np.nan_to_num(flips), color=ORANGE, edgecolor=BLACK, height=0.5)
            table[f"{lag_name(lag)}: routed otherwise, %"] = flips
            left.set_yticks(range(len(methods)), [label_of(method) for method in methods])
            left.set_title(f"{lag_name(lag)}: mismatch")
            right.set_title("other experts")
        grid[-1, 0].set_xlabel("nats, mean over tokens")
        grid[-1, 1].set_xlabel("% of tokens (R3 off)")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
        return Drawing(figure, table)


def _late(comparison: Comparison, methods: list[str], lag: int | None, key: str) -> np.ndarray:
    """(methods,) means over the last quarter and the seeds."""
    means = []
    for method in methods:
        values = np.array([late_mean(run, key) for run in comparison.collection.of(method, lag)])
        known = values[np.isfinite(values)]
        means.append(float(known.mean()) if len(known) else np.nan)
    return np.array(means)
