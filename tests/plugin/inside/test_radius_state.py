"""The state of the clip radii in slime's trainer: what advances it, and what keeps it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from slime_step import make_args

from sat_slime.objective import named_method
from sat_slime.objective.stabilizers.clips.anneal import Anneal
from sat_slime.plugin.inside import radius_state
from sat_slime.plugin.inside.radius_state import FILE, RadiusState
from sat_slime.plugin.inside.trainer_state import TrainerState, prepare

METHOD = named_method("grpo-target-clip")
CLIPPED = {"lag/max": 4.0, "clip/fraction": 0.9}
"""Metrics of a step that clipped too much, so that the radii grow."""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(radius_state, "_is_writer", lambda: True)


@pytest.fixture
def args(tmp_path):
    args = make_args("grpo-target-clip")
    args.save = args.load = str(tmp_path)
    return args


def test_a_method_without_such_radii_has_no_state(args, tmp_path):
    for state in (RadiusState(), RadiusState(named_method("sat-grpo"))):
        assert state.end_step(CLIPPED) == {}
        state.save(args, 3)
        state.load(args, 3)
        assert state.scale == 1.0 and not list(tmp_path.iterdir())


def test_each_step_moves_the_radii_but_one_at_lag_0_or_without_a_response():
    state = RadiusState(METHOD)
    for measured in ({"lag/max": 0.0, "clip/fraction": 0.9}, {}):
        state.end_step(measured)
        assert state.scale == 1.0
    share = METHOD.radius_control.share
    assert state.end_step(CLIPPED)["target_clip/share"] == pytest.approx(share + (0.9 - share) / 8)
    assert state.scale > 1.0


def test_a_checkpoint_restores_the_state_to_the_bit(args, tmp_path):
    state = RadiusState(METHOD)
    for _ in range(3):
        state.end_step(CLIPPED)
    state.save(args, 31)
    assert [file.name for file in (tmp_path / "iter_0000031").iterdir()] == [FILE]
    resumed = RadiusState(METHOD)
    resumed.load(args, 31)
    assert (resumed.scale, resumed.end_step(CLIPPED)) == (state.scale, state.end_step(CLIPPED))
    assert resumed.scale == state.scale


def test_a_checkpoint_of_another_method_is_refused(args):
    with pytest.raises(RuntimeError, match=r"iter_0000007/sat_slime_radius.json is missing: .*grpo-target-clip"):
        RadiusState(METHOD).load(args, 7)


def test_one_rank_writes(args, tmp_path, monkeypatch):
    monkeypatch.setattr(radius_state, "_is_writer", lambda: False)
    RadiusState(METHOD).save(args, 3)
    assert not list(tmp_path.iterdir())


def test_the_trainer_measures_what_the_radii_follow():
    state = TrainerState()
    prepare(make_args("grpo-anneal"), state, lambda *_, **__: None)
    state.radius = RadiusState(replace(METHOD, stabilizers=(METHOD.base, Anneal(from_lag=1.0))))
    for entropy in (2.0, 0.5):
        state.set_step_facts({"lag/max": 1.0})
        state.end_step(None, entropy=entropy)
    assert state.radius.scale == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["grpo-target-clip", "sat-gspo-kl-budget", "grpo-anneal"])
def test_a_batch_of_unknown_lag_is_refused(name):
    with pytest.raises(RuntimeError, match="needs the lags of the responses"):
        TrainerState().scored(make_args(name), 0, {"response_lengths": [2]}, None)
