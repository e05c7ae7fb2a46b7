"""Our order of a run, on slime's real trainer where slime is installed, and the order of its calls everywhere."""

from __future__ import annotations

import types
from argparse import Namespace

import pytest
from slime_host import REFERENCE, _remote, local_ray, make_args, run_driver

from sat_slime.config.plugin_schema import DriverConfig, PluginConfig
from sat_slime.config.source import ConfigError
from sat_slime.plugin import driver
from sat_slime.plugin.inside.host import Host
from sat_slime.plugin.inside.settings import DRIVEN

LAGS = pytest.mark.parametrize("n", [0, 1, 2, 3, 8])
STARTS = pytest.mark.parametrize("start", [0, 1, 5, 8])


def arguments(n, rollouts, start=0, *, reference=False, **other):
    """slime's arguments of a run with denominator checkpoint, or trainer where everything is synchronous."""
    method = {"denominator": "checkpoint" if n else "trainer"}
    other = {"keep_old_actor": None, "sat_slime": {"method": method}} | other
    return make_args(n, rollouts, start, reference=reference, hooks={}, **other)


# ------------------------------------------------------------------------------------------- on slime's real trainer


@pytest.mark.needs_slime
@LAGS
@STARTS
@pytest.mark.parametrize("reference", [False, True], ids=["no reference", "reference"])
def test_every_batch_is_scored_by_the_weights_that_generated_it(monkeypatch, n, start, reference):
    args = arguments(n, start + 20, start, reference=reference)
    recorder = run_driver(monkeypatch, args, start, DriverConfig(lag=n))
    assert [batch["rollout"] for batch in recorder.batches] == list(range(start, start + 20))
    assert all(batch["scored_by"][""] == batch["generated_by"] for batch in recorder.batches)
    assert all(batch["trained"] == batch["rollout"] for batch in recorder.batches)
    if reference:
        assert {batch["scored_by"]["ref_"] for batch in recorder.batches} == {REFERENCE}


