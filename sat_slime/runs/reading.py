"""Reads what a run folder holds for a report: its settings, its state and its columns, as far as they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import damaged_lines, read_rows
from sat_slime.config.source import ConfigError, plain_values
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.rows import Columns, columns, not_finite, of_first_dataset, read_histograms


@dataclass
class RunData:
    """The measurements of a run. Any of it may be empty."""

    metrics: Columns = field(default_factory=dict)
    evals: Columns = field(default_factory=dict)
    histograms: Sequence[Mapping[str, Any]] = ()
    period: int = 1
    """Steps over which the realized lag cycles; smoothing windows are whole multiples of it."""
    not_finite: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Steps at which a metric was no finite number, by its name."""


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
        return str(self.config.get("name") or self.folder.path.name)

    @property
    def steps(self) -> int:
        """Optimizer steps logged."""
        return len(self.data.metrics.get("step", ()))

    @property
    def planned_steps(self) -> int:
        """Optimizer steps of the whole run; 0 where it is unknown."""
        pipeline = section(self.config, "pipeline")
        return whole(pipeline, "iterations", 0) * whole(pipeline, "optimizer_steps_per_rollout", 1)


_WHOLE = ("iterations", "lag", "max_staleness", "optimizer_steps_per_rollout")
"""Settings of a pipeline that are numbers; one that is anything else was damaged."""


def load_run(path: str | Path) -> Run:
    """Read a run folder; what is missing or torn is left out. Raises RunFolderError when it is no run folder."""
    folder = RunFolder.open(path)
    config = read_yaml(folder.config)
    if damaged := [key for key in _WHOLE if not isinstance(section(config, "pipeline").get(key, 0), int)]:
        config["pipeline"] = {key: value for key, value in config["pipeline"].items() if key not in damaged}
    rows = read_rows(folder.metrics)
    pipeline = section(config, "pipeline")
    period = max(1, whole(pipeline, "lag", 1) * whole(pipeline, "optimizer_steps_per_rollout", 1))
    evals = columns(of_first_dataset(read_rows(folder.eval)))
    data = RunData(columns(rows), evals, read_histograms(folder.histograms), period, not_finite(rows))
    return Run(folder, config, folder.state(), data)


MOST_STEPS = 1_000_000
"""No run has more optimizer steps: a row of a greater one is damaged."""


def row_faults(folder: RunFolder, last: int | None = None) -> Iterator[str]:
    """Yield what is wrong with the rows of a run, a sentence each: lines that are no rows, and rows of steps that are
    missing, there twice, out of order or beyond the plan. A kill can tear the last line, which is no fault.

    last: the step of the last row; default: the plan's where a lab run finished, else the greatest there is.
    """
    config = read_yaml(folder.config)
    planned = Run(folder, config, {}, RunData()).planned_steps
    if last is None and folder.state().get("status") == "finished" and config.get("runtime") == "lab":
        last = planned if not section(config, "collapse").get("stop") else None
    for path in (folder.metrics, folder.eval):
        if damaged := damaged_lines(path):
            yield f"{path.name} is damaged: of line {_some(damaged)} nothing can be read, and it is left out."
        steps = [row["step"] for row in of_first_dataset(read_rows(path)) if isinstance(row.get("step"), int)]
        if path == folder.metrics and steps and (planned or last):  # a tracker may have a row every few steps
            wanted = range(1 if last else min(steps), min(last or max(steps), MOST_STEPS) + 1)
            if missing := sorted(set(wanted) - set(steps)):
                yield f"{path.name} lacks step {_some(missing)}."
        if twice := sorted(step for step, count in Counter(steps).items() if count > 1):
            yield f"{path.name} has more than one row of step {_some(twice)}."
        elif steps != sorted(steps):
            yield f"{path.name} is out of order."
        if planned and (beyond := sorted({step for step in steps if step > planned})):
            yield f"{path.name} goes beyond the plan of {planned} steps: {_some(beyond)}."


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the plain values of a YAML file, unchecked; empty where it is missing, unreadable or no mapping."""
    try:
        return plain_values(path)
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


BATCH = {
    "prompts_per_iteration": ("rollout", "rollout-batch-size"),
    "samples_per_prompt": ("rollout", "n-samples-per-prompt"),
    "lr": ("train", "lr"),
}
"""Settings that every run has: the section of the lab's, and slime's flag."""


def batch_setting(config: Mapping[str, Any], name: str) -> Any:
    """Return a setting of BATCH from a plain config of either runtime; None where it is missing."""
    part, flag = BATCH[name]
    return section(config, "slime").get(flag) if "slime" in config else section(config, part).get(name)


def whole(values: Mapping[str, Any], key: str, default: int) -> int:
    """Return the whole number under `key`; `default` where there is none."""
    value = values.get(key)
    return value if isinstance(value, int) else default


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of a plain config by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
