"""Reads what a run folder holds for a report: its settings, its state and its rows as columns, as far as they go."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sat_slime.config.jsonl import damaged_lines, number, parse_object, read_rows
from sat_slime.config.source import ConfigError, read_file
from sat_slime.runs.folder import RunFolder

TAIL_BYTES = 32 * 2**10
"""No line of metrics.jsonl is longer."""
Columns = Mapping[str, np.ndarray]
"""{key: (rows,) float64}, NaN where a row lacks the key or has no number for it."""


def read_metrics(path: str | Path) -> dict[str, np.ndarray]:
    """Return the numeric columns of a JSON-lines file."""
    return columns(read_rows(path))


def last_row(path: Path) -> dict[str, Any]:
    """Return the last whole line of a JSON-lines file; empty where there is none."""
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        rows = map(parse_object, reversed(file.read().splitlines()))
    return next(filter(None, rows), {})


def newest_numbers(run: RunFolder) -> dict[str, str]:
    """Return the newest step of a run, with all of them behind it, its reward, d_pi and accuracy, that of the data set
    that its report is about, as texts, empty where there is none."""
    steps = planned_steps(read_settings(run))
    newest, scores = last_row(run.metrics), known(run_data([], read_rows(run.eval)).evals, "accuracy")[1]
    step = number(newest, "step")
    numbers = {"reward": number(newest, "reward/mean"), "d_pi": number(newest, "mismatch/d_pi")}
    numbers["accuracy"] = float(scores[-1]) if len(scores) else math.nan
    texts = {name: f"{value:.4f}" if math.isfinite(value) else "" for name, value in numbers.items()}
    return {"step": f"{step:g}/{steps or '?'}" if math.isfinite(step) else "", **texts}


def columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the numeric columns of `rows`, NaN where missing; keys that never hold a number are left out. Beside any
    other there is `step`, by the order of the rows if none tells it."""
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if isinstance(value, (int, float)))
    found = {key: np.array([number(row, key) for row in rows], dtype=np.float64) for key in keys}
    return {"step": np.arange(1.0, len(rows) + 1), **found} if found else {}


def known(columns: Columns, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, values) of a column where both are finite numbers."""
    if key not in columns or "step" not in columns:
        return np.zeros(0), np.zeros(0)
    there = np.isfinite(columns[key]) & np.isfinite(columns["step"])
    return columns["step"][there], columns[key][there]


def not_finite(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the steps at which a metric was written without being a finite number: NaN, infinite or, in rows of ours,
    null. {key: steps}; a key that a row lacks was not measured there."""
    steps: dict[str, list[int]] = {}
    for row in rows:
        for key, value in row.items():
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                steps.setdefault(key, []).append(int(number(row, "step", 0.0)))
    return steps


def has(columns: Columns, key: str) -> bool:
    """Return whether a column holds any number."""
    return key in columns and bool(np.isfinite(columns[key]).any())


def once_per_iteration(metrics: Columns, key: str, steps: int) -> np.ndarray:
    """Return one value for each iteration, where rows do not tell it of so many optimizer steps, of a column that all
    of them share."""
    counted = (metrics["step"] - 1) // steps + 1
    told = metrics.get("iteration", counted)  # older rows of slime lack it
    _, first = np.unique(np.where(np.isfinite(told), told, counted), return_index=True)
    return metrics[key][first]


def realized_lag(metrics: Columns) -> tuple[int, int]:
    """Return a run's lag in iterations and the optimizer steps of one, as far as its rows tell them."""
    iterations, lags = known(metrics, "iteration")[1], known(metrics, "lag/max")[1]
    steps = int(np.median(np.unique(iterations, return_counts=True)[1])) if len(iterations) else 1
    return max(0, int(lags.max(initial=0)) - steps + 1) // steps, steps  # a later step of an iteration is one more old


@dataclass
class RunData:
    """The measurements of a run. Any of it may be empty."""

    metrics: Columns = field(default_factory=dict)
    evals: Columns = field(default_factory=dict)
    period: int = 1
    """Steps over which the realized lag cycles; smoothing windows are whole multiples of it."""
    not_finite: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Steps at which a metric was no finite number, by its name."""
    datasets: tuple[str, ...] = ()
    """Data sets that were evaluated, as far as they have names; `evals` are those of the first one."""
    settings: Mapping[str, Any] | None = None
    """Plain values of the settings of a run of ours, empty where they are unknown; None: a run of slime's own loss."""