@pytest.mark.needs_slime
@LAGS
@pytest.mark.parametrize("per_rollout", [1, 2])
def test_the_lag_cycles_and_versions_are_steps(monkeypatch, n, per_rollout):
    args = arguments(n, 20, reference=True, global_batch_size=4 // per_rollout)
    recorder = run_driver(monkeypatch, args, 0, DriverConfig(lag=n))
    lags = [int(batch["facts"]["lag/max"]) for batch in recorder.batches]
    assert lags == [0] + [(i % n + 1) * per_rollout if n else 0 for i in range(19)]
    assert [batch["facts"]["lag/min"] for batch in recorder.batches] == lags
    assert all(float(version) == weights for version, weights in recorder.pushes)
    due = range(0, 20, max(n, 1))
    assert [int(version) for version, _ in recorder.pushes] == [step * per_rollout for step in [*due, 20]]


@pytest.mark.needs_slime
def test_a_resumed_run_pushes_its_own_weights_and_keeps_the_rhythm_of_pushes(monkeypatch):
    recorder = run_driver(monkeypatch, arguments(8, 20, 5, reference=True), 5, DriverConfig(lag=8))
    assert [weights for _, weights in recorder.pushes] == [5, 8, 16, 20]
    assert [int(batch["facts"]["lag/max"]) for batch in recorder.batches[:5]] == [0, 1, 2, 3, 1]


@pytest.mark.needs_slime
def test_flags_of_own_launch_scripts_do_nothing_under_the_driver(monkeypatch):
    from sat_slime.plugin import train_hooks

    args = arguments(2, 6, reference=True)
    args.custom_megatron_init_path = "sat_slime.plugin.train_hooks.install"
    args.rollout_data_postprocess_path = "sat_slime.plugin.train_hooks.postprocess"
    recorder = run_driver(monkeypatch, args, 0, DriverConfig(lag=2))
    assert train_hooks._state.actor is None
    assert [int(batch["facts"]["lag/max"]) for batch in recorder.batches] == [0, 1, 2, 1, 2, 1]


# ------------------------------------------------------------------------------------------------- the order of calls


class Calls:
    """A host that notes what it is asked for."""

    def __init__(self):
        self.made = []

    def _note(self, name):
        def call(*numbers, **_):
            self.made.append((name, *numbers[:1]))
            return name

        return call

    def host(self, args):
        manager = types.SimpleNamespace(**{name: _remote(self._note(name)) for name in ("generate", "eval", "save")})
        trainers = types.SimpleNamespace(
            **{name: self._note(name) for name in ("async_train", "save_model", "update_weights")}
        )
        return Host(args, manager, trainers, None)


def calls(monkeypatch, order, rollouts, start=0, **other):
    pytest.importorskip("ray")
    made = Calls()
    args = Namespace(
        sat_slime={"method": "grpo", "hooks": other.pop("hooks", {})},
        start_rollout_id=start,
        num_rollout=rollouts,
        save_interval=other.pop("save_interval", None),
        eval_interval=other.pop("eval_interval", None),
        skip_eval_before_train=False,
        check_weight_update_equal=False,
        rollout_global_dataset=True,
    )

    def is_due(host, rollout_id, interval, end=None):
        return interval is not None and (rollout_id + 1 == end or (rollout_id + 1) % interval == 0)

    monkeypatch.setattr(driver, "plugin_config", lambda args: PluginConfig(**args.sat_slime))
    monkeypatch.setattr(driver, "_is_due", is_due)
    monkeypatch.setattr(driver, "ray", local_ray)
    driver.train(made.host(args), order)
    return [name if len(rest) == 0 else f"{name} {rest[0]}" for name, *rest in made.made]


def test_one_batch_is_generated_ahead_and_complete_before_a_push(monkeypatch):
    assert calls(monkeypatch, DriverConfig(lag=2), 3) == [
        *("update_weights", "generate 0", "generate 1", "async_train 0"),
        *("generate 2", "async_train 1", "update_weights"),
        *("async_train 2", "update_weights"),
    ]


def test_the_synchronous_order(monkeypatch):
    assert calls(monkeypatch, DriverConfig(lag=0), 2) == [
        *("update_weights", "generate 0", "async_train 0", "update_weights"),
        *("generate 1", "async_train 1", "update_weights"),
    ]


def test_streaming_asks_for_no_batch_before_the_weights_are_pushed(monkeypatch):
    assert calls(monkeypatch, DriverConfig(mode="streaming", lag=2), 3) == [
        *("update_weights", "generate 0", "async_train 0", "generate 1", "async_train 1", "update_weights"),
        *("generate 2", "async_train 2", "update_weights"),
    ]


def test_the_data_position_is_saved_before_the_next_batch_takes_prompts(monkeypatch):
    made = calls(monkeypatch, DriverConfig(lag=4), 4, save_interval=2)
    assert made[made.index("save 1") :][:4] == ["save 1", "generate 2", "async_train 1", "save_model 1"]
    assert made[-3:] == ["async_train 3", "save_model 3", "update_weights"] and made[-4] == "save 3"


@pytest.mark.parametrize(
    ("rollouts", "start", "hooks", "expected"),
    [
        (5, 0, {}, ["eval 0", "eval 1", "eval 3", "eval 4"]),
        (4, 0, {}, ["eval 0", "eval 1", "eval 3"]),
        (5, 2, {}, ["eval 3", "eval 4"]),
        (5, 0, {"evaluate_first": False, "evaluate_last": False}, ["eval 1", "eval 3"]),
    ],
)
def test_initial_and_final_weights_are_evaluated_once(monkeypatch, rollouts, start, hooks, expected):
    made = calls(monkeypatch, DriverConfig(lag=4), rollouts, start, eval_interval=2, hooks=hooks)
    assert [call for call in made if call.startswith("eval")] == expected
    if "eval 4" in made:
        assert made[-2:] == ["update_weights", "eval 4"], "the final weights are pushed first"


@pytest.mark.parametrize("flag", driver.NOT_HERE)
def test_flags_that_mean_another_order_are_refused(flag):
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} is set: "):
        driver.take_over(arguments(2, 6, **{flag: True}))


def test_arguments_are_marked_as_driven():
    args = arguments(2, 6)
    driver.take_over(args)
    assert getattr(args, DRIVEN) is True
