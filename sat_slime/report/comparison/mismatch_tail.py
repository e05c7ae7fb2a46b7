"""The tail of |d| by realized lag, and SAT's gate on it: pooled over runs, from histograms and metrics."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import altair as alt
import numpy as np

from sat_slime.report import histogram
from sat_slime.report.averages import finite_mean
from sat_slime.report.comparison.compared_runs import Collection, ComparedRun
from sat_slime.report.comparison.method_names import has, label_of
from sat_slime.report.drawing import (
    Drawing,
    Panel,
    Plot,
    Table,
    column_of,
    inline,
    joined,
    layered,
    lines,
    log_axis,
    rows,
    tip,
)
from sat_slime.report.looks import BLACK, BLUE, GREEN, ORANGE, VERMILION, Look
from sat_slime.report.number_text import DASH
from sat_slime.report.panels import axis_of

BOUNDS = tuple(10.0**exponent for exponent in (-2, -1.5, -1, -0.5, 0))
"""Limits of the columns of |d| in the gate table, nats; each is an edge of the histograms."""
MEASURES = (
    ("mismatch/d_pi", "mean |d|"),
    ("mismatch/q90", "90 % quantile"),
    ("mismatch/q99", "99 % quantile"),
    ("sat/q", "q"),
    ("sat/gate_rate", "gate open"),
    ("sat/newly_clipped", "newly clipped"),
    ("sat/c_min", "smallest factor"),
)
SHOWN_FROM = 1e-4
"""Nats: the figure starts here; its table has all."""
_LINES = ((BLACK, "-"), (BLUE, "--"), (ORANGE, ":"), (VERMILION, "-."), (GREEN, (0, (5, 1, 1, 1, 1, 1))))


@dataclass
class Pool:
    """Histograms of |d| of one realized lag, added up."""

    edges: np.ndarray
    counts: np.ndarray
    """(edges + 1,) tokens."""
    beyond_gate: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """(edges + 1,) tokens above the q of their step. Within the bin that holds q, tokens count as spread evenly in
    log |d|."""


def stalest(collection: Collection) -> list[ComparedRun]:
    """Return the runs at the highest configured lag, which meet every realized lag. Runs at a lower one learn
    otherwise: with them, two realized lags would differ by more than the lag."""
    lags = [lag for lag in collection.lags if lag is not None]
    return [run for run in collection.runs if not lags or run.lag == max(lags)]


def pool(runs: Sequence[ComparedRun]) -> dict[int, Pool]:
    """Return {realized lag: histograms added up over steps and runs}."""
    pools: dict[int, Pool] = {}
    for run in runs:
        for row in run.data.histograms:
            edges, counts = (np.array(row.get(key) or (), dtype=float) for key in ("edges", "counts"))
            if row.get("lag") is None or not len(edges) or len(counts) != len(edges) + 1:
                continue
            lag = round(row["lag"])
            if lag not in pools:
                pools[lag] = Pool(edges, np.zeros(len(counts)), np.zeros(len(counts)))
            if np.array_equal(pools[lag].edges, edges):
                pools[lag].counts += counts
                if isinstance(row.get("q"), (int, float)):
                    pools[lag].beyond_gate += counts * _share_above(edges, row["q"])
    return dict(sorted(pools.items()))


def _share_above(edges: np.ndarray, q: float) -> np.ndarray:
    """Return (edges + 1,) the share of each bin above q."""
    if q <= 0:
        return np.zeros(len(edges) + 1)
    low, high = np.log(edges[:-1]), np.log(edges[1:])
    inner = np.clip((high - np.log(q)) / (high - low), 0, 1)
    return np.concatenate([[0.0], inner, [float(q <= edges[-1])]])


def draw_tail(collection: Collection) -> Drawing | None:
    """Draw the histogram of |d|, and the share of the tokens above it, a line per realized lag; with and without R3.
    Below, the histogram of one step, of all runs together."""
    panels: list[Panel] = []
    for place, (replayed, name) in enumerate(((False, "without R3"), (True, "with R3"))):
        runs = [run for run in stalest(collection) if has(run.method, "r3") == replayed]
        title = f"{len(runs)} run{'s' * (len(runs) != 1)} {name}"
        if not (pools := pool(runs)):
            continue
        panels += [partial(_panel, pools, kind, f"{title}: {kind}") for kind in ("histogram", "tail")]
        histograms = histogram.usable([row for run in runs for row in run.data.histograms])
        panels.append(histogram.over_steps(histograms, title, place))
    return column_of(panels)


def _panel(pools: dict[int, Pool], kind: str, title: str, table: Table, shown: alt.Parameter) -> Plot:
    # lag 0 is the first batch alone, of weights that no training has touched
    lags = [lag for lag in pools if lag > 0] or list(pools)
    if len(lags) > len(_LINES):  # the ends and what lies evenly between them
        lags = [lags[round(i * (len(lags) - 1) / (len(_LINES) - 1))] for i in range(len(_LINES))]
    looks, parts = [], []
    for lag, (colour, dash) in zip(lags, _LINES, strict=False):
        looks.append(look := Look(f"realized lag {lag}", colour, dash))
        edges, share = pools[lag].edges, pools[lag].counts / max(pools[lag].counts.sum(), 1)
        if kind == "tail":
            above = share[::-1].cumsum()[::-1][1:]  # at each edge
            table |= {f"{title}, lag {lag}: x": edges, f"{title}, lag {lag}: share above x": above}
            parts.append(rows(x=edges, y=np.where(above > 0, above, np.nan), line=look.name, to=np.nan))
        else:
            bounds = np.array([0.0, *edges, np.inf])
            table |= {f"{title}, lag {lag}: from": bounds[:-1], f"{title}, lag {lag}: share": share}
            parts.append(histogram.stairs(edges, share, look.name))
        parts[-1] = inline(row for row in parts[-1].values if row["x"] >= SHOWN_FROM)
    name = "share above |d|" if kind == "tail" else "share per bin"
    base = alt.Chart(joined(parts)).encode(histogram.X, alt.Y("y:Q", title=name, **log_axis())).transform_filter(shown)
    tips = [tip("line:N", "tokens at"), tip("x:Q", "|d|, nats"), tip("y:Q", name, ".3~%")]
    how = {} if kind == "tail" else {"interpolate": "step-after"}
    return Plot(layered(*lines(base, looks, tips, **how), title=title), looks)


Rows = list[list[str]]


def lag_table(collection: Collection) -> Rows:
    """Tell lag, realized lag, |d| and gate of every SAT method: means over the steps of that realized lag and the
    runs."""
    rows = [["method", "lag", "realized", "steps", *(name for _, name in MEASURES)]]
    sat = [name for name in collection.methods if has(name, "sat")]
    for method, configured in itertools.product(sat, collection.lags):
        runs = [run for run in collection.of(method, configured, whole=False) if "lag/mean" in run.data.metrics]
        lags = [np.round(run.data.metrics["lag/mean"]) for run in runs]
        for lag in sorted({float(lag) for values in lags for lag in values[np.isfinite(values)]}):
            chosen = [(run.data.metrics, values == lag) for run, values in zip(runs, lags, strict=True)]
            numbers = []
            for key, _ in MEASURES:
                values = [metrics[key][at] for metrics, at in chosen if key in metrics]
                mean = finite_mean(np.concatenate(values or [np.zeros(0)]))
                percent = axis_of(key)[1] == 100
                numbers.append(DASH if np.isnan(mean) else f"{mean:.2%}" if percent else f"{mean:.4f}")
            steps = sum(int(at.sum()) for _, at in chosen)
            rows.append(
                [label_of(method), DASH if configured is None else str(configured), f"{lag:g}", str(steps), *numbers]
            )
    return rows if len(rows) > 1 else []


def gate_table(collection: Collection) -> Rows:
    """Tell the share of tokens by |d| at each realized lag, and for how many of those the gate is open. Only of methods
    with a token ratio: under the sequence ratio the gate looks at the response's d, not at the token's."""
    runs = [run for run in stalest(collection) if run.method in ("sat-grpo", "sat-grpo-r3")]
    names = [f"|d| below {BOUNDS[0]:.2g}"]
    names += [f"to {high:.2g}" for high in BOUNDS[1:]] + [f"above {BOUNDS[-1]:.2g}"]
    rows = [["realized lag", "tokens", *names]]
    for lag, pooled in pool(runs).items():
        total = pooled.counts.sum()
        if not total:
            continue
        # a bin begins at its lower edge; the first one at 0
        place = np.concatenate([[0], np.searchsorted(np.array(BOUNDS) * (1 - 1e-9), pooled.edges, side="right")])
        cells_of_row = []
        for column in range(len(names)):
            tokens, beyond = pooled.counts[place == column].sum(), pooled.beyond_gate[place == column].sum()
            opened = f", open {beyond / tokens:.0%}" if tokens else ""
            cells_of_row.append(f"{tokens / total:.2%}{opened}")
        rows.append([str(lag), f"{total:,.0f}", *cells_of_row])
    return rows if len(rows) > 1 else []
