"""`sat-slime check` looks whether a run's settings and this machine, or the cluster, are fit for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sat_slime.cli.terminal import BAD_INPUT, FAILED, OK, OverridesAsInLaunch

if TYPE_CHECKING:
    from sat_slime.config.finding import Finding

COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def check(
    file: Annotated[
        Path,
        typer.Argument(help="A YAML file: of a run, or of init plugin; or a run's folder.", show_default=False),
    ],
    overrides: OverridesAsInLaunch = None,
) -> None:
    """Check a run's settings and this machine: lists problems and fixes.

    Imports the engines to be sure that they work, which takes some seconds;
    that they do is remembered until a package is installed or removed.
    Of a run of slime, the cluster that cluster.address names is checked, by a
    small job that uses no GPU, and time and cost are estimated, by what the
    run has measured where its folder is given.

        sat-slime check configs/lab/quickstart.yaml
    """
    console = Console(soft_wrap=True, highlight=False)
    failed_settings = failed_machine = False
    for finding in findings_of(file, overrides or []):
        console.print(*_columns(finding), sep="  ")
        failed_settings |= finding.mark == "FAIL" and finding.of_settings
        failed_machine |= finding.mark == "FAIL" and not finding.of_settings
    raise typer.Exit(BAD_INPUT if failed_settings else FAILED if failed_machine else OK)


def findings_of(file: Path, overrides: Sequence[str]) -> Iterator[Finding]:
    """Yield the finding of every check of a run."""
    from sat_slime.cli.lab_run import lab_findings
    from sat_slime.config import ConfigError, LabConfig, load_config
    from sat_slime.config.finding import settings_findings
    from sat_slime.config.plugin_file import is_plugin_file, plugin_findings
    from sat_slime.runs.folder import RunFolder

    if is_plugin_file(file):
        yield from plugin_findings(file)
        return
    folder = file if file.is_dir() and RunFolder(file).is_run() else None
    file = RunFolder(folder).config if folder else file
    try:
        config = load_config(file, overrides)
    except ConfigError as error:
        yield from settings_findings(error.errors)
        return
    if isinstance(config, LabConfig):
        yield from lab_findings(config, file)
    else:
        from sat_slime.cli.slime_run import slime_findings

        yield from slime_findings(config, file, folder)


def _columns(finding: Finding) -> tuple[str, str, str]:
    return f"[{COLOURS[finding.mark]}]{finding.mark:4}[/]", f"{finding.what:14}", escape(finding.detail)
