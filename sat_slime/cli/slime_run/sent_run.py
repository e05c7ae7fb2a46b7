"""Runs that were sent to a cluster can be asked after, shown and stopped from any terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from sat_slime.cli import run_words
from sat_slime.cli.slime_run.job_following import end, newest_step, note_end, with_report
from sat_slime.cli.slime_run.restarts import in_words
from sat_slime.cli.slime_run.slime_plan import measured_in, saved_iterations
from sat_slime.cli.terminal import Ending, short
from sat_slime.config import SlimeConfig, load_config
from sat_slime.config.jsonl import read_rows
from sat_slime.launch.duration import words
from sat_slime.launch.job_files import JobLog, JobRecord
from sat_slime.launch.local_ray import how_it_died, is_running, stop_ray
from sat_slime.launch.ray_jobs import JobServer, JobState, NoAnswer
from sat_slime.runs.folder import RunFolder, RunFolderError


@dataclass(frozen=True)
class SentRun:
    """A run as its folder and its cluster know it."""

    folder: RunFolder
    config: SlimeConfig
    record: JobRecord
    server: JobServer | None
    """None where no cluster answers any more."""
    state: JobState | None
    """None where the cluster does not know the job, or does not answer."""

    @property
    def goes_on(self) -> bool:
        return self.state is not None and not self.state.ended


def find(path: Path) -> SentRun:
    """Return the run in a folder. Raises RunFolderError, ConfigError or JobError."""
    folder = RunFolder.open(path)
    config = load_config(folder.config)
    if not isinstance(config, SlimeConfig):
        raise RunFolderError(f"{path} is a lab run: no job of a cluster's")
    record = JobRecord.read(path)
    if record is None:
        raise RunFolderError(f"{path}: the run was never sent to a cluster: sat-slime launch {path} --resume")
    try:
        server = JobServer(record.address)
    except NoAnswer:
        return SentRun(folder, config, record, None, None)
    return SentRun(folder, config, record, server, server.state(record.job))


def status_lines(path: Path) -> list[str]:
    """Return what is known of a run, a line each."""
    run = find(path)
    folder, config, record = run.folder, run.config, run.record
    noted, saved = _noted(run), saved_iterations(config, folder.path)
    if run.goes_on and run.state:
        state = run.state.status.lower()
    elif run.server is None and noted.get("status") == "running":
        state = "lost"
    else:
        state = str(noted.get("status"))
    where = f"job {record.job} at {record.address}" + (", which does not answer" if state == "lost" else "")
    newest = newest_step(folder, config, log_lines(run))
    checkpoint = f"after {saved} iterations" if saved else None
    lines = run_words.status_lines(config, f"{state} ({where})", noted, newest, checkpoint)
    if noted.get("status") != "finished" and (left := _left(run)):
        lines.append(f"left        {left}")
    if restarts := read_rows(folder.restarts):
        lines.append(f"restarts    {len(restarts)}; the last {in_words(restarts[-1])}")
    if noted.get("error") and not run.goes_on:
        lines.append(f"error       {noted['error']}")
    if record.ray is not None and not run.goes_on and is_running(record.ray):
        lines.append(f"Ray         started for this run, and still there: sat-slime stop {short(path)}")
    return lines


def _noted(run: SentRun) -> dict[str, Any]:
    """Return state.json, with the end of a job that nobody followed."""
    noted = run.folder.state()
    if noted.get("status") not in ("running", "killed") or run.goes_on:
        return noted
    if run.server is not None:
        _catch_up(run)
        note_end(run.folder, run.record, run.state)
    elif run.record.ray is not None and (died := how_it_died(run.record.ray, timeout_s=0)):
        note_end(run.folder, run.record, JobState("FAILED", None, died))
    return run.folder.state()


def _left(run: SentRun) -> str | None:
    """Return how long the rest of the run takes at the speeds that it has measured; None before it has."""
    measured, done = measured_in(run.folder.path, run.config)
    if measured is None:
        return None
    left = (run.config.pipeline.iterations - done) * measured.seconds
    return f"{words(left)}; measured: {measured}"


def log_lines(run: SentRun) -> Iterator[str]:
    """Yield the lines of the newest job's log so far."""
    _catch_up(run)
    yield from JobLog(run.folder.log).lines(run.record.job)


def run_log(path: Path) -> Iterator[str]:
    """Yield the lines of a run's newest log."""
    yield from log_lines(find(path))


def follow_log(path: Path) -> Iterator[str]:
    """Yield the log of a run's newest job as it grows, until the job ends."""
    run = find(path)
    if run.server is None or not run.goes_on:
        yield from log_lines(run)
        return
    with _writing(run) as keep:
        yield from JobLog(run.folder.log).follow(run.server, run.record.job, keep)


def _catch_up(run: SentRun) -> None:
    """Bring log.txt up to what the cluster has, unless another process is at it."""
    if run.server is not None and run.state is not None:
        with _writing(run) as keep:
            if keep:
                JobLog(run.folder.log).catch_up(run.record.job, run.server.log(run.record.job))


@contextlib.contextmanager
def _writing(run: SentRun) -> Iterator[bool]:
    """Yields whether this process may write log.txt, which one process at a time does."""
    try:
        run.folder.lock()
    except RunFolderError:
        yield False
        return
    try:
        yield True
    finally:
        run.folder.unlock()


def stop_job(path: Path, console: Console) -> Ending:
    """End a run's job, and the Ray that was started for it; nothing else."""
    run = find(path)
    run.folder.ask_to_stop()
    run = find(path)  # it may have been restarted meanwhile
    folder, record = run.folder, run.record
    if not run.goes_on:
        status = _noted(run).get("status")
        if status == "restarting":
            return Ending("finished", None, f"{short(path)}: its job {record.job} failed; it will not be restarted")
        if run.server is None and status == "running":
            raise RunFolderError(
                f"{path}: the cluster at {record.address} does not answer: it is gone, or out of reach"
            )
        if record.ray is not None:
            stop_ray(record.ray)
        return Ending("finished", None, f"{short(path)}: its job {record.job} has ended already ({status})")
    assert run.server is not None
    state = run.server.stop(record.job)
    _catch_up(SentRun(folder, run.config, record, run.server, state))
    ending = with_report(end(folder, record, state, console), folder)
    saved = saved_iterations(run.config, folder.path)
    kept = f"its newest checkpoint is after {saved} iterations" if saved else "it has no checkpoint"
    return Ending("finished", ending.error, f"{short(path)}: job {record.job} stopped; {kept}\n{ending.text}")
