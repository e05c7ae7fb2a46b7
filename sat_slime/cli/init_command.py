"""`sat-slime init`: a commented file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT = "sat-gspo"
SCRIPT_MEANING = "a run on slime as a launch script of slime starts it; the script is read, and not run"
PLUGIN_MEANING = "SAT, or what --method names, in a launch script of slime: one file and one flag"


def init(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[quickstart|streaming|grid|plugin|from-script|slime|paper|slurm|kuberay]",
            help="What to start from; default: list them.",
        ),
    ] = None,
    script: Annotated[Path | None, typer.Argument(metavar="[SCRIPT]", help="Of from-script: slime's.")] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the files go; of from-script the file, too.")
    ] = Path("."),
    method: Annotated[str, typer.Option(metavar="NAME", help="Of plugin: what the script is to train by.")] = DEFAULT,
) -> None:
    """Write a commented file to start from, and the files that it extends.

    sat-slime init quickstart

    sat-slime launch quickstart.yaml

    [bold]plugin[/] is the one file by which a launch script of slime trains
    by SAT, or another method.

    [bold]from-script[/] run.sh writes the run that slime's launch script
    run.sh starts, and says by line what is left to write by hand.

    [bold]slurm[/] and [bold]kuberay[/] are for a file that is there: they start
    Ray on the nodes, launch the run, and resume it.
    """
    from sat_slime.config.plugin_file import plugin_file
    from sat_slime.config.starters import STARTERS, write_starter, write_texts

    if name is None:
        for starter_name, starter in STARTERS.items():
            typer.echo(f"{starter_name:11} {starter.meaning}")
        typer.echo(f"{'plugin':11} {PLUGIN_MEANING}")
        typer.echo(f"{'from-script':11} {SCRIPT_MEANING}")
        return
    if name == "from-script":
        _from_script(script, out)
        return
    if name == "plugin":
        (path,) = write_texts(out, {"sat.yaml": plugin_file(method)})
        typer.echo(f"{path}: {PLUGIN_MEANING}")
        typer.echo(f"check it with: sat-slime check {path}")
        typer.echo(f"then add to the script: --custom-config-path {path.absolute()}")
        return
    first, *others = write_starter(name, out)
    typer.echo(f"{first}: {STARTERS[name].meaning}")
    for path in others:
        typer.echo(f"{path}: what {first.name} builds on")
    typer.echo(STARTERS[name].then.format(first))


def _from_script(script: Path | None, out: Path) -> None:
    from sat_slime.config.source import ConfigError
    from sat_slime.config.starters import write_texts
    from sat_slime.launch.from_script import from_script

    if script is None:
        raise ConfigError(["init from-script: name the script: sat-slime init from-script run.sh"])
    text, notes = from_script(script)
    folder, name = (out.parent, out.name) if out.suffix in (".yaml", ".yml") else (out, f"{script.stem}.yaml")
    (path,) = write_texts(folder, {name: text})
    typer.echo(f"{path}: the run that {script.name} starts")
    for note in notes:
        typer.echo(note)
    typer.echo(f"check it with: sat-slime launch {path} --dry-run")
