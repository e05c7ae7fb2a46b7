"""A run of slime is sent to a cluster as a job of Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from sat_slime.cli.slime_run.job_following import end_ray, how_to_go_on, with_report
from sat_slime.cli.slime_run.laptop import make_missing_laptop
from sat_slime.cli.slime_run.restarts import Sent, detached_warning, follow_and_restart
from sat_slime.cli.slime_run.slime_plan import SlimePlan, plan_slime_run, saved_iterations, time_lines
from sat_slime.cli.terminal import Ending, refuse_failures, say, short, sigterm_as_ctrl_c, warn
from sat_slime.config import dump_config
from sat_slime.config.finding import Finding
from sat_slime.config.jsonl import keep_rows, number, write_atomically
from sat_slime.launch import checks, cpu_run, local_ray, machine
from sat_slime.launch.command import checkpoint_folder
from sat_slime.launch.job_files import JobRecord, submit, write_files
from sat_slime.launch.local_ray import LocalRay
from sat_slime.launch.memory import ROWS
from sat_slime.launch.ray_jobs import JobServer, NoAnswer, given_address
from sat_slime.runs.folder import RunFolder, RunFolderError, writable
from sat_slime.runs.saved import go_back


@dataclass(frozen=True)
class Where:
    """The options of the command line about the cluster."""

    address: str | None = None
    start_ray: bool = False
    detach: bool = False
    skip_checks: bool = False


def launch_job(plan: SlimePlan, where: Where, overwrite: bool, live: bool | None, console: Console) -> Ending:
    """Send the plan and follow it to its end, or until Ctrl-C, through the restarts of cluster.restarts. Raises
    ConfigError, RunFolderError or JobError when it cannot be sent."""
    with sigterm_as_ctrl_c():
        if where.detach and plan.config.cluster.restarts:
            warn(detached_warning(plan.config.cluster.restarts))
        sent = _start(plan, where, console, overwrite)
        folder = sent.folder
        try:
            if where.detach:
                return Ending("detached", None, how_to_go_on(plan.folder))
            ending, folder = follow_and_restart(sent, partial(_resume, where, console), live, console)
            return with_report(ending, folder)
        finally:
            folder.unlock()


def _resume(where: Where, console: Console, plan: SlimePlan, iteration: int) -> Sent:
    """Send a run whose job died anew, as `launch --resume` does, to go on from that checkpoint."""
    newest = saved_iterations(plan.config, plan.folder) or None
    resume_from = None if iteration == newest else iteration
    again = plan_slime_run(plan.config, RunFolder(plan.folder).config, plan.folder, True, False, resume_from)
    return _start(again, where, console, is_restart=True)


def _start(plan: SlimePlan, where: Where, console: Console, overwrite: bool = False, is_restart: bool = False) -> Sent:
    """Find or start the cluster, check it, claim the folder and send the job. Raises ConfigError, RunFolderError or
    JobError, and leaves nothing then."""
    _check_folder(plan, overwrite)
    make_missing_laptop(plan.config, console)
    if not is_restart:
        for line in time_lines(plan.config, plan.folder if plan.resume else None):
            say(console, line)
    server, ray = _cluster(plan, where, console)
    with contextlib.ExitStack() as undo:
        if ray is not None:
            undo.callback(end_ray, ray, console)
        on_cpu = plan.config.cluster.device == "cpu"
        was_checked = ray is not None and on_cpu  # it is this machine
        if not where.skip_checks and not was_checked:
            say(console, f"checking the cluster at {server.address} ...")
            _tell_checks(checks.cluster_findings(server, plan.config, plan.folder, plan.sent, plan.resume), console)
        folder = _claim(plan, overwrite)
        undo.callback(folder.unlock)
        if not is_restart:
            folder.forget_stop()
        record = _send(plan, folder, server, ray)
        undo.pop_all()  # from here on it is the job's
    say(console, f"job {record.job} at {record.address}, in {plan.folder}")
    return Sent(plan, folder, record, server)


def _tell_checks(findings: Iterable[Finding], console: Console) -> None:
    """Show the table of memory, tell what was found with a warning, and raise ConfigError with what failed."""
    found = list(findings)
    for finding in found:
        if finding.mark == "OK" and finding.what in ROWS:
            say(console, f"{finding.what:12}  {finding.detail}")
    refuse_failures(found)


def _check_folder(plan: SlimePlan, overwrite: bool) -> None:
    """Raise RunFolderError where a job that runs, or a checkpoint of another run, is in the way."""
    if not plan.resume:
        RunFolder(plan.folder).check_new(overwrite)
        if fault := machine.beginning_fault(plan.config, plan.folder):
            raise RunFolderError(fault)
    record = JobRecord.read(plan.folder)
    if record is None:
        return
    try:
        state = JobServer(record.address).state(record.job)
    except NoAnswer:
        return  # the jobs of a cluster that is gone are gone with it
    if state is not None and not state.ended:
        shown = short(plan.folder)
        raise RunFolderError(
            f"{shown}: its job {record.job} is {state.status.lower()}: follow it (sat-slime logs {shown} -f), end it "
            f"(sat-slime stop {shown}), or choose another --name"
        )


def _cluster(plan: SlimePlan, where: Where, console: Console) -> tuple[JobServer, LocalRay | None]:
    """Return the cluster to send to, and the Ray that was started for it."""
    on_cpu = plan.config.cluster.device == "cpu"
    is_here = on_cpu or plan.config.cluster.share_gpu
    has_own_ray = where.start_ray or (is_here and not (where.address or plan.config.cluster.address))
    if not has_own_ray:
        before = JobRecord.read(plan.folder) if plan.resume else None
        last = before.address if before and before.ray is None else None
        return JobServer(given_address(where.address, plan.config.cluster.address) or last), None
    if not where.skip_checks:
        findings = [*machine.machine_findings(plan.config, plan.folder, plan.resume), *checks.memory_here(plan.config)]
        if on_cpu:  # on GPUs the head node is asked, once it is there
            findings += checks.parser_findings(plan.config, plan.folder)
        refuse_failures(finding for finding in findings if finding.mark == "FAIL")
    console.print("starting Ray on this machine ...", highlight=False)
    if on_cpu:
        offered = cpu_run.cpu_ray(plan.config)
        ray = local_ray.start_ray(*offered, cpu_run.OBJECT_STORE_BYTES, cpu_run.RAY_ENVIRONMENT)
    else:
        # A GPU that is shared counts twice; card_run says to all processes which it is.
        twice = plan.config.cluster.gpus_per_node if plan.config.cluster.share_gpu else None
        ray = local_ray.start_ray(twice)
    return JobServer(ray.address), ray


def _claim(plan: SlimePlan, overwrite: bool) -> RunFolder:
    """Lock the run's folder, write its settings, and drop what came after the checkpoint to go on from. Raises
    RunFolderError."""
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
        for rows in (folder.metrics, folder.eval, folder.times):
            keep_rows(rows, lambda row: number(row, "step", 0) <= steps)
    return folder


def _send(plan: SlimePlan, folder: RunFolder, server: JobServer, ray: LocalRay | None) -> JobRecord:
    with writable(folder.path):
        write_files(plan.sent.files)
        record = submit(
            server,
            plan.sent.command,
            plan.sent.env,
            plan.config.cluster.runtime_env,
            folder.path,
            plan.config,
            ray,
        )
        folder.started(record.job)
    return record
