"""Figures of what SAT does over training, and of what the mismatch is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import altair as alt
import numpy as np

from sat_slime.objective.metrics import axis_of
from sat_slime.report.comparison.contrasts import Comparison, late_mean
from sat_slime.report.comparison.curves import curve_panel, looks_of, metric_curve, seed_curve
from sat_slime.report.comparison.figures import by_method, lag_name
from sat_slime.report.comparison.methods import has, label_of, method_called
from sat_slime.report.drawing import (
    Drawing,
    Plot,
    Table,
    chosen,
    column_of,
    grid_of,
    joined,
    layered,
    markers,
    pointed,
    rows,
    steps_axis,
    tip,
)
from sat_slime.report.looks import BLACK, BLUE, ORANGE, VERMILION, Look, apart
from sat_slime.runs.reading import section

SAT_METRICS = (
    ("sat/q", "q"),
    ("sat/gate_rate", "gate open"),
    ("sat/newly_clipped", "newly clipped: gradient removed by SAT"),
    ("sat/eps_high_mean", "mean upper radius"),
    ("sat/eps_low_mean", "mean lower radius"),
    ("sat/c_min", "strongest contraction in a step"),
)
RADII = {"sat/eps_high_mean": "eps_high", "sat/eps_low_mean": "eps_low"}
"""The setting that SAT contracts, of each metric that tells what was left of it."""
PARTS = (
    ("mismatch/d_pi", Look("d_pi", BLACK, "", "|")),
    ("mismatch/policy", Look("policy part", BLUE, "", "o", filled=True)),
    ("mismatch/implementation", Look("implementation part", VERMILION, "", "s")),
)


def draw_sat(comparison: Comparison, lag: int | None) -> Drawing | None:
    """SAT's own quantities over training at a lag, a line per SAT method, with the range of the seeds."""
    looks = _sat_looks(comparison.collection.methods)
    panels = [partial(_sat_panel, comparison, looks, lag, key, title) for key, title in SAT_METRICS]
    return column_of(panels, height=150)


def _sat_looks(methods: list[str]) -> dict[str, Look]:
    """SAT methods share colour and dash elsewhere; among themselves they differ."""
    looks = []
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
            table |= {f"{method}: {key} least": curve.low, f"{method}: {key} greatest": curve.high}
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
    """The radii of that name in the settings of the runs."""
    runs = [run for method in methods for run in comparison.collection.of(method, lag)]
    found = {section(section(run.config, "method"), "clip").get(name) for run in runs}
    return sorted(radius for radius in found if isinstance(radius, float))


def draw_parts(comparison: Comparison) -> Drawing | None:
    """Policy and implementation part of d_pi (Eq. split), and tokens routed otherwise, late in training."""
    collection = comparison.collection
    lags = [lag for lag in collection.lags if any(collection.of(method, lag) for method in collection.methods)]
    parts = [part for part in PARTS if any(part[0] in run.data.metrics for run in collection.runs)]
    if len(parts) < 2 or not lags:
        return None
    looks = looks_of(collection.methods)
    table: Table = {"method": np.array([label_of(method) for method in collection.methods[::-1]])}
    grid = []
    for lag in lags:
        late = {key: _late(comparison, collection.methods, lag, key) for key, _ in parts}
        flips = 100 * _late(comparison, collection.methods, lag, "routing/flip_rate")
        table |= {f"{lag_name(lag)}: {look.name}, nats": late[key][::-1] for key, look in parts}
        table[f"{lag_name(lag)}: routed otherwise, %"] = flips[::-1]
        names = [look.name for look in looks.values()]
        data = joined([rows(x=late[key], method=names, line=look.name) for key, look in parts])
        y = by_method(looks.values(), column="method")
        base = alt.Chart(data).encode(alt.X("x:Q", title="nats, mean over tokens"), y).transform_filter(chosen())
        tips = [tip("method:N", "method"), tip("line:N", "part"), tip("x:Q", "nats")]
        dots = [markers(base, [look for _, look in parts], size=70), pointed(base, tips)]
        mismatch = layered(*dots, title=f"{lag_name(lag)}: mismatch", height=alt.Step(18))
        bars = alt.Chart(rows(x=flips, method=names), title="other experts", height=alt.Step(18))
        bars = bars.mark_bar(color=ORANGE, height={"band": 0.6}).encode(
            alt.X("x:Q", title="% of tokens (R3 off)"),
            by_method(looks.values(), column="method", named=False),
            tooltip=[tip("method:N", "method"), tip("x:Q", "% of tokens")],
        )
        grid.append([mismatch, bars])
    return grid_of(grid, table, [look for _, look in parts])


def _late(comparison: Comparison, methods: list[str], lag: int | None, key: str) -> np.ndarray:
    """(methods,) means over the last quarter and the seeds."""
    means = []
    for method in methods:
        values = np.array([late_mean(run, key) for run in comparison.collection.of(method, lag)])
        known = values[np.isfinite(values)]
        means.append(float(known.mean()) if len(known) else np.nan)
    return np.array(means)
