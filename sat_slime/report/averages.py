"""Averages: over whole lag cycles, which curves are drawn by and judged by, and over what is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sat_slime.runs.reading import RunData


def finite_mean(values: np.ndarray | Sequence[float]) -> float:
    """Return the mean of the finite values; NaN where there are none."""
    values = np.asarray(values, dtype=float)
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Return the (steps,) centred moving average over `window` values, fewer at the ends; NaNs are left out."""
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    at = np.arange(len(values))
    low, high = np.maximum(at - window // 2, 0), np.minimum(at - window // 2 + window, len(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count[high] > count[low], (total[high] - total[low]) / (count[high] - count[low]), np.nan)


def window_of(data: RunData) -> int:
    """Return the steps of the smoothing window: about a twentieth of the run in whole lag cycles; 1 while it has few of
    them."""
    steps = len(data.metrics.get("step", ()))
    return data.period * max(1, round(steps / 20 / data.period)) if steps >= 4 * data.period else 1
