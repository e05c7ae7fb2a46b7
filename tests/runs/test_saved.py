"""The launcher sees which checkpoints of a run of slime are damaged, and goes back to an older one."""

from __future__ import annotations

import shutil

import pytest

from sat_slime.plugin.generation import StreamState, write_queue
from sat_slime.runs.saved import (
    TRACKER,
    delete_old,
    fault,
    fault_of_newest,
    go_back,
    newest_iteration,
    newest_whole,
    numbered,
    queue_folder,
)


def save(checkpoints, iteration, tracked=True):
    """A checkpoint as Megatron, slime and the stream write it. tracked: whether Megatron says that it is whole."""
    folder = checkpoints / f"iter_{iteration - 1:07d}"
    folder.mkdir()
    for name in ("__0_0.distcp", "common.pt", "metadata.json", ".metadata"):
        (folder / name).write_text("{}")
    write_queue(queue_folder(checkpoints, iteration - 1), StreamState())
    (checkpoints / "rollout" / f"global_dataset_state_dict_{iteration - 1}.pt").touch()
    if tracked:
        (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(iteration - 1))


@pytest.fixture
def checkpoints(tmp_path):
    """Checkpoints after two and four iterations."""
    save(tmp_path, 2)
    save(tmp_path, 4)
    return tmp_path


def test_whole_ones_have_no_fault(checkpoints, tmp_path_factory):
    assert fault_of_newest(checkpoints) is None and newest_whole(checkpoints) == 4
    nothing = tmp_path_factory.mktemp("nothing")
    assert fault_of_newest(nothing) is None and newest_whole(nothing) == 0
    shutil.rmtree(queue_folder(checkpoints, 3))  # as in mode batch, or as when the user deletes it
    assert fault_of_newest(checkpoints) is None


@pytest.mark.parametrize(
    ("file", "content", "told", "whole"),
    [
        ("iter_0000003/.metadata", None, "iter_0000003 is damaged: .metadata is missing or empty", 2),
        ("iter_0000003/metadata.json", b"", "metadata.json is missing or empty", 2),
        ("iter_0000003/__0_0.distcp", None, "damaged: *.distcp is missing or empty", 2),
        ("iter_0000003/__0_0.distcp", b"", "__0_0.distcp is missing or empty", 2),
        ("iter_0000003", None, "iter_0000003 is missing or empty", 2),
        ("rollout/queue_3/queue.pt", b"{}", "queue_3 is damaged: queue.pt does not mat", 2),
        ("rollout/queue_3/SHA256SUMS", None, "queue_3 is damaged: SHA256SUMS is missing", 2),
        (TRACKER, None, "iteration.txt is missing or holds no number", 4),
        (TRACKER, b"\xff", "slime would not go on from iter_NNNNNNN", 4),
        (TRACKER, b"8", "iter_0000008 is missing or empty", 4),
    ],
)
def test_what_is_damaged_is_told_and_the_newest_whole_one_found(checkpoints, file, content, told, whole):
    path = checkpoints / file
    shutil.rmtree(path) if path.is_dir() else path.unlink() if content is None else path.write_bytes(content)
    assert told in fault_of_newest(checkpoints) and newest_whole(checkpoints) == whole


def test_going_back_puts_the_newer_ones_aside(checkpoints, monkeypatch):
    (checkpoints / "iter_0000003.aside").mkdir()  # as if from an earlier time
    with monkeypatch.context() as killed, pytest.raises(NameError):
        killed.delattr("sat_slime.runs.saved.write_atomically")  # a kill comes there
        go_back(checkpoints, 2)
    assert list(numbered(checkpoints)) == [2] and "iter_0000003 is missing" in fault_of_newest(checkpoints)
    go_back(checkpoints, 2)
    assert newest_iteration(checkpoints) == 2 and list(numbered(checkpoints)) == [2]
    assert (checkpoints / "iter_0000003.aside" / "common.pt").exists()
    go_back(checkpoints, 0)
    assert newest_iteration(checkpoints) is None and not numbered(checkpoints)
    assert fault_of_newest(checkpoints) is None, "a run from its beginning"


def there(checkpoints):
    """Iterations of the checkpoints, of the positions in the data, and of the stream's queues."""
    names = sorted(path.name for path in (checkpoints / "rollout").iterdir())
    positions = [int(name.split("_")[-1][:-3]) + 1 for name in names if name.startswith("global")]
    queues = [int(name.split("_")[-1]) + 1 for name in names if name.startswith("queue")]
    assert positions == queues and set(numbered(checkpoints)) <= set(positions)
    return list(numbered(checkpoints))


def test_the_newest_are_kept(checkpoints):
    save(checkpoints, 6)
    assert delete_old(checkpoints, 3, range(99)) == [] and there(checkpoints) == [2, 4, 6]
    assert delete_old(checkpoints, 2, range(99)) == [2] and there(checkpoints) == [4, 6]
    assert delete_old(checkpoints, 1, range(99)) == [4] and there(checkpoints) == [6]
    assert delete_old(checkpoints, 1, range(99)) == [] and fault_of_newest(checkpoints) is None


def test_neither_one_that_is_still_written_nor_a_damaged_one_counts(checkpoints):
    """With --async-save the tracker names the one before, which a job would go on from."""
    save(checkpoints, 6, tracked=False)
    assert newest_whole(checkpoints) == 4, "a job from there has rows of its own, and writes over 6 in place"
    assert delete_old(checkpoints, 1, range(99)) == [2] and there(checkpoints) == [4, 6]
    (checkpoints / TRACKER).write_text("5")
    for file in (checkpoints / "iter_0000005").iterdir():
        if file.name != "common.pt":  # which a raylet or a GCS that dies in a save leaves alone
            file.unlink()
    assert "metadata.json is missing or empty" in fault(checkpoints, 6)
    assert delete_old(checkpoints, 1, range(99)) == [] and newest_whole(checkpoints) == 4


def test_nothing_is_deleted_that_is_not_the_runs(checkpoints, tmp_path_factory):
    save(checkpoints, 6)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "weights").touch()
    (checkpoints / "iter_0000001").rename(elsewhere / "iter_0000001")
    (checkpoints / "iter_0000001").symlink_to(elsewhere / "iter_0000001")
    for name in ("iter_0000000.aside", "iter_00000", "release"):
        (checkpoints / name).mkdir()
    assert delete_old(checkpoints, 1, {6}) == [] and there(checkpoints) == [2, 4, 6]
    assert delete_old(checkpoints, 1, {4, 6}) == [4]
    delete_old(checkpoints, 1, range(99))
    assert len(list((elsewhere / "iter_0000001").iterdir())) == 4
    assert {"iter_0000000.aside", "iter_00000", "release"} <= {path.name for path in checkpoints.iterdir()}
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("release")
    assert delete_old(checkpoints, 1, range(99)) == []
