"""The trainer's hooks in slime's own order of a run, on its real loop and trainer where it is installed, else on a
stand-in."""

from __future__ import annotations

import inspect
import logging
import os
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import slime_trainer_stand_in as stand_in
import torch
from slime_host import REFERENCE, facts_of_rank, import_slime, make_args, run

from sat_slime.plugin import train_hooks
from sat_slime.plugin.inside import routing_check, trainer_state, versions
from sat_slime.plugin.inside.trainer_state import TrainerState

HOOKS = (
    "ref_weights_first",
    "checkpoint_denominator",
    "version_by_step",
    "narrow_routed_experts",
    "check_routed_experts",
    "evaluate_first",
    "evaluate_last",
)
ALL_OFF = dict.fromkeys(HOOKS, False)


def follow(steps):
    """Gives this process's trainer facts whose weights have had that many steps."""
    trainer_state._current = TrainerState(steps)
    return trainer_state._current


HOSTS = pytest.mark.parametrize(
    "real", [False, pytest.param(True, marks=pytest.mark.needs_slime)], ids=["stand-in", "slime"]
)
INTERVALS = pytest.mark.parametrize("n", [1, 2, 3, 8])
STARTS = pytest.mark.parametrize("start", [0, 1, 5, 7, 8])


def wrongly_scored(recorder):
    return [batch["rollout"] for batch in recorder.batches if batch["scored_by"][""] != batch["generated_by"]]


# (rollout, steps of the weights) of every evaluation; driver and trainer together evaluate none twice.
@HOSTS
@pytest.mark.parametrize(
    ("n", "every", "rollouts", "start", "expected"),
    [
        (8, 5, 20, 0, [(0, 0), (4, 0), (9, 8), (14, 8), (19, 20)]),  # it is due at the last: weights are pushed
        (8, 5, 18, 0, [(0, 0), (4, 0), (9, 8), (14, 8), (17, 18)]),
        (1, 5, 12, 0, [(0, 0), (4, 5), (9, 10), (11, 12)]),
        (4, 4, 8, 0, [(0, 0), (3, 4), (7, 8)]),  # slime's own last one already has the final weights
        (8, 5, 18, 8, [(9, 8), (14, 8), (17, 18)]),  # a resumed run has had its first
    ],
)
def test_the_initial_and_the_final_weights_are_evaluated(monkeypatch, n, every, rollouts, start, expected, real):
    args = make_args(n, rollouts, start, reference=True, hooks={}, eval_interval=every)
    recorder = run(monkeypatch, args, start, real)
    assert [(rollout, int(version)) for rollout, version in recorder.evaluations] == expected
    assert all(int(version) == weights for version, weights in recorder.pushes)


@HOSTS
def test_train_py_evaluates_the_initial_weights_by_itself(monkeypatch, real):
    args = make_args(1, 7, 0, reference=False, hooks={"evaluate_first": False}, eval_interval=3)
    recorder = run(monkeypatch, args, 0, real, "train")
    assert [(rollout, int(version)) for rollout, version in recorder.evaluations] == [(0, 0), (2, 3), (5, 6), (6, 7)]


@HOSTS
@pytest.mark.parametrize(
    ("hooks", "other"),
    [
        ({"evaluate_first": False, "evaluate_last": False}, {}),
        ({}, {"update_weight_transport": "disk"}),
        ({}, {"offload_rollout": True}),
        ({"evaluate_last": False}, {"skip_eval_before_train": True}),
    ],
)
def test_evaluations_that_are_not_wanted_or_cannot_be_are_left_out(monkeypatch, caplog, hooks, other, real):
    caplog.set_level(logging.INFO)
    args = make_args(8, 12, 0, reference=False, hooks=hooks, eval_interval=5, **other)
    if other.get("update_weight_transport") == "disk" and real:
        pytest.skip("slime's own push by disk needs its files")
    recorder = run(monkeypatch, args, 0, real)
    assert [rollout for rollout, _ in recorder.evaluations] == [4, 9]
    assert ("hook evaluate_last is off: left out" in caplog.text) == ("evaluate_last" not in hooks)


