"""metrics.jsonl and eval.jsonl, which a run of slime writes to its run folder under the names of docs/runs.md.

slime's own numbers are taken where its trainer hands them to its trackers, on the one rank that does so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import append_row, keep_rows, number, read_rows
from sat_slime.objective.metrics import slime_names
from sat_slime.plugin.compat import locate, wrap_once

logger = logging.getLogger(__name__)

_LOSSES = {own: ours for own, ours in slime_names("train/").items() if ours.startswith("loss/")}
"""slime's losses and our names for them. The plugin measures all else in training anew, and exactly."""
_TIMES = slime_names("perf/")


class StepFile:
    """A file of rows by `step` that one process writes. The first row that is written replaces the rows of its step and
    of later ones: a resumed run had written them after its checkpoint."""

    def __init__(self, path: Path):
        self._path = path
        self._begun = False

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows at the end. A full disk does not end the run and is only logged: the trackers have the rows too."""
        try:
            if not self._begun and rows:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                keep_rows(self._path, lambda row: number(row, "step", 0) < rows[0]["step"])
                self._begun = True
            for row in rows:
                append_row(self._path, row)
        except OSError as error:
            logger.error("%s: %s: %d lines are lost", self._path, error.strerror or error, len(rows))


class MetricsFile:
    """metrics.jsonl, with a line per optimizer step. The lines of a rollout are written together, once its times are
    known."""

    def __init__(self, run_dir: Path):
        self._file = StepFile(run_dir / "metrics.jsonl")
        self._run = {"run/restarts": len(read_rows(run_dir / "restarts.jsonl"))}
        self._rows: list[dict[str, Any]] = []

    def see(self, metrics: Mapping[str, Any], step_key: str) -> None:
        """Takes metrics that slime gives its trackers."""
        if step_key == "train/step":
            own = {key: value for key, value in metrics.items() if key != step_key}
            named = {_LOSSES.get(key, key.removeprefix("train/")): value for key, value in own.items()}
            self._rows.append({"step": metrics[step_key] + 1} | named)
        elif "perf/train_time" in metrics:
            times = {name: metrics[key] for key, name in _TIMES.items() if key in metrics}
            rows, self._rows = self._rows, []
            self._file.append([row | times | self._run for row in rows])


def record_metrics(run_dir: str) -> None:
    """Has this process write metrics.jsonl beside slime's trackers; later calls do nothing."""
    file = MetricsFile(Path(run_dir))

    def log(track: Callable[..., None], args: Any, metrics: dict[str, Any], step_key: str) -> None:
        track(args, metrics, step_key=step_key)
        file.see(metrics, step_key)

    wrap_once(*locate("log"), log)
