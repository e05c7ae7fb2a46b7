"""The figures of a replay."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import altair as alt
import numpy as np

from sat_slime.report.drawing import (
    Drawing,
    Plot,
    Table,
    chosen,
    column_of,
    facets,
    grid_of,
    in_colour,
    joined,
    layered,
    lines,
    rows,
    rule,
    tip,
)
from sat_slime.report.looks import BLACK, BLUE, GREY, ORANGE, SKY, VERMILION, Look, apart
from sat_slime.report.number_text import percent_number
from sat_slime.report.page import Figure
from sat_slime.report.replay.method_sums import EDGES
from sat_slime.report.replay.replay import Replay
from sat_slime.report.replay.replay_tables import REFERENCE, labels
from sat_slime.report.replay.scope_sweep import ORDERS, SIZES
from sat_slime.report.replay.token_gradient import CLIPPED, MASKED

MANY = 20
"""With more methods than this the numbers of a matrix are small."""


def figures(result: Replay) -> Iterator[Figure]:
    """List all figures, which are drawn when asked for."""
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


FATES = (
    Look("clipped", VERMILION, "", "bar", filled=True),
    Look("masked, ratio above 1", ORANGE, "", "bar", filled=True),
    Look("masked, ratio below 1", SKY, "", "bar", filled=True),
)


def draw_fates(result: Replay) -> Drawing | None:
    """Draw the clipped and masked shares by method, for each sign of the advantage."""
    table: Table = {"method": np.arange(len(labels(result)), dtype=float)}
    return column_of([partial(_fates_panel, result, sign) for sign in (0, 1)], zoom=False, table=table)


def _fates_panel(result: Replay, sign: int, table: Table, shown: alt.Parameter) -> Plot:
    names = labels(result)
    counts = np.stack([sums.fates[2 * sign : 2 * sign + 2] for sums in result.total.methods]).astype(float)
    of = np.maximum(counts.sum(axis=(1, 2)), 1)
    shares = (counts[:, :, CLIPPED].sum(axis=1) / of, counts[:, 0, MASKED] / of, counts[:, 1, MASKED] / of)
    for look, share in zip(FATES, shares, strict=True):
        table[f"{'A > 0' if sign == 0 else 'A < 0'}: {look.name}"] = share
    named = enumerate(zip(FATES, shares, strict=True))
    data = joined([rows(x=100 * share, method=names, line=look.name, place=i) for i, (look, share) in named])
    y = alt.Y("method:N", title=None, sort=names, axis=alt.Axis(ticks=False))
    title = "% of the tokens with that sign"
    bars = alt.Chart(data).transform_filter(shown).mark_bar(height={"band": 0.75})
    bars = bars.encode(
        alt.X("x:Q", title=title, stack="zero"),
        y,
        in_colour(FATES),
        alt.Order("place:Q"),
        tooltip=[tip("method:N", "method"), tip("line:N", "fate"), tip("x:Q", title)],
    )
    total = np.sum(shares, axis=0)
    sums = alt.Chart(rows(x=100 * total, method=names, told=[percent_number(share) for share in total]))
    text = sums.mark_text(align="left", dx=4).encode(alt.X("x:Q", title=title), y, text="told:N")
    title = "advantage above 0" if sign == 0 else "advantage below 0"
    return Plot(layered(bars, text, title=title, height=alt.Step(18)), FATES)


WEIGHTS = (Look("ratio r", BLACK, ":"), Look("A > 0", BLUE), Look("A < 0", VERMILION, "--"))


def draw_weights(result: Replay) -> Drawing | None:
    """Draw the mean weight v by d, a panel for each method."""
    names = labels(result)
    tokens = result.total.curve_tokens
    seen = np.flatnonzero(tokens.sum(axis=0))
    if not len(seen):
        return None
    part = slice(seen[0], seen[-1] + 1)
    centres = bin_centres()[part]
    table: Table = {"d": centres, "A > 0: tokens": tokens[0, part], "A < 0: tokens": tokens[1, part]}
    parts = []
    for name, sums in zip(names, result.total.methods, strict=True):
        parts.append(rows(x=centres, y=np.exp(centres), line="ratio r", panel=name))
        for sign, look in enumerate(WEIGHTS[1:]):
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = np.where(tokens[sign] > 0, sums.curve[sign] / tokens[sign], np.nan)[part]
            table[f"{name}: v, {look.name}"] = mean
            parts.append(rows(x=centres, y=mean, line=look.name, panel=name))
    axis = alt.Axis(values=[-10, -1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10], format="~g")
    scale = alt.Scale(type="symlog", constant=1e-3, nice=False)
    base = (
        alt.Chart()
        .transform_filter(chosen())
        .encode(
            alt.X("x:Q", title="d = log π − log μ, nats", scale=scale, axis=axis),
            alt.Y("y:Q", title="v", scale=alt.Scale(domain=[-1.15, 3], nice=False), axis=alt.Axis(tickCount=4)),
        )
    )
    tips = [tip("panel:N", "method"), tip("line:N", "line"), tip("x:Q", "d, nats"), tip("y:Q", "v")]
    panel = layered(*lines(base, WEIGHTS, tips), height=90)
    return facets(panel, joined(parts), 2, table, WEIGHTS)


def bin_centres() -> np.ndarray:
    """Return (bins,) a d inside each bin: geometric means, 0 between the smallest edges, the edge itself outside
    all."""
    inner = np.sign(EDGES[1:]) * np.sqrt(np.abs(EDGES[:-1] * EDGES[1:]))
    inner[len(EDGES) // 2 - 1] = 0.0
    return np.concatenate([[EDGES[0]], inner, [EDGES[-1]]])


def draw_cosines(result: Replay) -> Drawing | None:
    """Draw the matrix of cosines, with its numbers in it where they have room."""
    names = [*labels(result), REFERENCE]
    values = result.cosines.mean
    if not np.isfinite(values).any():
        return None
    table: Table = {name: values[:, j] for j, name in enumerate(names)}
    many = len(names) > MANY
    i, j = np.nonzero(np.isfinite(values))
    data = rows(one=[names[a] for a in i], other=[names[b] for b in j], cosine=values[i, j])
    text: Any = {"title": None, "sort": names}
    axis: Any = {"ticks": False, "domain": False, "labelFontSize": 9 if many else 11, "labelOverlap": False}
    axis["labelLimit"] = 300
    base = alt.Chart(data).encode(
        alt.X("one:N", **text, axis=alt.Axis(labelAngle=-60, **axis)), alt.Y("other:N", **text, axis=alt.Axis(**axis))
    )
    tips = [tip("one:N", "method"), tip("other:N", "and"), tip("cosine:Q", "cosine", ".4f")]
    # never so dark that the numbers cannot be read
    scale = alt.Scale(range=[0.04, 0.45], zero=False)
    legend = alt.Legend(title="cosine", orient="top", direction="horizontal", symbolType="square", tickCount=5)
    shade = alt.Opacity("cosine:Q", scale=scale, legend=legend)
    cells = base.mark_rect(color=BLUE).encode(shade, tooltip=tips)
    numbers = base.transform_filter(f"width > {(18 if many else 30) * len(names)}").mark_text(
        fontSize=8 if many else 10
    )
    numbers = numbers.encode(text=alt.Text("cosine:Q", format=".2f"))
    return grid_of([[layered(cells, numbers, height=alt.Step(16 if many else 24))]], table)


def draw_scope(result: Replay) -> Drawing | None:
    """Draw the gate rate, and what SAT newly clips, by the number of responses in the scope."""
    drawn = {i: sweep for i, sweep in result.sweeps.items() if sweep.tokens.any()}
    colours = (BLUE, VERMILION, ORANGE, SKY, BLACK)
    styles = (("-", "o", True), ("--", "s", False))
    looks = apart(
        Look(f"{result.candidates[index].label}, {order}", colours[place % len(colours)], *style)
        for place, index in enumerate(drawn)
        for order, style in zip(ORDERS, styles, strict=True)
    )
    rates: dict[str, dict[Look, np.ndarray]] = {"gate": {}, "newly": {}}
    of_lines = iter(looks)
    table: Table = {"responses": np.array(SIZES, dtype=float)}
    for sweep in drawn.values():
        for row, _ in enumerate(ORDERS):
            look = next(of_lines)
            for what, counts in (("gate", sweep.gated), ("newly", sweep.newly)):
                rates[what][look] = table[f"{look.name}: {what}"] = sweep.rates(counts)[row]
    if not drawn:
        return None
    levels = sorted({candidate.method.sat.alpha for candidate in result.candidates if candidate.method.sat})
    panels = [
        partial(_scope_panel, "gate open", rates["gate"], [100 * (1 - alpha) for alpha in levels]),
        partial(_scope_panel, "newly clipped: gradient taken only by SAT", rates["newly"], []),
    ]
    return column_of(panels, zoom=False, table=table)


def _scope_panel(
    title: str, rates: dict[Look, np.ndarray], levels: list[float], table: Table, shown: alt.Parameter
) -> Plot:
    """levels: what the gate can open at most, for each level of the quantile."""
    axis = alt.Axis(values=list(SIZES), format="d")
    base = (
        alt.Chart()
        .transform_filter(shown)
        .encode(
            alt.X("x:Q", title="responses in the scope", scale=alt.Scale(type="log", base=2, nice=False), axis=axis),
            alt.Y("y:Q", title="% of the tokens"),
        )
    )
    data = joined([rows(x=list(SIZES), y=100 * values, line=look.name) for look, values in rates.items()])
    tips = [tip("line:N", "method, order"), tip("x:Q", "responses", "d"), tip("y:Q", "% of the tokens")]
    layers: list[Any] = [rule("y", level, color=GREY, strokeWidth=1.2) for level in levels]
    layers.append(layered(*lines(base, list(rates), tips), data=data))
    return Plot(layered(*layers, title=title), list(rates))
