"""A job that died is resumed from the newest whole checkpoint, as `sat-slime launch --resume` does it.

What speaks against that is decided by `refusal`, from the jobs that died since the launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from rich.console import Console

from sat_slime.cli.slime_run.job_following import JobEnding, follow, newest_step
from sat_slime.cli.slime_run.slime_plan import SlimePlan, saved_iterations
from sat_slime.cli.terminal import BAD_INPUT, say, with_remark
from sat_slime.config import ConfigError
from sat_slime.config.exits import NODE_DIED
from sat_slime.config.jsonl import append_row, number, read_rows
from sat_slime.launch.command import checkpoint_folder
from sat_slime.launch.job_files import JobLog, JobRecord
from sat_slime.launch.ray_jobs import JobError, JobServer
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.saved import newest_whole

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""Seconds before a restart, twice as long with each job that left no newer checkpoint: what a dead job holds is free
within seconds, and a node that boots is back within minutes."""
DEATHS_AT_ONE_ITERATION = 3
"""With so many deaths after one iteration the run itself, not the machine, is what fails there."""
SIGNALS = 128
"""A shell adds it to the number of the signal that killed its command."""


@dataclass(frozen=True)
class Sent:
    """A run whose job was sent, and which this process has locked."""

    plan: SlimePlan
    folder: RunFolder
    record: JobRecord
    server: JobServer


@dataclass(frozen=True)
class Death:
    """A job that failed."""

    began: int
    """Iterations that were trained when it was sent."""
    iteration: int
    """Iterations that were trained when it died."""
    exit_code: int | None
    """That of its process; None where it was not told, as by a Ray that died."""


def refusal(deaths: Sequence[Death], limit: int) -> str | None:
    """Return why a run is not restarted after these deaths, in words; None where it is."""
    last = deaths[-1]
    if last.exit_code == BAD_INPUT:
        return "its settings were refused, as they would be again"
    has_trained = any(death.iteration > death.began for death in deaths)
    if not has_trained and last.exit_code not in (None, NODE_DIED) and 0 < last.exit_code < SIGNALS:
        return "it failed before it had trained anything, as it would again"
    if sum(death.iteration == last.iteration for death in deaths) >= DEATHS_AT_ONE_ITERATION:
        return f"it died {DEATHS_AT_ONE_ITERATION} times after iteration {last.iteration}"
    if len(deaths) > limit:
        return f"cluster.restarts is {limit}, and so often it was"
    return None


def pause_s(deaths: Sequence[Death], start: int) -> float:
    """Return the seconds before the restart from the checkpoint of iteration `start` after these deaths."""
    without_newer = sum(death.began == start for death in deaths)
    return min(FIRST_PAUSE_S * 2.0 ** max(0, without_newer - 1), LONGEST_PAUSE_S)


def in_words(restart: Mapping[str, Any]) -> str:
    """Return a row of restarts.jsonl, without the reason."""
    return f"after iteration {restart.get('died_at')}, from iteration {restart.get('from')}, {restart.get('time')}"


def follow_and_restart(
    sent: Sent, resume: Callable[[SlimePlan, int], Sent], live: bool | None, console: Console
) -> tuple[JobEnding, RunFolder]:
    """Follow a run to its end, through restarts of its job, and return how it ended and its folder.

    resume: sends the job anew, to go on from the checkpoint of that iteration, 0: from the beginning.
    """
    deaths: list[Death] = []
    limit = sent.plan.config.cluster.restarts
    tell = partial(say, console)
    while True:
        began = saved_iterations(sent.plan.config, sent.folder.path)
        ending = follow(sent.folder, sent.plan.config, sent.record, sent.server, live, console)
        if not limit:
            return ending, sent.folder
        try:
            if ending.status == "interrupted" and not ending.ended:
                ending = replace(ending, text=f"{ending.text}\nit is not restarted any more if it dies")
            if ending.status != "failed" or not ending.ended:
                return ending, sent.folder
            deaths.append(Death(began, _trained(sent, began), ending.exit_code))
            if why := refusal(deaths, limit):
                return _given_up(sent, ending, f"not restarted: {why}"), sent.folder
            start = newest_whole(checkpoint_folder(sent.plan.config, sent.folder.path))  # 0 where there is none
            pause = pause_s(deaths, start)
            _note_restart(sent, ending, deaths, start, pause, tell)
            _wait(pause, sent.folder)
            sent.folder.unlock()  # it is locked anew as the job is sent
            sent = resume(sent.plan, start)
            if sent.folder.is_to_stop():
                sent.server.stop(sent.record.job)
        except KeyboardInterrupt:
            if ending.ended:
                sent.folder.ended("interrupted")
            return replace(ending, status="interrupted", error=None), sent.folder
        except (ConfigError, RunFolderError, JobError) as error:
            return _given_up(sent, ending, f"its restart failed: {' '.join(str(error).splitlines())}"), sent.folder


def _trained(sent: Sent, began: int) -> int:
    """Return the iterations that were trained when the newest job died."""
    config = sent.plan.config
    step = newest_step(sent.folder, config, JobLog(sent.folder.log).lines(sent.record.job))
    return max(began, int(number(step, "step", 0)) // config.pipeline.optimizer_steps_per_rollout)


def _note_restart(
    sent: Sent, ending: JobEnding, deaths: Sequence[Death], start: int, pause: float, tell: Callable[[str], object]
) -> None:
    """Write a line to the terminal and to log.txt, a row to restarts.jsonl, and the state."""
    folder, died = sent.folder, max(deaths[-1].iteration, start)
    reason = (ending.error or "").partition("\n")[0]
    number = len(read_rows(folder.restarts)) + 1
    where = f"from iteration {start}" if start else "from the start"
    count = f"restart {len(deaths)} of {sent.plan.config.cluster.restarts}"
    line = f"{count}, {where}, in {pause:.0f} s: after iteration {died} {reason}"
    row = {"time": datetime.now(timezone.utc).isoformat(timespec="seconds"), "restart": number, "from": start}
    row |= {"died_at": died, "pause_s": pause, "job": sent.record.job, "reason": reason}
    with writable(folder.path):
        append_row(folder.restarts, row)
        JobLog(folder.log).remark(line)
        folder.ended("restarting", reason)
    tell(line)


def _given_up(sent: Sent, ending: JobEnding, remark: str) -> JobEnding:
    error = with_remark(ending.error or "", remark)
    sent.folder.ended("failed", error.splitlines()[0])
    return replace(ending, error=error)


def _wait(seconds: float, folder: RunFolder) -> None:
    """Wait, unless `sat-slime stop` asks for the end: that raises KeyboardInterrupt, as Ctrl-C does."""
    deadline = time.monotonic() + seconds
    while not folder.is_to_stop() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.5))
    if folder.is_to_stop():
        raise KeyboardInterrupt


def detached_warning(restarts: int) -> str:
    """Return what is wrong with --detach where restarts are asked for."""
    return (
        f"cluster.restarts is {restarts}, but a run that nobody follows is not restarted: leave out --detach (in tmux, "
        "for instance), or set cluster.restarts to 0"
    )
