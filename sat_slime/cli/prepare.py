"""What is made before a run of slime: the model in Megatron's format, and the laptop's model and prompts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

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


LAPTOP = Path("~/.cache/sat_slime/laptop").expanduser()
"""Where configs/slime/laptop.yaml looks for its model and prompts."""
RUNNING_SUMS = "sat_slime.plugin.running_sums.reward"
"""data.reward of such a run."""


def make_laptop(folder: Path, overwrite: bool) -> None:
    """The quick start's warmed-up model, from its cache if it is there, and its problems, as slime reads them. Raises
    ConfigError."""
    if folder.exists() and not overwrite:
        raise ConfigError([f"{folder} is there already: --overwrite makes it anew, --out names another"])
    # In a process of its own, since it makes Megatron's process groups.
    program = [sys.executable, "-W", "ignore", "-m", "sat_slime.embedded.for_slime", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(program, capture_output=True, text=True, env=environment)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise ConfigError([f"{folder} could not be made ({reason}): scripts/setup.sh installs what it needs"])


def make_missing_laptop(config: SlimeConfig, console: Console) -> None:
    """Make the folder of a run of running sums whose model is FOLDER/model, its prompts beside it, and not there."""
    if config.data.reward != RUNNING_SUMS or not (config.model.hf_checkpoint and config.data.prompts):
        return
    model, prompts = Path(config.model.hf_checkpoint), Path(config.data.prompts)
    if model.name == "model" and prompts.parent == model.parent and not model.parent.exists():
        console.print(f"making the model and the prompts in {model.parent}, once ...", highlight=False, soft_wrap=True)
        make_laptop(model.parent, overwrite=False)
