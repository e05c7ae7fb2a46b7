"""The checks of this machine before a run of the lab runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sat_slime.cli.lab_run import engine_packages
from sat_slime.cli.lab_run.engine_packages import installed_version, is_installed, verifier_error
from sat_slime.config import LabConfig, config_errors, config_warnings
from sat_slime.config.finding import Finding, fail, ok, settings_findings, warn
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.log import tracker_error

GIB = 2**30
ENGINE_MEMORY_GIB = 2.5
"""Resident memory of one SGLang server with a tiny model, with room to load weights."""
TRAINER_MEMORY_GIB = 1.0
"""Resident memory of the trainer with a tiny model."""
DISK_GIB = 1.0
"""Free disk that a run wants: checkpoints, weights and the warmed-up model."""


def lab_findings(config: LabConfig, file: Path) -> Iterator[Finding]:
    """Yield every check of a run, one after another: its settings, then this machine."""
    errors = config_errors(config)
    yield from settings_findings(errors, config_warnings(config))
    if not errors:
        yield ok("settings", str(file))
    if lacking := verifier_error(config):
        yield fail("math-verify", lacking)
    yield from _trackers(config)
    yield _folder(config)
    yield _cache(config)
    yield from _disk(config)
    yield _memory(config)
    yield from _engines()


def _engines() -> Iterator[Finding]:
    for engine in engine_packages.ENGINES:
        if is_installed(engine):
            yield ok(engine.package, installed_version(engine.package) or "version unknown")
        else:
            yield fail(engine.package, f"not installed: {engine_packages.INSTALL_ENGINES}")


def _trackers(config: LabConfig) -> Iterator[Finding]:
    if config.logging.tensorboard:
        if version := installed_version("tensorboard"):
            yield ok("tensorboard", version)
        else:
            yield warn("tensorboard", "not installed: the run goes without it; pip install tensorboard")
    if error := tracker_error(config.logging.wandb_project):
        yield fail("wandb", error)


def _folder(config: LabConfig) -> Finding:
    folder = RunFolder(Path(config.output_dir).expanduser() / config.name)
    if error := _place_error(folder.path, "output_dir"):
        return fail("run folder", error)
    if folder.has_data():
        return warn("run folder", f"{folder.path} holds an earlier run: use --resume, --name or --overwrite")
    return ok("run folder", str(folder.path))


def _cache(config: LabConfig) -> Finding:
    cache = Path(config.cache_dir).expanduser()
    if error := _place_error(cache, "cache_dir"):
        return fail("cache folder", error)
    return ok("cache folder", str(cache))


def _place_error(path: Path, key: str) -> str | None:
    """Return why nothing can be made at `path`, which the setting `key` names, or None."""
    parent = _existing(path)
    if not parent.is_dir():
        return f"{parent} is not a folder: choose another {key}"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"{parent} is not writable: choose another {key}"
    return None


def _disk(config: LabConfig) -> Iterator[Finding]:
    for key in ("output_dir", "cache_dir"):
        folder = _existing(Path(getattr(config, key)).expanduser())
        free = shutil.disk_usage(folder).free / GIB
        if free < DISK_GIB:
            yield fail("disk", f"{free:.1f} GiB free at {folder}, {DISK_GIB:g} wanted: set {key} elsewhere")
        else:
            yield ok("disk", f"{free:.0f} GiB free at {folder} ({key})")


def _existing(path: Path) -> Path:
    """Return the nearest folder at or above `path` that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def _memory(config: LabConfig) -> Finding:
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / GIB
    except (ValueError, OSError):
        return warn("memory", "free memory is not known here")
    need = config.servers * ENGINE_MEMORY_GIB + TRAINER_MEMORY_GIB + 1
    if free < need:
        return warn("memory", f"{free:.1f} GiB free, about {need:.1f} wanted: fewer rollout.engines")
    return ok("memory", f"{free:.0f} GiB free, about {need:.1f} wanted")
