"""Checkpoints: whole or absent."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from pathlib import Path
from unittest import mock

import pytest

from sat_slime.config import ConfigError, disk
from sat_slime.config.disk import write_checksums
from sat_slime.lab import checkpoint
from sat_slime.lab.checkpoint import DamagedCheckpoint, LoopState

STATE = LoopState(iteration=3, updates=3, weight_versions=[0, 2])


def write(folder, iteration: int) -> None:
    with checkpoint.writing(folder, dataclasses.replace(STATE, iteration=iteration)) as part:
        (part / "trainer.safetensors").write_bytes(b"x")


def test_the_newest_whole_one_counts_and_old_ones_go(tmp_path, monkeypatch):
    assert checkpoint.newest(tmp_path / "none") is None
    for iteration in (3, 10, 200, 1_000_000):
        write(tmp_path, iteration)
    write(tmp_path, 999_999)
    (tmp_path / "iteration-000201.part").mkdir()
    (tmp_path / "iteration-2000000.aside").mkdir()
    assert list(checkpoint.numbered(tmp_path)) == [3, 10, 200, 999_999, 1_000_000]
    assert checkpoint.newest(tmp_path).name == "iteration-1000000"
    with monkeypatch.context() as nfs:  # where a file that is still open stays, by another name
        nfs.setattr(os, "rmdir", mock.Mock(side_effect=OSError(39, "Directory not empty")))
        checkpoint.prune(tmp_path, keep=2)
    checkpoint.prune(tmp_path, keep=2)
    kept = ["iteration-1000000", "iteration-2000000.aside", "iteration-999999"]
    assert sorted(p.name for p in tmp_path.iterdir()) == kept


def test_a_process_that_dies_while_it_saves_leaves_the_checkpoint_before(tmp_path):
    """The process, a fork of this one, dies at each of the calls that make a checkpoint out of files."""
    points = [("write_checksums", 0), *(("fsync", n) for n in range(6)), ("replace", 0)]
    for place, (deadly, count) in enumerate(points):
        folder = tmp_path / str(place)
        write(folder, 3)
        if (pid := os.fork()) == 0:
            try:
                saves_and_dies(folder, deadly, count)
            finally:  # whatever happens, this process runs no test
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == (0 if (deadly, count) == ("fsync", 5) else 9), (deadly, count)
        whole = checkpoint.verified(checkpoint.newest(folder))  # no name of a checkpoint before it is whole
        assert whole.state.iteration == (6 if deadly == "fsync" and count > 3 else 3)
        write(folder, 7)
        checkpoint.prune(folder, keep=1)
        assert [path.name for path in folder.iterdir()] == ["iteration-000007"]


def saves_and_dies(folder: Path, deadly: str, count: int) -> None:
    """Saves another checkpoint, and ends this process with 9 at the call of `deadly` after so many, else with 0."""
    module = disk if hasattr(disk, deadly) else os
    call, calls = getattr(module, deadly), itertools.count()

    def dying(*arguments, **keywords):
        if next(calls) == count:
            os._exit(9)
        return call(*arguments, **keywords)

    setattr(module, deadly, dying)
    write(folder, 6)
    os._exit(0)


def test_a_garbage_state_with_a_right_checksum_is_still_an_error_and_one_of_another_version_is_not_damaged(tmp_path):
    write(tmp_path, 3)
    folder = tmp_path / "iteration-000003"
    state = json.loads((folder / "state.json").read_text()) | {"schema": "sat_slime.checkpoint/1"}
    for text in ("[]", "{}", '{"iteration": 1}', '{"schema": "sat_slime.checkpoint/7", "iteration": 1}', "x"):
        (folder / "state.json").write_text(text)
        write_checksums(folder)
        with pytest.raises(DamagedCheckpoint, match=r"state.json cannot be read"):
            checkpoint.verified(folder)
    (folder / "state.json").write_text(json.dumps(state))
    write_checksums(folder)
    with pytest.raises(ConfigError, match=r"000003 is whole, and of another version of sat_slime \(.*/1\): resume it"):
        checkpoint.verified(folder)
