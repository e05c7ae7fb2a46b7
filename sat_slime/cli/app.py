"""The command `sat-slime`: each of its commands is registered here, and has its options and its help in a file of its
own. What a command does is imported when it runs, so that --help answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from sat_slime.cli.check_command import check
from sat_slime.cli.data_command import data
from sat_slime.cli.diagnose_command import diagnose
from sat_slime.cli.eval_command import evaluate
from sat_slime.cli.grid_command import grid
from sat_slime.cli.init_command import init
from sat_slime.cli.launch_command import launch
from sat_slime.cli.logs_command import logs
from sat_slime.cli.methods_command import methods
from sat_slime.cli.prepare_command import prepare
from sat_slime.cli.replay_command import replay
from sat_slime.cli.report_command import report
from sat_slime.cli.serve_command import serve
from sat_slime.cli.status_command import status
from sat_slime.cli.stop_command import stop
from sat_slime.cli.torch_on_use import import_torch_on_use

app = typer.Typer(
    name="sat-slime",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""
    Asynchronous RL of language models that stays stable: the
    staleness-adaptive trust region (SAT) and what it is compared with, on
    real Megatron, SGLang and Ray.

    [bold]A first run[/], two to five minutes on two cores:

        sat-slime init quickstart

        sat-slime launch quickstart.yaml

    [bold]Exit codes[/]: 0 done, 1 the run or a check failed, 2 bad input, 130 interrupted.
    """,
)

app.command("init")(init)
app.command("launch")(launch)
app.command("grid")(grid)
app.command("eval")(evaluate)
app.command("status")(status)
app.command("logs")(logs)
app.command("stop")(stop)
app.add_typer(prepare, name="prepare")
app.add_typer(data, name="data")
app.command("check")(check)
app.command("methods")(methods)
app.command("report")(report)
app.command("serve")(serve)
app.command("replay")(replay)
app.command("diagnose")(diagnose)


@app.command("version")
def version() -> None:
    """Print the versions of this package and of the engines."""
    from sat_slime.cli.embedded_run.engine_packages import ENGINES, installed_version

    for package in ("sat-slime", "torch", *(engine.package for engine in ENGINES)):
        typer.echo(f"{package:16} {installed_version(package) or 'not installed'}")


def _versions(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_versions,
            is_eager=True,
            help="Print the versions of this package and of the engines.",
        ),
    ] = False,
) -> None:
    """What stands before a command."""


def main() -> None:
    """Entry point of the command."""
    import_torch_on_use()
    app(prog_name="sat-slime")