def run_data(
    metrics: list[dict[str, Any]], evals: list[dict[str, Any]], settings: Mapping[str, Any] | None = None
) -> RunData:
    """Return the measurements in rows of metrics.jsonl and eval.jsonl. settings: as of RunData."""
    datasets = tuple(dict.fromkeys(str(row["dataset"]) for row in evals if row.get("dataset") is not None))
    of_first = [row for row in evals if not datasets or str(row.get("dataset")) == datasets[0]]
    data = RunData(columns(metrics), columns(of_first), 1, not_finite(metrics), datasets, settings)
    if settings is not None:
        pipeline, lags = section(settings, "pipeline"), known(data.metrics, "lag/mean")[1]
        data.period = max(1, max(1, pipeline.get("lag", 1)) * pipeline.get("optimizer_steps_per_rollout", 1))
        if "lag" not in pipeline and len(lags) and not (lags % 1).any():  # of a stream they are no whole numbers
            lag, steps = realized_lag(data.metrics)
            data.period = max(lag, 1) * steps
    return data


@dataclass
class Run:
    """The contents of a run folder, as far as they go."""

    folder: RunFolder
    config: dict[str, Any]
    """The resolved settings as plain values; empty where config.yaml cannot be read."""
    state: dict[str, Any]
    data: RunData

    @property
    def name(self) -> str:
        """The run's own name, else that of its folder."""
        return str(self.config.get("name") or self.folder.path.resolve().name)

    @property
    def steps(self) -> int:
        return len(self.data.metrics.get("step", ()))

    @property
    def planned_steps(self) -> int:
        return planned_steps(self.config)


def planned_steps(settings: Mapping[str, Any]) -> int:
    """Return the optimizer steps of a whole run; 0 where they are unknown. settings: as of `read_settings`."""
    pipeline = section(settings, "pipeline")
    return int(pipeline.get("iterations", 0) * pipeline.get("optimizer_steps_per_rollout", 1))


_WHOLE = ("iterations", "lag", "max_staleness", "optimizer_steps_per_rollout")
"""Settings of a pipeline that are numbers; one that is anything else was damaged."""


def load_run(path: str | Path) -> Run:
    """Read a run folder, or one with the rows alone, as far as it goes. Raises RunFolderError when it is neither."""
    folder = RunFolder(path) if RunFolder(path).is_readable() else RunFolder.open(path)
    config = read_settings(folder)
    return Run(folder, config, folder.state(), run_data(read_rows(folder.metrics), read_rows(folder.eval), config))


def read_settings(folder: RunFolder) -> dict[str, Any]:
    """Read config.yaml as plain values, without what is seen to be damaged; empty where it cannot be read."""
    config = read_yaml(folder.config)
    if damaged := [key for key in _WHOLE if not isinstance(section(config, "pipeline").get(key, 0), int)]:
        config["pipeline"] = {key: value for key, value in config["pipeline"].items() if key not in damaged}
    return config


def row_faults(folder: RunFolder) -> Iterator[str]:
    """Yield which lines of a run's files are no rows, a sentence a file. A last one that a kill tore is no fault."""
    for path in (folder.metrics, folder.eval):
        if damaged := ", ".join(map(str, damaged_lines(path))):
            yield f"{path.name} is damaged: of line {damaged} nothing can be read, and it is left out."


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the plain values of a YAML file, unchecked; empty where it is missing, unreadable or no mapping."""
    try:
        return read_file(path).values
    except (OSError, ConfigError):
        return {}


def is_lab(folder: RunFolder) -> bool:
    """Return whether a run is one of the lab runtime, as far as can be seen."""
    sent = (folder.path / "job.json").exists()
    return not sent and read_yaml(folder.config).get("runtime", "lab") == "lab"


def section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section of a plain config; empty where it is missing."""
    value = config.get(name)
    return value if isinstance(value, dict) else {}
