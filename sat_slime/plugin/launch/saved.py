"""Checks whether checkpoints of a run of slime are whole, before a job is sent: Megatron's folders by their form, the
stream's by their checksums.

slime counts rollouts from 0, so the checkpoint after n iterations is Megatron's folder iter_{n - 1}.
latest_checkpointed_iteration.txt names the one that a job goes on from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from sat_slime.config.checksums import NAME as CHECKSUMS
from sat_slime.config.checksums import checksum_faults, in_words
from sat_slime.config.jsonl import write_atomically
from sat_slime.plugin.inside.stream_files import queue_folder
from sat_slime.plugin.launch.machine import newest_iteration

TRACKER = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"iter_(\d{7})")
_FORM = ("metadata.json", ".metadata")
"""Files without which Megatron cannot read its distributed checkpoints."""


def numbered(checkpoints: Path) -> dict[int, Path]:
    """Megatron's folders by the number of iterations that were trained, the oldest first."""
    found = checkpoints.iterdir() if checkpoints.is_dir() else ()
    named = ((_FOLDER.fullmatch(path.name), path) for path in found)
    return dict(sorted((int(match[1]) + 1, path) for match, path in named if match))


def fault_of_newest(checkpoints: Path) -> str | None:
    """What is wrong with the checkpoint that a job would go on from, in a line that names the file; None if nothing."""
    newest = newest_iteration(checkpoints)
    if newest is not None:
        return fault(checkpoints, int(newest) + 1) if newest.isdigit() else None
    # If there is no whole checkpoint, the job before ended in its first save, and it is right to begin again.
    if (checkpoints / TRACKER).exists() or newest_whole(checkpoints):
        return f"{checkpoints / TRACKER} is missing or holds no number, and slime would not go on from iter_NNNNNNN"
    return None


def fault(checkpoints: Path, iteration: int) -> str | None:
    """What is wrong with the checkpoint of an iteration, in a line that names the file; None if nothing."""
    folder = checkpoints / f"iter_{iteration - 1:07d}"
    if not folder.is_dir() or not any(folder.iterdir()):
        return f"{folder} is missing or empty"
    shards = sorted(path.name for path in folder.glob("*.distcp"))
    if shards or any((folder / name).exists() for name in _FORM):  # Megatron's older format has none of these
        for name in [*_FORM, *(shards or ["*.distcp"])]:
            if not (folder / name).is_file() or not (folder / name).stat().st_size:
                return f"{folder} is damaged: {name} is missing or empty"
    return _queue_fault(queue_folder(checkpoints, iteration - 1))


def _queue_fault(queue: Path) -> str | None:
    if not queue.is_dir() or _is_of_earlier_version(queue):
        return None
    faults = checksum_faults(queue)
    return f"{queue} is damaged: {in_words(faults)}" if faults else None


def _is_of_earlier_version(queue: Path) -> bool:
    """Whether an earlier version of this package wrote the queue: it has only a checksum of the tensors, in queue.json,
    which the job checks."""
    try:
        return not (queue / CHECKSUMS).exists() and "sha256" in json.loads((queue / "queue.json").read_text())
    except (OSError, ValueError):
        return False


def newest_whole(checkpoints: Path) -> int:
    """The iteration of the newest checkpoint without a fault; 0 where there is none."""
    return first_whole(checkpoints, reversed(numbered(checkpoints)))


def first_whole(checkpoints: Path, iterations: Iterable[int]) -> int:
    """The first of some iterations whose checkpoint has no fault; 0 where there is none."""
    return next((n for n in iterations if fault(checkpoints, n) is None), 0)


def go_back(checkpoints: Path, iteration: int) -> None:
    """Makes the checkpoint of an iteration the one that a job goes on from; with 0 the run begins again. Newer
    checkpoints are renamed to NAME.aside."""
    tracker = checkpoints / TRACKER
    if iteration:
        write_atomically(tracker, str(iteration - 1))
    elif tracker.exists():
        os.replace(tracker, tracker.with_name(f"{TRACKER}.aside"))
    for number, path in numbered(checkpoints).items():
        if number > iteration:
            aside = path.with_name(f"{path.name}.aside")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(path, aside)
