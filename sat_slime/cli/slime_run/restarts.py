"""A job that died is resumed from the newest whole checkpoint, as `sat-slime launch --resume` does it.

What speaks against that is decided by `refusal`, from the jobs that died since the launch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from rich.console import Console

from sat_slime.cli.slime_run.job_following import JobEnding, end, follow, newest_step
from sat_slime.cli.slime_run.slime_plan import SlimePlan, saved_iterations
from sat_slime.cli.terminal import BAD_INPUT, say, with_remark
from sat_slime.config import ConfigError
from sat_slime.config.exits import NODE_DIED
from sat_slime.config.jsonl import append_row, number, read_rows
from sat_slime.launch.command import checkpoint_folder
from sat_slime.launch.job_files import JobLog, JobRecord
from sat_slime.launch.local_ray import how_it_died
from sat_slime.launch.ray_jobs import JobError, JobServer, JobState
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.saved import newest_whole

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""Seconds before a restart, twice as long with each job that left no newer checkpoint: what a dead job holds is free
within seconds, and a node that boots is back within minutes."""
DEATHS_AT_ONE_ITERATION = 3
"""With so many deaths after one iteration the run itself, not the machine, is what fails there."""
LOOKS = 9
"""Times that a cluster which does not answer is asked again, with pauses as between restarts: for half an hour."""
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
    without_newer = itertools.takewhile(lambda death: death.began == start, reversed(deaths))
    return growing_pause_s(max(1, len(list(without_newer))))


def growing_pause_s(number: int) -> float:
    """Return the seconds of the pause of this number, from 1, in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** (number - 1), LONGEST_PAUSE_S)


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
            if ending.status == "failed" and not ending.ended:
                ending = _seen_again(sent, ending, live, console)
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
            sent = _resumed(sent, resume, start, pause, tell)
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


def _resumed(
    sent: Sent, resume: Callable[[SlimePlan, int], Sent], start: int, pause: float, tell: Callable[[str], object]
) -> Sent:
    """Return the run, resumed after a pause. A cluster that does not answer is asked again. Raises JobError when that
    does not help, ConfigError or RunFolderError when the run cannot be resumed, and KeyboardInterrupt when it is to
    stop."""
    _wait(pause, sent.folder)
    for look in range(1, LOOKS + 1):
        sent.folder.unlock()  # it is locked anew as the job is sent
        try:
            return resume(sent.plan, start)
        except JobError as error:
            sent.folder.lock()
            if look == LOOKS:
                raise
            again = growing_pause_s(look)
            tell(f"not yet: {error}; once more in {again:.0f} s")
            _wait(again, sent.folder)
    raise AssertionError


def _seen_again(sent: Sent, ending: JobEnding, live: bool | None, console: Console) -> JobEnding:
    """Return how a job ended whose cluster did not answer for a while; `ending` with the reason where it never does
    again."""
    record = sent.record
    for look in range(1, LOOKS + 1):
        _wait(growing_pause_s(look), sent.folder)
        if record.ray is not None and (died := how_it_died(record.ray, timeout_s=0)):
            return end(sent.folder, record, JobState("FAILED", None, died), console)
        try:
            state = JobServer(record.address).state(record.job)
        except JobError:
            continue
        if state is None or state.ended:
            return end(sent.folder, record, state, console)
        return follow(sent.folder, sent.plan.config, record, JobServer(record.address), live, console)
    minutes = sum(map(growing_pause_s, range(1, LOOKS + 1))) / 60
    silent = f"Ray at {record.address} has not answered for {minutes:.0f} minutes"
    if record.ray is not None:
        return end(sent.folder, record, JobState("FAILED", None, silent), console)
    return replace(ending, error=with_remark(ending.error or "", f"{silent}, and the run is not restarted"))


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
