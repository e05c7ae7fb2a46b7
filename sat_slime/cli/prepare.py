"""What is made before a run of slime: the model in Megatron's format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from sat_slime.cli.check import Finding
from sat_slime.cli.slime import by_flag, raise_failed, to_stderr
from sat_slime.config import ConfigError, SlimeConfig, load_config


def convert_model(file: Path, settings: Mapping[str, Any], overrides: Sequence[str], gpus: int, dry_run: bool) -> int:
    """Convert a model's weights; the exit code of slime's tool. Raises ConfigError."""
    from sat_slime.plugin.launch.conversion import conversion_findings, convert, plan_conversion

    config = load_config(file, overrides, settings)
    if not isinstance(config, SlimeConfig):
        raise ConfigError([f"{file}: runtime is {config.runtime}: only models of slime runs are converted"])
    if unset := [key for key in ("hf_checkpoint", "megatron_checkpoint") if getattr(config.model, key) is None]:
        options = {"hf_checkpoint": "--hf", "megatron_checkpoint": "--out"}
        raise ConfigError([f"{file}: model.{key} is not set: give {options[key]} FOLDER" for key in unset])
    if not config.model.layers:
        raise ConfigError([f"{file}: model.architecture has no num-layers: name a file of configs/models"])
    plan = plan_conversion(config, gpus)
    if dry_run:
        variables = [f"{name}={shlex.quote(value)}" for name, value in plan.env.items()]
        typer.echo(" \\\n    ".join([" ".join(["env", *variables]), *by_flag(plan.command)]))
        typer.echo(f"mv {shlex.quote(str(plan.unfinished))} {shlex.quote(str(plan.out))}")
        return 0
    findings = conversion_findings(config, plan, gpus)
    raise_failed((Finding(finding.mark, finding.what, finding.detail) for finding in findings), to_stderr())
    code = convert(plan)
    if code:
        to_stderr().print(f"error: slime's tool ended with exit code {code}; what it wrote is in {plan.unfinished}")
    else:
        typer.echo(f"{plan.out} is ready")
    return code
