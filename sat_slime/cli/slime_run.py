"""A run of slime: its plan, what is printed of it, the checks; and its job, which is sent to a cluster, followed by its
log, sent again where it died, asked after and ended from any terminal."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from sat_slime.cli.any_run import Plan, how_long, method_and_order, optimizer_steps, report_line, status_lines, title
from sat_slime.cli.terminal import BAD_INPUT, Ending, refuse_failures, say, short, sigterm_as_ctrl_c, undisturbed, warn
from sat_slime.config import ConfigError, SlimeConfig, dump_config, finding, load_config
from sat_slime.config.finding import Finding, fail, ok, settings_findings
from sat_slime.config.jsonl import append_line, keep_rows, number, parse_object, read_rows, to_json, write_atomically
from sat_slime.config.loader import read_section
from sat_slime.config.rules import slime_config_warnings
from sat_slime.config.schema import Run
from sat_slime.launch import checks, local_ray, machine
from sat_slime.launch.command import checkpoint_folder, run_folder, slime_command
from sat_slime.launch.duration import duration_lines, measured, words
from sat_slime.launch.flags import ask_slime, parser_findings
from sat_slime.launch.job_files import JobRecord, Tail, submit
from sat_slime.launch.local_ray import LocalRay, how_it_died, is_running, stop_ray
from sat_slime.launch.memory import ROWS, rows, sizes
from sat_slime.launch.ray_jobs import JobError, JobServer, JobState, NoAnswer, given_address, is_this_machine
from sat_slime.launch.secrets import redact
from sat_slime.launch.small_run import is_small, ray_options
from sat_slime.runs import going_back, saved
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.log import RunView
from sat_slime.runs.reading import last_row
from sat_slime.runs.trackers import phase_and_trouble

SlimePlan = Plan[SlimeConfig]


def plan_slime_run(
    config: SlimeConfig,
    file: Path,
    folder: Path | None,
    resume: bool,
    look_for_slime: bool = False,
    resume_from: int | None = None,
) -> SlimePlan:
    """Return the run that the command line asks for, its settings checked. Raises ConfigError or RunFolderError.
    folder: that of an existing run, wherever it was moved to; None: output_dir/name. resume_from: as of Plan."""
    folder = run_folder(config) if folder is None else Path(os.path.abspath(folder))
    # The folder keeps its absolute place, for terminals in other working directories.
    place = {"output_dir": str(folder.parent), "name": folder.name}
    read_section(Run, {"runtime": config.runtime, **place}, str(folder))  # it may have been renamed to what is no name
    config = config.model_copy(update=place)
    if errors := checks.settings_errors(config, ask_slime(config, folder) if look_for_slime else None):
        raise ConfigError(*(f"{file}: {error}" for error in errors))
    if resume:
        _check_resume(config, folder, resume_from)
    return SlimePlan(config, folder, resume, resume_from)


def _check_resume(config: SlimeConfig, path: Path, resume_from: int | None) -> None:
    """Raise ConfigError or RunFolderError unless the run in `path` can go on with these settings, from a checkpoint
    that is there and is not seen to be damaged."""
    before = going_back.settings_before(config, path)
    if not config.checkpoint.every_n_iterations and resume_from != 0:
        remedy = "--resume-from 0 starts it over, --name X another"
        raise ConfigError(f"{path}: the run saves no checkpoints to go on from: {remedy}")
    iterations, done = config.pipeline.iterations, saved_iterations(config, path)
    finished = RunFolder(path).state().get("status") == "finished" and iterations <= before.pipeline.iterations
    trained = done if resume_from is None else resume_from
    if trained > iterations - finished:  # a job that is not finished may have died in its last evaluation
        state = f"{'is finished after' if finished else 'has trained'} {trained} iterations"
        raise ConfigError(f"{path}: the run {state}; to go on, name more: --set pipeline.iterations={trained * 2}")
    if (record := JobRecord.read(path)) and done:
        where = f"the checkpoint of {path}"
        going_back.refuse_other_settings(where, record.settings, record.version, config, resume_from, done)
    if resume_from == 0:
        return
    checkpoints = checkpoint_folder(config, path)
    there = saved.numbered(checkpoints)
    going_back.refuse_unknown(resume_from, checkpoints, there)
    fault = saved.fault(checkpoints, resume_from) if resume_from else saved.fault_of_newest(checkpoints)
    if fault:
        iteration = resume_from or done or max(there, default=0)
        whole = saved.first_whole(checkpoints, going_back.instead_of(iteration, there))
        raise going_back.damaged(path, config, fault, iteration, whole)
    if resume_from is None and not done:
        going_back.refuse_lost(path, config, checkpoints)


def saved_iterations(config: SlimeConfig, folder: Path) -> int:
    """Return the iterations in the run's newest checkpoint; 0 without one."""
    return saved.newest_iteration(checkpoint_folder(config, folder)) or 0


