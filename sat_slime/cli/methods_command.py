"""`sat-slime methods`: the design space, and one method in full."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="A method, such as sat-gspo-r3, or what goes beside one: sat, tis, r3, topp."),
    ] = None,
) -> None:
    """List the stabilizers and the named methods; of one method, its formula, parameters and source.

    Use one with [bold]launch FILE --method NAME[/], or write
    [bold]method: NAME[/] in the file.

        sat-slime methods dppo-kl
    """
    from sat_slime.cli.method_tables import show_method, show_table

    console = Console()
    if name is None:
        show_table(console)
    else:
        show_method(name, console)
