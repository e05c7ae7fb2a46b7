"""The figures of a run, each a function from its data to a drawing and the numbers behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import altair as alt
import numpy as np

from sat_slime.report import histogram
from sat_slime.report.drawing import (
    Drawing,
    Plot,
    Table,
    column_of,
    in_colour,
    joined,
    layered,
    lines,
    pointed,
    rows,
    steps_axis,
    tip,
)
from sat_slime.report.looks import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, Look
from sat_slime.report.page import Figure
from sat_slime.report.run.panels import by_step, line_panel, steps_of
from sat_slime.report.smoothing import smooth, window_of
from sat_slime.runs.reading import RunData, section
from sat_slime.runs.rows import has, largest_k


def figures(data: RunData, config: Mapping[str, Any] | None = None) -> Iterator[Figure]:
    """All figures of the page, drawn when asked for. config: the settings of the run, which tell its base radii."""
    yield Figure(
        "reward",
        "Reward and accuracy",
        "The training reward is that of the policy that generated the batch, up to one lag ago; the accuracy is on "
        "problems never trained on. Faint lines are single steps, strong ones averages over whole lag cycles.",
        partial(draw_learning, data),
    )
    yield Figure(
        "mismatch",
        "Mismatch between trainer and engine",
        "How far the trained policy π is from the one that sampled, μ: d_pi is the mean over tokens. Its policy part "
        "grows with every update since generation; its implementation part is what the engines compute differently.",
        partial(draw_mismatch, data),
    )
    yield Figure(
        "lag",
        "Realized lag",
        "How many optimizer updates old the trained responses were, from the weight version that the engine reported. "
        "Under a fixed lag it is a sawtooth: the weights are sent every so many steps.",
        partial(draw_lag, data),
    )
    yield Figure(
        "trust_region",
        "Trust region",
        "What SAT left of the base radii, the share of tokens beyond its gate, and the newly clipped share: tokens "
        "whose gradient it really removed, the only ones that make the run differ from its base.",
        partial(draw_trust_region, data, config or {}),
    )
    yield Figure(
        "log_ratio_histogram",
        "Distribution of |d|",
        "d = log π − log μ of single tokens; the slider chooses the step. Vertical lines: q, the quantile that opens "
        "SAT's gate, median over the steps drawn. With a sequence ratio q is of the responses' mean d and lies below "
        "the tokens' own tail.",
        partial(draw_histogram, data),
    )
    yield Figure(
        "optimization",
        "Clipping, gradient and loss",
        "Tokens whose gradient is clipped away, by the sign of their advantage; the gradient's norm; the loss terms.",
        partial(draw_optimization, data),
    )
    yield Figure(
        "time",
        "Where the time goes",
        "The stacked parts follow each other in the trainer. Generation runs beside them: it costs only what shows as "
        "waiting.",
        partial(draw_time, data),
    )


def draw_learning(data: RunData) -> Drawing | None:
    """Reward of the training batches, and accuracy on held-out problems."""
    reward = "reward/mean", Look("reward of the batch", BLUE)
    drawing = by_step(
        data,
        line_panel(data, "training reward", reward, y_label="mean reward", raw=True, zero=False),
        partial(_eval_panel, data),
    )
    if drawing is not None and "step" in data.evals:
        drawing.table = side_by_side(drawing.table, {f"eval/{key}": values for key, values in data.evals.items()})
    return drawing


def side_by_side(table: Table, evals: Table) -> Table:
    """The columns of both in one table, by their steps, `step` and `eval/step`; NaN where one has no row. Where a step
    has several rows, as with several data sets, the first of one goes with the first of the other."""
    steps, rows = _places(table["step"], evals["eval/step"])
    columns: Table = {"step": steps}
    for part, places in zip((table, evals), rows, strict=True):
        for key, values in part.items():
            if key not in ("step", "eval/step"):
                columns[key] = np.full(len(steps), np.nan)
                columns[key][places] = values
    return columns


def _places(*parts: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
    """(all steps in order, each as often as in the part that has it most; the places of each part's steps among
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
    error, told = np.sqrt(np.clip(accuracy * (1 - accuracy), 0, None) / samples), "one standard error"
    low, high = accuracy - error, accuracy + error
    if has(data.evals, "accuracy/low_samples"):
        low, high, told = data.evals["accuracy/low_samples"], data.evals["accuracy/high_samples"], "95 % interval"
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
    tips += [tip("low:Q", f"{told}, low"), tip("high:Q", "high")]
    bars = base.transform_filter("isValid(datum.low)").mark_rule(clip=True, color=GREEN, strokeWidth=1.4)
    layers = [bars.encode(alt.Y("low:Q", title="accuracy"), y2="high:Q"), *lines(base, looks, tips)]
    title = f"accuracy, bars: {told}"
    return Plot(layered(*layers, data=joined(parts), title=title), looks)


def draw_mismatch(data: RunData) -> Drawing | None:
    """d_pi, its split (Eq. split) and the quantiles of |d|."""
    return by_step(
        data,
        line_panel(
            data,
            "mean |log π − log μ| per token",
            ("mismatch/d_pi", Look("d_pi", BLUE)),
            ("mismatch/policy", Look("policy part", GREEN, "--")),
            ("mismatch/implementation", Look("implementation part", VERMILION, "-.")),
            raw=True,
        ),
        line_panel(
            data,
            "quantiles of |log π − log μ|",
            ("mismatch/q50", Look("median", SKY, ":")),
            ("mismatch/q90", Look("90 %", BLACK)),
            ("mismatch/q99", Look("99 %", ORANGE, "--")),
            ("mismatch/max", Look("largest", VERMILION, (0, (6, 1)))),
            log=True,
        ),
    )


CYCLES = 25
"""Lag cycles beyond which the teeth of a sawtooth run together on a whole page's width."""


def draw_lag(data: RunData) -> Drawing | None:
    """Realized lag of the trained responses, step by step; of a long run the last cycles alone too."""
    steps = len(steps_of(data))
    panels = [partial(_lag_panel, data, slice(None), "of the trained responses")]
    if data.period > 1 and steps > CYCLES * data.period:
        last = slice(steps - 10 * data.period, None)
        panels.append(partial(_lag_panel, data, last, "the last 10 cycles"))
    return column_of(panels, height=150, one_key=False, linked=False, table={"step": steps_of(data)})


def _lag_panel(data: RunData, part: slice, title: str, table: Table, shown: alt.Parameter) -> Plot | None:
    if not has(data.metrics, "lag/mean"):
        return None
    kinds = [("lag/mean", Look("mean", BLUE))]
    if has(data.metrics, "lag/min") and has(data.metrics, "lag/max"):
        kinds += [("lag/min", Look("least", GREEN, ":")), ("lag/max", Look("most", ORANGE, "--"))]
    mean, parts, looks = data.metrics["lag/mean"], [], []
    for metric, look in kinds:
        table[metric] = data.metrics[metric]
        if metric == "lag/mean" or not np.array_equal(data.metrics[metric], mean, equal_nan=True):
            parts.append(rows(x=steps_of(data)[part], y=data.metrics[metric][part], line=look.name))
            looks.append(look)
    y = alt.Y("y:Q", title="updates", axis=alt.Axis(tickMinStep=1))
    base = alt.Chart().encode(steps_axis("optimizer step"), y).transform_filter(shown)
    tips = [tip("line:N", "lag of the batch"), tip("x:Q", "step", "d"), tip("y:Q", "updates")]
    layers = lines(base, looks, tips, interpolate="step", strokeWidth=1.2)
    return Plot(layered(*layers, data=joined(parts), title=title), looks)


def draw_trust_region(data: RunData, config: Mapping[str, Any]) -> Drawing | None:
    """The radii that SAT left (Eq. adaptive-eps), how often its gate opened (Eq. gate) and what that changed."""
    return by_step(
        data,
        line_panel(
            data,
            "effective radii",
            ("sat/eps_high_mean", Look("upper radius, mean", BLUE)),
            ("sat/eps_low_mean", Look("lower radius, mean", ORANGE, "--")),
            zero=False,
            levels=_base_radii(config),
        ),
        line_panel(
            data, "strongest contraction of a token", ("sat/c_min", Look("smallest factor", GREEN)), y_label="factor"
        ),
        line_panel(
            data,
            "share of the tokens",
            ("sat/gate_rate", Look("gate open", SKY)),
            ("sat/newly_clipped", Look("newly clipped (gradient changed by SAT)", VERMILION, "--")),
            y_label="%",
        ),
    )


def _base_radii(config: Mapping[str, Any]) -> list[tuple[float, Look]]:
    """The radii of the interval that SAT contracts; one where both are equal."""
    clip = section(section(config, "method"), "clip")
    high, low = (clip.get(key) for key in ("eps_high", "eps_low"))
    if not (isinstance(high, float) and isinstance(low, float)):
        return []
    if high == low:
        return [(high, Look(f"base radius {high:g}", BLACK, ":"))]
    upper, lower = Look(f"upper base radius {high:g}", BLACK, ":"), Look(f"lower base radius {low:g}", GREY, ":")
    return [(high, upper), (low, lower)]


def draw_histogram(data: RunData) -> Drawing | None:
    """Distribution of |d| step by step, early and late, and at low and high lag, with the quantile q (Eq. quantile)."""
    found = histogram.usable(data.histograms)
    if not found:
        return None
    quarter = max(1, len(found) // 4)
    pairs = [{"first quarter": found[:quarter], "last quarter": found[-quarter:]}]
    dated = [row for row in found if row.get("lag") is not None]
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
    return column_of([*panels, histogram.over_steps(found)], height=170, one_key=False)


def draw_optimization(data: RunData) -> Drawing | None:
    """Clipping, gradient norm and loss terms."""
    return by_step(
        data,
        line_panel(
            data,
            "clipped tokens",
            ("clip/fraction", Look("all", BLACK)),
            ("clip/upper", Look("upper (advantage > 0)", BLUE, "--")),
            ("clip/lower", Look("lower (advantage < 0)", ORANGE, "-.")),
        ),
        line_panel(
            data, "norm of the gradient before clipping", ("grad_norm", Look("norm", BLUE)), y_label="norm", raw=True
        ),
        line_panel(
            data,
            "loss terms",
            ("loss/total", Look("total", PURPLE)),
            ("loss/policy", Look("policy part", GREEN, "--")),
            zero=False,
        ),
        line_panel(data, "KL to the reference model, unweighted", ("loss/kl", Look("KL", VERMILION))),
        line_panel(data, "entropy of the policy", ("loss/entropy", Look("entropy", GREEN))),
    )


def draw_time(data: RunData) -> Drawing | None:
    """Where the seconds of an iteration go."""
    return by_step(data, partial(_time_panel, data))


def _time_panel(data: RunData, table: Table, shown: alt.Parameter) -> Plot | None:
    stacked = [
        (metric, look)
        for metric, look in (
            ("time/train", Look("train", BLUE, "", "bar", filled=True)),
            ("time/sync", Look("send weights", ORANGE, "", "bar", filled=True)),
            ("time/wait", Look("wait for responses", GREY, "", "bar", filled=True)),
        )
        if has(data.metrics, metric)
    ]
    if not stacked:
        return None
    beside = [
        (metric, look)
        for metric, look in (
            ("time/step", Look("whole iteration", BLACK)),
            ("time/rollout", Look("generation (in parallel)", VERMILION, "--")),
        )
        if has(data.metrics, metric)
    ]
    parts: dict[str, alt.InlineData] = {}
    for place, (metric, look) in enumerate([*stacked, *beside]):
        table[metric] = data.metrics[metric]
        mean = smooth(table[metric], window_of(data))
        parts[look.name] = rows(x=steps_of(data), y=mean, own=table[metric], line=look.name, place=place)
    looks = [look for _, look in [*stacked, *beside]]
    x, seconds = steps_axis("optimizer step"), alt.Y("y:Q", title="s")
    tips = [tip("line:N", "part"), tip("x:Q", "step", "d"), tip("y:Q", "mean, s"), tip("own:Q", "step, s")]
    of_parts = alt.Chart(joined([parts[look.name] for _, look in stacked])).transform_filter(shown)
    of_parts = of_parts.encode(x, alt.Y("y:Q", title="s", stack="zero"), in_colour(looks), alt.Order("place:Q"))
    layers: list[Any] = [of_parts.mark_area(clip=True), pointed(of_parts, tips)]
    if beside:
        base = alt.Chart(joined([parts[look.name] for _, look in beside])).encode(x, seconds).transform_filter(shown)
        layers.append(layered(*lines(base, looks, tips)))
    return Plot(layered(*layers, title="seconds per iteration, parts stacked"), looks)
