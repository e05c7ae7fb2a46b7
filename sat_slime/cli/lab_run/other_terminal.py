"""A lab run from another terminal than its own: its status, its log, its view, its end."""

from __future__ import annotations

import itertools
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from sat_slime.cli.run_words import optimizer_steps, status_lines, title
from sat_slime.cli.terminal import Ending, short
from sat_slime.config import LabConfig
from sat_slime.config.jsonl import parse_object, read_rows
from sat_slime.lab.checkpoint import newest
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.live_view import RunView
from sat_slime.runs.lock import Holder

LOOK_S = 0.2
"""Seconds between looks at a run that goes on."""
_LINE = re.compile(r"\S+ \S+ (?P<level>[A-Z]+) +(?P<text>.*)")
"""A line of log.txt."""
AT_ONCE_S = 2.5
"""Seconds between two signals that count as two."""


class Tail:
    """The whole lines that a file gets, from its beginning on."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new_lines(self) -> Iterator[str]:
        """Yield the lines since the last call; all of them again where the file was replaced by a shorter one."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            if self._path.stat().st_size < self._read:
                self._read = 0
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                yield line.decode(errors="replace").rstrip("\n")

    def new_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the same as objects; a line that is none is left out."""
        for line in self.new_lines():
            if row := parse_object(line):
                yield row


def log_of(folder: RunFolder, follow: bool) -> Iterator[str]:
    """Yield the lines of a run's log, and with `follow` those that come until it ends."""
    tail = Tail(folder.log)
    yield from tail.new_lines()
    while follow and folder.is_locked():
        time.sleep(LOOK_S)
        yield from tail.new_lines()


def watch(folder: RunFolder, config: LabConfig, console: Console) -> None:
    """Show the view of a run until it ends or Ctrl-C: live on a terminal, else a line per step."""
    seconds = 0.0
    steps, evals, log = Tail(folder.metrics), Tail(folder.eval), Tail(folder.log)
    with RunView(title(folder.path.name, config), optimizer_steps(config), console, clock=lambda: seconds) as view:
        for _ in itertools.count():
            goes_on = folder.is_locked()
            for row in evals.new_rows():
                view.eval(row)
            for row in steps.new_rows():
                seconds += row.get("time/step") or 0.0
                view.step(row)
            for line in log.new_lines():
                if (match := _LINE.fullmatch(line)) and match["level"] != "DEBUG":
                    view.message(match["text"], match["level"].lower())
            if not goes_on:
                return
            time.sleep(LOOK_S)


def lab_status(folder: RunFolder, config: LabConfig) -> list[str]:
    """Return what the folder of a lab run tells, a line each."""
    noted, saved, rows = folder.state(), newest(folder.checkpoints), read_rows(folder.metrics)
    status = noted.get("status")
    state = f"running (process {noted.get('pid')})" if status == "running" else status or "not started"
    lines = status_lines(config, state, noted, rows[-1] if rows else {}, saved.name if saved else None)
    if noted.get("error"):
        lines.append(f"error       {noted['error']}")
    if status not in ("running", "finished"):
        lines.append(f"go on with  sat-slime launch {short(folder.path)} --resume")
    return lines


def stop_run(path: Path, holder: Holder | None, at_once: bool, console: Console) -> Ending:
    """End what works on a folder, as Ctrl-C in its own terminal does, and wait for it.

    holder: the process that has the folder's lock; None: none. at_once: as a second Ctrl-C does. Raises RunFolderError
    where that process is not one of this machine's, or not this user's: its number may be a stranger's here.
    """
    folder = RunFolder(path)
    if holder is None:
        return Ending("finished", None, f"{short(path)}: nothing runs here")
    sent = [signal.SIGTERM] * (2 if at_once else 1)
    if not holder.signal(sent, AT_ONCE_S if at_once else 0.0) and folder.is_locked():
        raise RunFolderError(
            f"{short(path)} is in use by {holder}, which cannot be ended from here: stop it where it runs"
        )
    if not at_once:
        console.print("it ends after its iteration and a checkpoint; at once: --now", markup=False, highlight=False)
    while folder.is_locked():
        time.sleep(LOOK_S)
    return Ending("finished", None, f"{short(path)}: stopped")