def test_a_last_evaluation_that_fails_does_not_cost_the_last_checkpoint(monkeypatch, caplog):
    def fail(rollout_id):
        raise RuntimeError(f"no engine at {rollout_id}")

    actor = SimpleNamespace(_rank=0, update_weights=lambda: None)
    monkeypatch.setattr(train_hooks, "_evaluate", lambda actor, rollout_id: fail(rollout_id))
    train_hooks._evaluate_final(actor, Namespace(eval_interval=5, update_weights_interval=8), 11)
    assert "the final weights were not evaluated" in caplog.text and "no engine at 11" in caplog.text
    with pytest.raises(RuntimeError, match="no engine at 0"):
        train_hooks._evaluate_initial(actor, Namespace(start_rollout_id=None))


@HOSTS
@INTERVALS
@pytest.mark.parametrize("reference", [False, True], ids=["no reference", "reference"])
@STARTS
def test_every_batch_is_scored_by_the_weights_that_generated_it(monkeypatch, n, start, reference, real):
    args = make_args(n, start + 20, start, reference=reference, hooks={})
    recorder = run(monkeypatch, args, start, real)
    assert [batch["rollout"] for batch in recorder.batches] == list(range(start, start + 20))
    assert wrongly_scored(recorder) == []
    assert all(batch["trained"] == batch["rollout"] for batch in recorder.batches)
    if reference:
        assert {batch["scored_by"]["ref_"] for batch in recorder.batches} == {REFERENCE}


@HOSTS
@INTERVALS
def test_slime_alone_scores_the_stalest_batch_of_each_cycle_by_other_weights(monkeypatch, n, real):
    recorder = run(monkeypatch, make_args(n, 20, 0, reference=False, hooks=ALL_OFF), 0, real)
    wrong = wrongly_scored(recorder)
    assert wrong == ([] if n == 1 else list(range(n, 20, n)))
    for batch in recorder.batches:
        if batch["rollout"] in wrong:
            assert batch["scored_by"][""] == batch["trained"], "ratio 1 at its first step"
            assert batch["trained"] - batch["generated_by"] == n


@HOSTS
def test_where_nothing_is_in_flight_at_a_push_the_pushed_weights_score(monkeypatch, real):
    args = make_args(3, 8, 0, reference=True, hooks={})
    recorder = run(monkeypatch, args, 0, real, script="train")
    assert wrongly_scored(recorder) == []
    assert all(batch["facts"]["lag/max"] == 0 for batch in recorder.batches)


@HOSTS
def test_without_versions_the_batch_after_a_push_counts_as_in_flight(monkeypatch, real):
    args = make_args(3, 20, 0, reference=True, hooks={"version_by_step": False})
    assert wrongly_scored(run(monkeypatch, args, 0, real)) == []


@HOSTS
@pytest.mark.parametrize(("hooks", "first"), [(ALL_OFF, REFERENCE), ({}, 5.0)], ids=["slime alone", "hook"])
def test_a_resumed_run_pushes_its_own_weights_first(monkeypatch, hooks, first, real):
    args = make_args(2, 9, 5, reference=True, hooks=hooks, keep_old_actor=False, sat_slime={"hooks": hooks})
    recorder = run(monkeypatch, args, 5, real)
    assert recorder.pushes[0][1] == recorder.batches[0]["generated_by"] == first
    assert all(weights > 0 for _, weights in recorder.pushes[1:])


