"""The command `sat-slime`: its list of commands, whose options and help are in modules by the headings of the list.
These import what they work with once their options are read, so that every `--help` answers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from sat_slime import outside
from sat_slime.cli.follow_commands import status, stop
from sat_slime.cli.run_commands import grid, init, launch, rehearse
from sat_slime.cli.set_up_commands import check, data, prepare
from sat_slime.cli.terminal import without_traceback, write_utf8
from sat_slime.cli.understand_commands import diagnose, methods, replay, report

GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (init, launch, grid, rehearse),
    "Follow": (status, stop),
    "Understand": (report, methods, replay, diagnose),
    "Set up": (check,),
}
"""The commands under the headings of the help."""

ELSEWHERE = {
    **dict.fromkeys(("run", "train", "start", "resume"), "launch"),
    **dict.fromkeys(("list", "ls", "logs"), "status"),
}
"""What other programs call these commands."""

READING = ("status", "stop", "report", "diagnose")
"""Commands that list and read folders: they import nothing that a folder names."""


class CommandGroup(TyperGroup):
    """The commands, which end without a traceback where their input is at fault."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and (ours := ELSEWHERE.get(args[0])):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{ours}'?")
        name, command, rest = super().resolve_command(ctx, args)
        told = outside.said(lambda path: typer.echo(f"importing {path}, which the settings name", err=True))
        ctx.with_resource(outside.refused() if name in READING else told)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        with without_traceback():
            return super().invoke(ctx)


app = typer.Typer(
    name="sat-slime",
    cls=CommandGroup,
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""
    Asynchronous RL of language models: the staleness-adaptive trust region
    (SAT) and what it is compared with, on real Megatron, SGLang and Ray.

    [bold]A first run[/], some minutes on two cores:

        sat-slime init quickstart

        sat-slime launch quickstart.yaml

    [bold]Exit codes[/]: 0 done, 1 the run or a check failed, 2 bad input, 130 interrupted.
    """,
)
for heading, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=heading)(command)
app.add_typer(prepare, name="prepare", rich_help_panel="Set up")
app.add_typer(data, name="data", rich_help_panel="Set up")


def _version(given: bool) -> None:
    if given:
        from sat_slime.cli.lab_run import ENGINES
        from sat_slime.launch.small_run import installed_version

        for package in ("sat-slime", "torch", *ENGINES):
            typer.echo(f"{package:16} {installed_version(package) or 'not installed'}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        Option(
            "--version", callback=_version, is_eager=True, help="Print the versions of this package and of the engines."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command `sat-slime` with the arguments of this process."""
    write_utf8()
    app(prog_name="sat-slime")
