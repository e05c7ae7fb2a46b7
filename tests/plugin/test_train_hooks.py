"""The hooks of the plugin's file in slime's trainer: what `install` judges and sets, what `postprocess` takes."""

from __future__ import annotations

import logging

import pytest
import torch
from slime_step import make_args

from sat_slime.config import ConfigError
from sat_slime.plugin import step, train_hooks


@pytest.fixture
def known_slime(monkeypatch):
    monkeypatch.setattr(train_hooks, "probe_slime", lambda: [])


def of_a_script(section, **flags):
    """slime's arguments where its own script runs with the plugin's file."""
    return make_args(section, **{"sat_slime_driven": False, "rank": 0, "keep_old_actor": True, **flags})


@pytest.mark.parametrize(
    ("method", "steps", "spared"),
    [
        ("sat-gspo", 1, False),  # the quantile of the step needs log pi of every token first
        ("sat-grpo", 1, True),
        ("gspo", 4, True),
        ("grpo-tis", 1, True),  # the training forward is its own denominator
        ("grpo-tis", 2, False),
    ],
)
@pytest.mark.parametrize("of_the_script", [False, True])
def test_the_pass_before_training_follows_from_the_method_whatever_the_script_says(
    known_slime, method, steps, spared, of_the_script
):
    args = of_a_script(method, use_rollout_logprobs=of_the_script, global_batch_size=8 // steps)
    train_hooks.install(args)
    assert args.use_rollout_logprobs is spared
    assert args.keep_old_actor is False, "slime would score a batch by that copy"


def test_one_line_of_one_rank_says_what_is_on(known_slime, caplog):
    caplog.set_level(logging.INFO)
    for rank in (0, 1):
        train_hooks.install(of_a_script("sat-gspo", rank=rank))
    line = "SAT-GSPO is on: method sat-gspo, threshold over the step, denominator rollout"
    assert [record.getMessage() for record in caplog.records] == [f"sat_slime: {line}"]


@pytest.mark.parametrize(
    ("method", "flags", "says"),
    [
        ("sat-gspo", {"global_batch_size": 2}, "scope is step with 4 optimizer steps"),
        ("sat-gspo-r3", {"use_rollout_routing_replay": True, "num_experts": None}, "no experts.*method: sat-gspo}"),
        ("sat-gspo-tis", {}, "over the weights that generated each batch.*plugin.driver"),
        ("grpo-decoupled-a3po", {}, "the lag of every token.*plugin.driver"),
    ],
)
def test_faults_end_the_run_before_the_model_is_built(known_slime, method, flags, says):
    """Others are in test_settings.py."""
    with pytest.raises(ConfigError, match=says) as error:
        train_hooks.install(of_a_script(method, **flags))
    assert len(error.value.errors) == 1


def test_the_threshold_of_the_step_is_taken_from_the_batch(known_slime, monkeypatch):
    args, data = of_a_script("sat-gspo"), {"response_lengths": [3], "num_microbatches": [1]}
    monkeypatch.setattr(step, "step_threshold", lambda args, data, actor: torch.tensor(0.5))
    train_hooks.install(args)
    train_hooks.postprocess(args, 0, data)
    assert step.current().threshold == 0.5 and step.current().steps == 1


def test_under_our_driver_the_hooks_have_nothing_to_do():
    args = make_args("not a method", sat_slime_driven=True)
    train_hooks.install(args)
    train_hooks.postprocess(args, 0, {})