def trained_iterations(config: SlimeConfig, folder: RunFolder) -> int:
    """Return the iterations whose rows are there in full."""
    return int(number(last_row(folder.metrics), "step", 0)) // config.pipeline.optimizer_steps_per_rollout


def time_lines(plan: SlimePlan) -> list[str]:
    """Return how long the run takes and costs; where it goes on, by what it measured, and what is left."""
    config, folder = plan.config, RunFolder(plan.folder)
    if not plan.resume:
        return duration_lines(config)
    known, before = None, load_config(folder.config)  # the settings with which it was measured
    if isinstance(before, SlimeConfig):
        known = measured(before, read_rows(folder.metrics), read_rows(folder.times))
    done = saved_iterations(config, folder.path) if plan.resume_from is None else plan.resume_from
    return duration_lines(config, known, done)


def describe(plan: SlimePlan, full: bool) -> str:
    """Return the plan, its memory and its time. full: also what would be sent, the command and its environment as a
    shell takes them, and the files."""
    config, train, rollout = plan.config, plan.config.train, plan.config.rollout
    memory = [f"{row.what:12}  {row}" for row in rows(config, sizes(config))]
    first, node = train.world_size, config.cluster.gpus_per_node  # the engines' GPUs come behind those that train
    nodes_of_engines = (first + rollout.gpus - 1) // node - first // node + 1
    summary = [
        f"method      {method_and_order(config)}",
        f"trainer     {train.world_size} GPUs on {train.nodes} node(s), parallel: tensor {train.tensor_parallel}, "
        f"pipeline {train.pipeline_parallel}, context {train.context_parallel}, data {train.data_parallel}, "
        f"expert {train.expert_parallel}",
        f"engines     {rollout.engines}, each of {rollout.gpus_per_engine} GPU(s), on {nodes_of_engines} node(s)",
        f"batch       {rollout.prompts_per_iteration} prompts x {rollout.samples_per_prompt} samples = "
        f"{rollout.responses_per_iteration} responses of at most {rollout.max_response_tokens:,} tokens",
        f"length      {how_long(config)}",
        f"folder      {plan.folder}{' (resumed)' if plan.resume else ''}",
    ]
    for heading, lines in (("memory", memory), ("time", time_lines(plan))):
        summary += [f"{'' if number else heading:10}  {line}" for number, line in enumerate(lines)]
    if not full:
        return "\n".join(summary)
    sent, lines = slime_command(config, plan.folder), [f"# {line}" for line in summary]
    lines += ["", *(f"export {name}={shlex.quote(value)}" for name, value in sent.env.items())]
    flag_by_flag = ("\\\n    " * word.startswith("--") + shlex.quote(word) for word in sent.command)
    lines += ["", " ".join(flag_by_flag)]
    for path, text in sent.files.items():
        lines += ["", f"# {path}", *text.rstrip("\n").split("\n")]
    return "\n".join(lines)


def show_plan(plan: SlimePlan, where: Where, full: bool) -> None:
    """Print the plan, and what this machine lacks for it. full: as of `describe`. Raises ConfigError where a check
    failed; of a machine without slime only those of the settings count."""
    findings: list[Finding] = []
    address = address_of(plan.config, where, plan.folder if plan.resume else None)
    if not where.skip_checks and is_this_machine(address):
        findings += checks.here(plan.config, plan.folder, plan.resume)
    elif not where.skip_checks:
        told = f"{address} is checked when the run is launched, and by sat-slime check"
        findings.append(finding.warn("cluster", told))
    typer.echo(describe(plan, full))
    lacks = [finding for finding in findings if not finding.of_settings and finding.mark != "OK"]
    slime = Path(plan.config.cluster.slime_dir) / machine.SCRIPT
    if any(finding.mark == "FAIL" for finding in lacks) and not os.path.isfile(slime):
        lines = [f"  {finding.what}: {finding.detail}" for finding in lacks]
        say(Console(stderr=True), "\n".join(["slime is not on this machine, which lacks for the run:", *lines]))
        findings = [finding for finding in findings if finding.of_settings]
    refuse_failures(findings)


