"""Reads what a run folder holds for a report: its settings, its state and its columns, as far as they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sat_slime.runs.folder import RunFolder
from sat_slime.runs.rows import Columns, columns, not_finite, of_first_dataset, read_histograms, read_rows


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
        return int(pipeline.get("iterations", 0)) * int(pipeline.get("optimizer_steps_per_rollout", 1))


def load_run(path: str | Path) -> Run:
    """Read a run folder; what is missing or torn is left out. Raises RunFolderError when it is no run folder."""
    folder = RunFolder.open(path)
    config = read_yaml(folder.config)
    rows = read_rows(folder.metrics)
    pipeline = section(config, "pipeline")
    period = max(1, int(pipeline.get("lag", 1)) * int(pipeline.get("optimizer_steps_per_rollout", 1)))
    evals = columns(of_first_dataset(read_rows(folder.eval)))
    data = RunData(columns(rows), evals, read_histograms(folder.histograms), period, not_finite(rows))
    return Run(folder, config, folder.state(), data)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader; the one in C, where PyYAML has it, takes a tenth of the time."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the plain values of a YAML file, unchecked; empty where it is missing, unreadable or no mapping."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return {}
    return values if isinstance(values, dict) else {}


def section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section of a plain config; empty where it is missing."""
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of a plain config by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