@HOSTS
@INTERVALS
@STARTS
@pytest.mark.parametrize("per_rollout", [1, 2])
def test_versions_are_the_steps_of_the_pushed_weights_and_give_the_lag(monkeypatch, n, start, per_rollout, real):
    args = make_args(n, start + 10, start, reference=True, hooks={}, global_batch_size=4 // per_rollout)
    recorder = run(monkeypatch, args, start, real)
    assert [float(version) for version, _ in recorder.pushes] == [weights for _, weights in recorder.pushes]
    for batch in recorder.batches:
        lag = batch["trained"] - batch["generated_by"]
        assert [batch["facts"][f"lag/{name}"] for name in ("mean", "min", "max")] == [lag] * 3


@HOSTS
def test_a_push_by_disk_keeps_its_own_versions(monkeypatch, real):
    args = make_args(2, 6, 3, reference=False, hooks={})
    args.update_weight_transport = "disk"
    if real:  # the class that pushes by NCCL stands for the one that pushes by disk, whose files have no place here
        trainer, updaters = import_slime(
            train_hooks.TRAINER, "slime.backends.megatron_utils.update_weight.update_weight_from_distributed"
        )
        monkeypatch.setattr(trainer, "UpdateWeightFromDisk", updaters.UpdateWeightFromDistributed)
    recorder = run(monkeypatch, args, 3, real)
    assert [version for version, _ in recorder.pushes] == ["1", "2", "3"]
    assert not any("lag/mean" in batch["facts"] for batch in recorder.batches)


@HOSTS
def test_each_hook_that_is_on_is_told_once(monkeypatch, caplog, real):
    caplog.set_level(logging.INFO)
    run(monkeypatch, make_args(2, 3, 0, reference=True, hooks={}, use_rollout_routing_replay=None), 0, real)
    told = [record.getMessage() for record in caplog.records if record.name == trainer_state.__name__]
    assert [message.split()[2] for message in told] == [
        "version_by_step",
        "ref_weights_first",
        "checkpoint_denominator",
    ]
    assert all(" is on: " in message for message in told)


@HOSTS
def test_hooks_that_are_off_say_nothing(monkeypatch, caplog, real):
    caplog.set_level(logging.INFO)
    run(monkeypatch, make_args(2, 3, 0, reference=True, hooks=ALL_OFF), 0, real)
    assert "sat_slime: hook" not in caplog.text


def test_an_unknown_slime_is_refused_before_anything_is_hooked(monkeypatch):
    stand_in.serve_as_slime(monkeypatch, problems=("slime at X is too old", "and odd"))
    with pytest.raises(RuntimeError) as error:
        stand_in.Trainer(None, {}).init(make_args(2, 3, 0, reference=True, hooks={}), "actor")
    assert str(error.value) == "slime at X is too old\nand odd"
    assert train_hooks._state.actor is None


def replaying(monkeypatch, *, before_training: bool, during: bool):
    """A run under R3 whose routers agree with the replay in 600 of 1,000 experts, more at each batch."""
    monkeypatch.setattr(routing_check, "watch", lambda current: None)
    monkeypatch.setattr(routing_check, "accept_narrow_routes", lambda: None)
    replayed = []

    def replay():
        replayed.append(len(replayed))
        trainer_state.current().agreement._sums = torch.tensor([600 + replayed[-1], 0, 0, 1000])

    class R3Trainer(stand_in.Trainer):
        def train_actor(self, rollout_id, rollout_data, external_data=None):
            if before_training:
                replay()
                train_hooks.postprocess(self.args, rollout_id, rollout_data)
            if during:
                replay()
            super().train_actor(rollout_id, rollout_data, external_data)

    monkeypatch.setattr(stand_in, "Trainer", R3Trainer)
    monkeypatch.setattr(trainer_state, "step_threshold", lambda *_: None)
    args = make_args(2, 3, 0, reference=False, hooks={}, use_rollout_routing_replay=True)
    args.sat_slime = {"method": {"denominator": "checkpoint", "r3": True}}
    return run(monkeypatch, args, 0, False)


def test_the_agreement_of_a_batch_is_known_before_it_is_trained_on(monkeypatch):
    recorder = replaying(monkeypatch, before_training=True, during=False)
    assert [batch["facts"]["routing/agreement"] for batch in recorder.batches] == [0.6, 0.601, 0.602]


def test_without_a_pass_before_training_the_next_batch_tells_the_agreement(monkeypatch):
    recorder = replaying(monkeypatch, before_training=False, during=True)
    assert [batch["facts"].get("routing/agreement") for batch in recorder.batches] == [None, 0.6, 0.601]


def test_r3_without_a_replay_ends_the_run(monkeypatch):
    with pytest.raises(RuntimeError, match="no router replayed anything"):
        replaying(monkeypatch, before_training=False, during=False)


def test_without_a_trainer_there_is_nothing_to_hook_into(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(train_hooks, "_state", train_hooks._State())
    train_hooks.install(make_args(2, 3, 0, reference=True, hooks={}))
    assert "no trainer calls" in caplog.text
    assert train_hooks._state.actor is None


def test_a_critic_gets_no_hooks(monkeypatch):
    stand_in.serve_as_slime(monkeypatch)
    critic = stand_in.Trainer(None, {})
    with pytest.raises(TypeError):  # slime's init goes on to build a model, and has none
        critic.init(make_args(2, 3, 0, reference=False, hooks={}), "critic")
    assert train_hooks._state.actor is None
    assert "train_actor" not in vars(critic)


def test_installing_twice_wraps_once(monkeypatch):
    args = make_args(2, 3, 0, reference=True, hooks={})
    run(monkeypatch, args, 0, False)
    actor = train_hooks._state.actor
    before = dict(vars(actor))

    def init(self):
        train_hooks.install(args)

    monkeypatch.setattr(train_hooks, "TRAINER", __name__)
    init(actor)
    assert vars(actor) == before


def test_the_threshold_of_the_step_and_the_metrics_get_what_they_need(monkeypatch):
    seen = []
    monkeypatch.setattr(
        trainer_state, "step_threshold", lambda args, data, responses, actor: seen.append((data, actor))
    )
    actor = object()
    facts = {"lag/mean": 3.0}
    monkeypatch.setattr(train_hooks, "_state", train_hooks._State(actor=actor))
    train_hooks._state.trainer.batch_metrics = facts
    data = {}
    train_hooks.postprocess(make_args(1, 3, 0, reference=False, hooks={}), 7, data)
    assert seen == [(data, actor)]
    assert train_hooks._state.trainer.end_step(None) == facts


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
def test_the_stand_in_has_the_trainers_methods():
    (trainer,) = import_slime(train_hooks.TRAINER)
    for name, method in inspect.getmembers(stand_in.Trainer, inspect.isfunction):
        if name != "__init__":
            ours, theirs = (
                list(inspect.signature(one).parameters)
                for one in (method, getattr(trainer.MegatronTrainRayActor, name))
            )
            assert theirs[: len(ours)] == ours, name


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


@pytest.mark.engine
def test_hooks_take_effect_in_a_ray_actor(monkeypatch):
    """Ray calls copies of a class's methods, made when the worker loads it, so a patch of the class would not run."""
    ray = pytest.importorskip("ray")
    here = Path(__file__).parent
    search = [str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search))
    import slime_ray_actor

    from sat_slime.embedded.cluster.own_ray import local_ray

    args = make_args(2, 6, 5, reference=True, hooks={})
    with local_ray():
        actor = ray.remote(slime_ray_actor.RayTrainer).remote(args, 5)
        ray.get(actor.init.remote(args, "actor", with_ref=True))
        ray.get(actor.update_weights.remote())
        ray.get(actor.train.remote(5, ray.get(actor.generate.remote(5))))
        ray.get(actor.update_weights.remote())
        pushes, facts = ray.get([actor.pushes.remote(), actor.facts.remote()])
    assert pushes == [("5", 5.0), ("6", 6.0)]
    assert facts["lag/max"] == 0