def slime_findings(config: SlimeConfig, file: Path, folder: Path | None = None) -> Iterator[Finding]:
    """Yield every check of a run of slime: its settings, its time, then the cluster where one is named, else this
    machine. folder: that of a run which has begun."""
    address = address_of(config, Where())
    # Where there is a cluster, its head node asks slime.
    slime = ask_slime(config, run_folder(config)) if address is None else None
    errors = checks.settings_errors(config, slime)
    yield from settings_findings(errors, slime_config_warnings(config))
    if errors:
        return  # what is to be sent cannot be told
    yield ok("settings", str(file))
    if slime:
        yield from slime.findings()
    plan = replace(plan_slime_run(config, file, folder, resume=False), resume=folder is not None)
    yield from (ok("time", line) for line in time_lines(plan))
    if address is None:
        yield from checks.here(plan.config, plan.folder, plan.resume)
        return
    try:
        server = JobServer(address)
        yield ok("cluster", server.address)
        sent = slime_command(plan.config, plan.folder)
        yield from checks.cluster_findings(server, plan.config, plan.folder, sent, plan.resume)
    except JobError as error:
        yield fail("cluster", str(error))


@dataclass(frozen=True)
class Where:
    """The options of the command line about the cluster."""

    address: str | None = None
    start_ray: bool = False
    detach: bool = False
    skip_checks: bool = False


def starts_ray(config: SlimeConfig, where: Where) -> bool:
    """Return whether a Ray is started on this machine for a run, whatever the environment names."""
    return where.start_ray or (is_small(config) and not (where.address or config.cluster.address))


def address_of(config: SlimeConfig, where: Where, before: Path | None = None) -> str | None:
    """Return the address of a run's cluster; None: that of this machine, or it is started. before: the folder of a run
    that goes on, which is where it ran unless something is named."""
    if starts_ray(config, where):
        return None
    last = JobRecord.read(before) if before else None
    return given_address(where.address, config.cluster.address) or (last.address if last and not last.ray else None)


@dataclass(frozen=True)
class Job:
    """A run's newest job, as its folder and its cluster know it."""

    folder: RunFolder
    config: SlimeConfig
    record: JobRecord
    server: JobServer | None
    """None where no cluster answers any more."""
    state: JobState | None = None
    """As the cluster told; None where it does not know the job, does not answer, or was not asked."""

    @property
    def goes_on(self) -> bool:
        return self.state is not None and not self.state.ended


def launch_job(plan: SlimePlan, where: Where, overwrite: bool, console: Console) -> Ending:
    """Send the plan and follow it to its end, or until Ctrl-C, through the restarts of cluster.restarts. Raises
    ConfigError, RunFolderError or JobError when it cannot be sent."""
    with sigterm_as_ctrl_c():
        if where.detach and (restarts := plan.config.cluster.restarts):
            warn(
                f"cluster.restarts is {restarts}, but a run that nobody follows is not restarted: leave out --detach "
                "(in tmux, for instance), or set cluster.restarts to 0"
            )
        job = _send(plan, where, console, overwrite)
        if where.detach:
            job.folder.lock.release()
            return Ending("detached", None, how_to_go_on(plan.folder))
        return with_report(follow_and_restart(job, where, console), plan.folder)


