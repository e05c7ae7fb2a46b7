"""`sat-slime version`: the versions of this package and of the engines."""

from __future__ import annotations

import typer

from sat_slime.cli.embedded_run.engine_packages import ENGINES, installed_version


def version() -> None:
    """Print the versions of this package and of the engines."""
    for package in ("sat-slime", "torch", *(engine.package for engine in ENGINES)):
        typer.echo(f"{package:16} {installed_version(package) or 'not installed'}")
