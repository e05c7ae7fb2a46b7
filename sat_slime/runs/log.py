"""A run writes what it measures here: into the files of its folder, and on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from sat_slime.config.disk import disk_is_full
from sat_slime.config.jsonl import append_line, keep_rows, number, to_json
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.live_view import RunView, eval_line, live_words
from sat_slime.runs.reading import row_faults


class RunLog(RunView):
    """The view of a run that also writes its files. Its methods may be called from several threads."""

    def __init__(self, folder: RunFolder, title: str, total_steps: int, console: Console, first_step: int = 0):
        super().__init__(title, total_steps, console, first_step)
        self._folder = folder

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Record one optimizer step as a line of metrics.jsonl. `metrics["step"]` is the number of updates made."""
        metrics = _numbers(metrics)
        self._append(self._folder.metrics, to_json(metrics))
        self.message("  ".join([f"step {metrics.get('step', '?')}", *live_words(metrics)]), "debug")
        super().step(metrics)

    def eval(self, metrics: Mapping[str, Any]) -> None:
        """Record one evaluation (step, weights_step, accuracy, n_samples) as a line of eval.jsonl."""
        metrics = _numbers(metrics)
        self._append(self._folder.eval, to_json(metrics))
        self.message(eval_line(metrics), "debug")
        super().eval(metrics)

    def samples(self, iteration: int, rows: list[dict[str, Any]]) -> None:
        """Write the responses of one iteration to samples/ITERATION.jsonl, in place of those written before."""
        path = self._folder.samples / f"{iteration}.jsonl"
        with self._lock, _writing(path):
            self._folder.samples.mkdir(exist_ok=True)
            path.write_text("".join(to_json(row) + "\n" for row in rows), encoding="utf-8")

    def message(self, text: str, level: str = "info") -> None:
        """Add a line to log.txt and to the view. level: debug (log.txt alone), info, warning or error."""
        stamp = datetime.now().isoformat(sep=" ", timespec="seconds")
        self._append(self._folder.log, f"{stamp} {level.upper():7} {text}")
        if level != "debug":
            super().message(text, level)

    def rewind(self, step: int) -> None:
        """Forget what was logged after optimizer step `step`: a resumed run logs it again. Each file is replaced as a
        whole. Lines that are no rows are named in a warning, since no run writes them again."""
        lost = list(row_faults(self._folder)) if step > 0 else []
        with self._lock, _writing(self._folder.path):
            kept = keep_rows(self._folder.metrics, lambda row: number(row, "step", 0) <= step)
            keep_rows(self._folder.eval, lambda row: number(row, "step", 0) <= step)
            last = max((number(row, "iteration", -1) for row in kept), default=-1)
            for path in (*self._folder.samples.glob("*.jsonl"), *self._folder.dumps.glob("*.pt")):
                if path.stem.isdigit() and int(path.stem) > last:
                    path.unlink()
        for sentence in lost:
            self.message(sentence, "warning")

    def _append(self, path: Path, line: str) -> None:
        with self._lock, _writing(path):
            append_line(path, line)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return `metrics` with scalars of numpy and torch as Python's."""
    return {key: value.item() if hasattr(value, "item") else value for key, value in metrics.items()}


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Errors of the file system name the path and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = "free space" if disk_is_full(error) else "see to it"
        raise OSError(f"cannot write {path}: {error.strerror or error}: {remedy} and go on with --resume") from error
