"""A stream's groups come back from a checkpoint as they were, whole or not at all, and damage is told in a line."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from sat_slime.config.checksums import write_checksums
from sat_slime.plugin.inside.stream_files import read_queue, write_queue

UNTOLD = {"finished": [3, 9, 9], "dropped": [9], "aborted": 2}
NOTHING = {"finished": [], "dropped": [], "aborted": 0}


@dataclass
class Sample:
    """Stands for slime's sample, with the two methods that the files need."""

    index: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] | None = None
    routes: torch.Tensor | None = None
    reward: float | dict | None = None
    metadata: dict = field(default_factory=dict)

    def to_dict(self):
        return dict(self.__dict__)

    @staticmethod
    def from_dict(data):
        return Sample(**data)


def make_groups():
    metadata = {"cuts": [2, 5], "tools": [{"name": "f", "args": ("a", 1)}], "none": None, "α": "text", "long": "x" * 40}
    generator = torch.Generator().manual_seed(0)
    whole = Sample(
        3,
        list(range(150_000, 150_040)),
        [-0.1 * i - 1e-12 for i in range(40)],
        torch.randint(0, 128, (39, 2, 8), generator=generator).to(torch.uint8)[:, :1],  # a view into a larger tensor
        {"score": 1.0, "parts": [True, False]},
        metadata,
    )
    odd = Sample(
        4, [], [float("-inf")] * 20, torch.zeros(0, 2, 8, dtype=torch.int16), float("nan"), {"array": np.arange(3)}
    )
    return [[whole, odd], [[Sample(5)], [Sample(6), Sample(7)]]], [[Sample(8, metadata={"label": "42"})]]


def equal(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Sample):
        return equal(a.__dict__, b.__dict__)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a == b or (a != a and b != b)


def test_groups_come_back_as_they_were(tmp_path):
    waiting, prompts = make_groups()
    write_queue(tmp_path / "rollout" / "queue_6", waiting, prompts, UNTOLD)
    assert equal(read_queue(tmp_path / "rollout" / "queue_6", Sample), (waiting, prompts, UNTOLD))
    written = sorted(path.name for path in (tmp_path / "rollout").rglob("*"))
    assert written == ["SHA256SUMS", "queue.json", "queue.safetensors", "queue_6"]


def test_an_empty_queue_is_saved_too(tmp_path):
    write_queue(tmp_path / "queue_0", [], [], NOTHING)
    assert read_queue(tmp_path / "queue_0", Sample) == ([], [], NOTHING)


def test_a_later_save_takes_the_place_of_an_earlier_one(tmp_path):
    waiting, prompts = make_groups()
    write_queue(tmp_path / "queue_0", waiting, prompts, UNTOLD)
    write_queue(tmp_path / "queue_0", [], prompts, UNTOLD)
    assert read_queue(tmp_path / "queue_0", Sample)[0] == []


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_what_fails_half_way_leaves_what_was_there(tmp_path, monkeypatch, failing):
    waiting, prompts = make_groups()
    write_queue(tmp_path / "queue_0", waiting, prompts, UNTOLD)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_queue(tmp_path / "queue_1", waiting, prompts, UNTOLD)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["queue_0"]
    assert len(read_queue(tmp_path / "queue_0", Sample)[0]) == 2


def truncate(folder):
    path = folder / "queue.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def flip(folder):
    path = folder / "queue.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def tear(folder):
    path = folder / "queue.json"
    path.write_text(path.read_text()[:-40])


def change_a_reward(folder):
    path = folder / "queue.json"
    assert '"score": 1.0' in path.read_text()
    path.write_text(path.read_text().replace('"score": 1.0', '"score": 3.0'))


def edit(change):
    """A damage that changes queue.json and its checksum with it, as if the file had been written so."""

    def damage(folder):
        meta = json.loads((folder / "queue.json").read_text())
        change(meta)
        (folder / "queue.json").write_text(json.dumps(meta))
        write_checksums(folder)

    return damage


DAMAGE = {
    "cut off": truncate,
    "a bit flipped": flip,
    "torn json": tear,
    "a bit of a number": change_a_reward,
    "no checksums": lambda folder: (folder / "SHA256SUMS").unlink(),
    "garbage for checksums": lambda folder: (folder / "SHA256SUMS").write_bytes(b"\xff" * 99),
    "no tensors": lambda folder: (folder / "queue.safetensors").unlink(),
    "no json": lambda folder: (folder / "queue.json").unlink(),
    "another schema": edit(lambda meta: meta.update(schema="sat_slime.queue/9")),
    "counts of another kind": edit(lambda meta: meta.update(untold={"finished": 5})),
    "a part lacks": edit(lambda meta: meta.pop("prompts")),
    "counts lack": edit(lambda meta: meta.pop("untold")),
    "an unknown kind": edit(lambda meta: meta["waiting"].append([{"code": "import os"}])),
    "a tensor that is not there": edit(lambda meta: meta["waiting"].append([{"numbers": "nowhere"}])),
    "a field that samples lack": edit(lambda meta: meta["prompts"].append([{"sample": {"x": 1}}])),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_told_in_a_line_with_the_remedy(tmp_path, damage):
    write_queue(tmp_path / "queue_6", *make_groups(), UNTOLD)
    damage(tmp_path / "queue_6")
    with pytest.raises(
        ValueError, match=r"queue_6 is damaged \(.+\): go on from an earlier checkpoint .+ or delete the folder"
    ) as error:
        read_queue(tmp_path / "queue_6", Sample)
    assert "\n" not in str(error.value)


def test_what_cannot_be_saved_is_named(tmp_path):
    group = [[Sample(0, metadata={"image": [object()]})]]
    with pytest.raises(TypeError, match=r"waiting\.0\.0\.metadata\.image\.0 of a sample is a object"):
        write_queue(tmp_path / "queue_0", group, [], UNTOLD)
    assert list(tmp_path.iterdir()) == []
