"""The figures of a study, each a function to a drawing and its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import altair as alt
import numpy as np

from sat_slime.report.comparison.contrasts import Contrast, score_curve
from sat_slime.report.comparison.lag_tolerance import KEPT, REFERENCE
from sat_slime.report.comparison.method_names import label_of, own_colours
from sat_slime.report.comparison.seed_curves import seed_curve
from sat_slime.report.comparison.statistics import mean_interval
from sat_slime.report.comparison.studies import Study, StudyGrid
from sat_slime.report.comparison.study_contrasts import method_contrasts, variant_contrasts
from sat_slime.report.drawing import (
    Drawing,
    Plot,
    Table,
    column_of,
    in_colour,
    joined,
    layered,
    lines,
    log_axis,
    markers,
    pointed,
    rows,
    rule,
    tip,
)
from sat_slime.report.figure_files import PANEL_WIDTH
from sat_slime.report.looks import BLACK, COLOURS, GREY, Look, apart
from sat_slime.report.point_names import NAME_SIZE, NamePlace, name_places
from sat_slime.runs.reading import section

_NAMES = {"late": ("late accuracy, %", 100.0), "d_pi": ("d_pi, nats", 1.0)}
_ACROSS = {"d_pi": ("d_pi, nats", 1.0), "clipped": ("clipped, % of the tokens", 100.0)}
_SPREAD = 0.24
"""How far apart methods stand at one lag, in the distance of two lags."""
_PLANE_HEIGHT, _PLANE_PADDING = 360, (50, 16)
"""Pixels: of a panel of the plane, and between its edges and the outermost points, in x and in y."""


def draw_lags(study: Study) -> Drawing | None:
    """Draw the frontier: late accuracy and d_pi by lag, a panel each for every sweep."""
    looks = _looks(study, (method for grid in study.sweeps for method in grid.methods))
    panels = [partial(_by_lag, looks, grid, quantity) for grid in study.sweeps for quantity in _NAMES]
    return column_of(panels, height=250, zoom=False)


def _looks(study: Study, methods: Iterable[str]) -> dict[str, Look]:
    """Return the looks of methods: the same in every figure of the study."""
    looks = own_colours(study.methods)
    return {method: looks[method] for method in methods}


def _by_lag(
    looks: Mapping[str, Look], grid: StudyGrid, quantity: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    def values(method: str, lag: float) -> Sequence[float]:
        return list(grid.scores(method, int(lag), quantity).values())

    own = {method: looks[method] for method in grid.methods}
    plot = _points(grid.name, "lag", grid.lags, own, values, quantity, table, shown)
    if plot is None:
        return plot
    layers = [plot.chart, _tolerance(grid, own, shown)] if quantity == "late" else [plot.chart]
    return Plot(layered(*layers, title=f"{grid.name}: {_NAMES[quantity][0].partition(',')[0]}"), plot.looks)


def _tolerance(grid: StudyGrid, looks: Mapping[str, Look], shown: alt.Parameter) -> alt.Chart:
    """Draw a dotted line for each method, below which it has lost too much."""
    at_reference = {look.name: list(grid.scores(name, REFERENCE, "late").values()) for name, look in looks.items()}
    levels = {name: 100 * KEPT * float(np.mean(scores)) for name, scores in at_reference.items() if scores}
    base = alt.Chart(rows(y=list(levels.values()), line=list(levels))).transform_filter(shown)
    tips = [tip("line:N", "method"), tip("y:Q", f"{KEPT:.0%} of lag {REFERENCE}, %")]
    dotted = base.mark_rule(clip=True, strokeDash=[2, 3], strokeWidth=1)
    return dotted.encode(alt.Y("y:Q", title=_NAMES["late"][0]), in_colour(list(looks.values())), tooltip=tips)


def draw_radius(study: Study) -> Drawing | None:
    """Draw late accuracy and d_pi by the clip's radius, a panel each for every lag at which there are several."""
    others = [grid for grid in study.by_radius.values() if grid is not study.base]
    varied = [method for method in study.base.methods if any(method in grid.methods for grid in others)]
    looks = _looks(study, varied)
    lags = sorted({lag for grid in others for lag in grid.whole_lags})
    panels = [partial(_by_radius, looks, study, lag, quantity) for lag in lags for quantity in _NAMES]
    return column_of(panels, height=240, zoom=False)


