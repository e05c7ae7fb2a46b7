"""The plugin's settings among slime's arguments, those that it refuses, and its hooks in slime's trainer."""

from __future__ import annotations

import io
import logging
import pickle
from argparse import Namespace

import pytest
import torch
from slime_step import make_args

from sat_slime.config import ConfigError
from sat_slime.objective import SAT, Clip, named_method
from sat_slime.plugin import step, train_hooks
from sat_slime.plugin.settings import plugin_method, settle_flags

OF_TRAINER = {"method": {"base": "grpo", "denominator": "trainer"}}


@pytest.mark.parametrize("value", ["sat-gspo", {"method": "sat-gspo"}, {"method": {"base": "gspo", "sat": True}}])
def test_a_method_by_name_or_by_its_switches(value) -> None:
    assert plugin_method(make_args(value)) == named_method("sat-gspo")


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("r3", [False, True])
def test_what_slime_replays_by_its_flags_is_part_of_the_method(r3, top_p) -> None:
    """No formula reads it, and slime replays it whatever the method says."""
    whole = "sat-gspo" + "-r3" * r3 + "-topp" * (top_p < 1)
    for name in ("sat-gspo", whole):
        args = make_args(name, use_rollout_routing_replay=r3, rollout_top_p=top_p)
        assert plugin_method(args) == named_method(whole)


def test_the_radii_are_slimes_flags_where_the_section_has_none() -> None:
    args = make_args("sat-grpo", eps_clip=0.1, eps_clip_high=0.28, eps_clip_c=3.0)
    assert (plugin_method(args).clip, plugin_method(args).sat) == (Clip(0.1, 0.28, dual=3.0), SAT())
    same = make_args({"method": {"base": "grpo", "clip": {"eps_high": 0.28}}}, eps_clip_high=0.28)
    assert (plugin_method(same).clip, plugin_method(same).sat) == (Clip(0.2, 0.28), None)


def test_arguments_that_were_read_are_pickled_without_a_class_of_this_package() -> None:
    """Megatron pickles them into every checkpoint."""
    args = make_args("sat-grpo")
    method = plugin_method(args)
    pickled = pickle.dumps(args)
    assert b"sat_slime.config" not in pickled and b"sat_slime.objective" not in pickled
    assert plugin_method(pickle.loads(pickled)) == method
    torch.save({"args": args}, whole := io.BytesIO())
    with torch.serialization.safe_globals([Namespace]):
        assert plugin_method(torch.load(io.BytesIO(whole.getvalue()), weights_only=True)["args"]) == method


@pytest.mark.parametrize(
    ("value", "changes", "says"),
    [
        (None, {}, "no key 'sat_slime'"),
        ([1], {}, "it is a section with the keys method, driver"),
        ({"method": {"base": "grpo", "clip": {"eps_low": 0.3}}}, {}, "eps_low is 0.3, but slime's --eps-clip is 0.2"),
        ("grpo", {"eps_clip_high": -0.2}, r"--eps-clip-high is -0\.2: set it above 0"),
        ("grpo", {"use_tis": True}, "--use-tis is set"),
        ("sat-gspo-r3", {}, "use_rollout_routing_replay is off"),
        ("m2po", {"global_batch_size": 4}, r"m2po\.scope is step with 2 optimizer steps"),
        ("grpo-decoupled-a3po", {"custom_rollout_log_function_path": None}, "the lag of every token.*log_rollout"),
        ("sat-grpo-tis", {"partial_rollout": True}, "denominator is checkpoint.*several weights.*: leave out"),
        ("grpo-topp", {}, "--rollout-top-p is 1: there is no mask"),
        ("grpo", {"compute_advantages_and_returns": False}, "--disable-compute-advantages-and-returns is set.*: leave"),
    ],
)
def test_faults_are_named(value, changes, says) -> None:
    with pytest.raises(ConfigError, match=says):
        plugin_method(make_args(value, **changes))


@pytest.fixture
def known_slime(monkeypatch):
    monkeypatch.setattr(train_hooks, "probe_slime", lambda **_: [])


def of_a_script(section, **flags):
    """slime's arguments where its own script runs with the plugin's file."""
    return make_args(section, **{"sat_slime_driven": False, "rank": 0, "keep_old_actor": True, **flags})


@pytest.mark.parametrize(
    ("method", "flags", "spared"),
    [
        ("sat-gspo", {}, False),  # the quantile of the step needs log pi of every token first
        ("sat-grpo", {}, True),
        ("gspo", {"global_batch_size": 2}, True),
        ("gspo", {"global_batch_size": None}, True),  # as --debug-rollout-only leaves it
        ("grpo-tis", {}, True),  # the training forward is its own denominator
        ("grpo-tis", {"global_batch_size": 4}, False),
        (OF_TRAINER, {}, True),
        (OF_TRAINER, {"custom_generate_function_path": "own.generate"}, False),  # which need not give log-probs
        ("grpo", {"use_opd": True}, None),  # slime reads what it has, which the script says
        ("grpo", {"kl_coef": 0.1}, None),
        ("grpo", {"log_correct_samples": True}, None),
        ("grpo", {"custom_advantage_function_path": "own.advantages"}, None),
        ("cispo", {"use_rollout_entropy": True}, None),
        ("grpo", {"use_routing_replay": True}, False),  # R2 replays what that pass records
        ("grpo-r3", {"use_routing_replay": True, "use_rollout_routing_replay": True}, True),
    ],
)
@pytest.mark.parametrize("of_the_script", [False, True])
def test_the_pass_before_training_is_made_where_something_reads_it(method, flags, spared, of_the_script):
    args = of_a_script(method, use_rollout_logprobs=of_the_script, **flags)
    settle_flags(args)
    assert args.use_rollout_logprobs is (of_the_script if spared is None else spared)
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
        ({"driver": {"lag": 8}}, {}, "driver is set, and slime's own training script"),
    ],
)
def test_faults_end_the_run_before_the_model_is_built(known_slime, method, flags, says):
    with pytest.raises(ConfigError, match=says) as error:
        train_hooks.install(of_a_script(method, **flags))
    assert len(error.value.errors) == 1


def test_the_threshold_of_the_step_is_taken_from_the_batch(known_slime, monkeypatch):
    args, data = of_a_script("sat-gspo"), {"response_lengths": [3], "num_microbatches": [1]}
    monkeypatch.setattr(step, "step_threshold", lambda args, data, actor: torch.tensor(0.5))
    train_hooks.install(args)
    train_hooks.postprocess(args, 0, data)
    assert step.current().threshold == 0.5 and step.current().steps == 1 and args.keep_old_actor is False


def test_under_our_driver_the_hooks_have_nothing_to_do():
    args = make_args("not a method", sat_slime_driven=True)
    train_hooks.install(args)
    train_hooks.postprocess(args, 0, {})
