"""What can be told of the mismatch from metrics.jsonl alone: Eq. split by lag, without its finer parts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from sat_slime.objective.metrics import axis_of
from sat_slime.report.diagnosis.tables import percent
from sat_slime.report.drawing import BLACK, BLUE, ORANGE, VERMILION, Drawing, Table, column_of
from sat_slime.report.page import Figure, Sheet
from sat_slime.runs.rows import Columns

SIZES = {"mismatch/d_pi": "mean |d|", "mismatch/policy": "policy", "mismatch/implementation": "implementation"}
SHARES = {
    "mismatch/policy_of_mean": "policy of mean",
    "mismatch/policy_of_q90": "policy of tail 90 %",
    "mismatch/policy_of_q99": "policy of tail 99 %",
}


def metrics_table(metrics: Columns) -> Sheet:
    """Means over the split steps of each realized lag."""
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
        "step; the implementation part has the rest.",
        head,
        rows,
        numbers=[head, *numbers],
    )


def metrics_findings(metrics: Columns) -> Iterator[str]:
    """What the table says, a sentence each."""
    split = np.isfinite(metrics["mismatch/implementation"])
    mean = {key: float(np.mean(metrics[key][split])) for key in SIZES}
    yield (
        f"Over {int(split.sum())} split steps mean |d| is {mean['mismatch/d_pi']:.4f} nats, the policy part "
        f"{mean['mismatch/policy']:.4f}, the implementation part {mean['mismatch/implementation']:.4f}."
    )
    shares = [metrics[key][split] for key in SHARES if key in metrics]
    if len(shares) == len(SHARES) and all(np.isfinite(share).any() for share in shares):
        texts = [percent(float(np.nanmean(share))) for share in shares]
        yield (
            f"The policy part carries {texts[0]} of mean |d|, {texts[1]} of it beyond the 90 % quantile and {texts[2]} "
            "beyond the 99 % quantile (means over the steps)."
        )


def metrics_figure(metrics: Columns) -> Figure:
    """Sizes and shares by lag."""
    return Figure(
        "parts_by_lag",
        "The split by lag",
        "Means over the split steps of each realized lag.",
        partial(_draw, metrics),
    )


def _draw(metrics: Columns) -> Drawing | None:
    looks = ((BLACK, "-", "o"), (BLUE, "--", "s"), (VERMILION, "-.", "^"))
    sizes, shares = list(zip(SIZES.items(), looks, strict=True)), list(zip(SHARES.items(), looks, strict=True))
    panels = [partial(_panel, metrics, sizes, *axis_of("mismatch/policy"))]
    if any(key in metrics for key in SHARES):
        panels.append(partial(_panel, metrics, shares, "% of |d|", 100.0))
    return column_of(panels, "realized lag, updates")


def _panel(metrics: Columns, lines: list, unit: str, scale: float, axes: Axes, table: Table) -> bool:
    lags, means = _by_lag(metrics)
    table["lag"] = lags
    for (key, label), (colour, dash, marker) in lines:
        table[label] = scale * means[key]
        look = {"color": ORANGE if key == "mismatch/policy_of_mean" else colour, "linestyle": dash, "marker": marker}
        axes.plot(lags, table[label], label=label, ms=4, mfc="white", **look)
    axes.set_ylabel(unit)
    return bool(len(lags))


def _by_lag(metrics: Columns) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(realized lags of the split steps, {column: its mean at each lag}); the column `steps` counts the steps."""
    split = np.isfinite(metrics["mismatch/implementation"])
    realized = np.round(metrics.get("lag/mean", np.zeros(len(split))))
    lags = np.unique(realized[split & np.isfinite(realized)])
    means = {"steps": np.array([float((split & (realized == lag)).sum()) for lag in lags])}
    for key in (*SIZES, *SHARES):
        column = metrics.get(key, np.full(len(split), np.nan))
        means[key] = np.array([_mean(column[split & (realized == lag)]) for lag in lags])
    return lags, means


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan
