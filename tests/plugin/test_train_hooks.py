"""The hooks of the plugin's file in slime's trainer: what `install` judges and sets, what `postprocess` takes."""

from __future__ import annotations

import logging

import pytest
import torch
from slime_host import facts_of_rank
from slime_step import make_args

from sat_slime.config import ConfigError
from sat_slime.plugin import train_hooks
from sat_slime.plugin.inside import routing_check, trainer_state, versions
from sat_slime.plugin.inside.trainer_state import TrainerState


def follow(steps):
    """Gives this process's trainer facts whose weights have had that many steps."""
    trainer_state._current = TrainerState(steps)
    return trainer_state._current


@pytest.fixture
def known_slime(monkeypatch):
    monkeypatch.setattr(train_hooks, "probe_slime", lambda **_: [])


def of_a_script(section, **flags):
    """slime's arguments where its own script runs with the plugin's file."""
    return make_args(section, **{"sat_slime_driven": False, "rank": 0, "keep_old_actor": True, **flags})


@pytest.mark.parametrize(
    ("method", "steps", "spared"),
    [
        ("sat-gspo", 1, False),  # the quantile of the step needs log pi of every token first
        ("sat-grpo", 1, True),
        ("gspo", 4, True),
        ("m2po", 1, False),
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


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("sat-gspo", "SAT-GSPO is on: method sat-gspo, threshold over the step, denominator rollout"),
        ("sat-grpo", "SAT-GRPO is on: method sat-grpo, threshold over the micro-batch, denominator rollout"),
        ("grpo-tis", "GRPO w/ TIS is on: method grpo-tis, denominator trainer"),
    ],
)
def test_one_line_of_one_rank_says_what_is_on(known_slime, caplog, method, line):
    caplog.set_level(logging.INFO)
    for rank in (0, 1):
        train_hooks.install(of_a_script(method, rank=rank))
    assert [record.getMessage() for record in caplog.records] == [f"sat_slime: {line}"]


@pytest.mark.parametrize(
    ("method", "flags", "says"),
    [
        ("sat-gspo", {"global_batch_size": 2}, "scope is step with 4 optimizer steps"),
        ("sat-gspo-r3", {}, "use_rollout_routing_replay is off"),
        ("sat-gspo-r3", {"use_rollout_routing_replay": True, "num_experts": None}, "no experts.*method: sat-gspo}"),
        ("sat-gspo-tis", {}, "over the weights that generated each batch.*plugin.driver"),
        ("grpo-decoupled-a3po", {}, "the lag of every token.*plugin.driver"),
        ("sat-gspoo", {}, "did you mean 'sat-gspo'"),
        (None, {}, "no key 'sat_slime'"),
    ],
)
def test_faults_end_the_run_before_the_model_is_built(known_slime, method, flags, says):
    with pytest.raises(ConfigError, match=says) as error:
        train_hooks.install(of_a_script(method, **flags))
    assert len(error.value.errors) == 1


def test_an_unknown_slime_is_refused(monkeypatch):
    monkeypatch.setattr(train_hooks, "probe_slime", lambda **_: ["slime at X is too old", "and odd"])
    with pytest.raises(RuntimeError, match=r"^slime at X is too old\nand odd$"):
        train_hooks.install(of_a_script("gspo"))


def replay(*agreeing):
    """What this process's routers replay of a batch: so many experts of 1,000 are those that they would choose."""
    for count in agreeing:
        trainer_state.current().agreement._sums = torch.tensor([count, 0, 0, 1000])


@pytest.fixture
def r3(known_slime, monkeypatch):
    """A trainer under R3, as `install` leaves it."""
    monkeypatch.setattr(routing_check, "watch", lambda current: None)
    monkeypatch.setattr(routing_check, "accept_narrow_routes", lambda: None)
    args = of_a_script("grpo-r3", use_rollout_routing_replay=True, num_experts=8)
    train_hooks.install(args)
    return args


def scored(args, rollout_id):
    train_hooks.postprocess(args, rollout_id, {"response_lengths": [3], "num_microbatches": [1]})
    return train_hooks.rollout_facts().get("routing/agreement")


def test_each_batch_tells_the_agreement_of_what_was_replayed_since_the_one_before(r3):
    replay(600)
    assert scored(r3, 0) == 0.6
    replay(700)
    assert scored(r3, 1) == 0.7


