"""A run of slime before it is sent: its plan, checked, what is printed of that, and the checks of the machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from sat_slime.cli.any_run import Plan, length_line, method_and_order
from sat_slime.cli.terminal import refuse_failures, say
from sat_slime.config import ConfigError, SlimeConfig, load_config
from sat_slime.config.finding import Finding, fail, ok, settings_findings, warn
from sat_slime.config.jsonl import number, read_rows
from sat_slime.config.rules import slime_config_warnings
from sat_slime.launch import checks
from sat_slime.launch.command import checkpoint_folder, run_folder, slime_command
from sat_slime.launch.duration import Measured, duration_lines, measured
from sat_slime.launch.job_files import JobRecord
from sat_slime.launch.machine import SCRIPT
from sat_slime.launch.memory import rows, sizes, table
from sat_slime.launch.ray_jobs import JobError, JobServer, given_address, is_this_machine
from sat_slime.launch.slimes_parser import ask_slime
from sat_slime.runs import saved
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.going_back import (
    damaged,
    instead_of,
    lost_checkpoints,
    no_such_checkpoint,
    refuse_other_settings,
    settings_before,
)

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

    folder: the folder of an existing run, wherever it was moved to; None: output_dir/name.
    resume_from: the iteration of the checkpoint to go on from, instead of the newest.
    """
    folder = run_folder(config) if folder is None else folder.absolute()
    # The folder keeps its absolute place, for terminals in other working directories.
    config = config.model_copy(update={"output_dir": str(folder.parent), "name": folder.name})
    answer = ask_slime(config, folder) if look_for_slime else None
    if errors := checks.refused_settings(config, answer) if answer else checks.settings_errors(config):
        raise ConfigError([f"{file}: {error}" for error in errors])
    if resume:
        _check_resume(config, folder, resume_from)
    return SlimePlan(config, folder, resume, resume_from)


def _check_resume(config: SlimeConfig, path: Path, resume_from: int | None) -> None:
    """Raise ConfigError or RunFolderError unless the run in `path` can go on with these settings, from a checkpoint
    that is there and is not seen to be damaged."""
    before = settings_before(config, path)
    if not config.checkpoint.every_n_iterations and resume_from != 0:
        raise ConfigError([f"{path}: the run saves no checkpoints to go on from: start another with --name X"])
    iterations, done = config.pipeline.iterations, saved_iterations(config, path)
    finished = RunFolder(path).state().get("status") == "finished" and iterations <= before.pipeline.iterations
    if done >= iterations and finished:  # else a job died in its last evaluation, which is made again
        more = f"to go on, name more: --set pipeline.iterations={done * 2}"
        raise ConfigError([f"{path}: the run is finished after {done} iterations; {more}"])
    if (record := JobRecord.read(path)) and done:
        refuse_other_settings(f"the checkpoint of {path}", record.settings, record.version, config, resume_from, done)

    if resume_from == 0:
        return
    checkpoints = checkpoint_folder(config, path)
    there = list(saved.numbered(checkpoints))
    if resume_from and resume_from not in there:
        raise no_such_checkpoint(resume_from, checkpoints, there)
    fault = saved.fault(checkpoints, resume_from) if resume_from else saved.fault_of_newest(checkpoints)
    if fault:
        iteration = resume_from or done or max(there, default=0)
        raise damaged(path, config, fault, iteration, saved.first_whole(checkpoints, instead_of(iteration, there)))
    if resume_from is None and not done and (lost := lost_checkpoints(path, config, checkpoints)):
        raise damaged(path, config, *lost, 0)


def saved_iterations(config: SlimeConfig, folder: Path) -> int:
    """Return the iterations in the run's newest checkpoint; 0 without one."""
    newest = saved.newest_iteration(checkpoint_folder(config, folder))
    return int(newest) + 1 if newest and newest.isdigit() else 0


def measured_in(folder: Path, config: SlimeConfig) -> tuple[Measured | None, int]:
    """Return what a run has measured so far, and the iterations that it has trained."""
    steps = read_rows(RunFolder(folder).metrics)
    trained = int(number(steps[-1], "step", 0)) // config.pipeline.optimizer_steps_per_rollout if steps else 0
    return measured(config, steps, read_rows(RunFolder(folder).times)), trained


# ----------------------------------------------------------------------------------------------------- what is printed


def time_lines(config: SlimeConfig, folder: Path | None) -> list[str]:
    """Return how long the run takes and what it costs. folder: that of a run which has begun: what it has measured
    counts."""
    if folder is None:
        return duration_lines(config)
    before = load_config(RunFolder(folder).config)  # the settings with which it was measured
    known = measured_in(folder, before)[0] if isinstance(before, SlimeConfig) else None
    return duration_lines(config, known, saved_iterations(config, folder))


