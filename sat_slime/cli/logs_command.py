"""`sat-slime logs`: the log of a run of slime."""

from __future__ import annotations

from typing import Annotated

import typer

from sat_slime.cli.terminal import INTERRUPTED, RunArgument, without_traceback


def logs(
    run: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends or Ctrl-C.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="So many lines, the last ones; default: all.")
    ] = None,
) -> None:
    """Print the log of a run of slime. Ctrl-C ends the printing; the job goes on.

    sat-slime logs runs/my-run -f
    """
    with without_traceback():
        from sat_slime.cli.slime_run.sent_run import follow_log, last_log_lines

        try:
            for line in (follow_log if follow else last_log_lines)(run, lines):
                typer.echo(line)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
