"""Runs of slime as jobs of Ray: sent, and followed to their end."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sat_slime.cli.check import Finding
from sat_slime.cli.laptop import make_missing_laptop
from sat_slime.cli.launch import Ending, sigterm_as_ctrl_c, with_remark
from sat_slime.cli.slime import SlimePlan, check_cluster, raise_failed, saved_iterations, to_stderr
from sat_slime.config import SlimeConfig, dump_config, method_label
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.live_view import View, make_view
from sat_slime.runs.rows import keep_rows, write_atomically

if TYPE_CHECKING:
    from sat_slime.plugin.launch.job_files import JobRecord
    from sat_slime.plugin.launch.local_ray import LocalRay
    from sat_slime.plugin.launch.ray_jobs import JobServer, JobState
    from sat_slime.plugin.launch.slime_log import LogLine

LAST_LINES = 15
"""Lines of the log that are shown of a job that failed."""
LONGEST_LINE = 300


@dataclass(frozen=True)
class Where:
    """What the command line says of the cluster."""

    address: str | None = None
    start_ray: bool = False
    detach: bool = False
    skip_checks: bool = False


def launch(plan: SlimePlan, where: Where, overwrite: bool, live: bool | None, console: Console) -> Ending:
    """Send the plan and follow it to its end, or until Ctrl-C. Raises ConfigError, RunFolderError or JobError when it
    cannot be sent."""
    with sigterm_as_ctrl_c():
        _check_folder(plan, overwrite)
        make_missing_laptop(plan.config, console)
        server, ray = _cluster(plan, where, console)
        with contextlib.ExitStack() as undo:
            if ray is not None:
                undo.callback(_stop, ray, console)
            if not where.skip_checks and not (ray and plan.config.cluster.device == "cpu"):  # this machine: was checked
                console.print(f"checking the cluster at {server.address} ...", highlight=False)
                raise_failed(check_cluster(plan, server), to_stderr())
            folder = _claim(plan, overwrite)
            undo.callback(folder.unlock)
            record = _send(plan, folder, server, ray)
            undo.pop_all()  # from here on it is the job's
        console.print(f"job {record.job} at {record.address}, in {plan.folder}", highlight=False, soft_wrap=True)
        try:
            if where.detach:
                return Ending("detached", None, how_to_go_on(plan.folder))
            return follow(folder, plan.config, record, server, live, console)
        finally:
            folder.unlock()


def _stop(ray: LocalRay, console: Console, keep_logs: bool = False) -> None:
    """End a Ray of ours; that it does not end hides nothing else."""
    from sat_slime.plugin.launch.local_ray import stop_ray
    from sat_slime.plugin.launch.ray_jobs import JobError

    try:
        stop_ray(ray, keep_logs)
    except JobError as error:
        console.print(f"warning: {error}", markup=False, highlight=False, soft_wrap=True)


def _check_folder(plan: SlimePlan, overwrite: bool) -> None:
    """Neither a job that runs nor a checkpoint of another run may be in the way."""
    from sat_slime.plugin.launch.command import checkpoint_folder
    from sat_slime.plugin.launch.job_files import JobRecord, job_state
    from sat_slime.plugin.launch.ray_jobs import NoAnswer

    if not plan.resume:
        RunFolder(plan.folder).check_new(overwrite)
        place = checkpoint_folder(plan.config, plan.folder)
        if saved_iterations(plan.config, plan.folder) and not place.absolute().is_relative_to(plan.folder):
            raise RunFolderError(
                f"checkpoint.folder is {place}: it holds a run's checkpoint, from which slime would go on: choose "
                "another, or --resume"
            )
    record = JobRecord.read(plan.folder)
    if record is None:
        return
    try:
        state = job_state(record)
    except NoAnswer:
        return  # the jobs of a cluster that is gone are gone with it
    if state is not None and not state.ended:
        shown = short(plan.folder)
        raise RunFolderError(
            f"{shown}: its job {record.job} is {state.status.lower()}: follow it (sat-slime logs {shown} -f), end it "
            f"(sat-slime stop {shown}), or choose another --name"
        )


def _cluster(plan: SlimePlan, where: Where, console: Console) -> tuple[JobServer, LocalRay | None]:
    """The cluster to send to, and the Ray that was started for it."""
    from sat_slime.plugin.launch import cpu
    from sat_slime.plugin.launch.job_files import JobRecord
    from sat_slime.plugin.launch.local_ray import start_ray
    from sat_slime.plugin.launch.machine import machine_findings
    from sat_slime.plugin.launch.ray_jobs import JobServer, given_address

    on_cpu = plan.config.cluster.device == "cpu"
    has_own_ray = where.start_ray or (on_cpu and not (where.address or plan.config.cluster.address))
    if not has_own_ray:
        before = JobRecord.read(plan.folder) if plan.resume else None
        last = before.address if before and before.ray is None else None
        return JobServer(given_address(where.address, plan.config.cluster.address) or last), None
    if not where.skip_checks:
        found = (Finding(f.mark, f.what, f.detail) for f in machine_findings(plan.config, plan.folder))
        raise_failed((finding for finding in found if finding.mark == "FAIL"), to_stderr())
    console.print("starting Ray on this machine ...", highlight=False)
    tell = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    if on_cpu:
        gpus, cores = plan.config.cluster.gpus_per_node, cpu.cpu_cores(plan.config)
        ray = start_ray(gpus, cores, cpu.OBJECT_STORE_BYTES, cpu.RAY_ENVIRONMENT, tell)
    else:
        ray = start_ray(tell=tell)
    return JobServer(ray.address), ray


def _claim(plan: SlimePlan, overwrite: bool) -> RunFolder:
    """The run's folder, locked, with its settings. Raises RunFolderError."""
    from sat_slime.plugin.launch.command import checkpoint_folder
    from sat_slime.plugin.launch.saved import go_back

    text = dump_config(plan.config)
    if not plan.resume:
        return RunFolder.create(plan.folder, text, overwrite)
    folder = RunFolder.open(plan.folder)
    with writable(folder.path):
        folder.lock()
        write_atomically(folder.config, text)
        if plan.resume_from is not None:
            go_back(checkpoint_folder(plan.config, plan.folder), plan.resume_from)
        # What came after the checkpoint comes again.
        steps = saved_iterations(plan.config, plan.folder) * plan.config.pipeline.optimizer_steps_per_rollout
        for rows in (folder.metrics, folder.eval):
            keep_rows(rows, lambda row: row.get("step", 0) <= steps)
    return folder


