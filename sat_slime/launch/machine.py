"""Checks what a run of slime needs of its machine: files, data and disk. It uses no GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch import card_run, cpu_run
from sat_slime.launch.command import checkpoint_folder
from sat_slime.launch.hf_checkpoint import hf_findings, stop_findings
from sat_slime.launch.memory import BF16, FP32, GIB, parameters
from sat_slime.launch.named_files import named_findings
from sat_slime.runs.saved import fault, newest_iteration

SCRIPT = "train.py"
"""A file by which slime's checkout is recognized, in every version."""


def machine_findings(config: SlimeConfig, run_folder: Path, resume: bool = False) -> Iterator[Finding]:
    """Yield findings of every check of this machine, one after another. resume: the run has begun, and its checkpoints
    are its own."""
    yield from source_findings(config, {"cluster.slime_dir": SCRIPT, "cluster.megatron_dir": "megatron/training"})
    if config.cluster.device == "cpu":
        yield from _cpu_findings(config)
    elif config.cluster.share_gpu:
        yield from card_run.card_findings(config)
    yield from hf_findings(config)
    yield from stop_findings(config)
    yield from _megatron_checkpoint(config)
    yield from named_findings(config)
    if not resume and (fault := beginning_fault(config, run_folder)):
        yield fail("checkpoints", fault)
    yield _disk(config, run_folder)


# ---------------------------------------------------------------------------------------------------------- files


def source_findings(config: SlimeConfig, parts: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on whether the checkouts are there. parts: the file or folder that each setting's folder must
    have."""
    on_cpu = config.cluster.device == "cpu"
    other = "make one: sat-slime prepare slime --out FOLDER" if on_cpu else "run in slime's image"
    for key, part in parts.items():
        name = key.removeprefix("cluster.")
        folder = getattr(config.cluster, name)
        what = name.removesuffix("_dir")
        if (Path(folder) / part).exists():
            yield ok(what, folder)
        else:
            yield fail(what, f"{key} is {folder}: no {part} is in it; set it to the checkout, or {other}")


def _cpu_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on what a run without a GPU needs of this machine's Python and of Megatron's checkout."""
    missing = list(cpu_run.missing_packages())
    yield from (fail("package", f"{package} {problem}") for package, problem in missing)
    if not missing:
        yield ok("packages", "all that slime imports on a CPU")
    file, mark = cpu_run.MEGATRON_PATCH
    path = Path(config.cluster.megatron_dir) / file
    if path.is_file() and mark not in path.read_text(encoding="utf-8"):
        patch = Path(config.cluster.slime_dir) / "docker" / "patch" / "latest" / "megatron.patch"
        yield fail("megatron", f"slime's patch is not in it: git -C {config.cluster.megatron_dir} apply {patch}")


def _megatron_checkpoint(config: SlimeConfig) -> Iterator[Finding]:
    what, path = "weights", config.model.megatron_checkpoint
    if path is None:
        return
    if (newest := newest_iteration(Path(path))) is not None:
        folder = Path(path) / ("release" if newest == "release" else f"iter_{int(newest):07d}")
        if folder.is_dir():
            yield ok(what, str(folder))
        else:
            yield fail(what, f"slime.ref-load is {path}: it names {folder.name}, which is not there; convert again")
    elif (Path(path) / "config.json").is_file() and config.cluster.device == "cpu":
        yield ok(what, f"{path}, in Hugging Face's format")
    elif (Path(path) / "config.json").is_file():
        yield warn(what, f"{path} holds Hugging Face weights: not every slime and model can start from them")
    else:
        yield fail(
            what,
            f"slime.ref-load is {path}: no converted checkpoint is there; make it (sat-slime prepare model)",
        )


def beginning_fault(config: SlimeConfig, run_folder: Path) -> str | None:
    """Return why a new run may not begin with what is in its folder of checkpoints, from whose newest slime would go
    on; None where it may."""
    asked, folder = config.pipeline.from_iteration, checkpoint_folder(config, run_folder)
    if not config.checkpoint.every_n_iterations or folder.absolute().is_relative_to(run_folder.absolute()):
        return None  # slime is given no folder, or one that is emptied
    newest = newest_iteration(folder)
    found = int(newest) + 1 if newest and newest.isdigit() else None
    if asked is None:
        if found is None:
            return None
        left = config.pipeline.iterations - found
        return (
            f"slime.save is {folder}, with a run's checkpoint of iteration {found}, from which slime would go "
            f"on, with {max(left, 0)} of pipeline.iterations {config.pipeline.iterations} left: name an empty folder, "
            f"set it to null, or, to go on from there, set pipeline.from_iteration to {found}"
        )
    if found != asked:
        there = f"{found}: set it to that" if found else "none: set it to null"
        return f"pipeline.from_iteration is {asked}, and the newest checkpoint in {folder} is {there}"
    return fault(folder, asked)


# ----------------------------------------------------------------------------------------------------------- disk


def _gib(count: float) -> str:
    return f"{count / GIB:,.0f} GiB"


def checkpoint_bytes(config: SlimeConfig) -> float:
    """Return the bytes of one checkpoint: weights in bf16, and master weights and two moments in fp32."""
    return parameters(config.model) * float(BF16 + (3 * FP32 if config.checkpoint.optimizer else 0))


def _disk(config: SlimeConfig, run_folder: Path) -> Finding:
    what, parent = "disk", existing_parent(checkpoint_folder(config, run_folder))
    key = "slime.save" if config.checkpoint.folder else "output_dir"
    if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
        return fail(what, f"{parent} cannot be written: choose another {key}")
    free, size = shutil.disk_usage(parent).free, checkpoint_bytes(config)
    every, keep = config.checkpoint.every_n_iterations, config.pipeline.keep_checkpoints
    count = -(-config.pipeline.iterations // every) if every else 0
    count = count if keep is None else min(count, keep + 1)  # an old one is deleted once the newer one is whole
    if count and size > free:
        return fail(
            what,
            f"{_gib(free)} free at {parent}, less than one checkpoint ({_gib(size)}): choose another "
            "slime.save, or slime.save-interval 0 for none",
        )
    needs = f"{count} checkpoints of {_gib(size)}, {_gib(count * size)} in all"
    if count * size > free:
        kept = f"pipeline.keep_checkpoints is {keep or 'unset'}, and the run needs {needs}"
        lower = f"set pipeline.keep_checkpoints to {max(int(free // size) - 1, 1)}, or " if free >= 2 * size else ""
        return warn(what, f"{_gib(free)} free at {parent}, but {kept}: {lower}choose another slime.save")
    return ok(what, f"{_gib(free)} free at {parent}; {needs}")


def existing_parent(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    path = path.expanduser().absolute()
    while not path.exists():
        path = path.parent
    return path
