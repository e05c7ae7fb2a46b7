"""The figures of a comparison, each a function to a drawing and its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import altair as alt
import numpy as np

from sat_slime.report.averages import finite_mean
from sat_slime.report.comparison.compared_runs import Collection, ComparedRun
from sat_slime.report.comparison.contrasts import Comparison, late_mean, score_curve
from sat_slime.report.comparison.method_names import OWN_COLOURS, has, label_of, looks_of, method_called, own_colours
from sat_slime.report.comparison.paper_numbers import PaperCell
from sat_slime.report.comparison.seed_curves import curve_panel, metric_curve, seed_curve
from sat_slime.report.drawing import (
    Drawing,
    Plot,
    Table,
    chosen,
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
from sat_slime.report.looks import BLACK, BLUE, CROSS, ORANGE, VERMILION, Look, apart
from sat_slime.report.panels import axis_of
from sat_slime.runs.collapse import KL_RISE, MISMATCH_CEILING, MISMATCH_RISE, first_departure
from sat_slime.runs.reading import section


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


def draw_departure(comparison: Comparison) -> Drawing | None:
    """Draw d_pi and KL of every run; where one first left its low band it is marked and named."""
    keys = (("mismatch/d_pi", "d_pi"), ("mismatch/k3_kl", "K3 KL"))
    panels = [
        partial(_departure_panel, comparison, lag, key, f"{label}, {axis_of(key)[0]}")
        for lag in comparison.collection.lags
        for key, label in keys
    ]
    return column_of(panels, height=240)


def departure_of(run: ComparedRun, key: str) -> int | None:
    """Return the first step at which a run's d_pi or KL left its low band; None where it did not."""
    metrics = run.data.metrics
    if key not in metrics:
        return None
    rise, ceiling = (KL_RISE, np.inf) if key.endswith("kl") else (MISMATCH_RISE, MISMATCH_CEILING)
    return first_departure(metrics["step"], metrics[key], run.data.period, rise, float(ceiling))


def _departure_panel(
    comparison: Comparison, lag: int | None, key: str, label: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    # runs that broke off are drawn too: what broke them may be seen here
    runs = [run for run in comparison.collection.runs if run.lag == lag and len(metric_curve(run, key)[0])]
    looks = looks_in(comparison.collection)
    leavers: dict[str, Look] = {}
    curves: dict[bool, list[alt.InlineData]] = {False: [], True: []}
    marked: list[alt.InlineData] = []
    for number, run in enumerate(runs):
        steps, values = metric_curve(run, key)
        at, look = departure_of(run, key), looks[run.method]
        column = f"{run.method} {lag_name(lag)} seed {run.seed}: {key}"
        table |= {f"{column}: step": steps, column: values, f"{column}: departed at": np.array([at or np.nan])}
        seed = "" if run.seed is None else f"seed {run.seed}"
        of_run = {"line": look.name, "seed": seed, "run": number}
        curves[at is not None].append(rows(x=steps, y=np.where(values > 0, values, np.nan), **of_run))
        if at is not None:
            leavers[run.method] = look
            level = values[int(np.searchsorted(steps, at))]
            # more labels than that would cover each other; a pointer finds them all
            label_text = f"{look.name} {seed}, {at}" if len(marked) < 8 else ""
            marked.append(rows(x=at, y=level, told=label_text, **of_run))
    if not runs:
        return None
    x, y = steps_axis("optimizer step"), alt.Y("y:Q", title=label, **log_axis())
    who = [tip("line:N", "method"), tip("seed:N", "run")]
    stays = alt.Chart(joined(curves[False])).encode(x, y, alt.Detail("run:N"), tooltip=who)
    layers: list[Any] = [stays.mark_line(strokeWidth=0.9, opacity=0.3)]
    drawn = list(leavers.values())
    if drawn:
        base = alt.Chart().transform_filter(shown)
        left = base.encode(x, y, alt.Detail("run:N"))
        tips = [*who, tip("x:Q", "step", "d"), tip("y:Q", label)]
        named = base.encode(x, y)
        layers += [
            layered(*lines(left, drawn, tips, marks="false"), data=joined(curves[True])),
            layered(
                markers(named, drawn, size=130),
                named.mark_text(align="right", dx=-8, dy=-9, fontSize=10).encode(text="told:N"),
                pointed(named, [*who, tip("x:Q", "left its band at step", "d"), tip("y:Q", label)]),
                data=joined(marked),
            ),
        ]
    title = f"{lag_name(lag)}: {len(marked)} of {len(runs)} runs left their low band"
    return Plot(layered(*layers, title=title), drawn)


# ------------------------------------------------------------------------- SAT, and what the mismatch is made of


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


def draw_parts(comparison: Comparison) -> Drawing | None:
    """Draw policy and implementation part of d_pi (Eq. split), and tokens routed otherwise, late in training."""
    collection = comparison.collection
    lags = [lag for lag in collection.lags if any(collection.of(method, lag) for method in collection.methods)]
    parts = [part for part in PARTS if any(part[0] in run.data.metrics for run in collection.runs)]
    if len(parts) < 2 or not lags:
        return None
    looks = looks_in(collection)
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
    """Return (methods,) means over the last quarter and the seeds."""
    runs = (comparison.collection.of(method, lag) for method in methods)
    return np.array([finite_mean([late_mean(run, key) for run in of_method]) for of_method in runs])
