"""Checkpoints of a run: a folder that is there in full or not at all, with a checksum for every file.

`checkpoints/iteration-000032/` holds `state.json`, one safetensors file per trainer rank, the broadcast weights that
are still in use (`weights/`), what was generated ahead: a batch (`batch.safetensors`, `batch.json`) or the queue of
a stream (`queue.safetensors`, `queue.json`), and `SHA256SUMS`. It is written under another name, flushed to the disk
and renamed; nothing in it is pickled. What reads a checkpoint takes it from `verified`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sat_slime.config.checksums import NAME as CHECKSUMS
from sat_slime.config.checksums import checksum_faults, in_words, remove_at_once, sha256, written_whole
from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded.rollout_batch import Group, RolloutBatch, training_group, training_requests
from sat_slime.rollout.types import GenerationRequest, Response

SCHEMA = "sat_slime.checkpoint/1"
"""The format's name in state.json. A checkpoint without it is of an earlier version, which wrote no checksums."""
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
    layout: list[int]
    """Tensor-, expert- and data-parallel sizes, by which the rank files are cut."""
    initial: dict[str, str] = field(default_factory=dict)
    """Checksums of the initial model's files, by name; it is the reference of the KL. Earlier versions wrote none."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are what was saved: made by `verified` alone."""

    path: Path
    state: LoopState
    has_checksums: bool
    """False for a checkpoint of an earlier version: all that is known of it is that its files can be read."""


@dataclass(frozen=True)
class Untold:
    """The events of a stream since its last batch, which the row of the next batch reports."""

    finished: list[int] = field(default_factory=list)
    """Lengths in tokens of the responses completed."""
    dropped: list[int] = field(default_factory=list)
    """Lengths in tokens of the responses dropped."""
    faults: dict[str, int] = field(default_factory=dict)


@contextmanager
def writing(checkpoints: Path, state: LoopState) -> Iterator[Path]:
    """A folder to write a checkpoint into; it becomes visible when the block ends, and goes away if it fails."""
    final = checkpoints / f"iteration-{state.iteration:06d}"
    with written_whole(final) as part:
        yield part
        (part / "state.json").write_text(json.dumps({"schema": SCHEMA, **asdict(state)}))


def numbered(checkpoints: Path) -> dict[int, Path]:
    """All checkpoints by their iteration, oldest first; `verified` says whether they are whole."""
    paths = checkpoints.iterdir() if checkpoints.is_dir() else ()
    named = ((_NAME.fullmatch(path.name), path) for path in paths)
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def newest(checkpoints: Path) -> Path | None:
    """The newest checkpoint, which may be damaged."""
    return next(reversed(numbered(checkpoints).values()), None)


def newest_whole(checkpoints: Path) -> Checkpoint | None:
    """The newest checkpoint that is not damaged."""
    return first_whole(reversed(numbered(checkpoints).values()))


def first_whole(paths: Iterable[Path]) -> Checkpoint | None:
    """The first of some checkpoints that is not damaged."""
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
    aside = {path: path.with_name(f"{path.name}.aside") for n, path in numbered(checkpoints).items() if n > after}
    for path, new in aside.items():
        shutil.rmtree(new, ignore_errors=True)
        os.replace(path, new)
    return list(aside.values())


# ------------------------------------------------------------------------------------------------------- verification


def verified(path: Path) -> Checkpoint:
    """The checkpoint, once every file of it was held against its checksum.

    Raises:
        DamagedCheckpoint: names the files that are not what was saved.
    """
    has_checksums = check_files(path)
    return Checkpoint(path, _read_state(path), has_checksums)


def check_files(path: Path, below: str = "") -> bool:
    """Holds files of a checkpoint against their checksums. An earlier version's have none, and are only read.

    Args:
        below: look only at files whose names in the checkpoint begin so.

    Returns:
        Whether it has checksums.

    Raises:
        DamagedCheckpoint: names the files that are not what was saved.
    """
    faults = checksum_faults(path, below)
    has_checksums = not (CHECKSUMS in faults and _is_of_earlier_version(path))
    if not has_checksums:
        faults = _form_faults(path, below)
    if faults:
        raise DamagedCheckpoint(path, faults)
    return has_checksums


def _is_of_earlier_version(path: Path) -> bool:
    if (path / CHECKSUMS).exists():
        return False
    try:
        return "schema" not in json.loads((path / "state.json").read_text())
    except (OSError, ValueError, TypeError):
        return True  # `_form_faults` will name it


