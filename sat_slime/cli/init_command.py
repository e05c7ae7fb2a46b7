"""`sat-slime init`: a commented file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[quickstart|streaming|grid|slime|paper|slurm|kuberay]",
            help="What to start from; default: list them.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path("."),
) -> None:
    """Write a commented file to start from, and the files that it extends.

    sat-slime init quickstart

    sat-slime launch quickstart.yaml

    [bold]slurm[/] and [bold]kuberay[/] are for a file that is there: they start
    Ray on the nodes, launch the run, and resume it.
    """
    from sat_slime.config.starters import STARTERS, write_starter

    if name is None:
        for starter_name, starter in STARTERS.items():
            typer.echo(f"{starter_name:11} {starter.meaning}")
        return
    first, *others = write_starter(name, out)
    typer.echo(f"{first}: {STARTERS[name].meaning}")
    for path in others:
        typer.echo(f"{path}: what {first.name} builds on")
    typer.echo(STARTERS[name].then.format(first))
