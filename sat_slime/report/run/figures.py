"""The figures of a run, each a function from its data to a drawing and the numbers behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sat_slime.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILION,
    WIDTH,
    Drawing,
    Table,
    column_of,
)
from sat_slime.report.page import Figure
from sat_slime.report.run.panels import (
    PANEL_HEIGHT,
    Series,
    by_step,
    draw_lines,
    finish,
    line_panel,
    steps_of,
)
from sat_slime.report.smoothing import smooth, window_of
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import has, largest_k

HistogramRow = Mapping[str, Any]


def figures(data: RunData) -> Iterator[Figure]:
    """All figures of the page, drawn when asked for."""
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
        "How many optimizer updates old the trained responses were, from the weight version that the engine reported.",
        partial(draw_lag, data),
    )
    yield Figure(
        "trust_region",
        "Trust region",
        "What SAT left of the base radii, the share of tokens beyond its gate, and the newly clipped share: tokens "
        "whose gradient it really removed, the only ones that make the run differ from its base.",
        partial(draw_trust_region, data),
    )
    yield Figure(
        "log_ratio_histogram",
        "Distribution of |d|",
        "d = log π − log μ of single tokens. Vertical lines: q, the quantile that opens SAT's gate, median over the "
        "steps drawn. With a sequence ratio q is of the responses' mean d and lies below the tokens' own tail.",
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
    reward = Series("reward/mean", "reward of the batch", BLUE)
    drawing = by_step(
        data,
        line_panel(data, "training reward", reward, y_label="mean reward", raw=True, zero=False),
        partial(_eval_panel, data),
    )
    if drawing is not None and "step" in data.evals:
        drawing.table = joined(drawing.table, {f"eval/{key}": values for key, values in data.evals.items()})
    return drawing


def joined(table: Table, evals: Table) -> Table:
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


def _eval_panel(data: RunData, axes: Axes, table: Table) -> bool:
    if not has(data.evals, "accuracy"):
        return False
    accuracy = data.evals["accuracy"]
    steps = data.evals.get("step", np.arange(len(accuracy)))
    samples = data.evals.get("n_samples", np.full_like(accuracy, np.nan))
    bars, told = np.nan_to_num(np.sqrt(np.clip(accuracy * (1 - accuracy), 0, None) / samples)), "one standard error"
    if has(data.evals, "accuracy/low_samples"):
        ends = np.stack([accuracy - data.evals["accuracy/low_samples"], data.evals["accuracy/high_samples"] - accuracy])
        bars, told = np.nan_to_num(ends), "95 % interval"
    axes.errorbar(steps, accuracy, yerr=bars, color=GREEN, marker="o", ms=4, capsize=2, label="accuracy")
    if (k := largest_k(data.evals)) > 1:
        axes.plot(steps, data.evals[f"pass@{k}"], color=ORANGE, linestyle="--", marker="s", ms=3, label=f"pass@{k}")
    axes.axhline(accuracy[0], color=BLACK, linestyle=":", linewidth=1, label=f"before training ({accuracy[0]:.3f})")
    return finish(axes, f"held-out accuracy (bars: {told} of the samples)", "accuracy", zero=False)


def draw_mismatch(data: RunData) -> Drawing | None:
    """d_pi, its split (Eq. split) and the quantiles of |d|."""
    return by_step(
        data,
        line_panel(
            data,
            "mean |log π − log μ| per token",
            Series("mismatch/d_pi", "d_pi", BLUE),
            Series("mismatch/policy", "policy part", GREEN, "--"),
            Series("mismatch/implementation", "implementation part", VERMILION, "-."),
            raw=True,
        ),
        line_panel(
            data,
            "quantiles of |log π − log μ|",
            Series("mismatch/q50", "median", SKY, ":"),
            Series("mismatch/q90", "90 %", BLUE),
            Series("mismatch/q99", "99 %", ORANGE, "--"),
            Series("mismatch/max", "largest", VERMILION, "-."),
            log=True,
        ),
    )


def draw_lag(data: RunData) -> Drawing | None:
    """Realized lag of the trained responses."""
    return by_step(data, partial(_lag_panel, data))


def _lag_panel(data: RunData, axes: Axes, table: Table) -> bool:
    if not has(data.metrics, "lag/mean"):
        return False
    steps = steps_of(data)
    table["lag/mean"] = data.metrics["lag/mean"]
    axes.step(steps, table["lag/mean"], where="mid", color=BLUE, label="mean", linewidth=1.2)
    if has(data.metrics, "lag/min") and has(data.metrics, "lag/max"):
        low, high = data.metrics["lag/min"], data.metrics["lag/max"]
        axes.fill_between(steps, low, high, step="mid", color=SKY, alpha=0.4, label="from least to most", lw=0)
        table |= {"lag/min": low, "lag/max": high}
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return finish(axes, "optimizer updates between generating and trained weights", "updates")


def draw_trust_region(data: RunData) -> Drawing | None:
    """The radii that SAT left (Eq. adaptive-eps), how often its gate opened (Eq. gate) and what that changed."""
    return by_step(
        data,
        line_panel(
            data,
            "effective radii",
            Series("sat/eps_high_mean", "upper radius, mean", BLUE),
            Series("sat/eps_low_mean", "lower radius, mean", ORANGE, "--"),
            zero=False,
        ),
        line_panel(data, "strongest contraction of a token", Series("sat/c_min", "smallest factor", GREEN)),
        line_panel(
            data,
            "share of the tokens",
            Series("sat/gate_rate", "gate open", BLUE),
            Series("sat/newly_clipped", "newly clipped (gradient changed by SAT)", VERMILION, "--"),
            y_label="%",
        ),
    )


def draw_histogram(data: RunData) -> Drawing | None:
    """Distribution of |d| early and late, and at low and high lag, with the quantile q (Eq. quantile)."""
    rows = [row for row in data.histograms if row.get("edges") and len(row.get("counts", ())) == len(row["edges"]) + 1]
    if not rows:
        return None
    quarter = max(1, len(rows) // 4)
    pairs = [{"first quarter": rows[:quarter], "last quarter": rows[-quarter:]}]
    dated = [row for row in rows if row.get("lag") is not None]
    lags = [row["lag"] for row in dated]
    if lags and min(lags) < max(lags):
        low, high = np.quantile(lags, [0.25, 0.75])
        stale = [row for row in dated if row["lag"] >= high]
        pairs.append({f"lag up to {low:g}": [row for row in dated if row["lag"] <= low], f"lag from {high:g}": stale})
    panels = [partial(_density_panel, pair) for pair in pairs]
    return column_of(
        panels,
        "|log π − log μ| of a token, nats",
        width=WIDTH,
        height=PANEL_HEIGHT,
        legend=False,
        integer_x=False,
    )


def _density_panel(pair: Mapping[str, Sequence[HistogramRow]], axes: Axes, table: Table) -> bool:
    occupied: list[float] = []
    for (name, rows), colour, dash in zip(pair.items(), (BLUE, VERMILION), ("-", "--"), strict=True):
        edges = np.array(rows[0]["edges"], dtype=float)
        counts = np.sum([row["counts"] for row in rows if row["edges"] == rows[0]["edges"]], axis=0, dtype=float)
        share = counts / max(counts.sum(), 1.0)
        bounds = np.array([0.0, *edges, np.inf])
        table |= {f"{name}: from": bounds[:-1], f"{name}: to": bounds[1:], f"{name}: share": share}
        inner = share[1:-1]  # the two open bins have no width to draw on a logarithmic axis; they are in the table
        occupied += [*edges[:-1][inner > 0], *edges[1:][inner > 0]]
        heights = np.where(inner > 0, inner, np.nan)
        axes.stairs(heights, edges, color=colour, linestyle=dash, label=name, linewidth=1.6)
        if quantiles := [row["q"] for row in rows if row.get("q")]:
            q = float(np.median(quantiles))
            axes.axvline(q, color=colour, linestyle=dash, linewidth=1, label=f"q = {q:.3g}")
    axes.set_xscale("log")
    if occupied:
        axes.set_xlim(min(occupied), max(occupied))
    return finish(axes, " and ".join(pair), "share of tokens per bin", log=True)


def draw_optimization(data: RunData) -> Drawing | None:
    """Clipping, gradient norm and loss terms."""
    return by_step(
        data,
        line_panel(
            data,
            "clipped tokens",
            Series("clip/fraction", "all", BLACK),
            Series("clip/upper", "upper (advantage > 0)", BLUE, "--"),
            Series("clip/lower", "lower (advantage < 0)", ORANGE, "-."),
        ),
        line_panel(data, "norm of the gradient before clipping", Series("grad_norm", "norm", BLUE), raw=True),
        line_panel(
            data,
            "loss terms",
            Series("loss/total", "total", BLACK),
            Series("loss/policy", "policy part", BLUE, "--"),
            zero=False,
        ),
        line_panel(data, "KL to the reference model, unweighted", Series("loss/kl", "KL", VERMILION)),
        line_panel(data, "entropy of the policy", Series("loss/entropy", "entropy", GREEN)),
    )


def draw_time(data: RunData) -> Drawing | None:
    """Where the seconds of an iteration go."""
    return by_step(data, partial(_time_panel, data))


def _time_panel(data: RunData, axes: Axes, table: Table) -> bool:
    parts = (
        ("time/train", "train", BLUE, ""),
        ("time/sync", "send weights", ORANGE, "////"),
        ("time/wait", "wait for responses", GREY, ""),
    )
    known = [part for part in parts if has(data.metrics, part[0])]
    if not known:
        return False
    bottom = np.zeros(len(steps_of(data)))
    for key, name, colour, hatch in known:
        table[key] = data.metrics[key]
        top = bottom + np.nan_to_num(smooth(table[key], window_of(data)))
        face: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "hatch": hatch, "linewidth": 0}
        axes.fill_between(steps_of(data), bottom, top, label=name, **face)
        bottom = top
    whole = Series("time/step", "whole iteration", BLACK)
    draw_lines(axes, table, data, [whole, Series("time/rollout", "generation (in parallel)", VERMILION, "--")])
    return finish(axes, "seconds per iteration, the trainer's parts stacked", "s")