def _send(
    plan: SlimePlan, where: Where, console: Console, overwrite: bool = False, again: RunFolder | None = None
) -> Job:
    """Find or start the cluster, check it, claim the folder and send the job. again: that of a restart, held until it
    is claimed anew. Raises ConfigError, RunFolderError or JobError, and leaves nothing then."""
    config, sent = plan.config, slime_command(plan.config, plan.folder)
    _check_folder(plan, overwrite, console)
    if again is None:
        say(console, "\n".join(time_lines(plan)))
    server, ray = _cluster(plan, where, console)
    with contextlib.ExitStack() as undo:
        if ray is not None:
            undo.callback(_end_ray, ray, console)
        is_here = ray is not None and config.cluster.device == "cpu"
        if not where.skip_checks and not is_here:  # this machine was checked
            say(console, f"checking the cluster at {server.address} ...")
            findings = list(checks.cluster_findings(server, config, plan.folder, sent, plan.resume))
            for finding in findings:
                if finding.mark == "OK" and finding.what in ROWS:  # the table of memory
                    say(console, f"{finding.what:12}  {finding.detail}")
            # a restart waits in Ray's queue for the GPUs of a node that boots
            refuse_failures(each for each in findings if again is None or each.what != "GPUs")
        _last_job(plan)  # while the cluster was checked, another launch may have sent one
        if again is not None:
            again.lock.release()
        folder = claim(plan, overwrite)
        undo.callback(folder.lock.release)
        if again is None:
            folder.stop_mark.unlink(missing_ok=True)
        with writable(folder.path):
            record = submit(server, sent, folder.path, config, ray)
            folder.started(record.job)
        undo.pop_all()  # from here on it is the job's
    say(console, f"job {record.job} at {record.address}, in {plan.folder}")
    return Job(folder, config, record, server)


def _check_folder(plan: SlimePlan, overwrite: bool, console: Console) -> None:
    """Raise RunFolderError where a job that runs, or a checkpoint of another run, is in the way. A Ray that is left of
    the run's last job ends: the next job's record takes the place of the one that names it."""
    if not plan.resume:
        RunFolder(plan.folder).check_new(overwrite)
        if fault := machine.beginning_fault(plan.config, plan.folder):
            raise RunFolderError(fault)
    if job := _last_job(plan):
        end_left_ray(job, console)


def _last_job(plan: SlimePlan) -> Job | None:
    """Return the newest job of the plan's folder, if there is one. Raises RunFolderError where it goes on."""
    if (record := JobRecord.read(plan.folder)) is None:
        return None
    job, shown = _asked(RunFolder(plan.folder), plan.config, record), short(plan.folder)
    if job.goes_on and job.state:
        raise RunFolderError(
            f"{shown}: its job {record.job} is {job.state.status.lower()}: follow it (sat-slime status {shown} -f), "
            f"end it (sat-slime stop {shown}), or choose another name (--set name=X)"
        )
    return job


def _cluster(plan: SlimePlan, where: Where, console: Console) -> tuple[JobServer, LocalRay | None]:
    """Return the cluster to send to, and the Ray that was started for it."""
    config = plan.config
    if not starts_ray(config, where):
        return JobServer(address_of(config, where, plan.folder if plan.resume else None)), None
    if not where.skip_checks:
        findings = [*machine.machine_findings(config, plan.folder, plan.resume), *checks.memory_here(config)]
        if config.cluster.device == "cpu":  # on GPUs the head node is asked, once it is there
            findings += parser_findings(config, plan.folder)
        refuse_failures(finding for finding in findings if finding.mark == "FAIL")
    say(console, "starting Ray on this machine ...")
    ray = local_ray.start_ray(**ray_options(config))
    return JobServer(ray.address), ray


def claim(plan: SlimePlan, overwrite: bool) -> RunFolder:
    """Lock the run's folder, write its settings, drop what came after its checkpoint. Raises RunFolderError."""
    text = dump_config(plan.config)
    if not plan.resume:
        return RunFolder.create(plan.folder, text, overwrite)
    folder = RunFolder.open(plan.folder)
    with folder.claimed(), writable(folder.path):
        write_atomically(folder.config, text)
        if plan.resume_from is not None:
            saved.go_back(checkpoint_folder(plan.config, plan.folder), plan.resume_from)
        # What came after the checkpoint comes again.
        steps = saved_iterations(plan.config, plan.folder) * plan.config.pipeline.optimizer_steps_per_rollout
        for rows in (folder.metrics, folder.eval, folder.times):
            keep_rows(rows, lambda row: number(row, "step", 0) <= steps)
    return folder


