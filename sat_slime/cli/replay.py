"""`sat-slime replay`: what every method would do to dumped batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sat_slime.config import ConfigError
from sat_slime.report.page import Sheet, check_out
from sat_slime.report.replay.page import write_page
from sat_slime.report.replay.replay import Replay, StepRow, replay
from sat_slime.report.replay.selection import choose
from sat_slime.report.replay.step_batch import Layout
from sat_slime.report.replay.sums import GROUPS
from sat_slime.report.replay.tables import methods_table, percent


def run(
    paths: Sequence[Path],
    methods: str,
    settings: Sequence[str],
    out: Path,
    layout: Layout,
    token_mean: bool,
    threads: int | None,
    command: Sequence[str],
    console: Console,
) -> bool:
    """Replay and write the page; whether every file could be read.

    Raises ConfigError or RunFolderError for what can be told before anything is read, or where nothing can be.
    """
    if layout.tokens is not None and layout.responses is not None:
        raise ConfigError(["--microbatch-tokens and --microbatch-responses both say what a micro-batch is: give one"])
    candidates = choose(methods, settings)
    check_out(out)
    with console.status("reading dumps") as status:

        def on_step(row: StepRow) -> None:
            status.update(f"{row.name}: {row.tokens:,} tokens")

        result = replay(paths, candidates, layout, token_mean, threads, on_step)
    page = write_page(result, out, command)
    console.print(_table(methods_table(result)), width=max(console.width, 132), crop=False)  # long names over the edge
    for line in _lines(result):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
    return not result.skipped


def _table(sheet: Sheet) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title_style="dim", title_justify="left")
    table.title = "percent of the tokens with an advantage; cosine with the unclipped gradient"
    table.add_column("method", no_wrap=True)
    for name in ("clipped A>0", "clipped A<0", "masked", "re-weighted", "effective", "cosine"):
        table.add_column(name, justify="right")
    assert sheet.numbers is not None
    for text, numbers in zip(sheet.rows, sheet.numbers[1:], strict=True):
        values = dict(zip(sheet.numbers[0], numbers, strict=True))
        masked = sum(values[f"masked, {group}"] for group in GROUPS) / max(values["tokens"], 1)
        table.add_row(text[0], text[1], text[2], percent(masked), text[7], text[9], text[11])
    return table


def _lines(result: Replay) -> list[str]:
    rate = result.tokens / max(result.seconds, 1e-9)
    lines = [
        f"{len(result.rows):,} optimizer steps, {result.responses:,} responses, {result.tokens:,} tokens x "
        f"{len(result.candidates)} formulas in {result.seconds:.1f} s ({rate:,.0f} tokens/s)"
    ]
    lines += [f"not replayed: {one.label}: {one.reason}" for one in result.left_out]
    lines += [f"skipped: {one.path}: {one.reason}" for one in result.skipped]
    return lines
