"""The checks before a run of slime: its settings, this machine, the cluster that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from sat_slime.cli.slime_run.laptop import is_quick_starts, missing_laptop, without_laptop
from sat_slime.cli.slime_run.slime_plan import SlimePlan, describe, describe_json, plan_slime_run, time_lines
from sat_slime.cli.terminal import refuse_failures
from sat_slime.config import SlimeConfig
from sat_slime.config.finding import Finding, fail, ok, settings_findings, warn
from sat_slime.config.slime_checks import slime_config_warnings
from sat_slime.launch import checks
from sat_slime.launch.command import run_folder
from sat_slime.launch.machine import SCRIPT
from sat_slime.launch.ray_jobs import JobError, JobServer, given_address, is_this_machine
from sat_slime.launch.slimes_parser import ask_slime


def slime_findings(
    config: SlimeConfig, file: Path, option: str | None, folder: Path | None = None
) -> Iterator[Finding]:
    """Yield every check of a run of slime: its settings, its time, then the cluster where one is named, else this
    machine.

    folder: that of a run which has begun.
    """
    address = given_address(option, config.cluster.address)
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
    plan = replace(plan_slime_run(config, file, folder, resume=False, look_for_slime=False), resume=folder is not None)
    if address is None:
        yield from check_here(plan, None)
        return
    try:
        server = JobServer(address)
        yield ok("cluster", server.address)
        yield from checks.cluster_findings(server, plan.config, plan.folder, plan.sent, plan.resume)
    except JobError as error:
        yield fail("cluster", str(error))


def check_here(plan: SlimePlan, option: str | None) -> Iterator[Finding]:
    """Yield the findings of this machine, where the run would be on it. option: the address that the command line
    gives."""
    address = given_address(option, plan.config.cluster.address)
    if is_this_machine(address):
        config = plan.config
        if folder := missing_laptop(config):
            if is_quick_starts(config):
                yield ok("laptop", f"{folder}, with model and prompts, is made at the first launch")
            else:
                yield fail(
                    "laptop",
                    f"{folder}, with model and prompts, is not there: make it with sat-slime prepare laptop FILE --out "
                    f"{folder}, where FILE is the lab run of its task",
                )
            config = without_laptop(config, folder)
        yield from checks.here(config, plan.folder, plan.resume)
    else:
        yield warn("cluster", f"{address} is checked when the run is launched, and by sat-slime check")


def show_plan(plan: SlimePlan, option: str | None, skip_checks: bool, full: bool, as_json: bool) -> None:
    """Print the plan, and what this machine lacks for it. option: the address that the command line gives. full: also
    what would be sent.

    Raises:
        ConfigError: a check failed; of a machine without slime only those of the settings count.
    """
    findings = [] if skip_checks else list(check_here(plan, option))
    typer.echo(describe_json(plan) if as_json else describe(plan, full))
    of_machine = [finding for finding in findings if not finding.of_settings]
    failed = any(finding.mark == "FAIL" for finding in of_machine)
    if failed and not (Path(plan.config.cluster.slime_dir).expanduser() / SCRIPT).is_file():
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print("slime is not on this machine, which lacks for the run:", markup=False)
        for finding in of_machine:
            if finding.mark != "OK":
                console.print(f"  {finding.what}: {finding.detail}", markup=False)
        findings = [finding for finding in findings if finding.of_settings]
    refuse_failures(findings)
