"""The figures of a run, each a function from its data to a drawing and the numbers behind it.

What is drawn by optimizer step alone is in report/panels.py; what is not, or has a form of its own, is drawn here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import altair as alt
import numpy as np

from sat_slime.objective.method import STABILIZERS, known
from sat_slime.objective.metrics import metric_named
from sat_slime.report import histogram
from sat_slime.report.averages import smooth, window_of
from sat_slime.report.drawing import (
    Drawing,
    Panel,
    Plot,
    Table,
    column_of,
    in_colour,
    joined,
    layered,
    lines,
    log_axis,
    pointed,
    rows,
    steps_axis,
    tip,
)
from sat_slime.report.looks import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILION, Look, apart
from sat_slime.report.page import Figure
from sat_slime.report.panels import Line, axis_of, panels_of
from sat_slime.report.panels import Panel as MetricPanel
from sat_slime.runs.reading import RunData, section
from sat_slime.runs.rows import has, largest_k

Series = Sequence[tuple[str, Look]]
"""Metrics and how they are drawn."""

FIGURES = {
    "overview": (
        "Accuracy, and d_pi over the lag",
        "d_pi, the mean |log π − log μ| of the trained tokens, grows with every update since the weights were sent, "
        "and falls when they are sent again. Grey: the lag, in updates; of many lag cycles the mean is drawn.",
    ),
    "reward": (
        "Training reward",
        "That of the policy that generated the batch, up to one lag ago. Faint lines are single steps, strong ones "
        "averages over whole lag cycles.",
    ),
    "mismatch": (
        "Mismatch between trainer and engine",
        "How far the trained policy π is from the one that sampled, μ: d_pi is the mean over tokens. Its policy part "
        "grows with every update since generation; its implementation part is what the engines compute differently.",
    ),
    "lag": (
        "Realized lag",
        "How many optimizer updates old the trained responses were, from the weight version that the engine reported. "
        "Under a fixed lag it is a sawtooth: the weights are sent every so many steps.",
    ),
    "trust_region": (
        "Trust region",
        "What SAT left of the base radii, the share of tokens beyond its gate, and the newly clipped share: tokens "
        "whose gradient it really removed, the only ones that make the run differ from its base.",
    ),
    "log_ratio_histogram": (
        "Distribution of |d|",
        "d = log π − log μ of single tokens; the slider chooses the step. Vertical lines: q, the quantile that opens "
        "SAT's gate, median over the steps drawn. With a sequence ratio q is of the responses' mean d and lies below "
        "the tokens' own tail.",
    ),
    "optimization": (
        "Clipping, gradient and loss",
        "Tokens whose gradient is clipped away, by the sign of their advantage; the gradient's norm; the loss terms.",
    ),
    "time": (
        "Where the time goes",
        "The stacked parts follow each other in the trainer. Generation runs beside them: it costs only what shows as "
        "waiting.",
    ),
    "method": (
        "The parts of the method",
        "What the stabilizers of the run measure of themselves, averaged over whole lag cycles.",
    ),
}
"""{name: (heading, sentence)} of the figures, in the order of the page."""


def figures(data: RunData, config: Mapping[str, Any] | None = None) -> Iterator[Figure]:
    """List all figures of the page, which are drawn when asked for. config: the settings of the run, which tell its
    base radii."""
    of_their_own: dict[str, Callable[[], Drawing | None]] = {
        "overview": partial(draw_overview, data),
        "reward": partial(draw_learning, data),
        "lag": partial(draw_lag, data),
        "trust_region": partial(draw_trust_region, data, config or {}),
        "log_ratio_histogram": partial(draw_histogram, data),
    }
    for name, (heading, sentence) in FIGURES.items():
        yield Figure(name, heading, sentence, of_their_own.get(name, partial(draw_metrics, data, name)))


# ------------------------------------------------------------------------------------------- by the table of panels


def draw_metrics(data: RunData, figure: str) -> Drawing | None:
    """Draw the panels of a figure."""
    return by_step(data, *metric_panels(data, figure))


def metric_panels(
    data: RunData, figure: str, levels: Mapping[str, Sequence[tuple[float, Look]]] | None = None
) -> list[Panel]:
    """Return the panels of a figure, in the order of their table. levels: by a panel's title, values in its
    unit that straight lines mark."""
    return [
        partial(_line_panel, data, panel, series, (levels or {}).get(panel.title, ()))
        for panel, series in (_panels(figure) | _of_own_stabilizers(data, figure)).items()
    ]


def _of_own_stabilizers(data: RunData, figure: str) -> dict[MetricPanel, Series]:
    """Return a panel for each metric that a stabilizer outside this package measures, and no table has."""
    prefixes = tuple(f"{kind.prefix()}/" for kind in known() if kind.name not in STABILIZERS)
    names = [name for name in data.metrics if name.startswith(prefixes) and metric_named(name) is None]
    return {MetricPanel(name): [(name, Look(name, BLUE))] for name in names if figure == "method"}


def _panels(figure: str) -> dict[MetricPanel, Series]:
    """Return the metrics of each panel of a figure."""
    return {
        panel: list(zip((line.metric for line in drawn), apart(map(_look, drawn)), strict=True))
        for panel, drawn in panels_of(figure)
    }


def _look(line: Line) -> Look:
    label = line.label or line.metric
    return (
        Look(label, line.colour, "", "bar", filled=True) if line.dash == "area" else Look(label, line.colour, line.dash)
    )


def _line_panel(
    data: RunData,
    panel: MetricPanel,
    series: Series,
    levels: Sequence[tuple[float, Look]],
    table: Table,
    shown: alt.Parameter,
) -> Plot | None:
    """Draw a panel of smoothed metrics by step, in the unit of the first one."""
    series = [(metric, look) for metric, look in series if has(data.metrics, metric)]
    if not series:
        return None
    if any(look.marker == "bar" for _, look in series):
        return _stacked_panel(data, panel, series, table, shown)
    unit, scale = axis_of(series[0][0]) if metric_named(series[0][0]) else ("", 1.0)
    parts, looks = [], []
    for metric, look in series:
        table[metric] = data.metrics[metric]
        mean, own = (scale * values for values in (smooth(table[metric], window_of(data)), table[metric]))
        if panel.log:
            mean, own = (np.where(values > 0, values, np.nan) for values in (mean, own))
        parts.append(rows(x=steps_of(data), y=mean, own=own, line=look.name))
        # a line of one point would not be seen
        looks.append(look if np.isfinite(mean).sum() > 2 else replace(look, marker="o"))
    for level, look in levels:
        parts.append(rows(x=steps_of(data)[[0, -1]], y=[level] * 2, own=[level] * 2, line=look.name))
        looks.append(look)
    y_label = panel.y_label or unit
    y = alt.Y("y:Q", title=y_label, **(log_axis() if panel.log else {"scale": alt.Scale(zero=panel.zero)}))
    in_unit = f", {unit}" if unit else ""
    tips = [
        tip("line:N", "line"),
        tip("x:Q", "step", "d"),
        tip("y:Q", f"mean{in_unit}"),
        tip("own:Q", f"step{in_unit}"),
    ]
    base = alt.Chart().encode(steps_axis("optimizer step"), y).transform_filter(shown)
    layers = lines(base, looks, tips)
    if panel.raw:
        first = base.transform_filter(alt.datum.line == looks[0].name)
        faint = first.mark_line(clip=True, opacity=0.35, strokeWidth=0.8, color=looks[0].colour)
        layers.insert(0, faint.encode(alt.Y("own:Q", title=y_label)))
    return Plot(layered(*layers, data=joined(parts), title=panel.title), looks)


def _stacked_panel(
    data: RunData, panel: MetricPanel, series: Series, table: Table, shown: alt.Parameter
) -> Plot | None:
    """Draw a panel of smoothed metrics by step, in which areas are stacked and lines run over them."""
    parts: dict[str, alt.InlineData] = {}
    for place, (metric, look) in enumerate(series):
        table[metric] = data.metrics[metric]
        mean = smooth(table[metric], window_of(data))
        parts[look.name] = rows(x=steps_of(data), y=mean, own=table[metric], line=look.name, place=place)
    looks = [look for _, look in series]
    x, y_label = steps_axis("optimizer step"), panel.y_label or axis_of(series[0][0])[0]
    tips = [tip("line:N", "part"), tip("x:Q", "step", "d"), tip("y:Q", "mean, s"), tip("own:Q", "step, s")]
    stacked = alt.Chart(joined(parts[look.name] for look in looks if look.marker == "bar")).transform_filter(shown)
    stacked = stacked.encode(x, alt.Y("y:Q", title=y_label, stack="zero"), in_colour(looks), alt.Order("place:Q"))
    layers: list[Any] = [stacked.mark_area(clip=True), pointed(stacked, tips)]
    if beside := [parts[look.name] for look in looks if look.marker != "bar"]:
        base = alt.Chart(joined(beside)).encode(x, alt.Y("y:Q", title=y_label)).transform_filter(shown)
        layers.append(layered(*lines(base, looks, tips)))
    return Plot(layered(*layers, title=panel.title), looks)


def by_step(data: RunData, *panels: Panel) -> Drawing | None:
    """Draw panels over the optimizer steps; the table begins with them."""
    return column_of(panels, height=170, one_key=False, table={"step": steps_of(data)})


def steps_of(data: RunData) -> np.ndarray:
    """Return (steps,) the x of every metric."""
    length = max((len(values) for values in data.metrics.values()), default=0)
    return data.metrics.get("step", np.arange(1.0, length + 1))


# ---------------------------------------------------------------------------------------------- of a form of their own


def draw_overview(data: RunData) -> Drawing | None:
    """Draw what a reader asks first: the accuracy, or without evaluations the reward, and d_pi over the lag."""
    learning: list[Panel] = (
        [partial(_eval_panel, data)] if has(data.evals, "accuracy") else metric_panels(data, "reward")
    )
    return _with_evaluations(data, by_step(data, *learning, partial(_mismatch_over_lag, data)))


def _mismatch_over_lag(data: RunData, table: Table, shown: alt.Parameter) -> Plot | None:
    """Draw d_pi step by step in front of the lag; of a run of too many cycles its average over them, without the
    lag."""
    if not has(data.metrics, "mismatch/d_pi"):
        return None
    steps, own = steps_of(data), data.metrics["mismatch/d_pi"]
    teeth = has(data.metrics, "lag/mean") and len(steps) <= CYCLES * data.period
    drawn = own if teeth or data.period == 1 else smooth(own, window_of(data))
    table["mismatch/d_pi"] = own
    looks = [Look("d_pi", BLUE, "-", "o" if len(own) < 3 else "")]
    tips = [tip("x:Q", "step", "d"), tip("y:Q", "d_pi, nats")]
    x = steps_axis("optimizer step")
    base = alt.Chart(rows(x=steps, y=drawn, line="d_pi")).encode(x, alt.Y("y:Q", title="d_pi, nats"))
    front = layered(*lines(base.transform_filter(shown), looks, tips))
    if not teeth:
        return Plot(layered(front, title="d_pi" if drawn is own else "d_pi, mean over lag cycles"), looks)
    table["lag/mean"] = data.metrics["lag/mean"]
    looks.append(Look("lag, right axis", GREY, "", "bar", filled=True))
    lag_axis = alt.Axis(orient="right", tickMinStep=1, grid=False)
    lag = alt.Chart(rows(x=steps, y=table["lag/mean"], line="lag, right axis")).transform_filter(shown)
    behind = lag.mark_area(clip=True, interpolate="step", opacity=0.3, color=GREY, line=False)
    behind = behind.encode(x, alt.Y("y:Q", title="lag, updates", axis=lag_axis))
    return Plot(layered(behind, front, title="d_pi over the lag").resolve_scale(y="independent"), looks)


def draw_learning(data: RunData) -> Drawing | None:
    """Draw the reward of the training batches; the accuracy on held-out problems stands beside it in the numbers, and
    is drawn in the overview."""
    return _with_evaluations(data, by_step(data, *metric_panels(data, "reward")))


def _with_evaluations(data: RunData, drawing: Drawing | None) -> Drawing | None:
    """Put the evaluations beside the steps in the numbers of a figure."""
    if drawing is not None and "step" in data.evals:
        drawing.table = side_by_side(drawing.table, {f"eval/{key}": values for key, values in data.evals.items()})
    return drawing


def side_by_side(table: Table, evals: Table) -> Table:
    """Return the columns of both in one table, by their steps, `step` and `eval/step`; NaN where one has no row. Where
    a step has several rows, as with several data sets, the first of one goes with the first of the other."""
    steps, rows = _places(table["step"], evals["eval/step"])
    columns: Table = {"step": steps}
    for part, places in zip((table, evals), rows, strict=True):
        for key, values in part.items():
            if key not in ("step", "eval/step"):
                columns[key] = np.full(len(steps), np.nan)
                columns[key][places] = values
    return columns


def _places(*parts: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
    """Return (all steps in order, each as often as in the part that has it most; the places of each part's steps among
    them)."""
    numbered = []
    for steps in parts:
        seen: Counter[float] = Counter()
        for step in steps.tolist():
            seen[step] += 1
            numbered.append((step, seen[step]))
    place = {key: i for i, key in enumerate(sorted(set(numbered)))}
    places = iter([place[key] for key in numbered])
    return np.array([step for step, _ in place]), [[next(places) for _ in steps] for steps in parts]


def _eval_panel(data: RunData, table: Table, shown: alt.Parameter) -> Plot | None:
    if not has(data.evals, "accuracy"):
        return None
    accuracy = data.evals["accuracy"]
    steps = data.evals.get("step", np.arange(len(accuracy)))
    samples = data.evals.get("n_samples", np.full_like(accuracy, np.nan))
    error, bars_are = np.sqrt(np.clip(accuracy * (1 - accuracy), 0, None) / samples), "one standard error"
    low, high = accuracy - error, accuracy + error
    if has(data.evals, "accuracy/low_samples"):
        low, high, bars_are = data.evals["accuracy/low_samples"], data.evals["accuracy/high_samples"], "95 % interval"
    before = f"before training ({accuracy[0]:.3f})"
    looks = [Look("accuracy", GREEN, "-", "o", filled=True)]
    none = {"low": np.nan, "high": np.nan}
    parts = [rows(x=steps, y=accuracy, line="accuracy", low=low, high=high)]
    if (k := largest_k(data.evals)) > 1:
        looks.append(Look(f"pass@{k}", ORANGE, "--", "s"))
        parts.append(rows(x=steps, y=data.evals[f"pass@{k}"], line=f"pass@{k}", **none))
    looks.append(Look(before, BLACK, ":"))
    parts.append(rows(x=[steps[0], steps[-1]], y=accuracy[0], line=before, **none))
    y = alt.Y("y:Q", title="accuracy", scale=alt.Scale(zero=False))
    base = alt.Chart().encode(steps_axis("optimizer step"), y).transform_filter(shown)
    tips = [tip("line:N", "line"), tip("x:Q", "step", "d"), tip("y:Q", "value")]
    tips += [tip("low:Q", f"{bars_are}, low"), tip("high:Q", "high")]
    bars = base.transform_filter("isValid(datum.low)").mark_rule(clip=True, color=GREEN, strokeWidth=1.4)
    layers = [bars.encode(alt.Y("low:Q", title="accuracy"), y2="high:Q"), *lines(base, looks, tips)]
    title = f"accuracy, bars: {bars_are}"
    return Plot(layered(*layers, data=joined(parts), title=title), looks)


CYCLES = 25
"""Lag cycles beyond which the teeth of a sawtooth run together on a whole page's width."""


