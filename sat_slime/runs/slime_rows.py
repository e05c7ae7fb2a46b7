"""Metrics by slime's own names to those of a run folder: what an exported log of slime's trackers holds.

Such a file has a JSON object a line, as slime hands them to its trackers: `train/*` with `train/step`, `rollout/*` with
`rollout/step`, `eval/DATASET` with `eval/step`. slime counts all three from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sat_slime.config.jsonl import number
from sat_slime.objective.metrics import slime_names

Row = dict[str, Any]

NAMES = {own: ours for own, ours in slime_names().items() if not own.startswith("perf/")}
"""slime's own metrics, and ours. What the plugin adds has our names after `train/`."""
STEP_KEYS = ("train/step", "rollout/step", "eval/step")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def is_slime_log(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether rows have slime's step keys."""
    return any(key in row for row in rows for key in STEP_KEYS)


def adopt(row: Mapping[str, Any]) -> Row:
    """Return a row of a run folder, completed: a metric that it lacks by our name is taken from slime's own name for
    it, which stands there without its prefix."""
    named = {name.partition("/")[2]: ours for name, ours in NAMES.items()}
    return {ours: row[name] for name, ours in named.items() if name in row} | dict(row)


def split_log(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Return (rows of metrics.jsonl, rows of eval.jsonl) from slime's log. Of several data sets only the first one that
    was evaluated is kept."""
    rows = list(rows)
    n_train = 1 + max((int(row["train/step"]) for row in rows if _is_step(row, "train/step")), default=-1)
    n_rollouts = 1 + max((int(row["rollout/step"]) for row in rows if _is_step(row, "rollout/step")), default=-1)
    per_rollout = max(1, round(n_train / n_rollouts)) if n_train and n_rollouts else 1
    steps: dict[int, Row] = {}
    evals: list[Row] = []
    dataset: str | None = None
    trained = False
    for row in rows:
        if _is_step(row, "train/step"):
            trained = True
            step = int(row["train/step"]) + 1
            steps.setdefault(step, {"step": step}).update(_ours(row, "train/"))
        elif _is_step(row, "rollout/step"):
            last = (int(row["rollout/step"]) + 1) * per_rollout
            for step in range(last - per_rollout + 1, last + 1):
                steps.setdefault(step, {"step": step}).update(_ours(row, "rollout/"))
        elif _is_step(row, "eval/step"):
            names = [key for key in row if key.startswith("eval/") and key != "eval/step" and _is_dataset(key)]
            dataset = dataset or (names[0] if names else None)
            if dataset is not None and dataset in row:
                before = not trained and row["eval/step"] == 0  # exports by file tell the evaluations first
                step = 0 if before else (int(row["eval/step"]) + 1) * per_rollout
                weights = row.get(f"{dataset}-weights_step")
                measured = {"accuracy": row[dataset], "weights_step": weights}
                evals.append({"step": step, "dataset": dataset.removeprefix("eval/"), **measured})
    return [steps[step] for step in sorted(steps)], evals


def _is_step(row: Mapping[str, Any], key: str) -> bool:
    return math.isfinite(number(row, key))


def _is_dataset(key: str) -> bool:
    """`eval/aime24` is a score; `eval/aime24/response_len/mean`, `eval/aime24-truncated_ratio` tell more of it."""
    name = key.removeprefix("eval/")
    return "/" not in name and not name.endswith(("-truncated_ratio", "-weights_step")) and "-pass@" not in name


def _ours(row: Mapping[str, Any], prefix: str) -> Row:
    """Return the metrics with a prefix, by our names. A null is one that was not logged with the others: exports fill
    their tables so. W&B writes what is no finite number as text."""
    return {
        NAMES.get(key, key.removeprefix(prefix)): float(value) if value in _NOT_FINITE else value
        for key, value in row.items()
        if key.startswith(prefix) and key not in STEP_KEYS and value is not None
    }
