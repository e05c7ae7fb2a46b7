"""Checkpoints of a run: a folder that is there in full or not at all, with a checksum for every file.

`checkpoints/iteration-000032/` holds `state.json`, the trainer's `trainer.safetensors`, the broadcast weights that are
still in use (`weights/`), and `SHA256SUMS`; nothing in it is pickled. What reads a checkpoint takes it from `verified`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sat_slime
from sat_slime.config.disk import checksum_faults, in_words, remove_at_once, written_whole
from sat_slime.config.schema import LabConfig
from sat_slime.config.section import kept_settings
from sat_slime.config.source import ConfigError
from sat_slime.lab.batch import training_requests
from sat_slime.runs import saved as runs

SCHEMA = "sat_slime.checkpoint/7"
"""The format's name in state.json."""
_NAME = re.compile(r"iteration-(\d{6,})")


class DamagedCheckpoint(ValueError):
    """Files of a checkpoint are not what was saved; the message is a line that names them."""


@dataclass(frozen=True)
class LoopState:
    """The state of the loop between two iterations."""

    iteration: int
    """Iterations trained."""
    updates: int
    """Optimizer updates."""
    weight_versions: list[int]
    """Versions of the broadcast weights still in use; the last is what the engine holds."""
    ahead: int | None = None
    """Mode batch: the version that generated the next iteration's batch; None: it is not generated yet."""
    stream: dict[str, Any] = field(default_factory=dict)
    """Mode streaming: a StreamState, in which the groups that waited are unfinished again."""
    canary: list[float] = field(default_factory=list)
    """Differences of the pushes that passed the canary, the newest ones."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings that the run has to keep, by dotted keys."""
    version: str = ""
    """Of this package."""
    prompts: str = ""
    """Checksum of the prompts of the next iteration."""


def made_with(config: LabConfig, iteration: int) -> dict[str, Any]:
    """Return `settings`, `version` and `prompts` of the LoopState after `iteration` iterations."""
    prompts = [list(request.prompt_ids) for request in training_requests(config, iteration)[1]]
    digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    return {"settings": kept_settings(config), "version": sat_slime.__version__, "prompts": digest}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are what was saved: made by `verified` alone."""

    path: Path
    state: LoopState


@contextmanager
def writing(checkpoints: Path, state: LoopState) -> Iterator[Path]:
    """Yields a folder to write a checkpoint into; it becomes visible when the block ends, and goes away if it fails."""
    final = checkpoints / f"iteration-{state.iteration:06d}"
    with written_whole(final) as part:
        yield part
        (part / "state.json").write_text(json.dumps({"schema": SCHEMA, **asdict(state)}))


def numbered(checkpoints: Path) -> dict[int, Path]:
    """Return all checkpoints by their iteration, oldest first; `verified` says whether they are whole."""
    return runs.numbered_folders(checkpoints, _NAME)


def newest(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint, which may be damaged."""
    return next(reversed(numbered(checkpoints).values()), None)


def prune(checkpoints: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints and what a killed run left half-written."""
    for old in list(numbered(checkpoints).values())[:-keep]:
        remove_at_once(old)
    for part in checkpoints.glob("*.part"):
        shutil.rmtree(part, ignore_errors=True)


def verified(path: Path) -> Checkpoint:
    """Return the checkpoint, once every file of it was held against its checksum.

    Raises:
        DamagedCheckpoint: names the files that are not what was saved.
        ConfigError: another version has saved it.
    """
    if faults := checksum_faults(path):
        raise DamagedCheckpoint(f"{path} is damaged: {in_words(faults)}")
    try:
        values = json.loads((path / "state.json").read_text())
        if (schema := values.pop("schema")) == SCHEMA:
            return Checkpoint(path, LoopState(**values))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path} is damaged: state.json cannot be read ({error})") from error
    remedy = "resume it with that one, or start another run with --name"
    raise ConfigError(f"{path} is whole, and of another version of sat_slime ({schema}): {remedy}")