def draw_lag(data: RunData) -> Drawing | None:
    """Draw the realized lag of the trained responses, step by step; of a long run the last cycles alone too."""
    steps = len(steps_of(data))
    (lags, series), *_ = _panels("lag").items()
    panels: list[Panel] = [partial(_lag_panel, data, series, slice(None), lags.title)]
    if data.period > 1 and steps > CYCLES * data.period:
        last = slice(steps - 10 * data.period, None)
        panels.append(partial(_lag_panel, data, series, last, "the last 10 cycles"))
    panels += metric_panels(data, "lag")[1:]
    return column_of(panels, height=150, one_key=False, linked=False, table={"step": steps_of(data)})


def _lag_panel(
    data: RunData, series: Series, part: slice, title: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    if not has(data.metrics, "lag/mean"):
        return None
    mean, parts, looks = data.metrics["lag/mean"], [], []
    for metric, look in series:
        if not has(data.metrics, metric):
            continue
        table[metric] = data.metrics[metric]
        if metric == "lag/mean" or not np.array_equal(table[metric], mean, equal_nan=True):
            parts.append(rows(x=steps_of(data)[part], y=table[metric][part], line=look.name))
            looks.append(look)
    y = alt.Y("y:Q", title="updates", axis=alt.Axis(tickMinStep=1))
    base = alt.Chart().encode(steps_axis("optimizer step"), y).transform_filter(shown)
    tips = [tip("line:N", "lag of the batch"), tip("x:Q", "step", "d"), tip("y:Q", "updates")]
    layers = lines(base, looks, tips, interpolate="step", strokeWidth=1.2)
    return Plot(layered(*layers, data=joined(parts), title=title), looks)


BEYOND_GATE = "radius beyond the gate"
"""A column that is made for the figure, and no metric."""


def draw_trust_region(data: RunData, config: Mapping[str, Any]) -> Drawing | None:
    """Draw the radii that SAT left (Eq. adaptive-eps), how often its gate opened (Eq. gate) and what that changed."""
    beyond = _beyond_the_gate(data, config)
    if beyond is not None:
        data = replace(data, metrics={**data.metrics, BEYOND_GATE: beyond})
    panels = metric_panels(data, "trust_region", {"effective radii": _base_radii(config)})
    if beyond is not None:
        left = MetricPanel("radius left beyond the gate", "trust_region", "% of the base radius", raw=True)
        look = Look("mean over the tokens beyond the gate", BLUE)
        panels.insert(0, partial(_line_panel, data, left, [(BEYOND_GATE, look)], ()))
    return by_step(data, *panels)


def _beyond_the_gate(data: RunData, config: Mapping[str, Any]) -> np.ndarray | None:
    """Return (steps,) the share of the base radius that SAT left the tokens beyond its gate, in percent; None where
    the base radii are not fixed or SAT is off. Each such token has one side contracted, and every other token none:
    what all of them lack of the base radii on average is what these lack."""
    names = ("sat/eps_low_mean", "sat/eps_high_mean", "sat/gate_rate")
    method = section(config, "method")
    clip = section(method, "clip")
    base = [clip.get(key) for key in ("eps_low", "eps_high")]
    if not all(isinstance(radius, float) and radius > 0 for radius in base) or has(data.metrics, "radius/low"):
        return None
    if not all(has(data.metrics, name) for name in names):
        return None
    low, high, gate = (data.metrics[name] for name in names)
    with np.errstate(divide="ignore", invalid="ignore"):
        lacking = ((1 - low / base[0]) + (1 - high / base[1])) / gate
    return np.where(gate > 0, 100 * np.clip(1 - lacking, 0, 1), np.nan)


def _base_radii(config: Mapping[str, Any]) -> list[tuple[float, Look]]:
    """Return the radii of the interval that SAT contracts; one where both are equal."""
    clip = section(section(config, "method"), "clip")
    high, low = (clip.get(key) for key in ("eps_high", "eps_low"))
    if not (isinstance(high, float) and isinstance(low, float)):
        return []
    if high == low:
        return [(high, Look(f"base radius {high:g}", BLACK, ":"))]
    upper, lower = Look(f"upper base radius {high:g}", BLACK, ":"), Look(f"lower base radius {low:g}", GREY, ":")
    return [(high, upper), (low, lower)]


def draw_histogram(data: RunData) -> Drawing | None:
    """Draw the distribution of |d| step by step, early and late, and at low and high lag, with the quantile q (Eq.
    quantile)."""
    histograms = histogram.usable(data.histograms)
    if not histograms:
        return None
    quarter = max(1, len(histograms) // 4)
    pairs = [{"first quarter": histograms[:quarter], "last quarter": histograms[-quarter:]}]
    dated = [row for row in histograms if row.get("lag") is not None]
    lags = [row["lag"] for row in dated]
    if lags and min(lags) < max(lags):
        low, high = np.quantile(lags, [0.25, 0.75])
        stale = [row for row in dated if row["lag"] >= high]
        pairs.append({f"lag up to {low:g}": [row for row in dated if row["lag"] <= low], f"lag from {high:g}": stale})
    colours = ((BLUE, VERMILION), (GREEN, ORANGE))
    looks = [
        [Look(name, colour, dash) for name, colour, dash in zip(pair, two, ("-", "--"), strict=True)]
        for pair, two in zip(pairs, colours, strict=False)
    ]
    panels = [histogram.density(pair, two) for pair, two in zip(pairs, looks, strict=True)]
    return column_of([*panels, histogram.over_steps(histograms)], height=170, one_key=False)
