"""What a trainer rank keeps: lags on their way from rollout to response, numbers of a batch and its steps, thresholds,
and the rows of metrics.jsonl."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace

import pytest
import torch
from fake_slime import import_slime
from slime_step import Layout, facts_of_rank, make_args, make_problem, on_ranks

from sat_slime.config.jsonl import read_rows
from sat_slime.objective import tail_quantile
from sat_slime.plugin import r3
from sat_slime.plugin.rollout_hooks import log_rollout
from sat_slime.plugin.settings import plugin_method
from sat_slime.plugin.step import MetricsFile, StepFile, TrainerState, step_threshold
from sat_slime.plugin.versions import Origin, told_lags

A3PO = "grpo-decoupled-a3po"


def samples_of(versions: list[str]) -> list[SimpleNamespace]:
    """Responses of 3, 4, ... tokens."""
    return [
        SimpleNamespace(index=i, metadata={}, weight_versions=[version], response_length=3 + i)
        for i, version in enumerate(versions)
    ]


def batch_of(args, samples: list[SimpleNamespace], order: list[int] | None = None) -> dict[str, list]:
    """The batch of a rank, which has the samples in that order, as slime hands it on."""
    log_rollout(5, args, samples, {}, 1.0)
    mine = [samples[i] for i in order or range(len(samples))]
    data = {"response_lengths": [sample.response_length for sample in mine]}
    data["tokens"] = [torch.arange(2 + sample.response_length) for sample in mine]
    if all("round_number" in sample.metadata for sample in mine):
        data["round_number"] = pickle.loads(pickle.dumps([sample.metadata["round_number"] for sample in mine]))
    return data


def test_lags_reach_their_response() -> None:
    args = make_args(A3PO)
    data = batch_of(args, samples_of(["4", "8", "7"]), order=[2, 0])
    state = TrainerState(steps=9)
    state.begin(data)
    state.scored(args, data)
    turned = data["tokens"][::-1]  # a micro-batch has them in an order of its own
    assert [lags.tolist() for lags in told_lags(turned)] == [[5, 5, 5], [2] * 5]


@pytest.mark.parametrize("version", ["odd", "10"])
def test_a_batch_without_them_is_not_trained_on(caplog, version) -> None:
    args, state = make_args(A3PO), TrainerState(steps=9)
    data = batch_of(args, samples_of([version]))  # no version of ours, or one that another run had pushed
    state.begin(data)
    with pytest.raises(RuntimeError, match=rf"{A3PO} needs the lags of the responses.*`lag is unknown`"):
        state.scored(args, data)
    assert "lag is unknown" in caplog.text


@pytest.mark.needs_slime
def test_slimes_micro_batches_hold_the_tokens_of_the_batch_themselves() -> None:
    """What is known of a response is kept under that tensor."""
    from slime.backends.megatron_utils.data import DataIterator

    tokens = [torch.arange(3), torch.arange(3), torch.arange(4)]
    iterator = DataIterator({"tokens": tokens}, [[2, 0], [1]])
    found = [one for _ in range(2) for one in iterator.get_next(["tokens"])["tokens"]]
    assert [one is tokens[i] for one, i in zip(found, (2, 0, 1), strict=True)] == [True] * 3


def test_each_further_step_on_a_batch_is_one_further_from_its_weights():
    state = TrainerState()
    state.batch_metrics = {"lag/mean": 3.5, "lag/max": 8.0, "reward/mean": 0.5}
    state.push_metrics = {"canary/faults": 1.0}
    steps = [state.end_step(None) for _ in range(3)]
    assert [one["lag/mean"] for one in steps] == [3.5, 4.5, 5.5]
    assert [one["lag/max"] for one in steps] == [8.0, 9.0, 10.0]
    assert [one["reward/mean"] for one in steps] == [0.5] * 3
    assert ["canary/faults" in one for one in steps] == [True, False, False], "the push was before the first"


def test_each_step_has_the_agreement_of_what_its_routers_replayed():
    state = TrainerState()
    for count in (600, 700):
        state.agreement = state.agreement or r3.Agreement()
        state.agreement._sums = torch.tensor([count, 0, 0, 1000])
        assert state.end_step(None)["routing/agreement"] == count / 1000
    with pytest.raises(RuntimeError, match="no router replayed anything"):
        state.end_step(None)


def test_numbers_of_a_batch():
    state = TrainerState(steps=10)
    data = {
        "response_lengths": [4, 8, 6],
        "raw_reward": [1, torch.tensor(0.0), 0.5],
        "round_number": [Origin(((n, version),)) for n, version in ((4, 2), (8, 10), (6, 8))],
    }
    state.begin(data)
    assert state.batch_metrics == {
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
    state, told = TrainerState(steps=10), {"round_number": [Origin(((1, 2), (2, 4), (1, 7))), Origin(((2, 8),))]}
    for masks, facts in (  # facts: generation_mean, max, mean, min, queue_mean
        # Eq. fully-async-lag: a token waited for the fourth through 5 steps, two through 3.
        ([[1, 1, 1, 1], [1, 1]], [11 / 6, 8, 27 / 6, 2, 16 / 6]),
        ([[0, 1, 0, 0], [0, 1]], [1.5, 6, 4, 2, 2.5]),  # of what is trained, which waited for the others all the same
    ):
        state.begin({**told, "response_lengths": [4, 2], "loss_masks": [torch.tensor(mask) for mask in masks]})
        assert [lags.tolist() for lags in state.token_lags] == [[8, 6, 6, 3], [2, 2]]
        assert [v for k, v in sorted(state.batch_metrics.items()) if k[:4] == "lag/"] == pytest.approx(facts)


@pytest.mark.needs_slime
def test_numbers_are_those_of_all_ranks_and_the_same_on_each():
    for facts, unknown in on_ranks(Layout(tp=2, dp=2), facts_of_rank):
        assert facts == {
            "response/length_mean": 4.0,
            "tokens/response_total": 12.0,
            "lag/mean": 4.0,
            "lag/min": 0.0,
            "lag/max": 8.0,
            "lag/generation_mean": 0.0,
            "lag/queue_mean": 4.0,
        }
        assert "lag/mean" not in unknown, "a rank without versions makes the lag unknown on all"


class Actor:
    """Stands for slime's trainer, as far as a forward pass of our own needs it."""

    def __init__(self, log_probs: list[torch.Tensor]):
        self.log_probs = log_probs

    def compute_log_prob(self, data_iterator, num_microbatches, store_prefix=""):
        assert num_microbatches == [2] and os.environ["ROUTING_REPLAY_STAGE"] == "replay_forward"
        return {f"{store_prefix}log_probs": self.log_probs}


