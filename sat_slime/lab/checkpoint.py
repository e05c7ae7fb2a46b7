"""Checkpoints of a run: a folder that is there in full or not at all, with a checksum for every file.

`checkpoints/iteration-000032/` holds `state.json`, the trainer's `trainer.safetensors`, the broadcast weights that
are still in use (`weights/`), what was generated ahead: a batch (`batch.safetensors`, `batch.json`) or the queue of
a stream (`queue.safetensors`, `queue.json`), and `SHA256SUMS`. It is written under another name, flushed to the disk
and renamed; nothing in it is pickled. What reads a checkpoint takes it from `verified`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import sat_slime
from sat_slime.config.checksums import checksum_faults, in_words, remove_at_once, written_whole
from sat_slime.config.schema import LabConfig
from sat_slime.config.section import kept_settings
from sat_slime.lab.batch import RolloutBatch, training_group, training_requests
from sat_slime.rollout.stream import Group, StreamState
from sat_slime.rollout.types import GenerationRequest, Response
from sat_slime.runs import saved as runs

SCHEMA = "sat_slime.checkpoint/4"
"""The format's name in state.json."""
_NAME = re.compile(r"iteration-(\d{6,})")


class DamagedCheckpoint(ValueError):
    """Files of a checkpoint are not what was saved; the message is a line that names them."""

    def __init__(self, path: Path, faults: Mapping[str, str]) -> None:
        """faults: what is wrong with each file, by its name in the checkpoint."""
        super().__init__(f"{path} is damaged: {in_words(faults)}")


@dataclass(frozen=True)
class LoopState:
    """The state of the loop between two iterations."""

    iteration: int
    """Iterations trained."""
    updates: int
    """Optimizer updates."""
    weight_versions: list[int]
    """Versions of the broadcast weights still in use; the last is what the engines hold."""
    initial: dict[str, str] = field(default_factory=dict)
    """Checksums of the initial model's files, by name; it is the reference of the KL."""
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


def newest_whole(checkpoints: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is not damaged."""
    return first_whole(reversed(numbered(checkpoints).values()))


def first_whole(paths: Iterable[Path]) -> Checkpoint | None:
    """Return the first of some checkpoints that is not damaged."""
    for path in paths:
        try:
            return verified(path)
        except DamagedCheckpoint:
            continue
    return None


def prune(checkpoints: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints and what a killed run left half-written."""
    for old in list(numbered(checkpoints).values())[:-keep]:
        remove_at_once(old)
    for part in checkpoints.glob("*.part"):
        shutil.rmtree(part, ignore_errors=True)


def set_aside(checkpoints: Path, after: int) -> list[Path]:
    """Renames checkpoints newer than iteration `after` to NAME.aside, where no resume takes them for the run's own;
    returns the new names."""
    return runs.set_aside(numbered(checkpoints), after)


# ------------------------------------------------------------------------------------------------------- verification


def verified(path: Path) -> Checkpoint:
    """Return the checkpoint, once every file of it was held against its checksum.

    Raises:
        DamagedCheckpoint: names the files that are not what was saved.
    """
    if faults := checksum_faults(path):
        raise DamagedCheckpoint(path, faults)
    try:
        values = json.loads((path / "state.json").read_text())
        if (schema := values.pop("schema")) != SCHEMA:
            raise ValueError(f"its schema is {schema}, not {SCHEMA}")
        state = LoopState(**values)
        if not state.weight_versions:
            raise ValueError("no weights")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(path, {"state.json": f"cannot be read ({error})"}) from error
    return Checkpoint(path, state)


# ------------------------------------------------------------------------------------------- what was generated ahead


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


def read_batch(folder: Path, config: LabConfig) -> RolloutBatch | None:
    """Return the batch that was generated ahead, if there was one; its prompts follow from the run's seed."""
    if not (folder / "batch.json").is_file():
        return None
    meta = json.loads((folder / "batch.json").read_text())
    problems, requests = training_requests(config, meta["iteration"])
    responses = _responses(load_file(folder / "batch.safetensors"), requests, meta["finish_reasons"])
    return RolloutBatch(config.task, meta["iteration"], problems, responses, meta["seconds"], meta["faults"])


def write_queue(folder: Path, state: StreamState[int, RolloutBatch], faults: Mapping[str, int]) -> None:
    """Saves a stream. faults: counts of what went wrong that no row has reported yet."""
    groups = [group.result for group in state.waiting if group.result is not None]
    responses = [response for group in groups for response in group.responses]
    if responses:
        save_file(_arrays(responses), folder / "queue.safetensors")
    meta = {
        "numbers": [group.iteration for group in groups],
        "seconds": [group.seconds for group in groups],
        "finish_reasons": [r.finish_reason for r in responses],
        "unfinished": state.unfinished,
        "next": state.drawn,
        "untold": {
            "finished": state.finished,
            "dropped": state.dropped,
            "aborted": state.aborted,
            "faults": dict(faults),
        },
    }
    (folder / "queue.json").write_text(json.dumps(meta))


def read_queue(folder: Path, config: LabConfig) -> tuple[StreamState[int, RolloutBatch], dict[str, int]]:
    """Reads what `write_queue` saved; prompts follow from the run's seed."""
    meta = json.loads((folder / "queue.json").read_text())
    prompts = [training_group(config, number) for number in meta["numbers"]]
    requests = [request for _, requests in prompts for request in requests]
    arrays = load_file(folder / "queue.safetensors") if requests else {}
    responses = _responses(arrays, requests, meta["finish_reasons"])
    size, waiting = config.rollout.samples_per_prompt, []
    for i, (number, (problem, _), seconds) in enumerate(zip(meta["numbers"], prompts, meta["seconds"], strict=True)):
        batch = RolloutBatch(config.task, number, [problem], responses[i * size : (i + 1) * size], seconds)
        lengths = batch.lengths.ravel().tolist()
        waiting.append(Group(number, 1, result=batch, oldest=batch.oldest, lengths=lengths))
    unreported = meta["untold"]
    faults = unreported.pop("faults")
    return StreamState(waiting, meta["unfinished"], meta["next"], **unreported), faults


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
