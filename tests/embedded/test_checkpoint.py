"""Checkpoints: whole or absent, and a batch that comes back as it was."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_batch import CONFIG, make_batch

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded import checkpoint
from sat_slime.embedded.checkpoint import LoopState

STATE = LoopState(iteration=3, updates=3, weight_versions=[0, 2], layout=[1, 1, 1])


def write(folder, iteration: int) -> None:
    with checkpoint.writing(folder, dataclasses.replace(STATE, iteration=iteration)) as part:
        (part / "rank-0.safetensors").write_bytes(b"x")


def test_the_newest_whole_one_counts_and_old_ones_go(tmp_path):
    assert checkpoint.newest(tmp_path / "none") is None
    for iteration in (3, 10, 200, 1_000_000):
        write(tmp_path, iteration)
    (tmp_path / "iteration-000201.part").mkdir()
    (tmp_path / "iteration-000202").mkdir()  # no state: not a checkpoint
    assert checkpoint.newest(tmp_path).name == "iteration-1000000"
    checkpoint.prune(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iteration-000200", "iteration-000202", "iteration-1000000"]


def test_a_failed_write_leaves_the_previous_one(tmp_path):
    write(tmp_path, 3)
    with pytest.raises(OSError, match="disk"), checkpoint.writing(tmp_path, STATE) as part:
        (part / "half").write_bytes(b"x")
        raise OSError("disk full")
    assert [p.name for p in tmp_path.iterdir()] == ["iteration-000003"]
    assert (tmp_path / "iteration-000003" / "rank-0.safetensors").read_bytes() == b"x"


def test_state_comes_back_and_other_parallel_sizes_are_refused(tmp_path):
    write(tmp_path, 3)
    folder = checkpoint.newest(tmp_path)
    assert checkpoint.read_state(folder, EmbeddedConfig()) == STATE
    with pytest.raises(ValueError, match=r"\[1, 1, 1\], the config has \[2, 1, 1\]"):
        checkpoint.read_state(folder, EmbeddedConfig(train={"tensor_parallel": 2}))


@pytest.mark.parametrize("routed", [True, False], ids=["moe", "dense, with distributions"])
def test_a_batch_comes_back_as_it_was(routed, tmp_path):
    batch = make_batch(["14$", "08,10,14$", "1$"] * 3 + ["2,3"] * 3, version=5)
    if not routed:
        plain = [
            dataclasses.replace(
                r, routed_experts=None, distribution=np.full((len(r.output_ids), 16), i, dtype=np.float32)
            )
            for i, r in enumerate(batch.responses)
        ]
        batch = dataclasses.replace(batch, responses=plain)
    assert checkpoint.read_batch(tmp_path, CONFIG) is None
    checkpoint.write_batch(tmp_path, batch)
    again = checkpoint.read_batch(tmp_path, CONFIG)
    assert (again.iteration, again.problems, again.seconds, again.faults) == (0, batch.problems, 1.5, {"rejected": 2})
    for ours, theirs in zip(again.responses, batch.responses, strict=True):
        for field in dataclasses.fields(ours):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
            else:
                assert a == b


def test_a_response_of_several_versions_comes_back_as_it_was(tmp_path):
    batch = make_batch(["08,10,14$"] * 12)
    mixed = [dataclasses.replace(r, versions=np.arange(9) // 4 + i) for i, r in enumerate(batch.responses)]
    checkpoint.write_batch(tmp_path, dataclasses.replace(batch, responses=mixed))
    again = checkpoint.read_batch(tmp_path, CONFIG).responses
    assert [r.versions.tolist() for r in again] == [r.versions.tolist() for r in mixed]
