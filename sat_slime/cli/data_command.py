"""`sat-slime data`: prompts for a run of slime, prepared from public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

data = typer.Typer(no_args_is_help=True, help="Prompts with labels: prepare the paper's.")


@data.callback()
def _group() -> None:
    """Keep `prepare` a command of its own: a group of a single one would be that command."""


@data.command("prepare")
def data_prepare(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to.", show_default=False)],
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SET",
            help="dapo, dolci or aime24 from a file, a folder, OWNER/NAME/FOLDER@REVISION of the hub, or none. "
            "Repeatable; default: the paper's.",
        ),
    ] = None,
    template: Annotated[
        str, typer.Option(metavar="TEMPLATE", help="slime, dapo, boxed, none, a file, or a text with {problem} in it.")
    ] = "slime",
    repeated: Annotated[
        Literal["keep", "drop"], typer.Option(help="Problems that come again, within a set or in the next.")
    ] = "drop",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace prompts prepared in FOLDER.")] = False,
) -> None:
    """Make train.jsonl and aime24.jsonl, as slime reads them, and manifest.json.

    Default: the paper's, DAPO-Math-17k and Dolci-RL-Zero-Math-7B, each
    problem once, with one instruction, each label verified against itself;
    and AIME 2024. Every row that is left out is accounted for.

        sat-slime data prepare --out data/paper

        sat-slime data prepare --out data/dapo --source dapo=zhuzilin/dapo-math-17k --source dolci=none
    """
    from sat_slime.config import ConfigError
    from sat_slime.prompts import PromptError
    from sat_slime.prompts.prepare import prepare

    sources = {name: given for name, _, given in (text.partition("=") for text in source or [])}
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        prepare(out, sources, template, repeated, overwrite, console)
    except PromptError as error:
        raise ConfigError([str(error)]) from error
