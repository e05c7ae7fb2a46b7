"""`sat-slime launch`: its options, and the run that they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sat_slime.cli.terminal import SLIME, bad_input, finish, say, warn


def launch(
    file: Annotated[
        Path,
        typer.Argument(help="A YAML file of the run; to go on with a run, its folder will do.", show_default=False),
    ],
    method: Annotated[
        str | None, typer.Option(help="A named method, such as [bold]sat-gspo-r3[/]; see sat-slime methods.")
    ] = None,
    sat: Annotated[
        bool | None, typer.Option("--sat/--no-sat", help="Contract the trust region on stale tokens.")
    ] = None,
    r3: Annotated[bool | None, typer.Option("--r3/--no-r3", help="Replay the engine's expert routing.")] = None,
    tis: Annotated[bool | None, typer.Option("--tis/--no-tis", help="Truncated importance sampling.")] = None,
    lag: Annotated[
        int | None, typer.Option(help="Iterations per weight broadcast (updates of staleness); 0 is synchronous.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting, such as [bold]--set pipeline.lag=4[/]. Repeatable."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and of its folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
    resume_from: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="ITERATION",
            help="Resume from an older checkpoint (0: from the start) and drop what came after it.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier run of that name first.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, its memory and its time; start nothing.")
    ] = False,
    live: Annotated[
        bool | None,
        typer.Option("--live/--no-live", help="A bar below the line of each step; default: on a terminal."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ray's dashboard, such as http://10.0.0.1:8265.", rich_help_panel=SLIME),
    ] = None,
    start_ray: Annotated[
        bool,
        typer.Option(
            "--start-ray", help="Start a Ray on this machine for the run, which ends with it.", rich_help_panel=SLIME
        ),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Send the job and return; do not follow it.", rich_help_panel=SLIME)
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="With --dry-run: also the command, environment and files.", rich_help_panel=SLIME),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="With --dry-run: command, environment and files as JSON.", rich_help_panel=SLIME),
    ] = False,
    skip_checks: Annotated[
        bool,
        typer.Option(
            "--skip-checks", help="Check only the settings, no machine and no cluster.", rich_help_panel=SLIME
        ),
    ] = False,
) -> None:
    """Run the loop that FILE describes.

    All about the run goes to [bold]runs/NAME/[/]: settings, metrics, samples,
    checkpoints and, however the run ends, [bold]report.html[/].

    Options change what the file says; [bold]--set[/] reaches every setting.
    Ctrl-C, SIGTERM or SIGHUP once ends cleanly after the iteration, saves, and says
    how to go on; a second one ends at once. A run of slime is a job of a Ray
    cluster: Ctrl-C closes the view; the job goes on.

    A resume first looks at the checkpoint: of a lab run it holds every
    file against its checksum. Where one is damaged it starts nothing, and
    says which checkpoint is whole and what going back to it costs.

    [bold]Examples[/]

        sat-slime launch configs/lab/quickstart.yaml

        sat-slime launch configs/lab/quickstart.yaml --no-sat --lag 1 --name gspo-lag1

        sat-slime launch configs/lab/quickstart.yaml --method grpo-tis --dry-run

        sat-slime launch runs/quickstart --resume --set pipeline.iterations=400

        sat-slime launch runs/quickstart --resume-from 96

        sat-slime launch configs/paper/qwen3-30b-a3b.yaml --method sat-gspo-r3 --lag 8 --detach
    """
    from sat_slime.cli.run_plan import plan_run

    options = {
        "method": method,
        "method.sat": sat,
        "method.r3": r3,
        "method.tis": tis,
        "pipeline.lag": lag,
        "name": name,
    }
    settings: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    console = Console()
    resume = resume or resume_from is not None
    if resume and overwrite:
        bad_input(["--resume goes on with a run and --overwrite deletes it: give one of them"])
    look_for_slime = dry_run and not skip_checks
    plan = plan_run(
        file, settings, overrides or [], resume=resume, resume_from=resume_from, look_for_slime=look_for_slime
    )
    for warning in plan.warnings:
        warn(warning)
    from sat_slime.cli.lab_run.lab_plan import LabPlan, describe  # now: a mistake is told without

    # The runtime is imported once it is known which one it is.
    if isinstance(plan, LabPlan):
        from sat_slime.cli.lab_run.lab_start import launch_lab_run

        of_slime = {
            "--address": address,
            "--start-ray": start_ray,
            "--detach": detach,
            "--full": full,
            "--json": as_json,
            "--skip-checks": skip_checks,
        }
        if given := [option for option, value in of_slime.items() if value]:
            bad_input([f"{given[0]} is for runs of slime, and {file} is a lab run: leave it out"])
        if dry_run:
            say(console, describe(plan))
            return
        ending = launch_lab_run(plan, overwrite=overwrite, live=live, console=console)
    else:
        from sat_slime.cli.slime_run.job_start import Where, launch_job
        from sat_slime.cli.slime_run.slime_findings import show_plan

        where = Where(address, start_ray, detach, skip_checks)
        if dry_run:
            show_plan(plan, where.address, skip_checks, full, as_json)
            return
        ending = launch_job(plan, where, overwrite, live, console)
    finish(ending, console)
