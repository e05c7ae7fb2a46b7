"""`sat-slime diagnose`: the mismatch of a run taken apart, or a check-up of a run of slime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sat_slime.cli.terminal import bad_input

if TYPE_CHECKING:
    from sat_slime.report.diagnosis.diagnosis_page import Diagnosis
    from sat_slime.report.page import Sheet


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
    reward_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="slime's --reward-key, where dumped rewards are dicts.")
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
        from sat_slime.report.diagnosis.diagnosis_page import write_diagnosis

        if out is not None or reward_key is not None:
            option = "--out" if out is not None else "--reward-key"
            page = paths[0] / "diagnosis"
            bad_input([f"{option} is for trackers, logs and dumps; of a run folder the page is in {page}"])
        _show(write_diagnosis(paths[0]), Console())
    else:
        _check_up(paths, out or Path("diagnosis"), reward_key, Console())


def _check_up(paths: list[Path], out: Path, reward_key: str | None, console: Console) -> None:
    from sat_slime.report.write_reports import write_checkup

    with console.status("reading") as status:
        checkup = write_checkup(paths, out, reward_key, lambda name: status.update(f"reading {name}"))

    def say(text: str = "", style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    for line in checkup.skipped:
        say(f"warning: skipped {line}", "yellow")
    for sentence in checkup.summary:
        say(sentence)
    say()
    say("What we see, and what to try" if checkup.symptoms else "None of the rules found anything unhealthy.", "bold")
    for symptom in checkup.symptoms:
        say(f"- {symptom.heading}: {symptom.seen}.")
        say(f"  {symptom.advice}.", "dim")
    for sheet in checkup.sheets:
        say()
        console.print(as_table(sheet))
    say()
    say("Not visible here, and what would show it", "bold")
    for sentence in checkup.unknown:
        say(f"- {sentence}")
    say()
    for line in checkup.next:
        say(f"next: {line}")
    say(f"page: {checkup.page}")


def _show(diagnosis: Diagnosis, console: Console) -> None:
    """Print what the page says."""
    for sentence in diagnosis.warnings:
        console.print(f"warning: {sentence}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    for sentence in diagnosis.findings:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for sheet in diagnosis.sheets:
        console.print()
        console.print(as_table(sheet))
    console.print()
    console.print(f"page: {diagnosis.page}", markup=False, highlight=False, soft_wrap=True)


def as_table(sheet: Sheet) -> Table:
    """Return a sheet as a table for the terminal."""
    from sat_slime.report.page import Heading, Strong

    table = Table(title=sheet.heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(sheet.head):
        table.add_column(name, justify="right" if index else "left", no_wrap=not index)
    for row in sheet.rows:
        if isinstance(row[0], Heading):
            table.add_row(row[0])
        else:
            table.add_row(*row, style="bold" if isinstance(row[0], Strong) else None)
    return table