def _form_faults(path: Path, below: str) -> dict[str, str]:
    """Files that a checkpoint without checksums lacks, or that cannot be read."""
    try:
        state = _read_state(path)
    except DamagedCheckpoint:
        return {"state.json": "is missing" if not (path / "state.json").exists() else "cannot be read"}
    tensor, _, data = state.layout
    wanted = {f"rank-{rank}.safetensors" for rank in range(tensor * data)}
    for version in state.weight_versions:
        wanted |= {f"weights/v{version:06d}/{name}" for name in ("config.json", "model.safetensors")}
    wanted |= {"batch.safetensors"} if (path / "batch.json").exists() else set()
    there = {str(file.relative_to(path)) for file in path.rglob("*") if file.suffix in (".json", ".safetensors")}
    names = sorted(name for name in wanted | there if name.startswith(below))
    return {name: fault for name in names if (fault := _form_fault(path / name))}


def _form_fault(path: Path) -> str | None:
    if not path.is_file():
        return "is missing"
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        else:
            with safe_open(path, framework="np"):  # reads the header, which tells how long the file is
                pass
    except Exception as error:  # safetensors has an error type of its own
        return f"cannot be read ({error})"
    return None


def _read_state(path: Path) -> LoopState:
    try:
        values = json.loads((path / "state.json").read_text())
        values.pop("schema", None)
        state = LoopState(**values)
        if not state.weight_versions or len(state.layout) != 3:
            raise ValueError("no weights or no sizes")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(path, {"state.json": f"cannot be read ({error})"}) from error
    return state


def check_layout(saved: Checkpoint, config: EmbeddedConfig) -> None:
    """Raises ValueError for a checkpoint that was written with other parallel sizes."""
    if saved.state.layout != parallel_layout(config):
        raise ValueError(
            f"{saved.path} was written with tensor, expert, data parallel {saved.state.layout}, the config has "
            f"{parallel_layout(config)}: resume with the sizes that it was written with"
        )


def model_checksums(initial: Path) -> dict[str, str]:
    """Checksums of the initial model's files, for `LoopState.initial`."""
    return {name: sha256(initial / name) for name in ("config.json", "model.safetensors")}


def initial_faults(saved: Checkpoint, model: Path) -> dict[str, str]:
    """Finds what tells a model from the one that the run began with, by file; empty: no difference is known."""
    faults = {}
    for name, checksum in saved.state.initial.items():
        try:
            if sha256(model / name) != checksum:
                faults[name] = "is not what the run began with"
        except OSError as error:
            faults[name] = f"cannot be read ({error.strerror or error})"
    return faults


def check_initial(saved: Checkpoint, initial: Path) -> None:
    """Raises DamagedCheckpoint where the run's initial model is not the one that it began with."""
    if faults := initial_faults(saved, initial):
        raise DamagedCheckpoint(initial, faults)


def lost_initial(initial: Path, cached: Path) -> str:
    """The error, with its remedy, of a run that has lost its initial model while the cache has another one."""
    return (
        f"the reference model that this run began with is lost: {cached} holds another one; put the old one back into "
        f"{initial}, or start another run (--name X)"
    )


def parallel_layout(config: EmbeddedConfig) -> list[int]:
    """Tensor-, expert- and data-parallel sizes."""
    return [config.train.tensor_parallel, config.train.expert_parallel, config.train.data_parallel]


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


def read_batch(folder: Path, config: EmbeddedConfig) -> RolloutBatch | None:
    """The batch that was generated ahead, if there was one; its prompts follow from the run's seed."""
    if not (folder / "batch.json").is_file():
        return None
    meta = json.loads((folder / "batch.json").read_text())
    problems, requests = training_requests(config, meta["iteration"])
    responses = _responses(load_file(folder / "batch.safetensors"), requests, meta["finish_reasons"])
    return RolloutBatch(config.task, meta["iteration"], problems, responses, meta["seconds"], meta["faults"])


def write_queue(
    folder: Path, groups: Sequence[Group], unfinished: Sequence[int], next_number: int, untold: Untold
) -> None:
    """Saves a stream.

    Args:
        groups: the complete groups.
        unfinished: numbers of the groups in generation.
        next_number: number of the first group that was not begun.
        untold: what no row has told yet.
    """
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
    """Reads what `write_queue` saved; prompts follow from the run's seed."""
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
