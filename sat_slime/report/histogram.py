"""Histograms of |d|: several as lines, and one that a slider moves over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import altair as alt
import numpy as np

from sat_slime.report.drawing import Panel, Plot, Table, in_colour, joined, layered, lines, log_axis, rows, tip
from sat_slime.report.looks import BLACK, SKY, Look

HistogramRow = Mapping[str, Any]
PLACES = 100
"""Places of the slider, at most: of more steps those that follow each other are added up."""
X = alt.X("x:Q", title="|d| = |log π − log μ| of a token, nats", **log_axis(padding=0))
_TIPS = [tip("x:Q", "|d| from"), tip("to:Q", "to"), tip("y:Q", "tokens", ".3~%")]


def usable(histograms: Sequence[HistogramRow]) -> list[HistogramRow]:
    """Return the rows whose counts fit their edges."""
    return [row for row in histograms if row.get("edges") and len(row.get("counts", ())) == len(row["edges"]) + 1]


def pooled(histograms: Sequence[HistogramRow]) -> tuple[np.ndarray, np.ndarray]:
    """Return (edges, (edges + 1,) share of the tokens below, between and above them) of the rows that have the first
    one's edges, added up."""
    edges = histograms[0]["edges"]
    counts = np.sum([row["counts"] for row in histograms if row["edges"] == edges], axis=0, dtype=float)
    return np.array(edges, dtype=float), counts / max(counts.sum(), 1.0)


def median_q(histograms: Sequence[HistogramRow]) -> float:
    """Return the median of the quantiles q; NaN where there are none."""
    quantiles = [float(row["q"]) for row in histograms if row.get("q")]
    return float(np.median(quantiles)) if quantiles else np.nan


def density(groups: Mapping[str, Sequence[HistogramRow]], looks: Sequence[Look]) -> Panel:
    """Make a panel with the histogram of each group of rows and, as a vertical line, its q. The two open bins have no
    width on a logarithmic axis; they are in the table."""

    def panel(table: Table, shown: alt.Parameter) -> Plot | None:
        bins = []
        for name, group in groups.items():
            edges, share = pooled(group)
            bounds = np.array([0.0, *edges, np.inf])
            table.update({f"{name}: from": bounds[:-1], f"{name}: to": bounds[1:], f"{name}: share": share})
            bins.append(stairs(edges, share, name))
        levels = rows(x=[median_q(group) for group in groups.values()], line=list(groups))
        base = alt.Chart().encode(X, alt.Y("y:Q", title="share of tokens per bin", **log_axis()))
        drawn = lines(base.transform_filter(shown), looks, [tip("line:N", "of"), *_TIPS], interpolate="step-after")
        quantile = alt.Chart(levels).transform_filter(shown).mark_rule(clip=True, strokeDash=[2, 2], strokeWidth=1.5)
        quantile = quantile.encode(X, in_colour(looks), tooltip=[tip("line:N", "of"), tip("x:Q", "q, nats")])
        return Plot(layered(layered(*drawn, data=joined(bins)), quantile, title=" and ".join(groups)), looks)

    return panel


def stairs(edges: np.ndarray, share: np.ndarray, name: str) -> alt.InlineData:
    """Return the rows of the line of a histogram, by lower edges: empty bins are gaps."""
    height = np.append(share[1:-1], share[-2:-1])
    held = np.flatnonzero(height)
    part = slice(held[0], held[-1] + 1) if len(held) else slice(0, 0)
    ends = np.append(edges[1:], edges[-1:])
    return rows(x=edges[part], to=ends[part], y=np.where(height > 0, height, np.nan)[part], line=name)


def over_steps(histograms: Sequence[HistogramRow]) -> Panel:
    """Make a panel with the histogram of one step, which a slider chooses. Rows of one step are added up; the slider
    stands at the last one."""

    def panel(table: Table, shown: alt.Parameter) -> Plot | None:
        by_step = [list(group) for _, group in groupby(sorted(histograms, key=_step), key=_step)]
        many = -(-len(by_step) // PLACES)
        starts = range(0, len(by_step), many)
        chunks = [[row for group in by_step[i : i + many] for row in group] for i in starts]
        begins = [_step(chunk[0]) for chunk in chunks]
        bins, captions = [], []
        for chunk, begin, end in zip(chunks, begins, [*begins[1:], np.inf], strict=True):
            edges, share = pooled(chunk)
            inner = np.flatnonzero(share[1:-1])
            times = {"since": begin, "until": min(end, 1e9)}
            bins.append(rows(x=edges[:-1][inner], to=edges[1:][inner], y=share[1:-1][inner], **times))
            captions.append(rows(x=median_q(chunk), told=_caption(chunk), **times))
        slider = alt.binding_range(min=begins[0], max=begins[-1], step=1, name="optimizer step ")
        at = alt.param(name="step", value=begins[-1], bind=slider)
        now = (alt.datum.since <= at) & (at < alt.datum.until)
        top = max(float(pooled(chunk)[1].max()) for chunk in chunks)
        y = alt.Y("y:Q", title="share of tokens per bin", scale=alt.Scale(domain=[0, top]))
        bars = (
            alt.Chart(joined(bins)).transform_filter(now).mark_rect(clip=True, color=SKY, stroke=BLACK, strokeWidth=0.3)
        )
        level = alt.Chart(joined(captions)).transform_filter(now)
        chart = layered(
            bars.encode(X, y, x2="to:Q", y2=alt.datum(0), tooltip=_TIPS),
            level.mark_rule(clip=True, color=BLACK, strokeDash=[4, 2], strokeWidth=1.5).encode(
                X, tooltip=[tip("x:Q", "q, nats")]
            ),
            level.mark_text(align="left").encode(x=alt.value(4), y=alt.value(8), text="told:N"),
            title="one step",
        )
        return Plot(chart.add_params(at))

    return panel


def _step(row: HistogramRow) -> float:
    return float(row.get("step") or 0)


def _caption(chunk: Sequence[HistogramRow]) -> str:
    first, last = _step(chunk[0]), _step(chunk[-1])
    text = f"step {first:g}" if first == last else f"steps {first:g} to {last:g}"
    lags = [row["lag"] for row in chunk if row.get("lag") is not None]
    if lags:
        text += f", lag {min(lags):.3g}" + (f" to {max(lags):.3g}" if min(lags) < max(lags) else "")
    q = median_q(chunk)
    return text + (f", q = {q:.3g}" if q == q else "")
