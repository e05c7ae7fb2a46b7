"""`sat-slime check`, `prepare` and `data`: whether a run can be, and what it starts from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from sat_slime.cli.terminal import BAD_INPUT, COLOURS, FAILED, OK, OverridesAsInLaunch

if TYPE_CHECKING:
    from sat_slime.config.finding import Finding


def check(
    file: Annotated[Path, Argument(help="A YAML file: of a run, or of init plugin; or a run's folder.")],
    overrides: OverridesAsInLaunch = None,
) -> None:
    """Check a run's settings and this machine: lists problems and fixes.

    Of a run of slime, the cluster that cluster.address names is checked by a
    small job that uses no GPU, and time and cost are estimated, by what the
    run has measured where its folder is given.

        sat-slime check configs/paper/qwen3-30b-a3b.yaml
    """
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    code = OK
    for finding in findings_of(file, overrides or []):
        mark = f"[{COLOURS[finding.mark]}]{finding.mark:4}[/]"
        console.print(mark, f"{finding.what:14}", escape(finding.detail), sep="  ")
        if finding.mark == "FAIL":
            code = max(code, BAD_INPUT if finding.of_settings else FAILED)
    raise typer.Exit(code)


def findings_of(file: Path, overrides: Sequence[str]) -> Iterator[Finding]:
    """Yield the finding of every check of a run."""
    from sat_slime.config import ConfigError, LabConfig, load_config
    from sat_slime.config.finding import settings_findings
    from sat_slime.config.plugin_file import is_plugin_file, plugin_findings
    from sat_slime.runs.folder import RunFolder

    if is_plugin_file(file):
        from sat_slime.launch.flags import recorded

        if overrides:
            raise ConfigError(f"--set is for the file of a run, and {file} is the plugin's: change it there")
        yield from plugin_findings(file, recorded().flags)
        return
    folder = file if file.is_dir() and RunFolder(file).is_run() else None
    file = RunFolder(folder).config if folder else file
    try:
        config = load_config(file, overrides)
    except ConfigError as error:
        yield from settings_findings(error.errors)
        return
    if isinstance(config, LabConfig):
        from sat_slime.cli.lab_run import lab_findings

        yield from lab_findings(config, file)
    else:
        from sat_slime.cli.slime_run import slime_findings

        yield from slime_findings(config, file, folder)


def _group() -> None:
    """Keeps the commands of a group: one of a single command would be that command."""


prepare = typer.Typer(no_args_is_help=True, callback=_group, help="Model and prompts of the real slime on a laptop.")
data = typer.Typer(no_args_is_help=True, callback=_group, help="Prompts with labels: prepare the paper's.")


@prepare.command("laptop")
def prepare_laptop(
    file: Annotated[
        Path | None, Argument(metavar="FILE", help="The YAML file of a lab run; default: the quick start.")
    ] = None,
    out: Annotated[
        Path, Option(metavar="FOLDER", help="Where to; default: where configs/slime/laptop.yaml looks.")
    ] = Path("~/.cache/sat_slime/laptop"),
    overwrite: Annotated[bool, Option("--overwrite", help="Make it anew where it is there.")] = False,
    overrides: OverridesAsInLaunch = None,
) -> None:
    """Make the model, tokenizer, prompts and held-out problems of configs/slime/laptop.yaml: those of the lab
    quick start, or of another lab run.

    --set changes settings of the lab run: its task, its warm-up.

        sat-slime prepare laptop

        sat-slime prepare laptop --overwrite --set task.max_digits=6
    """
    from sat_slime.cli.lab_run import refuse_without_engines
    from sat_slime.config import ConfigError, config_errors
    from sat_slime.config.disk import is_replaceable
    from sat_slime.lab.for_slime import MADE, lab_settings, write_folder
    from sat_slime.lab.process import PartFailure

    folder, config = Path(os.path.expanduser(out)).absolute(), lab_settings(file, overrides or [])
    if faults := config_errors(config):
        raise ConfigError(*faults)
    if folder.exists() and not overwrite:
        raise ConfigError(f"{folder} is there already: --overwrite makes it anew, --out names another")
    if not is_replaceable(folder, MADE):
        raise ConfigError(f"{folder} holds something else than such a model and its prompts: --out names another")
    refuse_without_engines()
    try:
        write_folder(config, folder)
    except (OSError, PartFailure) as error:
        raise ConfigError(f"{folder} could not be made: {error}") from None
    typer.echo(f"{folder} is ready")


@data.command("prepare")
def data_prepare(
    out: Annotated[Path, Option(metavar="FOLDER", help="Where to.")],
    source: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=SET",
            help="dapo, dolci or aime24 from a file, OWNER/NAME@REVISION of the hub, or none. "
            "Repeatable; default: the paper's.",
        ),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace prompts prepared in FOLDER.")] = False,
) -> None:
    """Make train.jsonl and aime24.jsonl, as slime reads them, and manifest.json.

    Default: the paper's, DAPO-Math-17k and Dolci-RL-Zero-Math-7B, each
    problem once, with slime's instruction; and AIME 2024. Every row that is left out is accounted for.

        sat-slime data prepare --out data/paper

        sat-slime data prepare --out data/dapo --source dapo=zhuzilin/dapo-math-17k --source dolci=none
    """
    from sat_slime.prompts.prepare import prepare

    sources = {name: given for name, _, given in (text.partition("=") for text in source or [])}
    prepare(out, sources, overwrite, Console(highlight=False, markup=False, emoji=False, soft_wrap=True))
