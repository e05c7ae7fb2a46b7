"""Converts Hugging Face weights to Megatron's format, by slime's own tool."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sat_slime.config.finding import Finding, fail
from sat_slime.config.slime_schema import ARCHITECTURE, SlimeConfig
from sat_slime.launch.command import environment, run_folder, slime_arguments
from sat_slime.launch.hf_checkpoint import hf_findings
from sat_slime.launch.local_ray import own_python_first
from sat_slime.launch.machine import (
    BF16,
    GIB,
    existing_parent,
    newest_iteration,
    source_findings,
)

TOOL = "tools/convert_hf_to_torch_dist.py"
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Conversion:
    """A conversion: the command that is run, and where its result goes."""

    command: list[str]
    env: dict[str, str]
    unfinished: Path
    """The folder in which the tool writes; it is renamed to `out` when it is whole, so that half a conversion is never
    taken for a whole one."""
    out: Path


def plan_conversion(config: SlimeConfig, gpus: int) -> Conversion:
    """Plans to convert slime.hf-checkpoint to slime.ref-load on this machine's first `gpus` GPUs.

    The tool cuts the model into as many pipeline stages; training may cut it in another way.
    """
    model, slime = config.model, config.cluster.slime_dir
    assert model.hf_checkpoint and model.megatron_checkpoint
    out = Path(model.megatron_checkpoint).expanduser().absolute()
    unfinished = out.with_name(f"{out.name}.unfinished")
    folder = run_folder(config)
    architecture = [
        word
        for argument in slime_arguments(config, folder)
        if ARCHITECTURE.fullmatch(argument.name)
        for word in argument.words()
    ]
    command = [
        *("python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)),
        *(f"{slime}/{TOOL}", *architecture, "--hf-checkpoint", model.hf_checkpoint, "--save", str(unfinished)),
    ]
    env = {name: value for name, value in environment(config, folder).items() if name != "TENSORBOARD_DIR"}
    return Conversion(command, env, unfinished, out)


def conversion_findings(config: SlimeConfig, plan: Conversion, gpus: int) -> Iterator[Finding]:
    """Yield findings on whether the conversion can run."""
    yield from source_findings(config, {"cluster.slime_dir": TOOL, "cluster.megatron_dir": "megatron/training"})
    yield from hf_findings(config)
    if newest_iteration(plan.out) is not None:
        yield fail("out", f"{plan.out} holds a converted checkpoint already: use it, or name another --out")
    elif plan.out.exists() and (not plan.out.is_dir() or any(plan.out.iterdir())):
        yield fail("out", f"{plan.out} exists and is no converted checkpoint: name another --out")
    if plan.unfinished.exists():
        yield fail(
            "out", f"{plan.unfinished} is there: another conversion is at work, or one broke off; then delete it"
        )
    parent, needed = existing_parent(plan.out), BF16 * config.model.parameters
    if not os.access(parent, os.W_OK | os.X_OK):
        yield fail("out", f"{parent} cannot be written: name another --out")
    elif (free := shutil.disk_usage(parent).free) < needed:
        yield fail("disk", f"{free / GIB:.0f} GiB free at {parent}, the checkpoint takes {needed / GIB:.0f} GiB")
    there = len(list(NVIDIA_GPUS.iterdir())) if NVIDIA_GPUS.is_dir() else 0
    if there < gpus:
        yield fail("GPUs", f"this machine has {there} NVIDIA GPUs, fewer than --gpus {gpus}: run it where they are")
    if gpus > config.model.layers:
        yield fail("GPUs", f"--gpus is {gpus}, more than the model's {config.model.layers} layers: lower it")


def convert(plan: Conversion) -> int:
    """Runs the conversion, which writes to this process's output, and returns the tool's exit code."""
    code = subprocess.run(plan.command, env={**own_python_first(), **plan.env}).returncode
    if code == 0 and newest_iteration(plan.unfinished) is not None:
        if plan.out.exists():
            plan.out.rmdir()  # it is empty, as was checked
        plan.unfinished.rename(plan.out)
    return code
