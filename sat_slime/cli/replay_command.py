"""`sat-slime replay`: what every method would do to dumped batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import FAILED, OK, as_table, say


def replay(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DUMP...", help="Dumps, folders of them, or run folders.", show_default=False),
    ],
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Methods with commas between them, [bold]all[/], or [bold]usual[/]: the paper's, and what else "
            "asynchronous training is done with.",
        ),
    ] = "usual",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the methods that read it, such as [bold]sat.alpha=0.95[/]; a list of values replays "
            "each. Repeatable.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where page, figures and tables go.")] = Path("replay"),
) -> None:
    """What would every method have done to these tokens? No GPU, no slime, no run.

    DUMP is a file of slime's [bold]--save-debug-train-data[/], a folder of them, the
    folder of [bold]--dump-details[/], or a run folder with dumps/. For each method: which
    tokens it clips, masks or re-weights, how many it leaves, and how its gradient
    points beside the others'. A file that cannot be read is skipped, a token that
    cannot be is left out; both are named, and the exit code is then 1.

    [bold]Examples[/]

        sat-slime replay runs/my-run

        sat-slime replay runs/my-run --methods all

        sat-slime replay dump/train_data --methods gspo,sat-gspo --out gspo-replay

        sat-slime replay runs/my-run --methods sat-gspo --set 'sat.alpha=[0.8,0.9,0.95]'
    """
    from sat_slime.report.page import check_out
    from sat_slime.report.replay import StepRow, choose, names_several, write_replay
    from sat_slime.report.replay import replay as replay_dumps

    console = Console(soft_wrap=True)
    candidates = choose(methods, overrides or [])
    check_out(out)
    with console.status("reading dumps") as status:

        def on_step(row: StepRow) -> None:
            status.update(f"{row.name}: {row.tokens:,} tokens")

        result = replay_dumps(paths, candidates, on_step, names_several(methods))
    page = write_replay(result, out, ["sat-slime", *sys.argv[1:]])
    console.print(as_table(page.tables[0]), width=max(console.width, 132), crop=False)  # long names over the edge
    for line in (*page.answer, *page.sentences("scope"), *page.sentences("not_replayed"), *page.warnings):
        say(console, line)
    say(console, f"report: {page.path}")
    raise typer.Exit(FAILED if result.skipped else OK)
