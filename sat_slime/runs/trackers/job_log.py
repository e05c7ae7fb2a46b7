"""Reads what slime's job printed, as rows by slime's names: slime logs each dictionary of metrics that it gives its
trackers.

A dictionary is printed before its step is put in, with the number of the rollout in front of it: `rollout 3: {...}`.
With `--wandb-always-use-train-step` that number is not the one that trackers get.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sat_slime.runs.slime_log import LogLine, read_line
from sat_slime.runs.slime_rows import Row

_STEP_KEYS = {
    "step": "train/step",
    "eval": "eval/step",
    **dict.fromkeys(("rollout", "perf", "multi_turn", "passrate"), "rollout/step"),
}


def holds_metrics(path: Path) -> bool:
    """Return whether a file has a line of metrics. It is read up to the first one."""
    return next(_metric_lines(path), None) is not None


def log_rows(path: Path) -> Iterator[Row]:
    """Yield the metrics, in the order of the lines."""
    for line in _metric_lines(path):
        yield {**line.metrics, _STEP_KEYS[line.kind]: line.number}


def _metric_lines(path: Path) -> Iterator[LogLine]:
    with open(path, encoding="utf-8", errors="replace", newline=None) as file:
        for text in file:
            if ": {" in text and (line := read_line(text)).kind in _STEP_KEYS and line.metrics:
                yield line