def take(layout, args, data, actor):
    state = TrainerState()
    state.threshold = step_threshold(args, data, actor)
    return state.threshold_for(plugin_method(args))


@pytest.mark.parametrize("denominator", ["checkpoint", "rollout"])
def test_a_pass_of_our_own_where_slime_makes_none(slimes_loss, monkeypatch, denominator: str) -> None:
    """Under `checkpoint` slime's log_probs are those of the generating weights; under `rollout` with
    --use-rollout-logprobs slime has none. R2 records in slime's pass, and the training replays that."""
    monkeypatch.setenv("ROUTING_REPLAY_STAGE", "record")
    problem = make_problem()
    now = [values + 0.1 * torch.randn(len(values)) for values in problem.log_probs]
    spared = denominator == "rollout"
    section = {"base": "grpo", "sat": {"scope": "step"}, "denominator": denominator}
    args = make_args({"method": section}, use_rollout_logprobs=spared, use_routing_replay=True)
    data = {
        "total_lengths": problem.total_lengths,
        "response_lengths": problem.response_lengths,
        "loss_masks": problem.loss_masks,
        "tokens": problem.tokens,
        "rollout_log_probs": problem.rollout_log_probs,
        "advantages": problem.advantages,
        "log_probs": None if spared else problem.log_probs,
        "num_microbatches": [2],
        "micro_batch_indices": [[0, 1, 2, 3], [4, 5, 6, 7]],
    }
    (q,) = on_ranks(Layout(), take, args, data, Actor(now))
    denominators = problem.rollout_log_probs if spared else problem.log_probs
    mask = torch.cat(problem.loss_masks).bool()
    assert q == tail_quantile((torch.cat(now) - torch.cat(denominators))[mask].abs(), 0.9)

    with pytest.raises(RuntimeError, match=r"train_hooks\.install"):
        on_ranks(Layout(), take, args, data, None)