LAST_LINES, LINES_SEARCHED = 15, 300
"""Lines at the end of a failed job's log that are shown, and in which the driver's exception is looked for."""
_EXCEPTION = re.compile(r"sat_slime: |([A-Za-z_][\w.]*\.)?[A-Z]\w*(Error|Exception|Exit)(: |$)")
POLL_S = 0.5
"""Seconds between looks at a job that goes on."""
RECONNECTIONS, RECONNECT_AFTER_S = 5, 2.0
"""How often in a row a cluster that does not answer is asked again, and after how many seconds, times how often."""
LONGEST_LINE = 300
"""Characters of a line of the log that a view shows."""


def how_to_go_on(folder: Path) -> str:
    """Return what can be done with a run whose job goes on."""
    shown, log = short(folder), short(RunFolder(folder).log)
    return f"follow it with: sat-slime status {shown} -f; its log is {log}\nstop it with: sat-slime stop {shown}"


def _show(job: Job, console: Console, is_again: bool = False) -> JobState | None:
    """Show a job's progress until it ends, by what it writes into the run's folder, which all nodes see: rows, and in
    its log what it is at and what troubles it. Returns its state then, None where its cluster does not know it. Raises
    JobError where that does not answer any more. is_again: its newest step is told first."""
    assert job.server is not None
    folder, newest = job.folder, last_row(job.folder.metrics)
    heading, made = title(job.config.name, job.config), int(number(newest, "step", 0))
    view = RunView(heading, optimizer_steps(job.config), console, made)
    files = ((folder.eval, view.eval), (folder.metrics, view.step))
    told = [(Tail(file, file.stat().st_size if file.exists() else 0), tell) for file, tell in files]
    log, breaks, goes_on = Tail.of_job(folder.log, job.record.job), 0, True
    with view:
        if is_again and newest:
            view.step(newest)
        while goes_on:
            try:
                state = job.server.state(job.record.job)
                breaks, goes_on = 0, state is not None and not state.ended
            except JobError as error:
                breaks += 1
                if breaks > RECONNECTIONS or (job.record.ray is not None and not is_running(job.record.ray)):
                    raise
                view.message(str(error), "warning")
                time.sleep(RECONNECT_AFTER_S * breaks)
            for phase, trouble in map(phase_and_trouble, log.lines()):
                if phase:
                    view.status(phase=phase)
                elif trouble:
                    view.message(trouble[:LONGEST_LINE], "warning")
            for tail, tell in told:
                for row in filter(None, map(parse_object, tail.lines())):
                    tell(row)
            time.sleep(POLL_S * goes_on)
    return state


def follow(job: Job, console: Console) -> Ending:
    """Show the job's progress until it ends or Ctrl-C."""
    folder, record = job.folder, job.record
    try:
        state = _show(job, console)
    except KeyboardInterrupt:
        return Ending("interrupted", None, f"the job goes on; {how_to_go_on(folder.path)}")
    except JobError as error:
        died = how_it_died(record.ray) if record.ray is not None else None
        if died is None:
            text = f"the job itself may well go on; {how_to_go_on(folder.path)}"
            return Ending("failed", f"the log cannot be followed any more: {error}", text)
        state = JobState("FAILED", None, died)
    return _end(replace(job, state=state), console)


def _end(job: Job, console: Console) -> Ending:
    """Note how the job ended, and end the Ray that was started for it."""
    folder, ray = job.folder, job.record.ray
    status, error = note_end(job)
    if ray is not None:
        _end_ray(ray, console, folder.logs if status == "failed" else None)
    lines = [f"{'finished; its log is' if status == 'finished' else 'more in'} {short(folder.log)}"]
    if status == "failed" and ray is not None:
        lines.append(f"Ray's own logs are in {short(folder.logs)}")
    if status != "finished":
        again = "--resume" if job.config.checkpoint.every_n_iterations else "--resume-from 0"
        again += " --start-ray" * (ray is not None and not is_small(job.config))
        lines.append(f"go on with: sat-slime launch {short(folder.path)} {again}")
    return Ending(status, error, "\n".join(lines), ended=True, exit_code=job.state.exit_code if job.state else None)


def with_report(ending: Ending, folder: Path) -> Ending:
    """Return the ending of a run, whose report is written if its job is over and there is anything to draw."""
    if not (ending.ended and RunFolder(folder).metrics.exists()):
        return ending
    return replace(ending, text=f"{ending.text}\n{report_line(folder)}")


