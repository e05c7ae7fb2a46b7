"""`sat-slime diagnose`: the mismatch of a run taken apart, or a check-up of a run of slime."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sat_slime.cli.terminal import bad_input, say

if TYPE_CHECKING:
    from sat_slime.report.diagnosis import Diagnosis
    from sat_slime.report.page import Table as Numbers


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
    precision and the rest, by lag, position, probability and entropy. Of a run
    of slime with denominator checkpoint, policy and implementation part. Page,
    figures and tables go to [bold]RUN/diagnosis/[/].

    Of a run of slime that knows nothing of us, from TensorBoard events, W&B
    exports, the log that the job printed, and dumps, whatever there is: what
    looks unhealthy since which step, what to try, and which flag would tell more.

        sat-slime diagnose runs/my-run

        sat-slime diagnose tensorboard_log/my-project dump/

        sat-slime diagnose job.log
    """
    from sat_slime.runs.folder import RunFolder

    if len(paths) == 1 and RunFolder(paths[0]).is_run():
        from sat_slime.report.diagnosis import write_diagnosis

        if out is not None:
            page = paths[0] / "diagnosis"
            bad_input([f"--out is for trackers, logs and dumps; of a run folder the page is in {page}"])
        _show(write_diagnosis(paths[0]), Console())
    else:
        _check_up(paths, out or Path("diagnosis"), Console())


def _check_up(paths: list[Path], out: Path, console: Console) -> None:
    from sat_slime.report.checkup import write_checkup

    with console.status("reading") as status:
        checkup = write_checkup(paths, out, lambda name: status.update(f"reading {name}"))

    tell = partial(say, console)
    for line in checkup.skipped:
        tell(f"warning: {line}", "yellow")
    for sentence in checkup.summary:
        tell(sentence)
    console.print()
    if checkup.symptoms:
        tell("What we see, and what to try", "bold")
    for symptom in checkup.symptoms:
        tell(f"- {symptom.heading}: {symptom.seen}.")
        if symptom.advice:
            tell(f"  {symptom.advice}.", "dim")
    if checkup.verdict:
        tell(checkup.verdict, "bold")
    for numbers in checkup.tables:
        console.print()
        console.print(as_table(numbers))
    console.print()
    tell("Not visible here, and what would show it", "bold")
    for sentence in checkup.unknown:
        tell(f"- {sentence}")
    console.print()
    for line in checkup.next:
        tell(f"next: {line}")
    tell(f"page: {checkup.page}")


def _show(diagnosis: Diagnosis, console: Console) -> None:
    """Print what the page says."""
    for sentence in diagnosis.warnings:
        say(console, f"warning: {sentence}", style="yellow")
    for sentence in diagnosis.findings:
        say(console, sentence)
    for numbers in diagnosis.tables:
        console.print()
        console.print(as_table(numbers))
    console.print()
    say(console, f"page: {diagnosis.page}")


def as_table(numbers: Numbers) -> Table:
    """Return a table of a page as one for the terminal."""
    from sat_slime.report.page import Strong

    table = Table(title=numbers.heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(numbers.head):
        table.add_column(name, justify="right" if index else "left", no_wrap=not index)
    for heading, cells in numbers.rows():
        if heading:
            table.add_row(Text(heading, style="dim italic"))
        table.add_row(*map(Text, cells), style="bold" if isinstance(cells[0], Strong) else None)
    return table