def describe(plan: SlimePlan, full: bool) -> str:
    """Return the plan, its memory and its time. full: also what would be sent, the command and its environment as a
    shell takes them, and the files."""
    config, train, rollout = plan.config, plan.config.train, plan.config.rollout
    memory = table(judged) if (judged := rows(config, sizes(config))) else ()
    summary = [
        f"method      {method_and_order(config)}",
        f"trainer     {train.world_size} GPUs on {train.nodes} node(s): tensor parallel {train.tensor_parallel}, data "
        f"parallel {train.data_parallel}, expert parallel {train.expert_parallel}",
        f"engines     {rollout.engines} of {rollout.gpus_per_engine} GPU(s) on "
        f"{-(-rollout.gpus // config.cluster.gpus_per_node)} node(s)",
        f"batch       {rollout.prompts_per_iteration} prompts x {rollout.samples_per_prompt} samples = "
        f"{rollout.responses_per_iteration} responses of at most {rollout.max_response_tokens:,} tokens",
        length_line(config),
        f"folder      {plan.folder}{' (resumed)' if plan.resume else ''}",
    ]
    for heading, lines in (("memory", memory), ("time", time_lines(config, plan.folder if plan.resume else None))):
        summary += [f"{'' if number else heading:10}  {line}" for number, line in enumerate(lines)]
    if not full:
        return "\n".join(summary)
    sent, lines = slime_command(config, plan.folder), [f"# {line}" for line in summary]
    lines += ["", *(f"export {name}={shlex.quote(value)}" for name, value in sent.env.items())]
    flag_by_flag = ("\\\n    " * word.startswith("--") + shlex.quote(word) for word in sent.command)
    lines += ["", " ".join(flag_by_flag)]
    if config.cluster.runtime_env:
        lines += ["", f"# also in Ray's runtime environment: {json.dumps(config.cluster.runtime_env)}"]
    for path, text in sent.files.items():
        lines += ["", f"# {path}", *text.rstrip("\n").split("\n")]
    return "\n".join(lines)


def show_plan(plan: SlimePlan, option: str | None, skip_checks: bool, full: bool) -> None:
    """Print the plan, and what this machine lacks for it. option: the address that the command line gives. full: also
    what would be sent.

    Raises:
        ConfigError: a check failed; of a machine without slime only those of the settings count.
    """
    findings = [] if skip_checks else list(_check_here(plan, option))
    typer.echo(describe(plan, full))
    of_machine = [finding for finding in findings if not finding.of_settings]
    failed = any(finding.mark == "FAIL" for finding in of_machine)
    if failed and not (Path(plan.config.cluster.slime_dir).expanduser() / SCRIPT).is_file():
        console = Console(stderr=True)
        say(console, "slime is not on this machine, which lacks for the run:")
        for finding in of_machine:
            if finding.mark != "OK":
                say(console, f"  {finding.what}: {finding.detail}")
        findings = [finding for finding in findings if finding.of_settings]
    refuse_failures(findings)


# -------------------------------------------------------------------------------------------------------------- checks


def slime_findings(config: SlimeConfig, file: Path, folder: Path | None = None) -> Iterator[Finding]:
    """Yield every check of a run of slime: its settings, its time, then the cluster where one is named, else this
    machine.

    folder: that of a run which has begun.
    """
    address = given_address(None, config.cluster.address)
    # Where there is a cluster, its head node asks slime.
    answer = ask_slime(config, run_folder(config)) if address is None else None
    errors = checks.refused_settings(config, answer) if answer else checks.settings_errors(config)
    yield from settings_findings(errors, slime_config_warnings(config))
    if errors:
        return  # what is to be sent cannot be told
    yield ok("settings", str(file))
    if answer:
        yield from answer.findings()
    yield from (ok("time", line) for line in time_lines(config, folder))
    plan = replace(plan_slime_run(config, file, folder, resume=False), resume=folder is not None)
    if address is None:
        yield from _check_here(plan, None)
        return
    try:
        server = JobServer(address)
        yield ok("cluster", server.address)
        sent = slime_command(plan.config, plan.folder)
        yield from checks.cluster_findings(server, plan.config, plan.folder, sent, plan.resume)
    except JobError as error:
        yield fail("cluster", str(error))


def _check_here(plan: SlimePlan, option: str | None) -> Iterator[Finding]:
    """Yield the findings of this machine, where the run would be on it. option: the address that the command line
    gives."""
    config = plan.config
    address = given_address(option, config.cluster.address)
    if not is_this_machine(address):
        yield warn("cluster", f"{address} is checked when the run is launched, and by sat-slime check")
        return
    yield from checks.here(config, plan.folder, plan.resume)