def note_end(job: Job, *, seen: bool = True) -> tuple[str, str | None]:
    """Return (status, error) of a job that has ended, written into the run's state.json. seen: it was followed."""
    folder, record = job.folder, job.record
    state = job.state or JobState("FAILED", None, f"the cluster at {record.address} does not know it any more")
    status = {"SUCCEEDED": "finished", "STOPPED": "interrupted"}.get(state.status, "failed")
    if status == "failed" and folder.stop_mark.exists():  # its Ray may be gone before its job is known to be stopped
        status = "interrupted"
    error = _failure(folder, record, state) if status == "failed" else None
    with contextlib.suppress(OSError):  # a full disk may be why it ended: whoever asks later is told anew
        folder.ended(status, error and error.splitlines()[0], seen=seen)
    return status, error


def _failure(folder: RunFolder, record: JobRecord, state: JobState) -> str:
    tail = Tail.of_job(folder.log, record.job)
    log = [*deque(filter(str.strip, tail.lines()), LINES_SEARCHED)]
    if not log and state.exit_code is not None:  # it could not even write one: Ray has its last words
        log = [*filter(str.strip, redact(state.message).splitlines())][-LINES_SEARCHED:]
    lines = log[-LAST_LINES:]
    if state.exit_code is None or not lines:  # the job did not run: the message is the reason, not the end of a log
        return f"job {record.job} failed: {(state.message.strip().splitlines() or ['no reason given'])[0]}"
    # Processes that still end write after the driver's exception.
    last = next((line for line in reversed(log) if _EXCEPTION.match(line)), lines[-1]).strip()
    error = f"job {record.job} failed with exit code {state.exit_code}; last in its log: {last[:LONGEST_LINE]}"
    return "\n".join([error, "Its log ends with:", *(f"    {line}" for line in lines)])


def _end_ray(ray: LocalRay, console: Console, logs_to: Path | None = None) -> None:
    """End a Ray that was started for a run. Where it does not end, a warning says so, and nothing else is hidden."""
    try:
        with undisturbed():
            stop_ray(ray, logs_to=logs_to)
    except JobError as error:
        say(console, f"warning: {error}")


def end_left_ray(job: Job, console: Console) -> bool:
    """End the Ray that was started for a job which has ended and that nobody follows; return whether one was there."""
    ray, state = job.record.ray, job.state
    # Who has the lock follows the job, and ends it.
    if ray is None or state is None or not state.ended or job.folder.lock.is_held() or not is_running(ray):
        return False
    _end_ray(ray, console, job.folder.logs if state.status == "FAILED" else None)
    return True


FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""Seconds before a restart, twice as long with each death after the same iteration: what a dead job holds is free
within seconds, and a node that boots is back within minutes."""
DEATHS_AT_ONE_ITERATION = 3
"""With so many deaths after one iteration the run itself, not the machine, is what fails there."""
SIGNALS = 128
"""A shell adds it to the number of the signal that killed its command."""


def refusal(began: int, deaths: Sequence[int], exit_code: int | None, limit: int) -> str | None:
    """Return why a run is not restarted, in words; None where it is. began: the iterations that were trained when it
    was launched; deaths: when its jobs died. exit_code: that of the last job; None where it was not told."""
    if exit_code == BAD_INPUT:
        return "its settings were refused, as they would be again"
    if exit_code is not None and 0 < exit_code < SIGNALS and max(deaths) <= began:
        return "it failed before it had trained anything, as it would again"
    if deaths.count(deaths[-1]) >= DEATHS_AT_ONE_ITERATION:
        return f"it died {DEATHS_AT_ONE_ITERATION} times after iteration {deaths[-1]}"
    return f"cluster.restarts is {limit}, and so often it was" if len(deaths) > limit else None


def follow_and_restart(job: Job, where: Where, console: Console) -> Ending:
    """Follow a run to its end, through restarts of its job from the newest whole checkpoint, and unlock its folder."""
    deaths: list[int] = []
    began = saved_iterations(job.config, job.folder.path)
    config, path, limit = job.config, job.folder.path, job.config.cluster.restarts
    try:
        while True:
            ending = follow(job, console)
            if not limit or ending.status != "failed" or not ending.ended:
                return ending
            deaths.append(max(saved_iterations(config, path), trained_iterations(config, job.folder)))
            try:
                if not (why := refusal(began, deaths, ending.exit_code, limit)):
                    job = _send_again(job, ending.error or "", deaths, where, console)
                    continue
                why = f"not restarted: {why}"
            except KeyboardInterrupt:
                job.folder.ended("interrupted")
                return replace(ending, status="interrupted", error=None)
            except (ConfigError, RunFolderError, JobError) as error:
                why = f"its restart failed: {' '.join(str(error).splitlines())}"
            first, *rest = (ending.error or "").splitlines() or [""]
            with contextlib.suppress(OSError):
                job.folder.ended("failed", f"{first}; {why}")
            return replace(ending, error="\n".join([f"{first}; {why}", *rest]))
    finally:
        job.folder.lock.release()


def _send_again(job: Job, error: str, deaths: Sequence[int], where: Where, console: Console) -> Job:
    """Tell of a restart in terminal, log.txt, restarts.jsonl and state, wait for it, and send the job again. Where
    `sat-slime stop` asks for the end meanwhile, it raises KeyboardInterrupt, as Ctrl-C does."""
    folder, config, reason = job.folder, job.config, error.partition("\n")[0]
    checkpoints = checkpoint_folder(config, folder.path)
    start = saved.newest_whole(checkpoints)  # 0 where there is none
    if 0 < config.checkpoint.every_n_iterations < deaths[-1] and not saved.numbered(checkpoints):
        going_back.refuse_lost(folder.path, config, checkpoints)
    pause = min(FIRST_PAUSE_S * 2.0 ** (deaths.count(deaths[-1]) - 1), LONGEST_PAUSE_S)
    whence = f"from iteration {start}" if start else "from the start"
    count = f"restart {len(deaths)} of {config.cluster.restarts}"
    line = f"{count}, {whence}, in {pause:.0f} s: after iteration {deaths[-1]} {reason}"
    with writable(folder.path):
        row = {"from": start, "died_at": deaths[-1], "job": job.record.job, "reason": reason}
        append_line(folder.restarts, to_json(row))
        append_line(folder.log, f"--- {line}")
        folder.ended("restarting", reason)
    say(console, line)
    deadline = time.monotonic() + pause
    while not folder.stop_mark.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    if folder.stop_mark.exists():
        raise KeyboardInterrupt
    resume_from = None if start == (saved_iterations(config, folder.path) or None) else start
    plan = plan_slime_run(config, folder.config, folder.path, True, resume_from=resume_from)
    again = _send(plan, where, console, again=folder)
    if again.folder.stop_mark.exists() and again.server:
        again.server.stop(again.record.job)
    return again


def find(path: Path) -> Job:
    """Return the newest job of the run in a folder. Raises RunFolderError, ConfigError or JobError."""
    folder = RunFolder.open(path)
    config = load_config(folder.config)
    if not isinstance(config, SlimeConfig):
        raise RunFolderError(f"{path} is a lab run: no job of a cluster's")
    if (record := JobRecord.read(path)) is None:
        raise RunFolderError(f"{path}: the run was never sent to a cluster: sat-slime launch {short(path)} --resume")
    return _asked(folder, config, record)


def _asked(folder: RunFolder, config: SlimeConfig, record: JobRecord) -> Job:
    """Return a job as its cluster tells it now; the jobs of a cluster that is gone are gone with it."""
    try:
        server = JobServer(record.address)
        state = server.state(record.job)
    except NoAnswer:
        return Job(folder, config, record, None)
    # Ray of another machine, asked for by the address that each has for its own
    is_other = state is None and is_this_machine(record.address) and not folder.lock.was_here()
    return Job(folder, config, record, None if is_other else server, state)


def job_status(path: Path, console: Console | None = None) -> list[str]:
    """Return what is known of a run, a line each. console: where its newest job is first shown to its end, with which
    the Ray ends that was started for it."""
    job = find(path)
    if console and job.goes_on:
        _show(job, console, is_again=True)
        job = find(path)
    folder, config, record = job.folder, job.config, job.record
    noted, saved = noted_state(job), saved_iterations(config, folder.path)
    state = job.state.status.lower() if job.goes_on and job.state else noted.get("status")
    where = f"job {record.job} at {record.address}" + (", which does not answer" if state == "lost" else "")
    checkpoint = f"after {saved} iterations" if saved else None
    lines = status_lines(config, f"{state} ({where})", noted, last_row(folder.metrics), checkpoint)
    known = measured(config, read_rows(folder.metrics), read_rows(folder.times))
    if known and noted.get("status") != "finished":
        left = (config.pipeline.iterations - trained_iterations(config, folder)) * known.seconds
        lines.append(f"left        {words(left)}; measured: {known}")
    if restarts := read_rows(folder.restarts):
        lines.append(f"restarts    after iteration {', '.join(str(row.get('died_at')) for row in restarts)}")
    if noted.get("error") and not job.goes_on:
        lines.append(f"error       {noted['error']}")
    ended = console is not None and not _original(job) and end_left_ray(job, console)
    if record.ray is not None and not (job.goes_on or ended) and is_running(record.ray):
        lines.append(f"Ray         started for this run, and still there: sat-slime stop {short(path)}")
    return lines


def noted_state(job: Job) -> dict[str, Any]:
    """Return state.json, with the end of a job that nobody followed, or `lost` where its cluster does not answer. What
    cannot be written is told all the same."""
    noted, is_newest = job.folder.state(), JobRecord.read(job.folder.path) == job.record
    if is_newest and job.state and noted.get("job") != job.record.job:  # its launch was killed while it was sent
        with contextlib.suppress(OSError):
            job.folder.started(job.record.job)
        noted = job.folder.state() | {"status": "running", "job": job.record.job}
    if noted.get("status") not in ("running", "killed") or job.goes_on or not is_newest:
        return noted  # also of a run whose next job was sent meanwhile
    if job.server is None:
        ray = job.record.ray if job.folder.lock.was_here() else None  # another machine's cannot be seen from this one
        if ray is None or not (died := how_it_died(ray, timeout_s=0)):
            return noted | {"status": "lost"}
        job = replace(job, state=JobState("FAILED", None, died))
    status, error = note_end(job, seen=False)
    return job.folder.state() | {"status": status, "error": error and error.splitlines()[0]}


def newest_state(folder: RunFolder) -> dict[str, Any]:
    """Return what `noted_state` says of a run; where its job cannot be asked after, state.json."""
    with contextlib.suppress(RunFolderError, ConfigError, JobError):
        return noted_state(find(folder.path))
    return folder.state()


def still_there(state: Mapping[str, Any], path: Path) -> str | None:
    """Return that a run's job goes on, in words; None where it does not. state: as of `newest_state`."""
    how = {"running": "goes on", "lost": "may go on, but its cluster does not answer"}.get(str(state.get("status")))
    return (
        f"its job {state['job']} {how}: stop it with sat-slime stop {short(path)}" if how and "job" in state else None
    )


