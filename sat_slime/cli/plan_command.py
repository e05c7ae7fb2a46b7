"""`sat-slime plan`: time, idle GPUs and staleness of several ways to run, before any of them runs."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sat_slime.cli.terminal import bad_input, say

if TYPE_CHECKING:
    from rich.table import Table

    from sat_slime.config.plan_schema import PlanConfig
    from sat_slime.report.page import Sheet

PARTS = {
    "plan": {"time": (0, 1, 2, 3, 4, 11, 12), "staleness": (0, 1, 5, 6, 7, 8, 9, 10, 13)},
    "measured": {"time and lag": (0, 1, 2, 3, 4, 5, 6), "drops": (0, 7, 8, 9, 10)},
}
"""Columns of a sheet that are shown together where the terminal is too narrow for all of them: 80 characters are
enough. The first tell what a row is of."""


def plan(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A plan (YAML), or a run folder of mode batch.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, over the file's. Repeatable."),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option("--measured", metavar="RUN", help="A run to predict, and to compare with. Repeatable."),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="A study's table of accuracy by lag, such as a report's levels_*.csv."),
    ] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="Method of the study.")] = "grpo",
    updates: Annotated[int, typer.Option(metavar="N", min=1, help="Iterations after which the study measured.")] = 128,
    hours: Annotated[float, typer.Option(metavar="H", min=0.0, help="Time that there is, with --study.")] = 24.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where page, figures and tables go; default: no files."),
    ] = None,
) -> None:
    """Predict time, idle GPUs, staleness and drops for several splits of the GPUs and lags.

    FILE gives lengths of responses, speeds and what to compare (docs/asynchrony.md has an
    example); a run folder gives its own. Mode streaming is simulated with the very
    stream that runs, in seconds and without a GPU.

    [bold]Examples[/]

        sat-slime plan plan.yaml --out plan

        sat-slime plan runs/my-run --set gpus=16 --set 'engine_gpus=[4,8,12]'

        sat-slime plan runs/lag-1 --measured runs/lag-8 --measured runs/streaming
    """
    from sat_slime.report import plan_page as plans
    from sat_slime.report.page import check_out

    config = read_plan(file, overrides or [])
    levels = plans.read_study(study, method) if study else None
    if out is not None:
        check_out(out)
    console = Console()
    with console.status("simulating"):
        result = plans.make_plan(config, measured or [])
    more = [plans.best_within(result, levels, updates, hours)] if levels else []
    for sheet in [plans.options_table(result), *([plans.comparison_table(result)] if result.comparisons else [])]:
        for table in that_fit(sheet, console):
            console.print(table)
            console.print()
    for sentence in [*plans.summary(result), *more]:
        say(console, sentence)
    if out is not None:
        page = plans.write_plan(result, out, more, shlex.join(["sat-slime", *sys.argv[1:]]))
        say(console, f"page: {page}")


def that_fit(sheet: Sheet, console: Console) -> list[Table]:
    """Return a sheet as one table, or as several where the terminal is too narrow for one."""
    from rich.measure import Measurement

    from sat_slime.cli.diagnose_command import as_table

    def of(columns: Sequence[int], part: str = "") -> Table:
        # Heads may take several lines; cells may not.
        head = [sheet.head[at] if sheet.head[at] == "99 %" else sheet.head[at].replace(" ", "\n") for at in columns]
        rows = [[row[0], *(row[at].replace(" ", "\u00a0") for at in columns[1:])] for row in sheet.rows]
        return as_table(dataclasses.replace(sheet, heading=sheet.heading + part, head=head, rows=rows))

    whole = of(range(len(sheet.head)))
    needed = Measurement.get(console, console.options.update(width=1000), whole).maximum
    if needed <= console.width:
        return [whole]
    return [of(columns, f": {part}") for part, columns in PARTS[sheet.name].items()]


def read_plan(file: Path, overrides: list[str]) -> PlanConfig:
    """Return a plan's settings. A run folder is a plan with its run alone. Raises ConfigError."""
    import yaml

    from sat_slime.config import ConfigError
    from sat_slime.config.loader import read_section
    from sat_slime.config.plan_schema import PlanConfig

    try:
        values = {"run": str(file)} if file.is_dir() else yaml.safe_load(file.read_text(encoding="utf-8"))
        values = {} if values is None else values
        if isinstance(values, dict):
            for text in overrides:
                key, found, value = text.partition("=")
                if not found:
                    bad_input([f"--set {text}: it is KEY=VALUE"])
                values[key] = yaml.safe_load(value)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file} cannot be read ({getattr(error, 'strerror', None) or error})"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{file} is no YAML: {' '.join(str(error).split())}"]) from None
    return read_section(PlanConfig, values, str(file))