def test_r3_without_a_replay_ends_the_run_once_a_batch_was_trained_on(r3):
    assert scored(r3, 0) is None
    with pytest.raises(RuntimeError, match="no router replayed anything"):
        scored(r3, 1)


def test_the_threshold_of_the_step_is_taken_from_the_batch(known_slime, monkeypatch):
    args, data = of_a_script("sat-gspo"), {"response_lengths": [3], "num_microbatches": [1]}
    monkeypatch.setattr(trainer_state, "step_threshold", lambda args, data, responses, actor: torch.tensor(0.5))
    train_hooks.install(args)
    train_hooks.postprocess(args, 0, data)
    assert trainer_state.current().threshold == 0.5


def test_under_our_driver_the_hooks_have_nothing_to_do():
    args = make_args("not a method", sat_slime_driven=True)
    train_hooks.install(args)
    train_hooks.postprocess(args, 0, {})


def test_each_further_step_on_a_batch_is_one_further_from_its_weights():
    state = TrainerState()
    state.set_step_facts({"lag/mean": 3.5, "lag/max": 8.0, "reward/mean": 0.5})
    steps = [state.end_step(None) for _ in range(3)]
    assert [step["lag/mean"] for step in steps] == [3.5, 4.5, 5.5]
    assert [step["lag/max"] for step in steps] == [8.0, 9.0, 10.0]
    assert [step["reward/mean"] for step in steps] == [0.5] * 3


def test_facts_of_a_batch():
    facts = follow(steps=10)
    data = {
        "response_lengths": [4, 8, 6],
        "raw_reward": [1, 0.0, 0.5],
        "round_number": [versions.Origin(version) for version in (2, 10, 8)],
    }
    facts.begin(data)
    assert train_hooks.lags() == [8, 0, 2]
    assert train_hooks.rollout_facts() == {
        "response/length_mean": 6.0,
        "tokens/response_total": 18.0,
        "lag/mean": pytest.approx((8 * 4 + 0 * 8 + 2 * 6) / 18),
        "lag/min": 0.0,
        "lag/max": 8.0,
        "lag/generation_mean": 0.0,
        "lag/queue_mean": pytest.approx(44 / 18),
        "reward/mean": 0.5,
    }
    assert "round_number" not in data, "slime would log it as turns"


def test_the_lag_of_each_token_of_an_interrupted_response():
    facts = follow(steps=10)
    cut_off, whole = versions.Origin(4, ((3, 4), (1, 7))), versions.Origin(8)
    facts.begin({"response_lengths": [4, 2], "round_number": [cut_off, whole]})
    assert train_hooks.lags() == [6, 2]
    assert [lags.tolist() for lags in train_hooks.token_lags()] == [[6, 6, 6, 3], [2, 2]]
    facts = train_hooks.rollout_facts()
    assert (facts["lag/min"], facts["lag/max"], facts["lag/mean"]) == (2, 6, pytest.approx(25 / 6))
    # Eq. fully-async-lag: three tokens waited for the fourth through 3 steps.
    assert (facts["lag/generation_mean"], facts["lag/queue_mean"]) == (pytest.approx(9 / 6), pytest.approx(16 / 6))


def test_round_numbers_of_a_users_own_are_left_alone():
    facts = follow(steps=10)
    data = {"response_lengths": [4, 8], "raw_reward": [{"a": 1}, {"a": 0}], "round_number": [0, 2]}
    facts.begin(data)
    assert train_hooks.lags() is None
    assert set(train_hooks.rollout_facts()) == {"response/length_mean", "tokens/response_total"}
    assert data["round_number"] == [0, 2]


@pytest.mark.needs_slime
def test_facts_are_those_of_all_ranks_and_the_same_on_each():
    from slime_step import Layout, on_ranks

    for facts, unknown in on_ranks(Layout(tp=2, dp=2), facts_of_rank):
        assert facts == {
            "response/length_mean": 4.0,
            "tokens/response_total": 12.0,
            "lag/mean": 3.0,
            "lag/min": 0.0,
            "lag/max": 8.0,
            "lag/generation_mean": 0.0,
            "lag/queue_mean": 3.0,
        }
        assert "lag/mean" not in unknown, "a rank without versions makes the lag unknown on all"
