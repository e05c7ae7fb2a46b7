"""`sat-slime data`: prompts for a run of slime, prepared from public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import FAILED, OK

data = typer.Typer(no_args_is_help=True, help="Prompts with labels: prepare the paper's.")
SET = "A file, a folder, OWNER/NAME/FOLDER@REVISION of the hub, or none; default: the paper's."

WORKERS = "Processes of the verifier; default: half as many as cores, at most 8."


@data.callback()
def _group() -> None:
    """Keep `prepare` a command of its own: a group of a single one would be that command."""


@data.command("prepare")
def data_prepare(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to.", show_default=False)],
    dapo: Annotated[str | None, typer.Option(metavar="SET", help=SET)] = None,
    dolci: Annotated[str | None, typer.Option(metavar="SET", help="Likewise.")] = None,
    aime24: Annotated[str | None, typer.Option(metavar="SET", help="Likewise.")] = None,
    template: Annotated[
        str, typer.Option(metavar="TEMPLATE", help="slime, dapo, boxed, none, a file, or a text with {problem} in it.")
    ] = "slime",
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="TOKENIZER", help="Apply its chat template here; default: slime applies the model's."),
    ] = None,
    repeated: Annotated[
        str, typer.Option(metavar="keep|drop", help="Problems that come again, within a set or in the next.")
    ] = "drop",
    bad_labels: Annotated[
        str,
        typer.Option(
            metavar="keep|drop", help="Problems with several labels, or with one that the verifier does not accept."
        ),
    ] = "keep",
    verifier: Annotated[str, typer.Option(metavar="MODE", help="The run's mode; see docs/reward.md.")] = "prime_math",
    seed: Annotated[int, typer.Option(help="Seed of the order.")] = 1234,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes of the verifier; default: half as many as cores, at most 8.", show_default=False
        ),
    ] = None,
    allow_counts: Annotated[
        bool, typer.Option("--allow-counts", help="Take sets of other sizes than the paper's.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace prompts prepared in FOLDER.")] = False,
) -> None:
    """Make train.jsonl and aime24.jsonl, as slime reads them, and manifest.json.

    Default: the paper's, DAPO-Math-17k and Dolci-RL-Zero-Math-7B, each
    problem once, with one instruction, each label verified against itself;
    and AIME 2024. Every row that is left out is accounted for.

        sat-slime data prepare --out data/paper

        sat-slime data prepare --out data/dapo --dapo zhuzilin/dapo-math-17k --dolci none
    """
    from sat_slime.cli import prompt_sets

    given = {"dapo": dapo, "dolci": dolci, "aime24": aime24}
    written = prompt_sets.prepare(
        prompt_sets.Preparation(
            out=out,
            sources={name: source for name, source in given.items() if source is not None},
            template=template,
            chat_template=chat_template,
            repeated=repeated,
            bad_labels=bad_labels,
            verifier=verifier,
            seed=seed,
            workers=workers,
            allow_counts=allow_counts,
            overwrite=overwrite,
        ),
        Console(highlight=False, markup=False, soft_wrap=True),
    )
    raise typer.Exit(OK if written else FAILED)
