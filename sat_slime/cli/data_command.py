"""`sat-slime data`: prompts for a run of slime, prepared from public data sets, and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import FAILED, OK

data = typer.Typer(no_args_is_help=True, help="Prompts with labels: prepare the paper's, check any.")
SET = "A file, a folder, OWNER/NAME/FOLDER@REVISION of the hub, or none; default: the paper's."
WORKERS = "Processes of the verifier; default: half as many as cores, at most 8."


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
    workers: Annotated[int | None, typer.Option(min=1, help=WORKERS, show_default=False)] = None,
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


@data.command("check")
def data_check(
    file: Annotated[Path, typer.Argument(help="A file of prompts, .jsonl or .parquet.", show_default=False)],
    evaluation: Annotated[
        Path | None, typer.Option("--eval", metavar="FILE", help="Prompts of the evaluation, to find in FILE.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="A tokenizer, to find prompts above --max-tokens.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The run's rollout.max_prompt_tokens.")] = None,
    input_key: Annotated[str, typer.Option(help="The run's data.input_key.")] = "prompt",
    label_key: Annotated[str, typer.Option(help="The run's data.label_key.")] = "label",
    verifier: Annotated[str, typer.Option(metavar="MODE", help="The run's mode; see docs/reward.md.")] = "prime_math",
    workers: Annotated[int | None, typer.Option(min=1, help=WORKERS, show_default=False)] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every row that is found.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per row that is found.")] = False,
) -> None:
    """Find duplicates, over-long prompts, labels that the verifier does not accept, problems of the evaluation, and
    rows that slime would stumble over. The exit code is 1 where something is found.

        sat-slime data check data/paper/train.jsonl --eval data/paper/aime24.jsonl

        sat-slime data check mine.jsonl --tokenizer /data/Qwen3-4B-Base --max-tokens 2048
    """
    from sat_slime.cli import prompt_sets

    report = prompt_sets.check(file, evaluation, tokenizer, max_tokens, input_key, label_key, verifier, workers)
    prompt_sets.show(report, show_all, as_json, Console(highlight=False, markup=False))
    raise typer.Exit(FAILED if report.faults else OK)