def _original(job: Job) -> Path | None:
    """Return the folder of the run whose job this is, where the job's own is a copy of that."""
    begun = run_folder(job.config)  # where the run was when its job was sent
    return begun if JobRecord.read(begun) == job.record and not begun.samefile(job.folder.path) else None


def stop_job(path: Path, console: Console) -> Ending:
    """End a run's job, and the Ray that was started for it; nothing else."""
    job = find(path)
    if begun := _original(job):
        raise RunFolderError(f"{path} is a copy, and its job another run's: end that: sat-slime stop {short(begun)}")
    noted_state(job)  # first: beside the mark, a job that has failed would count as stopped
    job.folder.stop_mark.touch()
    job = find(path)  # it may have been restarted meanwhile
    folder, record, shown = job.folder, job.record, short(path)
    if not job.goes_on:
        status = noted_state(job).get("status")
        if status == "restarting":
            return Ending("finished", None, f"{shown}: its job {record.job} failed; it will not be restarted")
        if status == "lost":
            raise RunFolderError(
                f"{path}: the cluster at {record.address} does not answer: it is gone, or out of reach"
            )
        if record.ray is not None:
            stop_ray(record.ray)
        return Ending("finished", None, f"{shown}: its job {record.job} has ended already ({status})")
    assert job.server is not None
    ending = with_report(_end(replace(job, state=job.server.stop(record.job)), console), folder.path)
    saved = saved_iterations(job.config, folder.path)
    kept = f"its newest checkpoint is after {saved} iterations" if saved else "it has no checkpoint"
    return Ending("finished", ending.error, f"{shown}: job {record.job} stopped; {kept}\n{ending.text}")
