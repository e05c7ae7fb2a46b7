"""The plugin's settings among slime's arguments, and those that it refuses."""

from __future__ import annotations

import pickle

import pytest
from slime_step import make_args

from sat_slime.config import ConfigError
from sat_slime.objective import SAT, Clip, named_method
from sat_slime.plugin.settings import plugin_method


@pytest.mark.parametrize("value", ["sat-gspo", {"method": "sat-gspo"}, {"method": {"base": "gspo", "sat": True}}])
def test_a_method_by_name_or_by_its_switches(value) -> None:
    assert plugin_method(make_args(value)) == named_method("sat-gspo")


@pytest.mark.parametrize(
    ("flags", "replays"),
    [
        ({"use_rollout_routing_replay": True}, "-r3"),
        ({"rollout_top_p": 0.9}, "-topp"),
        ({"use_rollout_routing_replay": True, "rollout_top_p": 0.9}, "-r3-topp"),
    ],
)
def test_what_slime_replays_by_its_flags_is_part_of_the_method(flags, replays) -> None:
    """No formula reads it, and slime replays it whatever the method says."""
    for name in ("sat-gspo", f"sat-gspo{replays}"):
        assert plugin_method(make_args(name, **flags)) == named_method(f"sat-gspo{replays}")


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


@pytest.mark.parametrize(
    ("value", "changes", "says"),
    [
        (None, {}, "no key 'sat_slime'"),
        ([1], {}, "it is a section with the keys method, driver"),
        ({"methd": "grpo"}, {}, "unknown key 'methd'; did you mean 'method"),
        ("sat-gspoo", {}, "did you mean 'sat-gspo'"),
        ({"method": {"base": "grpo", "clip": {"eps_low": 0.3}}}, {}, "eps_low is 0.3, but slime's --eps-clip is 0.2"),
        ("grpo", {"use_tis": True}, "--use-tis is set"),
        ("grpo", {"use_opsm": True}, "--use-opsm is set"),
        ("sat-gspo-r3", {}, "use_rollout_routing_replay is off"),
        (
            {"method": {"base": "grpo", "denominator": "checkpoint"}},
            {"sat_slime_driven": False, "keep_old_actor": True},
            "over the weights that generated each batch",
        ),
        (
            {"method": {"base": "grpo", "sat": {"scope": "step"}}},
            {"global_batch_size": 4},
            "scope is step with 2 optimizer steps",
        ),
        ("m2po", {"global_batch_size": 4}, r"m2po\.scope is step with 2 optimizer steps"),
        (
            "grpo-decoupled-a3po",
            {"custom_rollout_log_function_path": None},
            "the lag of every token.*log_rollout",
        ),
        ("grpo-topp", {}, "--rollout-top-p is 1: there is no mask"),
    ],
)
def test_faults_are_named(value, changes, says) -> None:
    with pytest.raises(ConfigError, match=says):
        plugin_method(make_args(value, **changes))
