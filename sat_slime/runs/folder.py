"""The folder that holds everything about one run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import parse_object, read_object, write_atomically
from sat_slime.runs.lock import FolderLock


class RunFolderError(RuntimeError):
    """A folder that cannot be used as asked; the message says what can be done."""


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into a RunFolderError."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written ({error.strerror or error}): see to it, or choose another output_dir"
        ) from error


class RunFolder:
    """Paths, state and lock of `runs/NAME/`."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.eval = self.path / "eval.jsonl"
        self.times = self.path / "times.jsonl"
        self.samples = self.path / "samples"
        self.dumps = self.path / "dumps"
        self.checkpoints = self.path / "checkpoints"
        self.report = self.path / "report.html"
        self.log = self.path / "log.txt"
        self.logs = self.path / "logs"
        self.restarts = self.path / "restarts.jsonl"
        self.state_file = self.path / "state.json"
        self.stop_mark = self.path / ".stop.tmp"
        """There since the run was asked to end, for the process that would restart its job, until it is started."""
        self.lock = FolderLock(self.path / ".lock")

    @classmethod
    def create(cls, path: str | Path, config_text: str, overwrite: bool = False) -> RunFolder:
        """Make and lock the folder of a new run and save its resolved config. One whose run ended before it produced
        anything is used again. Raises RunFolderError when it holds data of an earlier run (unless `overwrite`),
        something else than a run, or a run that is going on, and when it cannot be written."""
        folder = cls(path)
        with writable(folder.path):
            folder.check_new(overwrite)
            folder.path.mkdir(parents=True, exist_ok=True)
            with folder.claimed():
                folder.check_new(overwrite)
                folder._clear(overwrite)
                write_atomically(folder.config, config_text)
                for part in (folder.samples, folder.checkpoints, folder.logs):
                    part.mkdir()
        return folder

    def check_new(self, overwrite: bool = False) -> None:
        """Raise RunFolderError unless a new run can be made here."""
        if not self.is_run() and not self._is_empty():
            raise RunFolderError(f"{self.path} exists and is not a run folder: choose another name (--set name=X)")
        if self.has_data() and not overwrite:
            raise RunFolderError(
                f"{self.path} holds data of an earlier run: go on with it (--resume), choose another name (--name X), "
                "or delete it and start again (--overwrite)"
            )

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return an existing run folder, not locked. Raises RunFolderError when there is none."""
        folder = cls(path)
        if not folder.is_run():
            raise RunFolderError(f"{path} is not a run folder: it has no config.yaml beside a state.json or metrics")
        return folder

    def is_run(self) -> bool:
        """Return whether this looks like a run: its resolved config beside its lock, its state or its metrics."""
        marks = (self.lock.path, self.state_file, self.metrics)
        return self.config.is_file() and any(mark.exists() for mark in marks)

    def is_readable(self) -> bool:
        """Return whether this is a run or has a run's rows alone, as the `run_dir` of slime's plugin has them."""
        if self.is_run() or not self.metrics.is_file():
            return self.is_run()
        with open(self.metrics, "rb") as lines:
            row = parse_object(lines.readline()) or {}
        return "step" in row and any(name.startswith(("loss/", "mismatch/", "reward/", "clip/")) for name in row)

    def has_data(self) -> bool:
        """Return whether a run left anything here that cannot be had again by starting it."""
        written = any(file.exists() and file.stat().st_size for file in (self.metrics, self.eval))
        return written or (self.checkpoints.is_dir() and any(self.checkpoints.iterdir()))

    def _is_empty(self) -> bool:
        """Return whether nothing is here but the lock, and what a kill left of a file that was being written."""
        if not self.path.is_dir():
            return not self.path.exists()
        names = {entry.name for entry in self.path.iterdir()} - {self.lock.path.name}
        return all(name.startswith(".") and name.endswith(".tmp") for name in names)

    def _clear(self, everything: bool) -> None:
        """Deletes the run; with `everything` also what others have put beside it."""
        for entry in sorted(self.path.iterdir(), key=self.config.__eq__):  # last: what a kill leaves is a run by it
            if entry == self.lock.path or not (everything or entry in vars(self).values()):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Have the folder for this process until its end or `lock.release`, which follows if what is inside fails.
        Raises RunFolderError when another process has it, or it cannot be written."""
        with writable(self.path):
            if holder := self.lock.take():
                remedy = "wait until it ends or choose another name (--set name=X)"
                raise RunFolderError(f"{self.path} is in use by {holder}: {remedy}")
        try:
            yield
        except BaseException:
            self.lock.release()
            raise

    def started(self, job: str | None = None) -> None:
        """Note that a run begins or goes on here, in this process or as a cluster's job; the first start is kept."""
        before = read_object(self.state_file)
        now = _stamp(time.time())
        by = {"job": job} if job else {"pid": os.getpid()}
        state = {"status": "running", "started": before.get("started") or now, "last_started": now, **by}
        if before:
            if before.get("status") == "running" and self.log.exists():  # it was killed: its log tells until when
                before["ended"] = _stamp(self.log.stat().st_mtime)
            worked = worked_seconds(before)
            state["worked_s"] = round(worked if worked == worked else before.get("worked_s", 0.0))
        self._write_state(state)

    def ended(self, status: str, error: str | None = None, *, seen: bool = True) -> None:
        """Note how the run ended: `finished`, `failed` with its one-line error, or `interrupted`; or that it is
        `restarting`, since a job of it failed and another will go on. seen: now, else when its log was last written."""
        at = time.time() if seen or not self.log.exists() else self.log.stat().st_mtime
        self._write_state({**read_object(self.state_file), "status": status, "ended": _stamp(at), "error": error})

    def state(self) -> dict[str, Any]:
        """Return what state.json says, with the status `killed`, and the error that it could not write, of a run that
        says it is running in a process while none holds its lock, and of a job whose own Ray is gone from this machine;
        and `failed` of one that waits for a restart which no process will make."""
        state = read_object(self.state_file)
        status, is_job = state.get("status"), "job" in state
        if status == "restarting" and not self.lock.is_held():
            state["status"] = "failed"
        if status == "running" and is_job and self._lost_its_ray():
            state |= {"status": "killed", "error": "the Ray that was started for it was killed or crashed"}
        if status == "running" and not is_job and not self.lock.is_held():
            why = f"its process {state.get('pid')} was killed, by hand or for want of memory, or the machine went down"
            state |= {"status": "killed", "error": why}
        return state

    def _lost_its_ray(self) -> bool:
        """Return whether a Ray that was started for the run was on this machine, and is gone."""
        try:
            ray = json.loads((self.path / "job.json").read_text(encoding="utf-8"))["ray"]
            was_here = ray is not None and (Path(ray["folder"]).is_dir() or self.lock.was_here())
            return was_here and not is_alive(ray["pid"], ray["folder"])
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def _write_state(self, state: dict[str, Any]) -> None:
        write_atomically(self.state_file, json.dumps(state, indent=2) + "\n")


def is_alive(pid: int, mark: str) -> bool:
    """Return whether a process of that number is there which has `mark` in its command line, and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state != b"Z" and os.fsencode(mark) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, IndexError):
        return False


def worked_seconds(state: Mapping[str, Any]) -> float:
    """Return the seconds that all starts of a run took together, by its state; NaN while it goes on."""
    try:
        newest = datetime.fromisoformat(state["ended"]) - datetime.fromisoformat(state["last_started"])
        return float(state.get("worked_s", 0.0)) + max(0.0, newest.total_seconds())
    except (KeyError, TypeError, ValueError):
        return math.nan


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
