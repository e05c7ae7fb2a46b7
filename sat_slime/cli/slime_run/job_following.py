"""The job of a run of slime is followed to its end, by its log, and how it ended is kept."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from sat_slime.cli.run_words import optimizer_steps, report_line, title
from sat_slime.cli.slime_run.slime_plan import saved_iterations
from sat_slime.cli.terminal import Ending, say, short, undisturbed
from sat_slime.config import SlimeConfig
from sat_slime.config.jsonl import read_rows
from sat_slime.launch.job_files import JobLog, JobRecord
from sat_slime.launch.local_ray import LocalRay, how_it_died, is_running, stop_ray
from sat_slime.launch.ray_jobs import JobError, JobServer, JobState
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.live_view import RunView
from sat_slime.runs.slime_log import LogLine, read_line, run_metrics

LAST_LINES = 15
"""Lines of the log that are shown of a job that failed."""
LINES_SEARCHED = 300
"""Lines at the end of the log in which the driver's exception is looked for."""
_EXCEPTION = re.compile(r"sat_slime: |([A-Za-z_][\w.]*\.)?[A-Z]\w*(Error|Exception|Exit)(: |$)")
LONGEST_LINE = 300
"""Characters of a line of the log that a view shows."""


def how_to_go_on(folder: Path) -> str:
    """Return what can be done with a run whose job goes on."""
    shown = short(folder)
    return "\n".join(
        [
            f"follow it with: sat-slime logs {shown} -f",
            f"look at it with: sat-slime status {shown}",
            f"stop it with: sat-slime stop {shown}",
        ]
    )


@dataclass(frozen=True)
class JobEnding(Ending):
    """The end of a job, or the reason why it is not followed any more."""

    ended: bool = False
    """True where the job is over, as far as is known."""
    exit_code: int | None = None
    """Of the job's process; None where it was not told."""


def follow(
    folder: RunFolder, config: SlimeConfig, record: JobRecord, server: JobServer, live: bool | None, console: Console
) -> JobEnding:
    """Show the job's progress until it ends or Ctrl-C; keep its log."""
    show = Show(config)
    steps = config.pipeline.optimizer_steps_per_rollout
    view = RunView(
        title(config.name, config),
        optimizer_steps(config),
        console,
        live,
        saved_iterations(config, folder.path) * steps,
        clock=show.clock,
    )

    def on_break(error: JobError) -> None:
        if record.ray is not None and not is_running(record.ray):
            raise error  # nothing to connect to again
        view.message(str(error), "warning")

    state: JobState | None
    try:
        with view:
            for line in JobLog(folder.log).follow(server, record.job, on_break=on_break):
                show.read(line, view)
        state = server.state(record.job)
    except KeyboardInterrupt:
        return JobEnding("interrupted", None, f"the job goes on; {how_to_go_on(folder.path)}")
    except JobError as error:
        died = how_it_died(record.ray) if record.ray is not None else None
        if died is None:
            text = f"the job itself may well go on; {how_to_go_on(folder.path)}"
            return JobEnding("failed", f"the log cannot be followed any more: {error}", text)
        state = JobState("FAILED", None, died)
    return end(folder, record, state, console)


@dataclass
class Show:
    """Feeds a view with what slime's log says."""

    config: SlimeConfig
    rollout: dict[str, float] = field(default_factory=dict)
    """Metrics of the newest rollout, which are logged before its optimizer steps."""
    step: dict[str, float] = field(default_factory=dict)
    """Metrics of the newest optimizer step."""
    now: float = math.nan
    """Time of the newest line that states one, so that a log that is read later shows the speed of its job."""

    def clock(self) -> float:
        return time.time() if math.isnan(self.now) else self.now

    def read(self, text: str, view: RunView | None = None) -> None:
        """Take in a line of the log."""
        line = read_line(text)
        self.now = self.now if line.time is None else line.time
        steps = self.config.pipeline.optimizer_steps_per_rollout
        if line.kind == "step":
            iteration = line.number // steps + 1
            self.step = {
                **self.rollout,
                **run_metrics(line.metrics),
                "step": line.number + 1,
                "iteration": iteration,
            }
        elif line.kind in ("rollout", "perf"):
            self.rollout.update(run_metrics(line.metrics))
            length = self.rollout.get("response_lengths", self.rollout.get("response_len/mean", math.nan))
            if length == length:
                self.rollout["tokens/response_total"] = length * self.config.rollout.responses_per_iteration
        if view is not None:
            self._show(view, line)

    def _show(self, view: RunView, line: LogLine) -> None:
        if line.kind == "step":
            view.step(self.step)
        elif line.kind == "eval":
            scores = {key.removeprefix("eval/"): value for key, value in line.metrics.items() if key.count("/") == 1}
            shown = ", ".join(
                f"{name} {value:.3f}" for name, value in scores.items() if name in self.config.eval.prompts
            )
            # slime counts the evaluation of the initial weights as the first iteration's.
            first = line.number == 0 and not self.step
            when = "before training" if first else f"after iteration {line.number + 1}"
            view.message(f"eval {when}: {shown}", "info")
        elif line.kind == "phase":
            view.status({"phase": line.text})
        elif line.kind == "trouble":
            view.message(line.text[:LONGEST_LINE], "warning")


