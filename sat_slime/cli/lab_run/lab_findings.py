"""The checks of this machine before a run of the lab runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sat_slime.cli.lab_run import engine_packages
from sat_slime.cli.lab_run.engine_packages import installed_version, is_installed
from sat_slime.config import LabConfig, config_errors, config_warnings
from sat_slime.config.finding import Finding, fail, ok, settings_findings, warn
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.log import tracker_error

GIB = 2**30
ENGINE_MEMORY_GIB = 2.5
"""Resident memory of one SGLang server with a tiny model, with room to load weights."""
OTHER_MEMORY_GIB = 2.0
"""That of the trainer with a tiny model, and of the run's own process."""
DISK_GIB = 1.0
"""Free disk that a run wants: checkpoints, weights and the warmed-up model."""


def lab_findings(config: LabConfig, file: Path) -> Iterator[Finding]:
    """Yield every check of a run, one after another: its settings, then this machine."""
    errors = config_errors(config)
    yield from settings_findings(errors, config_warnings(config))
    if not errors:
        yield ok("settings", str(file))
    if config.logging.tensorboard and installed_version("tensorboard") is None:
        yield warn("tensorboard", "not installed: the run goes without it; pip install tensorboard")
    if error := tracker_error(config.logging.wandb_project):
        yield fail("wandb", error)
    folder = RunFolder(Path(config.output_dir).expanduser() / config.name)
    if folder.has_data():
        yield warn("run folder", f"{folder.path} holds an earlier run: use --resume, --name or --overwrite")
    yield _place("run folder", "output_dir", folder.path)
    yield _place("cache folder", "cache_dir", Path(config.cache_dir).expanduser())
    yield _memory(config)
    for engine in engine_packages.ENGINES:
        if is_installed(engine):
            yield ok(engine.package, installed_version(engine.package) or "version unknown")
        else:
            yield fail(engine.package, f"not installed: {engine_packages.INSTALL_ENGINES}")


def _place(name: str, key: str, path: Path) -> Finding:
    """Judge a folder that the setting `key` names, which may be there or be made."""
    parent = path.resolve()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        return fail(name, f"{parent} is not a folder: choose another {key}")
    if not os.access(parent, os.W_OK | os.X_OK):
        return fail(name, f"{parent} is not writable: choose another {key}")
    free = shutil.disk_usage(parent).free / GIB
    if free < DISK_GIB:
        return fail(name, f"{free:.1f} GiB free at {parent}, {DISK_GIB:g} wanted: set {key} elsewhere")
    return ok(name, f"{path}, {free:.0f} GiB free")


def _memory(config: LabConfig) -> Finding:
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / GIB
    need = config.rollout.engines * ENGINE_MEMORY_GIB + OTHER_MEMORY_GIB
    if free < need:
        return warn("memory", f"{free:.1f} GiB free, about {need:.1f} wanted: fewer rollout.engines")
    return ok("memory", f"{free:.0f} GiB free, about {need:.1f} wanted")