def _send(plan: SlimePlan, folder: RunFolder, server: JobServer, ray: LocalRay | None) -> JobRecord:
    from sat_slime.plugin.launch.job_files import submit, write_files

    with writable(folder.path):
        write_files(plan.sent.files)
        record = submit(
            server,
            plan.sent.command,
            plan.sent.env,
            plan.config.cluster.runtime_env,
            folder.path,
            plan.config.name,
            ray,
        )
        folder.started(record.job)
    return record


def how_to_go_on(folder: Path) -> str:
    """What can be done with a run whose job goes on."""
    shown = short(folder)
    return "\n".join(
        [
            f"follow it with: sat-slime logs {shown} -f",
            f"look at it with: sat-slime status {shown}",
            f"end it with: sat-slime stop {shown}",
        ]
    )


def short(folder: Path) -> Path:
    """Relative to where the command was given, if it is below."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


# ---------------------------------------------------------------------------------------------------- following


def follow(
    folder: RunFolder, config: SlimeConfig, record: JobRecord, server: JobServer, live: bool | None, console: Console
) -> Ending:
    """Show the job's progress until it ends or Ctrl-C; keep its log."""
    from sat_slime.embedded.deaths import MemoryWatch
    from sat_slime.plugin.launch.job_files import JobLog
    from sat_slime.plugin.launch.local_ray import how_it_died, is_running
    from sat_slime.plugin.launch.ray_jobs import JobError, JobState

    title = f"{config.name} · {method_label(config.method.model_dump())} · lag {config.pipeline.lag}"
    show = Show(config)
    steps = config.pipeline.optimizer_steps_per_rollout
    view = make_view(
        title,
        config.pipeline.iterations * steps,
        console,
        live,
        saved_iterations(config, folder.path) * steps,
        show.clock,
    )

    def on_break(error: JobError) -> None:
        if record.ray is not None and not is_running(record.ray):
            raise error  # nothing to connect to again
        view.message(str(error), "warning")

    state: JobState | None
    with contextlib.closing(MemoryWatch()) as memory:
        try:
            with view:
                for line in JobLog(folder.log).follow(server, record.job, on_break=on_break):
                    show.read(line, view)
            state = server.state(record.job)
        except KeyboardInterrupt:
            return Ending("interrupted", None, f"the job goes on; {how_to_go_on(folder.path)}")
        except JobError as error:
            died = how_it_died(record.ray) if record.ray is not None else None
            if died is None:
                text = f"the job itself may well go on; {how_to_go_on(folder.path)}"
                return Ending("failed", f"the log cannot be followed any more: {error}", text)
            state = JobState("FAILED", None, died)
        here = record.ray is not None  # on this machine, as far as is known
        remark = memory.remark() if here else None
    return end(folder, record, state, console, remark)


