"""`sat-slime rehearse`: its options, and the rehearsal that they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sat_slime.cli.terminal import OverridesAsInLaunch


def rehearse(
    file: Annotated[Path, typer.Argument(help="A YAML file of a run of slime.", show_default=False)],
    method: Annotated[str | None, typer.Option(help="As in launch: a named method.")] = None,
    lag: Annotated[int | None, typer.Option(help="As in launch: iterations per weight broadcast.")] = None,
    overrides: OverridesAsInLaunch = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Gets the findings and the numbers; default: rehearsals/NAME.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier rehearsal there first.")] = False,
    iterations: Annotated[int | None, typer.Option(min=1, help="Default: two more than the lag.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Fewer layers than the run's.")] = None,
    experts: Annotated[int | None, typer.Option(min=1, help="Fewer experts than the run's.")] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Also go on from a checkpoint.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be changed; start nothing.")] = False,
) -> None:
    """Run FILE whole on this machine's CPU cores before it costs GPUs: real slime, Megatron and SGLang, thin widths.

    Layers, experts, heads, vocabulary, parallel sizes, schedule, method,
    flags, template and reward are the run's; processes stand in for GPUs.
    A checkpoint and a resume are part of it. Every check says what was
    expected and what was found. The run's checkpoints, data and output
    folder are never touched. Needs slime's and Megatron-LM's checkouts
    (sat-slime prepare slime).

        sat-slime rehearse configs/paper/qwen3-30b-a3b.yaml --method sat-gspo-r3 --lag 8
    """
    from sat_slime.cli.rehearsing import rehearse_run
    from sat_slime.rehearsal.thin import Sizes

    sizes = Sizes(iterations, layers, experts)
    settings = {key: value for key, value in (("method", method), ("pipeline.lag", lag)) if value is not None}
    raise typer.Exit(
        rehearse_run(file, settings, overrides or (), sizes, out, resume=resume, overwrite=overwrite, dry_run=dry_run)
    )