def test_a_pipeline_stage_before_the_last_has_no_log_probs_and_makes_no_pass_alone(slimes_loss, monkeypatch) -> None:
    """The last stage would take no part in it."""
    monkeypatch.setattr("megatron.core.mpu.is_pipeline_last_stage", lambda: False)
    assert step_threshold(make_args("sat-gspo"), {}) is None


def test_the_threshold_is_of_the_tokens_that_a_hook_of_the_users_leaves(slimes_loss) -> None:
    (module,), seen = import_slime("sat_slime.plugin.actor"), []
    actor = module.SatTrainRayActor.__new__(module.SatTrainRayActor)
    actor.state = SimpleNamespace(scored=lambda args, data, actor: seen.append(data["loss_masks"]))
    actor._postprocess = lambda args, rollout, data: data.update(loss_masks="theirs")
    actor._after_scoring(make_args(), 0, {"loss_masks": "slime's"})
    assert seen == ["theirs"]


def test_a_threshold_does_not_outlive_its_step() -> None:
    args = make_args({"method": {"base": "grpo", "sat": {"scope": "step"}}})
    state = TrainerState()
    state.threshold = torch.tensor(0.5)
    state.end_step(None)
    with pytest.raises(RuntimeError, match="none was taken for this step: rollout_data_postprocess_path"):
        state.threshold_for(plugin_method(args))


def test_rows_of_an_earlier_start_are_replaced_or_stay_beside_and_what_cannot_be_written_ends_no_run(tmp_path, caplog):
    for first in (1, 2, 1, 1):
        StepFile(tmp_path / "rows").append([{"step": step, "start": first} for step in (first, 3)])
    assert [len(read_rows(tmp_path / name)) for name in ("rows", "rows.1", "rows.2")] == [2, 3, 2]
    (tmp_path / "run").write_text("in the way")
    file = StepFile(tmp_path / "run" / "rows.jsonl")
    file.append([{"step": 2}])
    assert "1 lines are lost" in caplog.text
    (tmp_path / "run").unlink()
    StepFile(tmp_path / "run" / "rows.jsonl").append([{"step": step} for step in (1, 2, 3)])  # of an earlier start
    file.append([{"step": 3}])
    assert [row["step"] for row in read_rows(tmp_path / "run" / "rows.jsonl")] == [1, 3]


def test_steps_of_a_rollout_get_its_times_and_our_names(tmp_path):
    file, tracked = MetricsFile(tmp_path), []

    def log(metrics, step_key):
        file.log(lambda args, metrics, step_key: tracked.append(step_key), None, metrics, step_key)

    for number in (8, 9):
        row = {"train/loss": 0.5, "train/pg_loss": 0.25, "train/kl_loss": 2.0, "train/entropy_loss": 1.0}
        row |= {"train/grad_norm": 3.0, "train/sat/q": 0.1, "train/lag/mean": 8.0, "train/step": number}
        log(row, "train/step")
    log({"rollout/rewards": 1.0, "rollout/step": 4}, "rollout/step")
    assert read_rows(tmp_path / "metrics.jsonl") == [], "not yet"
    times = {"perf/train_time": 40.0, "perf/train_wait_time": 10.0, "perf/step_time": 50.0, "rollout/step": 4}
    log(times, "rollout/step")
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [9, 10]
    losses = {"loss/total": 0.5, "loss/policy": 0.25, "loss/kl": 2.0, "loss/entropy": 1.0}
    timed = {"time/train": 40.0, "time/wait": 10.0, "time/step": 50.0, "run/restarts": 0, "iteration": 5}
    assert rows[0] == {"step": 9, "grad_norm": 3.0, "sat/q": 0.1, "lag/mean": 8.0} | losses | timed
    log(times, "rollout/step")
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 2