def _by_radius(
    looks: Mapping[str, Look], study: Study, lag: int, quantity: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    grids = study.by_radius

    def values(method: str, radius: float) -> Sequence[float]:
        return list(grids[radius].scores(method, lag, quantity).values())

    return _points(f"lag {lag}", "radius", sorted(grids), looks, values, quantity, table, shown)


def _points(
    place: str,
    axis: str,
    at: Sequence[float],
    looks: Mapping[str, Look],
    values: Callable[[str, float], Sequence[float]],
    quantity: str,
    table: Table,
    shown: alt.Parameter,
) -> Plot | None:
    """Draw means over seeds with their 95 % intervals, a line for each method.

    at: what stands at the ticks 0, 1, ... values: of a method there, one for each seed.
    """
    name, scale = _NAMES[quantity]
    table[f"{place}: {axis}"] = np.array(at, dtype=float)
    parts: dict[Look, alt.InlineData] = {}
    for number, (method, look) in enumerate(looks.items()):
        estimates = [mean_interval([scale * value for value in values(method, tick)]) for tick in at]
        mean, low, high = (np.array([getattr(e, part) for e in estimates]) for part in ("mean", "low", "high"))
        known = np.isfinite(mean)
        if not known.any():
            continue
        column = f"{place} {method} {quantity}"
        table |= {f"{column}: mean": mean, f"{column}: low": low, f"{column}: high": high}
        drawn_low = np.maximum(low, mean / 10) if quantity == "d_pi" else low  # that axis is logarithmic
        ends = {"low": low[known], "high": high[known], "from": drawn_low[known], "at": np.array(at)[known]}
        seeds = np.array([float(estimate.n) for estimate in estimates])[known]
        x = np.arange(len(at))[known] + _SPREAD * (number / max(1, len(looks) - 1) - 0.5)
        parts[look] = rows(x=x, y=mean[known], line=look.name, seeds=seeds, **ends)
    if not parts:
        return None
    drawn = list(parts)
    ticks = alt.Axis(values=list(range(len(at))), labelExpr=f"{json.dumps([f'{tick:g}' for tick in at])}[datum.value]")
    x = alt.X("x:Q", title=axis, axis=ticks, scale=alt.Scale(domain=[-0.3, len(at) - 0.7], nice=False))
    how = log_axis() if quantity == "d_pi" else {"scale": alt.Scale(zero=False)}
    base = alt.Chart(joined(parts.values())).encode(x, alt.Y("y:Q", title=name, **how)).transform_filter(shown)
    bars = base.mark_rule(clip=True, strokeWidth=1).encode(
        alt.Y("from:Q", title=name, **how), in_colour(drawn), y2="high:Q"
    )
    tips = [tip("line:N", "method"), tip("at:Q", axis), tip("y:Q", f"mean, {name}"), tip("low:Q", "95 % interval from")]
    tips += [tip("high:Q", "to"), tip("seeds:Q", "seeds", "d")]
    return Plot(layered(bars, *lines(base, drawn, tips), title=place), drawn)


def draw_plane(study: Study, across: str) -> Drawing | None:
    """Draw late accuracy against another quantity, a point for each method and grid, a panel for each lag of the
    variants. Points that differ in the clip's radius alone are joined, from the smallest radius to the largest.

    across: d_pi, or clipped, the share of the tokens that the clip takes the gradient of.
    """
    lags = sorted({lag for grid in study.variants for lag in grid.lags})
    looks = own_colours(study.methods)
    return column_of([partial(_plane, looks, study, lag, across) for lag in lags], height=_PLANE_HEIGHT, linked=False)


def _plane(
    looks: Mapping[str, Look], study: Study, lag: int, across: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    grids = [grid for grid in study.grids if lag in grid.lags and not grid.alone and study.of_one_problem(grid)]
    grids = [grid for grid in grids if grid not in study.sweeps or not study.changed(grid)]
    points: list[tuple[str, StudyGrid, float, float]] = []
    for grid in grids:
        for method in grid.methods:
            scores = grid.clipped(method, lag) if across == "clipped" else grid.scores(method, lag, across)
            x, late = (
                mean_interval(list(by_seed.values())).mean for by_seed in (scores, grid.scores(method, lag, "late"))
            )
            if np.isfinite(late) and x > 0:
                points.append((method, grid, _ACROSS[across][1] * x, 100 * late))
    if not points:
        return None
    methods, at, x_values, y_values = zip(*points, strict=True)
    names = [grid.name for grid in at]
    columns = {"method": methods, "grid": names, across: x_values, "late": y_values}
    table |= {f"lag {lag}: {name}": np.array(values) for name, values in columns.items()}
    radii = {grid.name: radius for radius, grid in study.by_radius.items()}
    labels = [grid.name if grid is not study.base and study.changed(grid) else "" for grid in at]
    data = rows(
        x=x_values,
        y=y_values,
        line=[looks[method].name for method in methods],
        grid=names,
        radius=[radii.get(name) for name in names],
        **_room_for_names(x_values, y_values, labels),
    )
    title = _ACROSS[across][0]
    base = (
        alt.Chart(data)
        .transform_filter(shown)
        .encode(
            alt.X("x:Q", title=title, **log_axis(padding=_PLANE_PADDING[0])),
            alt.Y("y:Q", title="late accuracy, %", scale=alt.Scale(zero=False, nice=False, padding=_PLANE_PADDING[1])),
        )
    )
    drawn = [looks[method] for method in dict.fromkeys(methods)]
    tips = [tip("line:N", "method"), tip("grid:N", "grid"), tip("x:Q", title), tip("y:Q", "late accuracy, %")]
    joined_radii = base.transform_filter("isValid(datum.radius)").encode(order=alt.Order("radius:Q"))
    layers = lines(joined_radii, drawn, tips, strokeWidth=1, opacity=0.5)
    single = base.transform_filter("!isValid(datum.radius)")
    layers += [markers(single, drawn), pointed(single, tips)]
    layers.append(
        base.transform_filter("datum.label")
        .mark_text(**{part: alt.expr(f"datum.{part}") for part in NamePlace._fields}, fontSize=NAME_SIZE, opacity=0.7)
        .encode(text="label:N")
    )
    return Plot(layered(*layers, title=f"lag {lag}"), drawn)


def _room_for_names(x: Sequence[float], y: Sequence[float], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return columns of the names that have room at the width of a file, and of where they stand."""
    x_room, y_room = _PLANE_PADDING
    across = _in_pixels(np.log(x), x_room, PANEL_WIDTH - x_room)
    down = _in_pixels(-np.array(y), y_room, _PLANE_HEIGHT - y_room)
    places = name_places(across, down, names, PANEL_WIDTH, _PLANE_HEIGHT)
    columns: dict[str, list[Any]] = {"label": [name if at else "" for name, at in zip(names, places, strict=True)]}
    return columns | {part: [getattr(at, part, None) for at in places] for part in NamePlace._fields}


def _in_pixels(values: np.ndarray, first: float, last: float) -> list[float]:
    """Return the pixels of values, the smallest at the first pixel and the largest at the last."""
    low, high = values.min(), values.max()
    return list(first + (values - low) / (high - low) * (last - first)) if high > low else [first] * len(values)


_LEAD = Look("at least a lead", BLACK, "-", "o", filled=True)
_NOISE = Look("not told from noise", GREY, "-", "o")


def draw_variants(study: Study) -> Drawing | None:
    """Draw what a changed setting does to a method, a panel for each method."""
    methods = [method for method in study.base.methods if any(method in grid.methods for grid in study.variants)]
    every = {method: variant_contrasts(study, method) for method in methods}
    panels = [
        partial(
            _contrasts, label_of(method), [f"{contrast.label}, {contrast.where}" for contrast in contrasts], contrasts
        )
        for method, contrasts in every.items()
    ]
    return column_of(panels, zoom=False)


def draw_methods(study: Study) -> Drawing | None:
    """Draw every method against GRPO, a panel for each lag."""
    panels = []
    for lag, of_lag in groupby(method_contrasts(study), attrgetter("where")):
        contrasts = list(of_lag)
        panels.append(partial(_contrasts, lag, [contrast.label for contrast in contrasts], contrasts))
    return column_of(panels, zoom=False)


def _contrasts(
    title: str, variants: Sequence[str], contrasts: Sequence[Contrast], table: Table, shown: alt.Parameter
) -> Plot | None:
    if not contrasts:
        return None
    table[f"{title}: variant"] = np.array(variants)
    parts = {
        part: np.array([100 * getattr(contrast["late"], part) for contrast in contrasts])
        for part in ("mean", "low", "high")
    }
    table |= {f"{title}: {part}": values for part, values in parts.items()}
    looks = [_LEAD if contrast["late"].verdict in ("lead", "beyond noise") else _NOISE for contrast in contrasts]
    verdicts = {"verdict": [contrast["late"].verdict for contrast in contrasts], "line": [look.name for look in looks]}
    base = alt.Chart(rows(variant=variants, **parts, **verdicts)).transform_filter(shown)
    base = base.encode(alt.Y("variant:N", title=None, sort=variants, axis=alt.Axis(ticks=False)))
    x_title = "difference in late accuracy, points"
    tips = [tip("variant:N", "changed"), tip("mean:Q", "mean, points"), tip("low:Q", "95 % interval from")]
    tips += [tip("high:Q", "to"), tip("verdict:N", "verdict")]
    bars = base.mark_rule(clip=True, strokeWidth=1.5).encode(
        alt.X("low:Q", title=x_title), in_colour([_LEAD, _NOISE]), x2="high:Q"
    )
    middle = base.encode(alt.X("mean:Q", title=x_title))
    layers = [rule("x", 0), bars, markers(middle, [_LEAD, _NOISE]), pointed(middle, tips)]
    return Plot(layered(*layers, title=title, height=alt.Step(17)), [_LEAD, _NOISE])


def draw_time(study: Study) -> Drawing | None:
    """Draw accuracy against wall-clock, a line for each lag, a panel for each method of the base. A method that has not
    run alone takes the seconds of the first that has: they are those of the pipeline much more than of a method."""
    alone = [grid for grid in study.others if grid.alone]
    if not alone:
        return None
    colours = list(COLOURS.values())
    looks = apart(Look(f"lag {lag}", colours[i % len(colours)], "-", "o") for i, lag in enumerate(alone[0].lags))
    by_lag = dict(zip(alone[0].lags, looks, strict=True))
    measured = {method: seconds_per_update(alone[0], method) for method in alone[0].methods}
    other = next(iter(measured.values()))
    panels = [
        partial(_over_time, by_lag, study.base, method, measured.get(method, other)) for method in study.base.methods
    ]
    return column_of(panels, height=250)


def seconds_per_update(alone: StudyGrid, method: str) -> dict[int, float]:
    """Return {lag: seconds of an optimizer update} of runs that had the machine to themselves: the median over all lag
    cycles and seeds, of each cycle the mean, since only one of its iterations broadcasts."""
    seconds: dict[int, float] = {}
    for lag in alone.lags:
        per_run = []
        for run in alone.collection.of(method, lag):
            steps = run.data.metrics.get("time/step", np.zeros(0))
            cycle = run.data.period
            updates = section(run.config, "pipeline").get("optimizer_steps_per_rollout") or 1
            whole = steps[len(steps) % cycle :].reshape(-1, cycle).mean(axis=1) if len(steps) >= cycle else steps
            per_run += list(whole[np.isfinite(whole)] / updates)  # each row of an iteration has all of its time
        if per_run:
            seconds[lag] = float(np.median(per_run))
    return seconds


def _over_time(
    looks: Mapping[int, Look],
    base: StudyGrid,
    method: str,
    seconds: dict[int, float],
    table: Table,
    shown: alt.Parameter,
) -> Plot | None:
    parts: dict[Look, alt.InlineData] = {}
    for lag, per_update in sorted(seconds.items()):
        curve = seed_curve([score_curve(run) for run in base.collection.of(method, lag)], 100.0)
        if curve is None:
            continue
        minutes = curve.x * per_update / 60
        table |= {f"{method} lag {lag}: minutes": minutes, f"{method} lag {lag}: accuracy": curve.mean}
        parts[looks[lag]] = rows(x=minutes, y=curve.mean, line=looks[lag].name, step=curve.x)
    if not parts:
        return None
    chart = (
        alt.Chart()
        .transform_filter(shown)
        .encode(
            alt.X("x:Q", title="minutes of generation and training"),
            alt.Y("y:Q", title="held-out accuracy, %", scale=alt.Scale(zero=False)),
        )
    )
    tips = [tip("line:N", "line"), tip("x:Q", "minutes"), tip("step:Q", "step", "d"), tip("y:Q", "accuracy, %")]
    return Plot(
        layered(*lines(chart, list(parts), tips), data=joined(parts.values()), title=label_of(method)), list(parts)
    )
