"""Whether a run of slime can work: its settings, this machine, the cluster that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sat_slime.cli.slime_run.laptop import missing_laptop, without_laptop
from sat_slime.cli.slime_run.slime_plan import SlimePlan, plan_slime_run, time_lines
from sat_slime.config import SlimeConfig
from sat_slime.config.finding import Finding, fail, ok, settings_findings, warn

if TYPE_CHECKING:
    from sat_slime.plugin.launch.ray_jobs import JobServer


def slime_findings(
    config: SlimeConfig, file: Path, option: str | None, folder: Path | None = None
) -> Iterator[Finding]:
    """Every check of a run of slime: its settings, its time, then the cluster where one is named, else this machine.

    folder: that of a run which has begun.
    """
    from sat_slime.config.slime_checks import slime_config_warnings
    from sat_slime.plugin.launch.checks import refused_settings, settings_errors
    from sat_slime.plugin.launch.command import run_folder
    from sat_slime.plugin.launch.ray_jobs import JobError, JobServer, given_address
    from sat_slime.plugin.launch.slimes_parser import ask_slime

    address = given_address(option, config.cluster.address)
    # Where there is a cluster, its head node asks slime.
    answer = ask_slime(config, run_folder(config)) if address is None else None
    errors = refused_settings(config, answer) if answer else settings_errors(config)
    yield from settings_findings(errors, slime_config_warnings(config))
    if errors:
        return  # what is to be sent cannot be told
    yield ok("settings", str(file))
    if answer:
        yield from answer.findings()
    yield from (ok("time", line) for line in time_lines(config, folder))
    plan = plan_slime_run(config, file, folder, resume=False, look_for_slime=False)
    if address is None:
        yield from check_here(plan, None)
        return
    try:
        server = JobServer(address)
        yield ok("cluster", server.address)
        yield from check_cluster(plan, server)
    except JobError as error:
        yield fail("cluster", str(error))


def check_here(plan: SlimePlan, option: str | None) -> Iterator[Finding]:
    """This machine, where the run would be on it. option: the address that the command line gives."""
    from sat_slime.plugin.launch import checks
    from sat_slime.plugin.launch.ray_jobs import given_address, is_this_machine

    address = given_address(option, plan.config.cluster.address)
    if is_this_machine(address):
        config = plan.config
        if folder := missing_laptop(config):
            yield ok("laptop", f"{folder}, with model and prompts, is made at the first launch")
            config = without_laptop(config, folder)
        yield from checks.here(config, plan.folder)
    else:
        yield warn("cluster", f"{address} is checked when the run is launched, and by sat-slime check")


def check_cluster(plan: SlimePlan, server: JobServer) -> Iterator[Finding]:
    """The cluster that the run is for."""
    from sat_slime.plugin.launch.checks import cluster_findings

    yield from cluster_findings(server, plan.config, plan.folder, plan.sent)
