"""`sat-slime diagnose`: the mismatch of a run taken apart, or a check-up of a run of slime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import bad_input, show_page


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_FILE...",
            help="A run folder; or what there is of one run of slime: trackers, its log, dumps.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the page goes, except of a run folder; default: [bold]diagnosis/[/]."
        ),
    ] = None,
) -> None:
    """Say what the mismatch of a run is made of; or what makes a run of slime collapse.

    Of a run folder of ours, from the token dumps of diagnosed steps
    ([bold]--set diagnose.every_n_steps=5[/] at launch): policy lag, expert routing,
    precision and the rest, by lag, position and probability. Of a run
    of slime with denominator checkpoint, policy and implementation part. Page,
    figures and tables go to [bold]RUN/diagnosis/[/].

    Of a run of slime that knows nothing of us, from TensorBoard events, W&B's
    history, the log that the job printed, and dumps, whatever there is: what
    looks unhealthy since which step, what to try, and which flag would tell more.

        sat-slime diagnose runs/my-run

        sat-slime diagnose tensorboard_log/my-project dump/

        sat-slime diagnose job.log
    """
    from sat_slime.runs.folder import RunFolder

    console = Console()
    if len(paths) == 1 and RunFolder(paths[0]).is_run():
        from sat_slime.report.diagnosis import write_diagnosis

        if out is not None:
            bad_input(
                [f"--out is for trackers, logs and dumps; of a run folder the page is in {paths[0] / 'diagnosis'}"]
            )
        show_page(write_diagnosis(paths[0]), console)
    else:
        from sat_slime.report.checkup import write_checkup

        with console.status("reading") as status:
            page = write_checkup(paths, out or Path("diagnosis"), lambda name: status.update(f"reading {name}"))
        show_page(page, console)
