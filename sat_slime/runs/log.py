"""What a run measures is shown on the terminal, a line per step, evaluation and message and how far it is, and written
into the files of its folder."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sat_slime.config.disk import disk_is_full
from sat_slime.config.jsonl import append_line, keep_rows, number, to_json
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.reading import row_faults

RECENT_ITERATIONS = 32
"""Iterations over which the view averages its speed."""
SHOWN = {
    "reward/mean": ("reward", ".3f"),
    "mismatch/d_pi": ("d_pi", ".4f"),
    "lag/mean": ("lag", ".3g"),
    "sat/gate_rate": ("gate", ".1%"),
    "sat/newly_clipped": ("newly", ".2%"),
    "clip/fraction": ("clip", ".1%"),
}
"""Metrics that a terminal shows while a run goes on: label and format."""


class RunView:
    """The view of a run. Keys of `metrics` are those of metrics.jsonl; any may be missing."""

    def __init__(self, title: str, total_steps: int, console: Console, first_step: int = 0) -> None:
        """total_steps: optimizer steps of the whole run. first_step: those made before this start."""
        self._title, self._total, self._console, self._lock = title, total_steps, console, threading.RLock()
        self._steps, self._phase, self._left, self._clock = first_step, "", "", time.monotonic
        self._metrics: dict[str, Any] = {}
        self._times: deque[tuple[float, int, int]] = deque(maxlen=RECENT_ITERATIONS)
        """(seconds of the clock, steps made, response tokens of the batch) at the ends of the newest iterations."""
        self._bottom = self._console.status(self._how_far())

    def step(self, metrics: Mapping[str, Any]) -> None:
        with self._lock:
            iteration = metrics.get("iteration")
            if iteration is not None and iteration == self._metrics.get("iteration") and self._times:
                self._times.pop()  # one more step of the same batch
            self._metrics = {**self._metrics, **metrics}
            self._steps = int(metrics.get("step", self._steps + 1))
            self._times.append((self._clock(), self._steps, int(number(metrics, "tokens/response_total", 0))))
            parts = [f"step {self._steps:>{len(str(self._total))}}/{self._total}", *live_words(self._metrics)]
            self._print("  ".join([*parts, *self._pace()]))
            self._bottom.update(self._how_far())

    def eval(self, metrics: Mapping[str, Any]) -> None:
        self._print(eval_line(metrics))

    def status(self, **fields: Any) -> None:
        """Takes note of the `phase`, and of how far it is (`done`, `of`); it is not recorded."""
        with self._lock:
            phase = fields.get("phase")
            if phase and phase != self._phase:
                self._phase = phase
                if not self._metrics:  # later they would drown the steps
                    self._print(phase)
            part = f" {fields['done']}/{fields['of']}" if fields.get("of") else ""
            self._bottom.update(self._how_far(part))

    def message(self, text: str, level: str = "info") -> None:
        """Shows a line. level: info, warning or error."""
        self._print(text if level == "info" else f"{level}: {text}")

    def __enter__(self) -> RunView:
        self._bottom.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bottom.stop()

    def _how_far(self, part: str = "") -> Text:
        """Return the line at the bottom. part: how far the phase is."""
        words = (self._title, f"{self._phase}{part}", f"{self._steps}/{self._total}", self._left)
        return Text("  ".join(filter(None, words)))

    def _pace(self) -> list[str]:
        """Return the speed of the newest iterations and the time that is left, which the bottom shows too."""
        (began, before, _), (now, steps, _) = self._times[0], self._times[-1]
        if steps == before or now == began:
            return []
        tokens = sum(tokens for _, _, tokens in list(self._times)[1:])
        per_step = (now - began) / (steps - before)
        self._left = f"left {duration(per_step * max(0, self._total - self._steps))}"
        return [f"{tokens / (now - began):.0f} tok/s", f"{per_step:.2f} s/step", self._left]

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class RunLog(RunView):
    """The view of a run that also writes its files. Its methods may be called from several threads."""

    def __init__(self, folder: RunFolder, title: str, total_steps: int, console: Console, first_step: int = 0):
        super().__init__(title, total_steps, console, first_step)
        self._folder = folder

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Record one optimizer step as a line of metrics.jsonl. `metrics["step"]` is the number of updates made."""
        self._append(self._folder.metrics, to_json(metrics))
        self.message("  ".join([f"step {metrics.get('step', '?')}", *live_words(metrics)]), "debug")
        super().step(metrics)

    def eval(self, metrics: Mapping[str, Any]) -> None:
        """Record one evaluation (step, weights_step, accuracy, n_samples) as a line of eval.jsonl."""
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

    def rewind(self, step: int, iteration: int = -1) -> None:
        """Forget what was logged after optimizer step `step`, the last of `iteration`: a resumed run logs it again.
        Each file is replaced as a whole. Lines that are no rows are named in a warning, since no run writes them
        again."""
        lost = list(row_faults(self._folder)) if step > 0 else []
        with self._lock, _writing(self._folder.path):
            kept = keep_rows(self._folder.metrics, lambda row: number(row, "step", 0) <= step)
            keep_rows(self._folder.eval, lambda row: number(row, "step", 0) <= step)
            last = max([iteration, *(number(row, "iteration", -1) for row in kept)])
            for path in (*self._folder.samples.glob("*.jsonl"), *self._folder.dumps.glob("*.pt")):
                if path.stem.isdigit() and int(path.stem) > last:
                    path.unlink()
        for sentence in lost:
            self.message(sentence, "warning")

    def _append(self, path: Path, line: str) -> None:
        with self._lock, _writing(path):
            append_line(path, line)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Errors of the file system name the path and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = "free space" if disk_is_full(error) else "see to it"
        raise OSError(f"cannot write {path}: {error.strerror or error}: {remedy} and go on with --resume") from error


def live_words(metrics: Mapping[str, Any]) -> list[str]:
    """Return the metrics of a step that a terminal shows, a label and a value each."""
    known = ((*shown, number(metrics, metric)) for metric, shown in SHOWN.items())
    return [f"{label} {format(value, form)}" for label, form, value in known if value == value]


def eval_line(metrics: Mapping[str, Any]) -> str:
    """Return an evaluation in one line; the 95 % interval is that of the samples, since the problems are the same."""
    accuracy, samples = number(metrics, "accuracy"), metrics.get("n_samples", "?")
    low, high = number(metrics, "accuracy/low_samples"), number(metrics, "accuracy/high_samples")
    interval = f" [{low:.3f}, {high:.3f}]" if low == low else ""
    what = " ".join(filter(None, [metrics.get("dataset"), "accuracy"]))
    line = f"eval at step {metrics.get('step', '?')}: {what} {accuracy:.3f}{interval} ({samples} samples)"
    weights = metrics.get("weights_step")
    return line if weights in (None, metrics.get("step")) else f"{line}, of the weights of step {weights}"


def duration(seconds: float) -> str:
    """Return `45 s`, `3 min 20 s`, `2 h 05 min`; a dash when unknown."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
