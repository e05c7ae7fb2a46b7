"""The figures of a run, each a function from columns of metrics to a drawing and the numbers behind it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Columns = Mapping[str, np.ndarray]

# Okabe and Ito's colours, told apart by the colour-blind; every line also has its own dash for print in grey.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.borderaxespad": 0.1,
    "legend.columnspacing": 1.4,
    "legend.fontsize": 9,
    "legend.handlelength": 2.6,
    "svg.hashsalt": "sat_slime",  # equal data gives equal files
}
WIDTH, PANEL_HEIGHT = 6.4, 2.6
"""Inches. One column of panels, so that text stays readable at the width of a phone."""


@dataclass
class RunData:
    """What the figures are drawn from. Any of it may be empty."""

    metrics: Columns = field(default_factory=dict)
    evals: Columns = field(default_factory=dict)
    histograms: Sequence[Mapping[str, Any]] = ()
    period: int = 1
    """Steps over which the realized lag cycles; smoothing windows are whole multiples of it."""


@dataclass
class Drawing:
    """A figure and the table of numbers in it."""

    figure: Figure
    table: dict[str, np.ndarray]


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over `window` values, fewer at the ends; NaNs are left out."""
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    at = np.arange(len(values))
    low, high = np.maximum(at - window // 2, 0), np.minimum(at - window // 2 + window, len(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count[high] > count[low], (total[high] - total[low]) / (count[high] - count[low]), np.nan)


def window_of(data: RunData) -> int:
    """Steps of the smoothing window: about a twentieth of the run in whole lag cycles; 1 while it has few of them."""
    steps = len(data.metrics.get("step", ()))
    if steps < 4 * data.period:
        return 1
    return data.period * max(1, round(steps / 20 / data.period))


def draw_learning(data: RunData) -> Drawing | None:
    """Reward of the training batches, and accuracy on held-out problems."""
    return _stack(
        data,
        [
            lambda axes, table: (
                _lines(axes, table, data, [("reward/mean", "reward of the batch", BLUE, "-")], raw=True)
                and _label(axes, "training reward", "mean reward")
            ),
            lambda axes, table: _eval_panel(axes, data),
        ],
        extra={f"eval/{key}": values for key, values in data.evals.items()},
    )


def _eval_panel(axes: Axes, data: RunData) -> bool:
    if not _has(data.evals, "accuracy"):
        return False
    steps = data.evals.get("step", np.arange(len(data.evals["accuracy"])))
    accuracy = data.evals["accuracy"]
    samples = data.evals.get("n_samples", np.full_like(accuracy, np.nan))
    error = np.sqrt(np.clip(accuracy * (1 - accuracy), 0, None) / samples)
    axes.errorbar(
        steps, accuracy, yerr=np.nan_to_num(error), color=GREEN, marker="o", ms=4, capsize=2, label="accuracy"
    )
    axes.axhline(accuracy[0], color=BLACK, linestyle=":", linewidth=1, label=f"before training ({accuracy[0]:.3f})")
    _label(axes, "held-out accuracy (bars: one standard error of the samples)", "accuracy")
    return True


def draw_mismatch(data: RunData) -> Drawing | None:
    """d_pi, its split and the quantiles of |d|."""
    split = [
        ("mismatch/policy", "policy part", GREEN, "--"),
        ("mismatch/implementation", "implementation part", VERMILION, "-."),
    ]
    quantiles = [
        ("mismatch/q50", "median", SKY, ":"),
        ("mismatch/q90", "90 %", BLUE, "-"),
        ("mismatch/q99", "99 %", ORANGE, "--"),
        ("mismatch/max", "largest", VERMILION, "-."),
    ]
    return _stack(
        data,
        [
            lambda axes, table: (
                _lines(axes, table, data, [("mismatch/d_pi", "d_pi", BLUE, "-")], raw=True)
                and (_lines(axes, table, data, split) or True)
                and _label(axes, "mean |log π − log μ| per token", "nats", zero=True)
            ),
            lambda axes, table: (
                _lines(axes, table, data, quantiles) and _label(axes, "quantiles of |log π − log μ|", "nats", log=True)
            ),
        ],
    )


def draw_lag(data: RunData) -> Drawing | None:
    """Realized lag of the trained responses."""

    def panel(axes: Axes, table: dict[str, np.ndarray]) -> bool:
        if not _has(data.metrics, "lag/mean"):
            return False
        steps = _steps(data)
        axes.step(steps, data.metrics["lag/mean"], where="mid", color=BLUE, label="mean", linewidth=1.2)
        table["lag/mean"] = data.metrics["lag/mean"]
        if _has(data.metrics, "lag/min") and _has(data.metrics, "lag/max"):
            low, high = data.metrics["lag/min"], data.metrics["lag/max"]
            axes.fill_between(steps, low, high, step="mid", color=SKY, alpha=0.4, label="from least to most", lw=0)
            table |= {"lag/min": low, "lag/max": high}
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        return _label(axes, "optimizer updates between generating and trained weights", "updates", zero=True)

    return _stack(data, [panel])


def draw_trust_region(data: RunData) -> Drawing | None:
    """The radii that SAT left, how often its gate opened and what that changed."""
    radii = [
        ("sat/eps_high_mean", "upper radius, mean", BLUE, "-"),
        ("sat/eps_low_mean", "lower radius, mean", ORANGE, "--"),
    ]
    rates = [
        ("sat/gate_rate", "gate open", BLUE, "-"),
        ("sat/newly_clipped", "newly clipped (gradient changed by SAT)", VERMILION, "--"),
    ]
    return _stack(
        data,
        [
            lambda axes, table: _lines(axes, table, data, radii) and _label(axes, "effective radii", "radius"),
            lambda axes, table: (
                _lines(axes, table, data, [("sat/c_min", "smallest contraction factor", GREEN, "-")])
                and _label(axes, "strongest contraction of a token", "factor", zero=True)
            ),
            lambda axes, table: (
                _lines(axes, table, data, rates, scale=100) and _label(axes, "share of the tokens", "%", zero=True)
            ),
        ],
    )


def draw_histogram(data: RunData) -> Drawing | None:
    """Distribution of |d| early and late, and at low and high lag, with the quantile q."""
    rows = [row for row in data.histograms if row.get("counts") and len(row.get("edges", ())) == len(row["counts"]) + 1]
    if not rows:
        return None
    quarter = max(1, len(rows) // 4)
    known = [row["lag"] for row in rows if row.get("lag") is not None]
    groups = [[("first quarter", rows[:quarter]), ("last quarter", rows[-quarter:])]]
    if known and min(known) < max(known):
        low, high = np.quantile(known, [0.25, 0.75])
        groups.append(
            [
                (f"lag up to {low:g}", [row for row in rows if row.get("lag", np.inf) <= low]),
                (f"lag from {high:g}", [row for row in rows if row.get("lag", -np.inf) >= high]),
            ]
        )
    table: dict[str, np.ndarray] = {}
    panels = [lambda axes, _table, group=group: _density_panel(axes, table, group) for group in groups]
    return _stack(data, panels, x_label="|log π − log μ| of a token, nats", extra=table, steps_column=False)


def _density_panel(axes: Axes, table: dict[str, np.ndarray], groups: list[tuple[str, list[Mapping[str, Any]]]]) -> bool:
    for (label, rows), colour, dash in zip(groups, (BLUE, VERMILION), ("-", "--"), strict=True):
        same = [row for row in rows if row["edges"] == rows[0]["edges"]]
        edges = np.array(rows[0]["edges"], dtype=float)
        counts = np.sum([row["counts"] for row in same], axis=0, dtype=float)
        share = counts / max(counts.sum(), 1.0)
        if edges[0] <= 0:  # zero has no place on a logarithmic axis: its bin is drawn one bin wide
            edges[0] = edges[1] ** 2 / edges[2]
        axes.stairs(np.where(share > 0, share, np.nan), edges, color=colour, linestyle=dash, label=label, linewidth=1.6)
        table |= {f"{label}: bin from": edges[:-1], f"{label}: bin to": edges[1:], f"{label}: share": share}
        if quantiles := [row["q"] for row in rows if row.get("q")]:
            q = float(np.median(quantiles))
            axes.axvline(q, color=colour, linestyle=dash, linewidth=1, label=f"q = {q:.3g}")
    axes.set_xscale("log")
    return _label(axes, " and ".join(label for label, _ in groups), "share of tokens per bin", log=True)


def draw_optimization(data: RunData) -> Drawing | None:
    """Clipping, gradient norm and loss terms."""
    clips = [
        ("clip/fraction", "all", BLACK, "-"),
        ("clip/upper", "upper (advantage > 0)", BLUE, "--"),
        ("clip/lower", "lower (advantage < 0)", ORANGE, "-."),
    ]
    losses = [
        ("loss/total", "total", BLACK, "-"),
        ("loss/policy", "policy", BLUE, "--"),
        ("loss/kl", "KL", VERMILION, "-."),
    ]
    return _stack(
        data,
        [
            lambda axes, table: (
                _lines(axes, table, data, clips, scale=100) and _label(axes, "clipped tokens", "% of tokens", zero=True)
            ),
            lambda axes, table: (
                _lines(axes, table, data, [("grad_norm", "gradient norm", BLUE, "-")], raw=True)
                and _label(axes, "norm of the gradient before clipping", "norm", zero=True)
            ),
            lambda axes, table: _lines(axes, table, data, losses) and _label(axes, "loss terms", "loss"),
            lambda axes, table: (
                _lines(axes, table, data, [("loss/entropy", "entropy", GREEN, "-")])
                and _label(axes, "entropy of the policy", "nats", zero=True)
            ),
        ],
    )


def draw_time(data: RunData) -> Drawing | None:
    """Where the seconds of a step go."""

    def panel(axes: Axes, table: dict[str, np.ndarray]) -> bool:
        window, steps = window_of(data), _steps(data)
        parts = [(key, data.metrics.get(f"time/{key}")) for key in ("train", "sync", "wait")]
        known = [(key, np.nan_to_num(smooth(values, window))) for key, values in parts if values is not None]
        if not known:
            return False
        bottom = np.zeros(len(steps))
        for (key, values), colour, hatch in zip(known, (BLUE, ORANGE, "#cccccc"), ("", "////", ""), strict=False):
            face: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "hatch": hatch, "linewidth": 0}
            axes.fill_between(steps, bottom, bottom + values, label=_TIME_LABELS[key], **face)
            bottom = bottom + values
            table[f"time/{key}"] = data.metrics[f"time/{key}"]
        lines = [("time/step", "whole step", BLACK, "-"), ("time/rollout", _TIME_LABELS["rollout"], VERMILION, "--")]
        _lines(axes, table, data, lines)
        return _label(axes, "seconds per step, the trainer's parts stacked", "s", zero=True)

    return _stack(data, [panel])


_TIME_LABELS = {
    "train": "train",
    "sync": "send weights",
    "wait": "wait for responses",
    "rollout": "generation (in parallel)",
}


def _stack(
    data: RunData,
    panels: Sequence[Any],
    x_label: str = "optimizer step",
    extra: Mapping[str, np.ndarray] | None = None,
    steps_column: bool = True,
) -> Drawing | None:
    """Panels one above the other; those without data are left out, and a figure of none is None."""
    with matplotlib.rc_context(STYLE):
        filled = [panel for panel in panels if panel(Figure().add_subplot(), {})]
        if not filled:
            return None
        figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * len(filled) + 0.3), layout="constrained")
        table: dict[str, np.ndarray] = {"step": _steps(data)} if steps_column else {}
        column = figure.subplots(len(filled), 1, squeeze=False)[:, 0]
        for panel, axes in zip(filled, column, strict=True):
            panel(axes, table)
            if steps_column:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        column[-1].set_xlabel(x_label)
        return Drawing(figure, {**table, **(extra or {})})


