"""`sat-slime replay`: what every method would do to dumped batches."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sat_slime.cli.terminal import FAILED, OK, say

if TYPE_CHECKING:
    from sat_slime.report.page import Table as Numbers
    from sat_slime.report.replay import Replay


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
    microbatch_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Micro-batches of up to N response tokens, instead of the dump's own."),
    ] = None,
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

        result = replay_dumps(paths, candidates, microbatch_tokens, on_step, names_several(methods))
    page = write_replay(result, out, ["sat-slime", *sys.argv[1:]])
    _show(result, page, console)
    raise typer.Exit(FAILED if result.skipped else OK)


def _show(result: Replay, page: Path, console: Console) -> None:
    from sat_slime.report.replay import methods_table

    console.print(_table(methods_table(result)), width=max(console.width, 132), crop=False)  # long names over the edge
    for line in _lines(result):
        say(console, line)
    say(console, f"report: {page}")


def _table(methods: Numbers) -> Table:
    from sat_slime.report.gradient import GROUPS
    from sat_slime.report.replay import of_fates

    table = Table(box=None, pad_edge=False, header_style="dim", title_style="dim", title_justify="left")
    table.title = "percent of the tokens with an advantage, by what a method judges; cosine with the unclipped gradient"
    table.add_column("method", no_wrap=True)
    names = ("clipped A > 0", "clipped A < 0", "masked", "re-weighted", "effective", "cosine")
    for name in names:
        table.add_column(name, justify="right")
    masked = of_fates(*(f"masked, {group}" for group in GROUPS))
    methods = replace(methods, forms={name: methods.forms.get(name, masked) for name in ("method", *names)})
    for heading, cells in methods.rows():
        if heading:
            table.add_row(Text(heading, style="dim italic"))
        table.add_row(*map(Text, cells))
    return table


def _lines(result: Replay) -> list[str]:
    from sat_slime.report.page import count_of
    from sat_slime.report.replay import passed_over, verdict

    rate = result.tokens / max(result.seconds, 1e-9)
    lines = [
        f"{count_of(len(result.rows), 'optimizer step')}, {count_of(result.responses, 'response')}, "
        f"{result.tokens:,} tokens x {len(result.candidates)} formulas in {result.seconds:.1f} s ({rate:,.0f} tokens/s)"
    ]
    lines += [passed_over(result)] if result.passed_over else []
    lines += [f"not replayed: {left_out.label}: {left_out.reason}" for left_out in result.left_out]
    lines += [f"{'skipped' if one.whole else 'left out'}: {one.path}: {one.reason}" for one in result.skipped]
    return [*lines, verdict(result)]
