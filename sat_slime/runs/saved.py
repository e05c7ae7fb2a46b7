"""The checkpoints of a run on disk. Whether those of slime are whole is seen before a job is sent: Megatron's folders
by their form, the stream's by their checksums. slime counts rollouts from 0, so the checkpoint after n iterations is
Megatron's folder iter_{n - 1}. latest_checkpointed_iteration.txt names the one that a job goes on from."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from sat_slime.config.disk import checksum_faults, in_words
from sat_slime.config.jsonl import write_atomically

TRACKER = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"iter_(\d{7})")
_FORM = ("metadata.json", ".metadata")
"""Files without which Megatron cannot read its distributed checkpoints."""


def newest_iteration(folder: Path) -> int | None:
    """Return the iterations in the checkpoint that a job goes on from; 0: converted weights; None: there is none."""
    try:
        text = (folder / TRACKER).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return 0 if text == "release" else int(text) + 1 if text.isdigit() else None


def numbered(checkpoints: Path) -> dict[int, Path]:
    """Return Megatron's folders by the number of iterations that were trained, the oldest first."""
    return {rollout + 1: path for rollout, path in numbered_folders(checkpoints, _FOLDER).items()}


def fault_of_newest(checkpoints: Path) -> str | None:
    """Return what is wrong with the checkpoint that a job would go on from, as of `fault`."""
    if (newest := newest_iteration(checkpoints)) is not None:
        return fault(checkpoints, newest) if newest else None
    # If there is no whole checkpoint, the job before ended in its first save, and it is right to begin again.
    if (checkpoints / TRACKER).exists() or newest_whole(checkpoints):
        return f"{checkpoints / TRACKER} is missing or holds no number, and slime would not go on from iter_NNNNNNN"
    return None


def fault(checkpoints: Path, iteration: int) -> str | None:
    """Return what is wrong with the checkpoint of an iteration, in a line that names the file; None if nothing."""
    folder = checkpoints / f"iter_{iteration - 1:07d}"
    if not folder.is_dir() or not any(folder.iterdir()):
        return f"{folder} is missing or empty"
    shards = sorted(path.name for path in folder.glob("*.distcp"))
    # Megatron's older format has folders of ranks instead. A save that broke off may have left common.pt alone.
    if shards or any((folder / name).exists() for name in _FORM) or not any(folder.glob("mp_rank_*")):
        for name in [*_FORM, *(shards or ["*.distcp"])]:
            if not (folder / name).is_file() or not (folder / name).stat().st_size:
                return f"{folder} is damaged: {name} is missing or empty"
    queue = queue_folder(checkpoints, iteration - 1)
    faults = checksum_faults(queue) if queue.is_dir() else {}
    return f"{queue} is damaged: {in_words(faults)}" if faults else None


def queue_folder(checkpoints: Path, rollout_id: int) -> Path:
    """Return the folder of the stream in a checkpoint; it lies beside slime's own position in the data."""
    return checkpoints / "rollout" / f"queue_{rollout_id}"


def newest_whole(checkpoints: Path) -> int:
    """Return the iteration of the newest checkpoint without a fault; 0 where there is none. One after that from which a
    job goes on does not count: the job has trained these iterations anew, and may have written half over it."""
    newest = newest_iteration(checkpoints)
    return first_whole(checkpoints, (n for n in reversed(numbered(checkpoints)) if n <= (newest or n)))


def first_whole(checkpoints: Path, iterations: Iterable[int]) -> int:
    """Return the first of some iterations whose checkpoint has no fault; 0 where there is none."""
    return next((n for n in iterations if fault(checkpoints, n) is None), 0)


def delete_old(checkpoints: Path, keep: int, ours: Container[int]) -> list[int]:
    """Deletes those of `ours`, checkpoints by their iterations, that are older than the newest `keep` whole ones of
    them, each with its position in the data. Returns their iterations. The newest is the one that
    latest_checkpointed_iteration.txt names: Megatron may still be writing those after it."""
    newest = newest_iteration(checkpoints) or 0
    folders = {n: path for n, path in numbered(checkpoints).items() if n in ours and not path.is_symlink()}
    there = [n for n in reversed(folders) if n <= newest]
    whole = list(itertools.islice((n for n in there if fault(checkpoints, n) is None), keep))
    old = [n for n in there if n < whole[-1]] if len(whole) == keep else []
    for iteration in old:
        folder, queue = folders[iteration], queue_folder(checkpoints, iteration - 1)
        for name in _FORM:  # first what makes it whole, so that what a kill leaves of it is not taken for one
            (folder / name).unlink(missing_ok=True)
        (queue.parent / f"global_dataset_state_dict_{iteration - 1}.pt").unlink(missing_ok=True)
        if queue.is_dir():
            shutil.rmtree(queue)
        shutil.rmtree(folder)
    return old


def go_back(checkpoints: Path, iteration: int) -> None:
    """Makes the checkpoint of an iteration the one that a job goes on from; with 0 the run begins again. Newer
    checkpoints are renamed to NAME.aside."""
    set_aside(numbered(checkpoints), after=iteration)  # first: a kill must leave none that a restart would take
    tracker = checkpoints / TRACKER
    if iteration:
        write_atomically(tracker, str(iteration - 1))
    elif tracker.exists():
        os.replace(tracker, tracker.with_name(f"{TRACKER}.aside"))


def numbered_folders(folder: Path, name: re.Pattern[str]) -> dict[int, Path]:
    """Return the checkpoints in a folder by their number, the oldest first; they may be damaged. name: pattern of a
    checkpoint's name, whose first group is its number."""
    paths = folder.iterdir() if os.path.isdir(folder) else ()
    named = ((name.fullmatch(path.name), path) for path in paths)
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def set_aside(checkpoints: Mapping[int, Path], after: int) -> list[Path]:
    """Renames the checkpoints numbered above `after` to NAME.aside, where no resume finds them; returns these."""
    aside = {path: path.with_name(f"{path.name}.aside") for number, path in checkpoints.items() if number > after}
    for path, new in aside.items():
        shutil.rmtree(new, ignore_errors=True)
        os.replace(path, new)
    return list(aside.values())
