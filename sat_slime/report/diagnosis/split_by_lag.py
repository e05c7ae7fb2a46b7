"""Eq. split by lag, from metrics.jsonl alone: without the finer parts that dumps tell."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import altair as alt
import numpy as np

from sat_slime.report.drawing import Drawing, Plot, Table, column_of, joined, layered, lines, rows, steps_axis, tip
from sat_slime.report.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION, Look
from sat_slime.report.number_text import percent
from sat_slime.report.page import Figure, Sheet
from sat_slime.report.panels import axis_of
from sat_slime.runs.rows import Columns

SIZES = {"mismatch/d_pi": "mean |d|", "mismatch/policy": "policy", "mismatch/implementation": "implementation"}
SHARES = {
    "mismatch/policy_of_mean": "policy of mean",
    "mismatch/policy_of_q90": "policy of tail 90 %",
    "mismatch/policy_of_q99": "policy of tail 99 %",
}


def metrics_table(metrics: Columns) -> Sheet:
    """Tell the means over the split steps of each realized lag."""
    head = ["lag", "steps", *SIZES.values(), *SHARES.values()]
    lags, means = _by_lag(metrics)
    rows, numbers = [], []
    for row, lag in enumerate(lags):
        steps = int(means["steps"][row])
        sizes, shares = [means[key][row] for key in SIZES], [means[key][row] for key in SHARES]
        rows.append([f"{lag:g}", str(steps), *(f"{size:.5f}" for size in sizes), *map(percent, shares)])
        numbers.append([float(lag), steps, *map(float, sizes), *map(float, shares)])
    return Sheet(
        "parts",
        "Policy and implementation part by lag",
        "Means over the split steps (Eq. split), in nats: of |d|, of |log π − log π_l|, of |log π_l − log μ|. "
        "Then the policy part's share of |d| in the direction of d, over all tokens and beyond the quantiles of each "
        "step, steps weighted by their |d|; the implementation part has the rest.",
        head,
        rows,
        numbers=[head, *numbers],
    )


def metrics_findings(metrics: Columns) -> Iterator[str]:
    """Say what the table shows, a sentence each."""
    split = np.isfinite(metrics["mismatch/implementation"])
    mean = {key: _mean(metrics, key, split) for key in SIZES}
    yield (
        f"Over {int(split.sum())} split steps mean |d| is {mean['mismatch/d_pi']:.4f} nats, the policy part "
        f"{mean['mismatch/policy']:.4f}, the implementation part {mean['mismatch/implementation']:.4f}."
    )
    shares = [_mean(metrics, key, split) for key in SHARES]
    if np.isfinite(shares).all():
        texts = [percent(share) for share in shares]
        yield (
            f"The policy part carries {texts[0]} of mean |d|, {texts[1]} of it beyond the 90 % quantile and {texts[2]} "
            "beyond the 99 % quantile (means over the steps, each by its |d|)."
        )


def metrics_figure(metrics: Columns) -> Figure:
    """Return the figure of sizes and shares by lag."""
    return Figure(
        "parts_by_lag",
        "The split by lag",
        "Means over the split steps of each realized lag.",
        partial(_draw, metrics),
    )


def _draw(metrics: Columns) -> Drawing | None:
    sizes = ((BLACK, "-", "o"), (BLUE, "--", "s"), (VERMILION, "-.", "^"))
    shares = ((ORANGE, "-", "o"), (PURPLE, "--", "D"), (GREEN, "-.", "v"))
    panels = [partial(_panel, metrics, SIZES, sizes, *axis_of("mismatch/policy"))]
    if any(key in metrics for key in SHARES):
        panels.append(partial(_panel, metrics, SHARES, shares, "% of |d|", 100.0))
    return column_of(panels, one_key=False)


def _panel(
    metrics: Columns,
    names: dict[str, str],
    styles: tuple[tuple[str, str, str], ...],
    unit: str,
    scale: float,
    table: Table,
    shown: alt.Parameter,
) -> Plot | None:
    lags, means = _by_lag(metrics)
    table["lag"] = lags
    table |= {label: scale * means[key] for key, label in names.items()}
    looks = [Look(label, *style) for label, style in zip(names.values(), styles, strict=True)]
    data = joined([rows(x=lags, y=table[look.name], line=look.name, steps=means["steps"]) for look in looks])
    base = alt.Chart().encode(steps_axis("realized lag, updates"), alt.Y("y:Q", title=unit)).transform_filter(shown)
    tips = [tip("line:N", "mean"), tip("x:Q", "lag"), tip("y:Q", unit), tip("steps:Q", "steps", "d")]
    return Plot(layered(*lines(base, looks, tips), data=data, title=unit), looks) if len(lags) else None


def _by_lag(metrics: Columns) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return (realized lags of the split steps, {column: its mean at each lag}); the column `steps` counts the
    steps."""
    split = np.isfinite(metrics["mismatch/implementation"])
    realized = np.round(metrics.get("lag/mean", np.zeros(len(split))))
    lags = np.unique(realized[split & np.isfinite(realized)])
    means = {"steps": np.array([float((split & (realized == lag)).sum()) for lag in lags])}
    for key in (*SIZES, *SHARES):
        means[key] = np.array([_mean(metrics, key, split & (realized == lag)) for lag in lags])
    return lags, means


def _mean(metrics: Columns, key: str, steps: np.ndarray) -> float:
    """Return the mean over the steps where it is known; a share counts by the |d| that it is of, since nothing has no
    parts."""
    values = metrics.get(key, np.full(len(steps), np.nan))
    known = steps & np.isfinite(values)
    weights = metrics["mismatch/d_pi"][known] if key in SHARES else np.ones(known.sum())
    return float(np.average(values[known], weights=weights)) if weights.sum() > 0 else np.nan
