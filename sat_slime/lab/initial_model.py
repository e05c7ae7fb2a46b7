"""The initial model of a run, the reference of its KL: warmed up once, then taken from the cache, and never another one
than the run began with."""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path

import sat_slime
from sat_slime.config.checksums import sha256
from sat_slime.config.schema import LabConfig
from sat_slime.lab.checkpoint import Checkpoint
from sat_slime.tasks import TASKS

FILES = ("config.json", "model.safetensors")


def cached_model(config: LabConfig) -> Path:
    """Return the folder of the warmed-up model of this configuration, whether or not it is there yet."""
    defaults = {"family": None, "tied_embeddings": False}
    model = config.model.model_dump()
    recipe = {
        "version": sat_slime.__version__,
        # What was added to the settings later is left out where it is unset, so that caches stay valid.
        "model": {key: value for key, value in model.items() if key not in defaults or value != defaults[key]},
        "task": config.task.model_dump(),
        "warmup": config.warmup.model_dump(),
    }
    if config.task.name not in TASKS:  # this package's own have its version
        recipe["module"] = Path(inspect.getfile(type(config.task))).read_text(encoding="utf-8")
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    return Path(config.cache_dir).expanduser() / "models" / digest


def is_model(folder: Path) -> bool:
    """Return whether a folder holds a whole model."""
    return all((folder / name).is_file() for name in FILES)


def model_checksums(initial: Path) -> dict[str, str]:
    """Return the checksums of the initial model's files by name, for `LoopState.initial`. Raises OSError."""
    return {name: sha256(initial / name) for name in FILES}


def initial_faults(saved: Checkpoint, model: Path) -> dict[str, str]:
    """Return what tells a model from the one that the run began with, by file; empty: it is that one."""
    faults = {}
    for name, checksum in saved.state.initial.items():
        try:
            if sha256(model / name) != checksum:
                faults[name] = "is not what the run started with"
        except OSError as error:
            faults[name] = f"cannot be read ({error.strerror or error})"
    return faults


def lost_initial(initial: Path, cached: Path) -> str:
    """Return the error of a run that has lost its initial model while the cache has another one, with its remedy."""
    return (
        f"the reference model that this run started with is lost: {cached} holds another one; put the old one back "
        f"into {initial}, or start another run (--name X)"
    )
