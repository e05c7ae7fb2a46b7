"""Lags and rewards on their way: out of the rollout process, into the trainer, to the response that they are of."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import torch
from slime_step import make_args

from sat_slime.plugin.inside.trainer_state import TrainerState
from sat_slime.plugin.rollout_hooks import log_rollout

A3PO = "grpo-decoupled-a3po"


def samples_of(versions: list[str], rewards: list[object], **metadata: object) -> list[SimpleNamespace]:
    """Responses of 3, 4, ... tokens."""
    return [
        SimpleNamespace(
            index=i, metadata=dict(metadata), weight_versions=[version], response_length=3 + i, reward=reward
        )
        for i, (version, reward) in enumerate(zip(versions, rewards, strict=True))
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


@pytest.mark.parametrize("name", [A3PO, "topr"])
def test_lags_and_rewards_reach_their_response(name: str) -> None:
    args = make_args(name)
    data = batch_of(args, samples_of(["4", "8", "7"], [1.0, -1, 0.5]), order=[2, 0])
    state = TrainerState(steps=9)
    state.begin(data)
    state.scored(args, 0, data, None)
    turned = data["tokens"][::-1]  # a micro-batch has them in an order of its own
    assert [lags.tolist() for lags in state.responses.lags_of(turned)] == [[5, 5, 5], [2] * 5]
    if name == "topr":
        assert state.responses.rewards_of(turned) == [1.0, 0.5]


def test_only_tokens_that_are_trained_count_for_the_lag() -> None:
    args = make_args("grpo")
    data = batch_of(args, samples_of(["4", "8"], [1.0, 0.0]))
    state = TrainerState(steps=9)
    state.begin(
        {
            **data,
            "loss_masks": [torch.tensor([0] * n) for n in data["response_lengths"][:1]]
            + [torch.tensor([1] * n) for n in data["response_lengths"][1:]],
        }
    )
    assert state.batch_metrics["lag/max"] == state.batch_metrics["lag/mean"] == 1


def test_the_tokens_of_a_tool_have_no_lag() -> None:
    args = make_args(A3PO)
    (sample,) = samples_of(["4"], [1.0])
    sample.response_length, sample.weight_versions = 8, ["4", "6"]
    sample.loss_mask = [1, 1, 1, 0, 0, 1, 0, 0]
    sample.tokens = list(range(2 + 8))
    data = batch_of(args, [sample]) | {"loss_masks": [torch.tensor(sample.loss_mask)]}
    state = TrainerState(steps=9)
    state.begin(data)
    state.scored(args, 0, data, None)
    assert state.responses.lags_of(data["tokens"])[0].tolist() == [5, 5, 5, 0, 0, 3, 0, 0]
    metrics = {name.removeprefix("lag/"): value for name, value in state.batch_metrics.items()}
    assert (metrics["mean"], metrics["min"], metrics["max"]) == (4.5, 3, 5)
    assert (metrics["queue_mean"], metrics["generation_mean"]) == (3, 1.5)


def test_what_no_method_reads_does_not_travel() -> None:
    data = batch_of(make_args("grpo"), samples_of(["4"], [{"accuracy": 1}]))
    assert data["round_number"][0].reward is None


def test_the_reward_is_slimes_raw_one() -> None:
    args = make_args("topr", reward_key="accuracy")
    (origin,) = batch_of(args, samples_of(["4"], [{"accuracy": 1}]))["round_number"]
    assert origin.reward == 1.0
    (origin,) = batch_of(make_args("topr"), samples_of(["4"], [0.2], raw_reward=-3))["round_number"]
    assert origin.reward == -3.0
    with pytest.raises(ValueError, match=r"topr needs the reward .* sample 0 is \{'accuracy': 1\}.*--reward-key"):
        batch_of(make_args("topr"), samples_of(["4"], [{"accuracy": 1}]))


@pytest.mark.parametrize(("name", "what"), [(A3PO, "lags"), ("topr", "rewards")])
def test_a_batch_without_them_is_not_trained_on(name: str, what: str, caplog) -> None:
    args, state = make_args(name), TrainerState(steps=9)
    data = batch_of(args, samples_of(["odd"], [1.0]))  # no version of ours
    state.begin(data)
    with pytest.raises(RuntimeError, match=rf"{name} needs the {what} of the responses.*`lag is unknown`"):
        state.scored(args, 0, data, None)
    assert "lag is unknown" in caplog.text


def test_facts_of_the_batch_before_are_forgotten() -> None:
    args, state = make_args(A3PO), TrainerState(steps=9)
    first, second = (batch_of(args, samples_of(["4"], [1.0])) for _ in range(2))
    for data in (first, second):
        state.begin(data)
        state.scored(args, 0, data, None)
        state.end_step(None)
    assert state.responses.lags_of(second["tokens"])[0].tolist() == [6, 6, 6], "one step on"
    with pytest.raises(RuntimeError, match="were not told"):
        state.responses.lags_of(first["tokens"])


@pytest.mark.needs_slime
def test_slimes_micro_batches_hold_the_tokens_of_the_batch_themselves() -> None:
    """What is known of a response is kept under that tensor."""
    from slime.backends.megatron_utils.data import DataIterator

    tokens = [torch.arange(3), torch.arange(3), torch.arange(4)]
    iterator = DataIterator({"tokens": tokens}, [[2, 0], [1]])
    found = [one for _ in range(2) for one in iterator.get_next(["tokens"])["tokens"]]
    assert [one is tokens[i] for one, i in zip(found, (2, 0, 1), strict=True)] == [True] * 3