@dataclass
class Show:
    """Feeds a view with what slime's log says."""

    config: SlimeConfig
    rollout: dict[str, float] = field(default_factory=dict)
    """Metrics of the newest rollout, which are logged before its optimizer steps."""
    step: dict[str, float] = field(default_factory=dict)
    """Metrics of the newest optimizer step."""
    now: float = math.nan
    """Time of the newest line that states one, so that an old log has its own speed."""

    def clock(self) -> float:
        return time.time() if math.isnan(self.now) else self.now

    def read(self, text: str, view: View | None = None) -> None:
        """Take in a line of the log."""
        from sat_slime.plugin.launch.slime_log import read_line, run_metrics

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

    def _show(self, view: View, line: LogLine) -> None:
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


def end(
    folder: RunFolder, record: JobRecord, state: JobState | None, console: Console, remark: str | None = None
) -> Ending:
    """Note how the job ended, end the Ray that was started for it, write the report.

    state: None where it is lost. remark: on a failure, of what was seen beside it.
    """
    status, error = note_end(folder, record, state, remark)
    if record.ray is not None:
        _stop(record.ray, console, keep_logs=status == "failed")
    shown = short(folder.path)
    lines = [f"{'finished; its log is' if status == 'finished' else 'more in'} {short(folder.log)}"]
    if status == "failed" and record.ray is not None:
        lines.append(f"Ray's own logs are in {record.ray.folder}")
    if status != "finished":
        lines.append(f"go on with: sat-slime launch {shown} --resume")
    if folder.metrics.exists():
        lines.append(_report(folder))
    return Ending(status, error, "\n".join(lines))


def note_end(
    folder: RunFolder, record: JobRecord, state: JobState | None, remark: str | None = None
) -> tuple[str, str | None]:
    """(status, error) of a job that has ended, written into the run's state.json."""
    from sat_slime.plugin.launch.ray_jobs import JobState

    state = state or JobState("FAILED", None, f"the cluster at {record.address} does not know it any more")
    status = {"SUCCEEDED": "finished", "STOPPED": "interrupted"}.get(state.status, "failed")
    error = _failure(folder, record, state) if status == "failed" else None
    if error and remark:
        error = with_remark(error, remark)
    folder.ended(status, error and error.splitlines()[0])
    return status, error


def _failure(folder: RunFolder, record: JobRecord, state: JobState) -> str:
    from sat_slime.plugin.launch.job_files import JobLog

    lines = [*deque((line for line in JobLog(folder.log).lines(record.job) if line.strip()), LAST_LINES)]
    if state.exit_code is None or not lines:  # it did not run: the message is the reason, not the end of a log
        return f"job {record.job} failed: {(state.message.strip().splitlines() or ['no reason given'])[0]}"
    error = f"job {record.job} failed with exit code {state.exit_code}; last in its log: {lines[-1].strip()}"
    return "\n".join([error, "Its log ends with:", *(f"    {line}" for line in lines)])


def _report(folder: RunFolder) -> str:
    from sat_slime.report.run.page import write_report

    try:
        return f"report: {short(write_report(folder.path))}"
    except Exception as error:  # it may not hide how the run itself ended
        return f"no report: {error}; when that is mended: sat-slime report {short(folder.path)}"
