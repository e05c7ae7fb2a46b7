"""Rows of a run's JSON-lines files as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sat_slime.config.jsonl import number, read_rows

Columns = Mapping[str, np.ndarray]
"""{key: (rows,) float64}, NaN where a row lacks the key or has no number for it."""


def read_metrics(path: str | Path) -> dict[str, np.ndarray]:
    """Return the numeric columns of a JSON-lines file."""
    return columns(read_rows(path))


def read_histograms(path: str | Path) -> list[dict[str, Any]]:
    """Rows of histograms.jsonl that are histograms."""
    return [row for row in read_rows(path) if is_histogram(row)]


def is_histogram(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a histogram of |d|: numbers of tokens below, between and above its edges."""
    edges, counts = row.get("edges"), row.get("counts")
    if not (isinstance(edges, list) and isinstance(counts, list) and 0 < len(edges) == len(counts) - 1):
        return False
    return all(isinstance(number, (int, float)) for number in (*edges, *counts))


def columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the numeric columns of `rows`, NaN where missing; keys that never hold a number are left out."""
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if isinstance(value, (int, float)))
    return {key: np.array([number(row, key) for row in rows], dtype=np.float64) for key in keys}


def not_finite(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the steps at which a metric was written without being a finite number: NaN, infinite or, in rows of ours,
    null. {key: steps}; a key that a row lacks was not measured there."""
    steps: dict[str, list[int]] = {}
    for row in rows:
        for key, value in row.items():
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                steps.setdefault(key, []).append(int(number(row, "step", 0.0)))
    return steps


def of_first_dataset(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of eval.jsonl of the data set that was evaluated first; all where they name none."""
    first = next((row["dataset"] for row in rows if row.get("dataset") is not None), None)
    return [row for row in rows if first is None or row.get("dataset") == first]


def has(columns: Columns, key: str) -> bool:
    """Return whether a column holds any number."""
    return key in columns and bool(np.isfinite(columns[key]).any())


def once_per_iteration(metrics: Columns, key: str) -> np.ndarray:
    """Return one value for each iteration of a column that all optimizer steps of an iteration share."""
    if "iteration" not in metrics:
        return metrics[key]
    _, first = np.unique(metrics["iteration"], return_index=True)
    return metrics[key][first]


def largest_k(metrics: Iterable[str]) -> int:
    """Return the largest k of the keys pass@k; 0 where there is none."""
    sizes = (key.partition("@")[2] for key in metrics if key.startswith("pass@"))
    return max((int(size) for size in sizes if size.isdigit()), default=0)
