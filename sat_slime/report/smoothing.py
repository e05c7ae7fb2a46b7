"""Averages over whole lag cycles, which curves are drawn by and judged by."""

from __future__ import annotations

import numpy as np

from sat_slime.runs.reading import RunData


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
