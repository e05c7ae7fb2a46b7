"""The initial model of a run: warmed up once, then taken from the cache."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import sat_slime
from sat_slime.config.schema import LabConfig

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
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    return Path(config.cache_dir).expanduser() / "models" / digest


def is_model(folder: Path) -> bool:
    """Return whether a folder holds a whole model; one whose disk lost its power may have files cut short or empty."""
    from safetensors import SafetensorError, safe_open  # the settings of a grid are read without it

    config, weights = (folder / name for name in FILES)
    with suppress(FileNotFoundError, SafetensorError), safe_open(weights, framework="np"):  # which holds sizes together
        return config.stat().st_size > 0
    return False
