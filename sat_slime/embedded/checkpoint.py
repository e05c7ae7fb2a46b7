"""Checkpoints of a run: a folder that is there in full or not at all.

`checkpoints/iteration-000032/` holds `state.json`, one safetensors file per trainer rank, the broadcast weights that
are still in use (`weights/`) and what was generated ahead: a batch (`batch.safetensors`, `batch.json`) or the queue of
a stream (`queue.safetensors`, `queue.json`). It is written under another name, flushed to the disk and renamed; nothing
in it is pickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded.batch import Group, RolloutBatch, training_group, training_requests
from sat_slime.rollout.types import GenerationRequest, Response

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


@dataclass(frozen=True)
class Untold:
    """What a stream did since its last batch, which the row of the next one is to tell."""

    finished: list[int] = field(default_factory=list)
    """Lengths in tokens of the responses completed."""
    dropped: list[int] = field(default_factory=list)
    """Lengths of those dropped."""
    faults: dict[str, int] = field(default_factory=dict)


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
    save_file(_arrays(batch.responses), folder / "batch.safetensors")
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
    problems, requests = training_requests(config, meta["iteration"])
    responses = _responses(load_file(folder / "batch.safetensors"), requests, meta["finish_reasons"])
    return RolloutBatch(meta["iteration"], problems, responses, meta["seconds"], meta["faults"])


def write_queue(
    folder: Path, groups: Sequence[Group], unfinished: Sequence[int], next_number: int, untold: Untold
) -> None:
    """Saves a stream: its complete groups, the numbers of those in generation, that of the first one not begun, and
    what no row tells yet."""
    responses = [response for group in groups for response in group.responses]
    if responses:
        save_file(_arrays(responses), folder / "queue.safetensors")
    meta = {
        "numbers": [group.number for group in groups],
        "seconds": [group.seconds for group in groups],
        "finish_reasons": [r.finish_reason for r in responses],
        "unfinished": list(unfinished),
        "next": next_number,
        "untold": asdict(untold),
    }
    (folder / "queue.json").write_text(json.dumps(meta))


def read_queue(folder: Path, config: EmbeddedConfig) -> tuple[list[Group], list[int], int, Untold]:
    """What `write_queue` saved; prompts follow from the run's seed."""
    meta = json.loads((folder / "queue.json").read_text())
    asked = [training_group(config, number) for number in meta["numbers"]]
    requests = [request for _, requests in asked for request in requests]
    arrays = load_file(folder / "queue.safetensors") if requests else {}
    responses = _responses(arrays, requests, meta["finish_reasons"])
    size = config.rollout.samples_per_prompt
    groups = [
        Group(number, problem, responses[i * size : (i + 1) * size], seconds)
        for i, (number, (problem, _), seconds) in enumerate(zip(meta["numbers"], asked, meta["seconds"], strict=True))
    ]
    return groups, meta["unfinished"], meta["next"], Untold(**meta.get("untold", {}))


def _arrays(responses: Sequence[Response]) -> dict[str, np.ndarray]:
    arrays = {
        "output_ids": np.concatenate([np.asarray(r.output_ids, np.int64) for r in responses]),
        "log_probs": np.concatenate([r.log_probs for r in responses]),
        "lengths": np.array([len(r.output_ids) for r in responses], np.int64),
        "versions": np.concatenate([r.versions for r in responses]),
    }
    if responses[0].routed_experts is not None:
        arrays["routed_experts"] = np.concatenate([r.routed_experts for r in responses])
    if responses[0].distribution is not None:
        arrays["distribution"] = np.concatenate([r.distribution for r in responses])
    return arrays


def _responses(
    arrays: dict[str, np.ndarray], requests: Sequence[GenerationRequest], finish_reasons: Sequence[Any]
) -> list[Response]:
    if not requests:
        return []
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
                finish_reason=finish_reasons[i],
                versions=arrays["versions"][span],
                distribution=arrays["distribution"][span] if "distribution" in arrays else None,
            )
        )
    return responses
