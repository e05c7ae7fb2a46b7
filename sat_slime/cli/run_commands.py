"""`sat-slime init`, `launch`, `grid` and `rehearse`: their options, and the runs that they ask for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sat_slime.cli.terminal import LastingConsole, Texts, bad_input, finish, say, setting, short, warn

if TYPE_CHECKING:
    from sat_slime.config.loader import RunConfig


of_slime = partial(Option, rich_help_panel="Runs of slime")
"""An option that a lab run has not."""
PLUGIN_MEANING = "SAT, or what --method names, in a launch script of slime: one file and one flag"


def init(
    name: Annotated[
        str | None,
        Argument(
            metavar="[quickstart|streaming|grid|plugin|slime|paper|slurm|kuberay]",
            help="What to start from; default: list them.",
        ),
    ] = None,
    out: Annotated[Path, Option(metavar="FOLDER", help="Where the files go.")] = Path("."),
    method: Annotated[
        str | None, Option(metavar="NAME", help="Of plugin: what the script is to train by; default: sat-gspo.")
    ] = None,
) -> None:
    """Write a commented file to start from, and the files that it extends.

    sat-slime init quickstart

    sat-slime launch quickstart.yaml

    [bold]plugin[/] is the one file by which a launch script of slime trains
    by SAT, or another method.

    [bold]slurm[/] and [bold]kuberay[/] are for a file that is there: they start
    Ray on the nodes, launch the run, and resume it.
    """
    from sat_slime.config.plugin_file import plugin_file
    from sat_slime.config.starters import STARTERS, write_starter, write_texts

    if method and name != "plugin":
        bad_input(f"--method {method} is for init plugin: leave it out, and give it to sat-slime launch")
    if name is None:
        for starter_name, starter in STARTERS.items():
            typer.echo(f"{starter_name:11} {starter.meaning}")
        typer.echo(f"{'plugin':11} {PLUGIN_MEANING}")
        return
    if name == "plugin":
        (path,) = write_texts(out, {"sat.yaml": plugin_file(method or "sat-gspo")})
        typer.echo(f"{path}: {PLUGIN_MEANING}")
        typer.echo(f"check it with: sat-slime check {short(path)}")
        typer.echo(f"then add to the script: --custom-config-path {shlex.quote(str(path.absolute()))}")
        return
    first, *others = write_starter(name, out)
    typer.echo(f"{first}: {STARTERS[name].meaning}")
    for path in others:
        typer.echo(f"{path}: what {first.name} builds on")
    typer.echo(STARTERS[name].then.format(short(first)))


def launch(
    file: Annotated[Path, Argument(help="A YAML file of the run; to go on with a run, its folder will do.")],
    method: Annotated[
        str | None, Option(help="A named method, such as [bold]sat-gspo-r3[/]; see sat-slime methods.")
    ] = None,
    sat: Annotated[bool | None, Option("--sat/--no-sat", help="Contract the trust region on stale tokens.")] = None,
    r3: Annotated[bool | None, Option("--r3/--no-r3", help="Replay the engine's expert routing.")] = None,
    tis: Annotated[bool | None, Option("--tis/--no-tis", help="Truncated importance sampling.")] = None,
    lag: Annotated[
        int | None, Option(help="Iterations per weight broadcast (updates of staleness); 0 is synchronous.")
    ] = None,
    overrides: Annotated[Texts, setting(help="Any setting, such as [bold]--set pipeline.lag=4[/]. Repeatable.")] = None,
    name: Annotated[str | None, Option(help="Name of the run and of its folder.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
    resume_from: Annotated[
        int | None,
        Option(
            min=0,
            metavar="ITERATION",
            help="Resume from an older checkpoint (0: from the start) and drop what came after it.",
        ),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Delete an earlier run of that name first.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the plan, its memory and its time; start nothing.")
    ] = False,
    address: Annotated[
        str | None, of_slime(metavar="URL", help="Ray's dashboard, such as http://10.0.0.1:8265.")
    ] = None,
    start_ray: Annotated[
        bool, of_slime("--start-ray", help="Start a Ray on this machine for the run, which ends with it.")
    ] = False,
    detach: Annotated[bool, of_slime("--detach", help="Send the job and return; do not follow it.")] = False,
    full: Annotated[bool, of_slime("--full", help="With --dry-run: also the command, environment and files.")] = False,
    skip_checks: Annotated[
        bool, of_slime("--skip-checks", help="Check only the settings, no machine and no cluster.")
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
    from sat_slime.config import LabConfig, config_warnings, slime_config_warnings

    asked = {"method": method, "method.sat": sat, "method.r3": r3, "method.tis": tis, "pipeline.lag": lag, "name": name}
    settings: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    console = LastingConsole()
    resume = resume or resume_from is not None
    if resume and overwrite:
        bad_input("--resume goes on with a run and --overwrite deletes it: give one of them")
    if address and start_ray:
        bad_input(f"--start-ray starts a Ray on this machine, and --address is {address}: give one of them")
    config, file, folder = _named_run(file, overrides or [], settings, resume)
    if isinstance(config, LabConfig):
        others = {"--address": address, "--start-ray": start_ray, "--detach": detach, "--full": full}
        if given := [option for option, value in {**others, "--skip-checks": skip_checks}.items() if value]:
            bad_input(f"{given[0]} is for runs of slime, and {file} is a lab run: leave it out")
        from sat_slime.cli import lab_run  # now: a mistake is told without

        lab_plan = lab_run.plan_lab_run(config, file, folder, resume, resume_from)
        warn(*config_warnings(config))
        if dry_run:
            say(console, lab_run.describe(lab_plan))
            return
        finish(lab_run.launch_lab_run(lab_plan, overwrite=overwrite, console=console), console)
    from sat_slime.cli.slime_run import Where, launch_job, plan_slime_run, show_plan

    plan = plan_slime_run(config, file, folder, resume, dry_run and not skip_checks, resume_from)
    warn(*slime_config_warnings(config))
    where = Where(address, start_ray, detach, skip_checks)
    if dry_run:
        show_plan(plan, where, full)
        return
    finish(launch_job(plan, where, overwrite, console), console)


def _named_run(
    file: Path, overrides: Sequence[str], settings: Mapping[str, Any], resume: bool
) -> tuple[RunConfig, Path, Path | None]:
    """Return the settings of the run that the command line asks for, its file, and the folder of one that has begun.
    Raises ConfigError or RunFolderError. settings: dotted key to value, of the options that stand for a setting."""
    from sat_slime.config import load_config
    from sat_slime.runs.folder import RunFolder, RunFolderError
    from sat_slime.runs.grid import GridFolder

    folder: Path | None = None
    if GridFolder(file).is_grid():
        raise RunFolderError(f"{file} is a grid, not a run: sat-slime grid {short(file)} goes on with it")
    if file.is_dir():
        folder, file = file, RunFolder.open(file).config
        if not resume and "name" not in settings:
            raise RunFolderError(f"{folder} is a run: go on with it (--resume), or run it again as another (--name X)")
    elif resume and RunFolder(file.parent).config == file and RunFolder(file.parent).is_run():
        folder = file.parent
    folder = None if "name" in settings else folder
    if folder and (moved := [text for text in overrides if text.partition("=")[0].strip() == "output_dir"]):
        bad_input(f"--set {moved[0]}: a run goes on where it is, {short(folder)}: leave it out, or move the folder")
    return load_config(file, overrides, settings), file, folder


def grid(
    file: Annotated[Path, Argument(help="A YAML file of a grid; to go on with one, its folder will do.")],
    only: Annotated[
        Texts, Option(metavar="CELLS", help="METHOD, METHOD@LAG or @LAG, such as [bold]'sat-*@8'[/]. Repeatable.")
    ] = None,
    seeds: Annotated[
        str | None, Option(metavar="SEEDS", help="Some of the grid's seeds, such as [bold]0,1[/].")
    ] = None,
    overrides: Annotated[Texts, setting(help="Any setting of all runs. Repeatable.")] = None,
    name: Annotated[str | None, Option(help="Name of the grid and of its folder.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the plan and its cost; start nothing.")] = False,
    as_commands: Annotated[
        bool, Option("--commands", help="Print a sat-slime launch a cell for Slurm or GNU parallel; start nothing.")
    ] = False,
    address: Annotated[str | None, of_slime(metavar="URL", help="As in launch: Ray's dashboard.")] = None,
    skip_checks: Annotated[bool, of_slime("--skip-checks", help="As in launch: check only the settings.")] = False,
) -> None:
    """Run methods x lags x seeds, each a run of its own.

    All about the grid goes to [bold]grids/NAME/[/]. Given again, the command
    goes on where it was, whatever ended it: finished cells stay as they are,
    half-run and failed ones go on from their checkpoints. Ctrl-C once ends the
    running cells after their iteration and a checkpoint; twice, at once.

    [bold]Examples[/]

        sat-slime grid configs/grid/lab.yaml --dry-run

        sat-slime grid configs/grid/lab.yaml --only gspo --only sat-gspo@8 --seeds 0

        sat-slime grid configs/grid/lab.yaml --commands | parallel -j 2

        sat-slime status grids/lab --follow
    """
    from sat_slime.cli.grid_run import commands, describe, plan_grid, run_grid

    numbers = [number.strip() for number in (seeds or "").split(",") if number.strip()]
    if not all(number.isdecimal() for number in numbers):
        bad_input(f"--seeds {seeds}: expected numbers with commas between, such as 0,1")
    console = LastingConsole()
    options = [*(["--address", address] if address else []), *(["--skip-checks"] if skip_checks else [])]
    plan = plan_grid(file, name, only or [], [*map(int, numbers)], overrides or [], options)
    warn(*plan.warnings)
    if dry_run:
        typer.echo(describe(plan))
    elif as_commands:
        for line in commands(plan):
            typer.echo(line)
    else:
        finish(run_grid(plan, console), console)


def rehearse(
    file: Annotated[Path, Argument(help="A YAML file of a run of slime.")],
    method: Annotated[str | None, Option(help="As in launch: a named method.")] = None,
    lag: Annotated[int | None, Option(help="As in launch: iterations per weight broadcast.")] = None,
    overrides: Annotated[Texts, setting(help="As in launch. Repeatable.")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Delete an earlier rehearsal first.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Tell what would be changed; start nothing.")] = False,
) -> None:
    """Run FILE whole on this machine's CPU cores before it costs GPUs: real slime, Megatron and SGLang, thin widths.

    Layers, experts, heads, vocabulary, parallel sizes, schedule, method,
    flags, template and reward are the run's; processes stand in for GPUs.
    A checkpoint and a resume are part of it. Every check says what was
    expected and what was found. The run's checkpoints, data and output
    folder are never touched; rows and log go to [bold]rehearsals/NAME/[/].
    Needs slime's and Megatron-LM's checkouts (scripts/get-slime.sh).

        sat-slime rehearse configs/paper/qwen3-30b-a3b.yaml --method sat-gspo-r3 --lag 8
    """
    from sat_slime.cli.rehearsing import rehearse_run

    settings = {key: value for key, value in (("method", method), ("pipeline.lag", lag)) if value is not None}
    console = LastingConsole(soft_wrap=True, highlight=False)
    finish(rehearse_run(file, settings, overrides or (), overwrite, dry_run, console), console)
