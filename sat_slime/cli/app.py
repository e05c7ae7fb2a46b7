"""The command `sat-slime`: its list of commands, each of which has its options and its help in a module of its own.

That module is imported when the command is called, and what the command works with once its options are read, so that
every `--help` answers at once.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sat_slime import outside
from sat_slime.cli.terminal import without_traceback, write_utf8

GROUPS = {
    "Run": {
        "init": "Write a commented file to start from, and the files that it extends.",
        "launch": "Run the loop that FILE describes.",
        "grid": "Run methods x lags x seeds, each a run of its own.",
        "rehearse": "Run FILE whole on this machine's CPU cores before it costs GPUs: real slime, Megatron and SGLang, "
        "thin widths.",
    },
    "Follow": {
        "status": "List the runs below a folder, or say how one is doing: its state, progress and newest checkpoint, "
        "and why it ended. Of a grid: all its cells.",
        "stop": "End a run or a grid as Ctrl-C in its terminal does: after the iteration, with a checkpoint.",
    },
    "Understand": {
        "report": "Write report.html and figures of a run, of several, or of a grid, whatever there is of them.",
        "methods": "List the stabilizers and the named methods; of one method, its formula, parameters and source.",
        "replay": "What would every method have done to these tokens? No GPU, no slime, no run.",
        "diagnose": "Say what the mismatch of a run is made of; or what makes a run of slime collapse.",
    },
    "Set up": {
        "check": "Check a run's settings and this machine: lists problems and fixes.",
        "prepare": "Make what a run starts from: engines, weights, slime, its model.",
        "data": "Prompts with labels: prepare the paper's.",
    },
}
"""The commands under the headings of the help, each with the first sentence of its own. NAME is the function or the
group of commands NAME in the module NAME_command."""

COMMANDS = {name: said for commands in GROUPS.values() for name, said in commands.items()}

ELSEWHERE = {
    **dict.fromkeys(("run", "train", "start", "resume"), "launch"),
    **dict.fromkeys(("list", "ls", "logs"), "status"),
}
"""What other programs call these commands."""


READING = ("status", "stop", "report", "diagnose")
"""Commands that list and read folders: they import nothing that a folder names."""


def import_command(name: str) -> Any:
    """Return the command of this name, with its options."""
    command = getattr(importlib.import_module(f"sat_slime.cli.{name}_command"), name)
    if not isinstance(command, typer.Typer):
        function, command = command, typer.Typer(add_completion=False, rich_markup_mode="rich")
        command.command(name)(function)
    return typer.main.get_command(command)


def _say_import(path: str) -> None:
    typer.echo(f"importing {path}, which the settings name", err=True)


class CommandGroup(TyperGroup):
    """The commands of COMMANDS, known by their first sentence alone until one of them is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for heading, commands in GROUPS.items():
            for name, said in commands.items():
                self.add_command(TyperCommand(name, help=said, rich_help_panel=heading))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and (ours := ELSEWHERE.get(args[0])):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{ours}'?")
        name, _, rest = super().resolve_command(ctx, args)
        ctx.with_resource(outside.refused() if name in READING else outside.said(_say_import))
        return name, name and import_command(name), rest

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


def whole_app() -> Any:
    """Return the command with all of its commands imported, for pages that describe them."""
    group: Any = typer.main.get_command(app)
    group.commands = {name: import_command(name) for name in COMMANDS}
    return group


def _version(given: bool) -> None:
    if given:
        from sat_slime.cli.engine_packages import ENGINES, installed_version

        for package in ("sat-slime", "torch", *(engine.package for engine in ENGINES)):
            typer.echo(f"{package:16} {installed_version(package) or 'not installed'}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the versions of this package and of the engines.",
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command `sat-slime` with the arguments of this process."""
    write_utf8()
    app(prog_name="sat-slime")