def end(folder: RunFolder, record: JobRecord, state: JobState | None, console: Console) -> JobEnding:
    """Note how the job ended, and end the Ray that was started for it. state: None where the cluster does not know the
    job."""
    status, error = note_end(folder, record, state)
    if record.ray is not None:
        end_ray(record.ray, console, folder.logs if status == "failed" else None)
    shown = short(folder.path)
    lines = [f"{'finished; its log is' if status == 'finished' else 'more in'} {short(folder.log)}"]
    if status == "failed" and record.ray is not None:
        lines.append(f"Ray's own logs are in {short(folder.logs)}")
    if status != "finished":
        lines.append(f"go on with: sat-slime launch {shown} --resume")
    return JobEnding(status, error, "\n".join(lines), ended=True, exit_code=state.exit_code if state else None)


def with_report(ending: JobEnding, folder: RunFolder) -> JobEnding:
    """Return the ending of a run, whose report is written if its job is over and there is anything to draw."""
    if not (ending.ended and folder.metrics.exists()):
        return ending
    return replace(ending, text=f"{ending.text}\n{report_line(folder.path)}")


def newest_step(folder: RunFolder, config: SlimeConfig, log: Iterable[str]) -> dict[str, Any]:
    """Return the metrics of the newest optimizer step, from metrics.jsonl where the job writes it, else from its log;
    empty before the first."""
    if rows := read_rows(folder.metrics):
        return rows[-1]
    show = Show(config)
    for line in log:
        show.read(line)
    return show.step


def note_end(folder: RunFolder, record: JobRecord, state: JobState | None) -> tuple[str, str | None]:
    """Return (status, error) of a job that has ended, written into the run's state.json."""
    state = state or JobState("FAILED", None, f"the cluster at {record.address} does not know it any more")
    status = {"SUCCEEDED": "finished", "STOPPED": "interrupted"}.get(state.status, "failed")
    if status == "failed" and folder.is_to_stop():  # its Ray may be gone before its job is known to be stopped
        status = "interrupted"
    error = _failure(folder, record, state) if status == "failed" else None
    folder.ended(status, error and error.splitlines()[0])
    return status, error


def _failure(folder: RunFolder, record: JobRecord, state: JobState) -> str:
    log = [*deque((line for line in JobLog(folder.log).lines(record.job) if line.strip()), LINES_SEARCHED)]
    lines = log[-LAST_LINES:]
    if state.exit_code is None or not lines:  # the job did not run: the message is the reason, not the end of a log
        return f"job {record.job} failed: {(state.message.strip().splitlines() or ['no reason given'])[0]}"
    # Processes that still end write after the driver's exception.
    last = next((line for line in reversed(log) if _EXCEPTION.match(line)), lines[-1]).strip()
    error = f"job {record.job} failed with exit code {state.exit_code}; last in its log: {last[:LONGEST_LINE]}"
    return "\n".join([error, "Its log ends with:", *(f"    {line}" for line in lines)])


def end_ray(ray: LocalRay, console: Console, logs_to: Path | None = None) -> None:
    """End a Ray that was started for a run. Where it does not end, a warning says so, and nothing else is hidden.

    logs_to: a folder that gets its logs.
    """
    try:
        with undisturbed():
            stop_ray(ray, logs_to=logs_to)
    except JobError as error:
        say(console, f"warning: {error}")
