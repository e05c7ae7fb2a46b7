"""Runs that are disturbed at random end as undisturbed ones do: a short campaign of chaos.py. Every day the kills of
lab/test_loop.py and grid/test_grid_engine.py are enough."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("psutil", reason="the lab runtime needs the engines: scripts/setup.sh")
import chaos

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]


def test_a_run_that_is_disturbed_twice_is_the_undisturbed_one(tmp_path, model_cache):
    (tmp_path / "cache").symlink_to(model_cache)
    done, faults = chaos.campaign(tmp_path, ["batch"], disturbances=2, seed=0)
    assert not faults
    assert chaos.counted(done) == 2 and not any(one.faults for one in done)
    assert len(chaos.table(done).splitlines()) == 2 + len({(one.victim, one.signal) for one in done})