def _lines(
    axes: Axes,
    table: dict[str, np.ndarray],
    data: RunData,
    series: Sequence[tuple[str, str, str, Any]],
    raw: bool = False,
    scale: float = 1.0,
) -> bool:
    """Draw (key, label, colour, dash) series, smoothed; with `raw`, every step in a lighter tone below."""
    steps, window, drawn = _steps(data), window_of(data), False
    for key, label, colour, dash in series:
        if not _has(data.metrics, key):
            continue
        values = data.metrics[key]
        table[key] = values
        few = np.isfinite(values).sum() <= 2
        if raw and not few:
            axes.plot(steps, scale * values, color=colour, alpha=0.3, linewidth=0.8)
        mean = smooth(values, window)
        marker = "o" if few else None
        axes.plot(steps, scale * mean, color=colour, linestyle=dash, label=label, marker=marker, markersize=3)
        drawn = True
    return drawn


def _label(axes: Axes, title: str, y_label: str, zero: bool = False, log: bool = False) -> bool:
    names = axes.get_legend_handles_labels()[1]
    rows = 0
    if len(names) > 1:  # the title names a single line
        longest = max(len(name) for name in names)
        per_row = 1 if longest > 45 else 2 if longest > 28 else 3 if longest > 16 else 4
        rows = -(-len(names) // per_row)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=per_row)
    axes.set_title(title, pad=6 + 14 * rows)
    axes.set_ylabel(y_label)
    if log and any(line for line in [*axes.lines, *axes.patches]):
        axes.set_yscale("log", nonpositive="mask")
    elif zero:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if axes.get_ylim()[0] < -1e-9 else 0.0)
    return True


def _steps(data: RunData) -> np.ndarray:
    length = max((len(values) for values in data.metrics.values()), default=0)
    return data.metrics.get("step", np.arange(1.0, length + 1))


def _has(columns: Columns, key: str) -> bool:
    return key in columns and bool(np.isfinite(columns[key]).any())


def save(drawing: Drawing, folder: Path, name: str) -> bytes:
    """Write NAME.png, NAME.svg and NAME.csv into `folder`; returns the SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        drawing.figure.savefig(folder / f"{name}.png", dpi=130)
        drawing.figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    rows = max((len(values) for values in drawing.table.values()), default=0)
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(drawing.table)
        for row in range(rows):
            writer.writerow([_cell(values, row) for values in drawing.table.values()])
    return (folder / f"{name}.svg").read_bytes()


def _cell(values: np.ndarray, row: int) -> str:
    return f"{values[row]:.10g}" if row < len(values) and np.isfinite(values[row]) else ""
