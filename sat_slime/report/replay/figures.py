"""The figures of a replay."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from sat_slime.report.drawing import BLACK, BLUE, GREY, ORANGE, SKY, STYLE, VERMILION, WIDTH, Drawing, Table
from sat_slime.report.page import Figure
from sat_slime.report.replay.gradient import CLIPPED, MASKED
from sat_slime.report.replay.replay import Replay
from sat_slime.report.replay.scope import ORDERS, SIZES
from sat_slime.report.replay.sums import EDGES
from sat_slime.report.replay.tables import REFERENCE, labels, percent

MANY = 20
"""Methods from beyond which on a figure has no room for a number of each pair, or a row for each."""


def figures(result: Replay) -> Iterator[Figure]:
    """All figures, drawn when asked for."""
    yield Figure(
        "fates",
        "Whose gradient is taken",
        "Percent of the tokens with that sign of the advantage, by method. Clipped by the interval, or masked by a "
        "gate on the side where the ratio lies; what is left keeps a gradient. At the end of a bar, the sum.",
        partial(draw_fates, result),
    )
    yield Figure(
        "weights",
        "How much a token weighs",
        "v = g / A, mean over the tokens in a bin of d = log π − log μ: what the method puts in the place of 1 on the "
        "token's own A ∇log π. Dotted: the ratio itself, which importance sampling without a bound would put there. "
        "Axes are cut at 3 and at −1. A sequence ratio spreads its weight over a response, so its line is flat.",
        partial(draw_weights, result),
    )
    yield Figure(
        "cosines",
        "How alike the gradients are",
        "Cosine between the methods' gradients over the tokens, mean over the steps. 1: the same direction. What it "
        "weighs are tokens, not parameters: two tokens count as unrelated.",
        partial(draw_cosines, result),
    )
    yield Figure(
        "scope",
        "SAT against the scope of its quantile",
        "The gate opens on the tokens above the quantile of |d| over the scope, at most the grey line's share. With "
        "few responses in it the sequence ratio ties: all tokens of a response share one d, and the stalest one holds "
        "more of the tokens than the tail may. Grouped: responses to a prompt stand together, as they are sampled.",
        partial(draw_scope, result),
    )


def draw_fates(result: Replay) -> Drawing | None:
    """Clipped and masked shares by method, for each sign of the advantage."""
    names = labels(result)
    table: Table = {"method": np.arange(len(names), dtype=float)}
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(WIDTH, 2 * (0.24 * len(names) + 0.55) + 0.4), layout="constrained")
        panels = canvas.subplots(2, 1, sharex=True)
        widest = 0.0
        for sign, axes in enumerate(panels):
            counts = np.stack([one.fates[2 * sign : 2 * sign + 2] for one in result.total.methods]).astype(float)
            of = np.maximum(counts.sum(axis=(1, 2)), 1)
            parts = (
                ("clipped", counts[:, :, CLIPPED].sum(axis=1) / of, VERMILION, ""),
                ("masked, ratio above 1", counts[:, 0, MASKED] / of, ORANGE, "////"),
                ("masked, ratio below 1", counts[:, 1, MASKED] / of, SKY, "...."),
            )
            left = np.zeros(len(names))
            for name, share, colour, hatch in parts:
                axes.barh(names, 100 * share, left=100 * left, color=colour, hatch=hatch, edgecolor=BLACK,
                          linewidth=0.5, height=0.68, label=name)  # fmt: skip
                left += share
                table[f"{'A > 0' if sign == 0 else 'A < 0'}: {name}"] = share
            for place, share in enumerate(left):
                axes.annotate(percent(share), (100 * share, place), (4, 0), textcoords="offset points", va="center",
                              fontsize=8)  # fmt: skip
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
            widest = max(widest, float(left.max()))
            axes.set_title("advantage above 0" if sign == 0 else "advantage below 0")
        panels[-1].set_xlim(0, 112 * widest or 1)  # room for the last number
        panels[-1].set_xlabel("% of these tokens")
        handles, texts = panels[0].get_legend_handles_labels()
        canvas.legend(handles, texts, loc="outside upper left", ncols=3)
        return Drawing(canvas, table)


def draw_weights(result: Replay) -> Drawing | None:
    """Mean weight v by d, a panel for each method."""
    names = labels(result)
    tokens = result.total.curve_tokens
    seen = np.flatnonzero(tokens.sum(axis=0))
    if not len(seen):
        return None
    shown = slice(seen[0], seen[-1] + 1)
    centres = bin_centres()[shown]
    table: Table = {"d": centres, "A > 0: tokens": tokens[0, shown], "A < 0: tokens": tokens[1, shown]}
    with matplotlib.rc_context(STYLE):
        columns = 1 if len(names) <= MANY else 2
        rows = -(-len(names) // columns)
        canvas = Canvas(figsize=(WIDTH, 1.25 * rows + 0.7), layout="constrained")
        panels = canvas.subplots(rows, columns, sharex=True, squeeze=False)
        places = panels.T.ravel()
        for axes in places[len(names) :]:
            axes.set_axis_off()
        for axes, name, sums in zip(places, names, result.total.methods, strict=False):
            axes.plot(centres, np.exp(centres), color=BLACK, linestyle=":", linewidth=1, label="ratio r")
            for sign, colour, dash in ((0, BLUE, "-"), (1, VERMILION, "--")):
                with np.errstate(invalid="ignore", divide="ignore"):
                    mean = np.where(tokens[sign] > 0, sums.curve[sign] / tokens[sign], np.nan)[shown]
                label = "A > 0" if sign == 0 else "A < 0"
                axes.plot(centres, mean, color=colour, linestyle=dash, label=label)
                table[f"{name}: v, {label}"] = mean
            axes.set_xscale("symlog", linthresh=1e-3)
            axes.minorticks_off()
            low = min(0.0, float(np.nanmin([line.get_ydata() for line in axes.lines[1:]])))
            axes.set_ylim(max(low, -1) - 0.15, 3)
            axes.set_title(name)
            axes.set_ylabel("v")
        for axes in (places[rows - 1], places[len(names) - 1]):  # the lowest of each column
            axes.set_xlabel("d = log π − log μ of the token, nats")
            axes.tick_params(labelbottom=True)
        ticks = {-10: "−10", -1: "−1", -0.1: "−0.1", -0.01: "−0.01", 0: "0", 0.01: "0.01", 0.1: "0.1", 1: "1", 10: "10"}
        if columns > 1:
            ticks = {d: text for d, text in ticks.items() if abs(d) != 0.1}
        axes = places[0]  # all panels share its axis
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.set_xlim(centres[0], centres[-1])
        handles, texts = axes.get_legend_handles_labels()
        canvas.legend(handles, texts, loc="outside upper left", ncols=3)
        return Drawing(canvas, table)


def bin_centres() -> np.ndarray:
    """(bins,) a d inside each bin: geometric means, 0 between the smallest edges, the edge itself outside all."""
    inner = np.sign(EDGES[1:]) * np.sqrt(np.abs(EDGES[:-1] * EDGES[1:]))
    inner[len(EDGES) // 2 - 1] = 0.0
    return np.concatenate([[EDGES[0]], inner, [EDGES[-1]]])


def draw_cosines(result: Replay) -> Drawing | None:
    """The matrix of cosines, with its numbers in it."""
    names = [*labels(result), REFERENCE]
    values = result.cosines.mean
    if not np.isfinite(values).any():
        return None
    table: Table = {name: values[:, j] for j, name in enumerate(names)}
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(WIDTH, WIDTH), layout="constrained")
        axes = canvas.add_subplot()
        least = float(np.nanmin(values))
        many = len(names) > MANY
        # never so dark that the numbers cannot be read
        image = axes.imshow(values, cmap="Greys", vmin=least, vmax=1 if many else 1.3 - 0.3 * least + 1e-9)
        if many:
            canvas.colorbar(image, ax=axes, location="bottom", shrink=0.5, label="cosine")
        else:
            _numbers(axes, values, 8 if len(names) <= 14 else 6.5)
        text: Any = {"fontsize": 6.5 if many else 10}
        upright: Any = text | {"rotation": 90 if many else 60, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(names)), names, **upright)
        axes.set_yticks(range(len(names)), names, **text)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        return Drawing(canvas, table)


def _numbers(axes: Axes, values: np.ndarray, size: float) -> None:
    least = float(np.nanmin(values))
    for i, j in np.ndindex(values.shape):
        if np.isfinite(values[i, j]):
            text = "1" if values[i, j] > 0.9995 else f"{values[i, j]:.2f}".replace("0.", ".").replace("-", "−")
            ink = "white" if values[i, j] - least > 0.7 * (1 - least) else BLACK
            axes.text(j, i, text, ha="center", va="center", fontsize=size, color=ink)


def draw_scope(result: Replay) -> Drawing | None:
    """Gate rate, and what SAT newly clips, by the number of responses in the scope."""
    drawn = {i: sweep for i, sweep in result.sweeps.items() if sweep.tokens.any()}
    if not drawn:
        return None
    table: Table = {"responses": np.array(SIZES, dtype=float)}
    colours = (BLUE, VERMILION, ORANGE, SKY, BLACK)
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(WIDTH, 5.2), layout="constrained")
        gate, newly = canvas.subplots(2, 1, sharex=True)
        for place, (index, sweep) in enumerate(drawn.items()):
            label, colour = result.candidates[index].label, colours[place % len(colours)]
            for row, (order, dash, marker) in enumerate(zip(ORDERS, ("-", "--"), ("o", "s"), strict=True)):
                name, face = f"{label}, {order}", "white" if row else colour
                look: Any = {"color": colour, "ls": dash, "marker": marker, "ms": 4.5, "markerfacecolor": face}
                for axes, what, counts in ((gate, "gate", sweep.gated), (newly, "newly", sweep.newly)):
                    rates = sweep.rates(counts)[row]
                    axes.plot(SIZES, 100 * rates, label=name, **look)
                    table[f"{name}: {what}"] = rates
        _levels(gate, result)
        for axes, title in ((gate, "gate open"), (newly, "newly clipped: gradient taken by SAT alone")):
            axes.set_title(title)
            axes.set_ylabel("% of the tokens")
            axes.set_ylim(bottom=0)
        newly.set_xscale("log", base=2)
        newly.set_xticks(SIZES, [str(size) for size in SIZES])
        newly.set_xlabel("responses in the scope")
        canvas.legend(*gate.get_legend_handles_labels(), loc="outside upper left", ncols=2)
        return Drawing(canvas, table)


def _levels(axes: Axes, result: Replay) -> None:
    """What the gate can open at most, for each level of the quantile."""
    for alpha in sorted({one.method.sat.alpha for one in result.candidates if one.method.sat}):
        axes.axhline(100 * (1 - alpha), color=GREY, linewidth=1.2, zorder=0)
