"""`sat-slime grid`: its options, and the grid that they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import SLIME, bad_input, finish, warn


def grid(
    file: Annotated[
        Path,
        typer.Argument(help="A YAML file of a grid; to go on with one, its folder will do.", show_default=False),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CELLS", help="METHOD, METHOD@LAG or @LAG, such as [bold]'sat-*@8'[/]. Repeatable."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="SEEDS", help="Some of the grid's seeds, such as [bold]0,1[/].")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting of all runs. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the grid and of its folder.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; start nothing.")] = False,
    as_commands: Annotated[
        bool,
        typer.Option("--commands", help="Print a sat-slime launch a cell for Slurm or GNU parallel; start nothing."),
    ] = False,
    address: Annotated[
        str | None, typer.Option(metavar="URL", help="As in launch: Ray's dashboard.", rich_help_panel=SLIME)
    ] = None,
    skip_checks: Annotated[
        bool, typer.Option("--skip-checks", help="As in launch: check only the settings.", rich_help_panel=SLIME)
    ] = False,
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
    if not all(number.isdigit() for number in numbers):
        bad_input([f"--seeds {seeds}: expected numbers with commas between, such as 0,1"])
    console = Console()
    options = [*(["--address", address] if address else []), *(["--skip-checks"] if skip_checks else [])]
    plan = plan_grid(file, name, only or [], [*map(int, numbers)], overrides or [], options)
    for warning in plan.warnings:
        warn(warning)
    if dry_run:
        typer.echo(describe(plan))
    elif as_commands:
        for line in commands(plan):
            typer.echo(line)
    else:
        finish(run_grid(plan, console), console)
