"""What a run of slime leaves in its run folder, under the names of docs/run-folder.md: metrics.jsonl, eval.jsonl.

slime's own numbers are taken where its trainer hands them to its trackers, on the one rank that does.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import append_row, keep_rows
from sat_slime.objective.metrics import slime_names
from sat_slime.plugin.inside.patching import wrap_once

logger = logging.getLogger(__name__)

_LOSSES = {own: ours for own, ours in slime_names("train/").items() if ours.startswith("loss/")}
"""The rest of what slime measures in training the plugin measures itself, and exactly."""
_TIMES = slime_names("perf/")


def slime_module(name: str) -> Any:
    """One of slime's modules of logging and metrics, which moved after v0.3.1."""
    try:
        return importlib.import_module(f"slime.observability.{name}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("slime"):
            raise
        return importlib.import_module(f"slime.utils.{name}")


class StepFile:
    """A file of rows by `step` that one process writes. Its first row replaces those of that step and later ones: what
    a run wrote after the checkpoint that it was resumed from."""

    def __init__(self, path: Path):
        self._path = path
        self._begun = False

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Lines at the end. A full disk is an error in the log and does not end the run: the trackers have them too."""
        try:
            if not self._begun and rows:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                keep_rows(self._path, lambda row: row.get("step", 0) < rows[0]["step"])
                self._begun = True
            for row in rows:
                append_row(self._path, row)
        except OSError as error:
            logger.error("%s: %s: %d lines are lost", self._path, error.strerror or error, len(rows))


class MetricsFile:
    """metrics.jsonl: a line per optimizer step. A rollout's lines are written together, once its times are known."""

    def __init__(self, run_dir: Path):
        self._file = StepFile(run_dir / "metrics.jsonl")
        self._rows: list[dict[str, Any]] = []

    def see(self, metrics: Mapping[str, Any], step_key: str) -> None:
        """Takes what slime gives its trackers."""
        if step_key == "train/step":
            own = {key: value for key, value in metrics.items() if key != step_key}
            named = {_LOSSES.get(key, key.removeprefix("train/")): value for key, value in own.items()}
            self._rows.append({"step": metrics[step_key] + 1} | named)
        elif "perf/train_time" in metrics:
            times = {name: metrics[key] for key, name in _TIMES.items() if key in metrics}
            rows, self._rows = self._rows, []
            self._file.append([row | times for row in rows])


def record_metrics(run_dir: str) -> None:
    """Writes metrics.jsonl beside slime's trackers, from this process. Once; later calls do nothing."""
    file = MetricsFile(Path(run_dir))

    def beside(track: Callable[..., None]) -> Callable[..., None]:
        def log(args: Any, metrics: dict[str, Any], step_key: str) -> None:
            track(args, metrics, step_key=step_key)
            file.see(metrics, step_key)

        return log

    wrap_once(slime_module("logging_utils"), "log", beside)
