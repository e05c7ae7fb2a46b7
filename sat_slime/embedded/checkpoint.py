"""Checkpoints of a run: a folder that is there in full or not at all.

`checkpoints/iteration-000032/` holds `state.json`, one safetensors file per trainer rank, the broadcast weights that
are still in use (`weights/`) and the batch that was generated ahead (`batch.safetensors`, `batch.json`). It is
written under another name, flushed to the disk and renamed; nothing in it is pickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded.batch import RolloutBatch, training_requests
from sat_slime.rollout.types import Response

_NAME = re.compile(r"iteration-(\d{6,})")


@dataclass(frozen=True)
class LoopState:
    """Where the loop stands between two iterations."""

    iteration: int
    """Iterations trained."""
    updates: int
    """Optimizer updates."""
    weight_versions: list[int]
    """Versions of the broadcast weights still in use; the last is what the engines hold."""
    layout: list[int]
    """Tensor-, expert- and data-parallel sizes, by which the rank files are cut."""


@contextmanager
def writing(checkpoints: Path, state: LoopState) -> Iterator[Path]:
    """A folder to write a checkpoint into; it becomes visible when the block ends, and goes away if it fails."""
    final = checkpoints / f"iteration-{state.iteration:06d}"
    part = checkpoints / f"{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        (part / "state.json").write_text(json.dumps(asdict(state)))
        for path in part.rglob("*"):
            _flush(path)
        _flush(part)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
        _flush(checkpoints)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest(checkpoints: Path) -> Path | None:
    """The newest whole checkpoint."""
    return max(_all(checkpoints), default=None)


def prune(checkpoints: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints and what a killed run left half-written."""
    for old in sorted(_all(checkpoints))[:-keep]:
        shutil.rmtree(old)
    for part in checkpoints.glob("*.part"):
        shutil.rmtree(part, ignore_errors=True)


def _all(checkpoints: Path) -> list[Path]:
    found = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return [path for path in found if _NAME.fullmatch(path.name) and (path / "state.json").is_file()]


def read_state(checkpoint: Path, config: EmbeddedConfig) -> LoopState:
    """The loop's state.

    Raises:
        ValueError: the checkpoint was written with other parallel sizes.
    """
    state = LoopState(**json.loads((checkpoint / "state.json").read_text()))
    if state.layout != parallel_layout(config):
        raise ValueError(
            f"{checkpoint} was written with tensor, expert, data parallel {state.layout}, the config has "
            f"{parallel_layout(config)}: resume with the sizes that it was written with"
        )
    return state


def parallel_layout(config: EmbeddedConfig) -> list[int]:
    """Tensor-, expert- and data-parallel sizes."""
    return [config.train.tensor_parallel, config.train.expert_parallel, config.train.data_parallel]


def write_batch(folder: Path, batch: RolloutBatch) -> None:
    """Saves a generated batch."""
    arrays = {
        "output_ids": np.concatenate([np.asarray(r.output_ids, np.int64) for r in batch.responses]),
        "log_probs": np.concatenate([r.log_probs for r in batch.responses]),
        "lengths": np.array([len(r.output_ids) for r in batch.responses], np.int64),
        "versions": np.array([r.weight_version for r in batch.responses], np.int64),
    }
    if batch.responses[0].routed_experts is not None:
        arrays["routed_experts"] = np.concatenate([r.routed_experts for r in batch.responses])
    if batch.responses[0].distribution is not None:
        arrays["distribution"] = np.concatenate([r.distribution for r in batch.responses])
    save_file(arrays, folder / "batch.safetensors")
    meta = {
        "iteration": batch.iteration,
        "seconds": batch.seconds,
        "faults": batch.faults,
        "finish_reasons": [r.finish_reason for r in batch.responses],
    }
    (folder / "batch.json").write_text(json.dumps(meta))


def read_batch(folder: Path, config: EmbeddedConfig) -> RolloutBatch | None:
    """The batch that was generated ahead, if there was one; its prompts follow from the run's seed."""
    if not (folder / "batch.json").is_file():
        return None
    meta = json.loads((folder / "batch.json").read_text())
    arrays = load_file(folder / "batch.safetensors")
    problems, requests = training_requests(config, meta["iteration"])
    ends = arrays["lengths"].cumsum()
    routed_rows = arrays["lengths"] + np.array([len(request.prompt_ids) - 1 for request in requests])
    routed_ends = routed_rows.cumsum()
    responses = []
    for i, request in enumerate(requests):
        span = slice(ends[i] - arrays["lengths"][i], ends[i])
        routed = None
        if "routed_experts" in arrays:
            routed = arrays["routed_experts"][routed_ends[i] - routed_rows[i] : routed_ends[i]]
        responses.append(
            Response(
                request_id=request.request_id,
                prompt_ids=request.prompt_ids,
                output_ids=tuple(arrays["output_ids"][span].tolist()),
                log_probs=arrays["log_probs"][span],
                routed_experts=routed,
                finish_reason=meta["finish_reasons"][i],
                weight_version=int(arrays["versions"][i]),
                distribution=arrays["distribution"][span] if "distribution" in arrays else None,
            )
        )
    return RolloutBatch(meta["iteration"], problems, responses, meta["seconds"], meta["faults"])
