"""`sat-slime launch`: its options, and the run that they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sat_slime.cli.terminal import SLIME, bad_input, finish, say, warn

if TYPE_CHECKING:
    from sat_slime.cli.lab_run import LabPlan
    from sat_slime.cli.slime_run import SlimePlan


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
    plan = plan_run(
        file,
        settings,
        overrides or [],
        resume=resume,
        resume_from=resume_from,
        look_for_slime=dry_run and not skip_checks,
    )
    for warning in plan.warnings:
        warn(warning)
    from sat_slime.cli.lab_run import LabPlan, describe, launch_lab_run  # now: a mistake is told without

    # The runtime is imported once it is known which one it is.
    if isinstance(plan, LabPlan):
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
        ending = launch_lab_run(plan, overwrite=overwrite, console=console)
    else:
        from sat_slime.cli.slime_job import Where, launch_job
        from sat_slime.cli.slime_run import show_plan

        if dry_run:
            show_plan(plan, address, skip_checks, full, as_json)
            return
        ending = launch_job(plan, Where(address, start_ray, detach, skip_checks), overwrite, console)
    finish(ending, console)


def plan_run(
    file: Path,
    settings: Mapping[str, Any],
    overrides: Sequence[str],
    *,
    resume: bool,
    resume_from: int | None = None,
    look_for_slime: bool = False,
) -> LabPlan | SlimePlan:
    """Return the run that the command line asks for, checked. Raises ConfigError or RunFolderError.

    Args:
        file: a YAML file, or the folder of a run.
        settings: dotted key to value, of the options that stand for a setting.
        overrides: the texts of `--set`.
        resume_from: the iteration of the checkpoint to go on from, instead of the newest.
        look_for_slime: of a run of slime, hold its flags against the slime on this machine.
    """
    from sat_slime.config import LabConfig, load_config
    from sat_slime.runs.folder import RunFolder, RunFolderError
    from sat_slime.runs.grid import GridFolder

    folder: Path | None = None
    if GridFolder(file).is_grid():
        raise RunFolderError(f"{file} is a grid, not a run: sat-slime grid {file} goes on with it")
    if file.is_dir():
        folder, file = file, RunFolder.open(file).config
        if not resume and "name" not in settings:
            raise RunFolderError(f"{folder} is a run: go on with it (--resume), or run it again as another (--name X)")
    elif resume and RunFolder(file.parent).config == file and RunFolder(file.parent).is_run():
        folder = file.parent
    config = load_config(file, overrides, settings)
    if "name" in settings:
        folder = None
    if isinstance(config, LabConfig):
        from sat_slime.cli.lab_run import plan_lab_run

        return plan_lab_run(config, file, folder, resume, resume_from)
    from sat_slime.cli.slime_run import plan_slime_run

    return plan_slime_run(config, file, folder, resume, look_for_slime, resume_from)
