"""The threshold of a step where it does not come from slime's own recompute pass (which test_loss.py covers)."""

from __future__ import annotations

import fake_slime
import pytest
import torch
from slime_step import Layout, make_args, make_problem, on_ranks

from sat_slime.objective import tail_quantile
from sat_slime.plugin.inside.settings import plugin_method
from sat_slime.plugin.inside.trainer_state import TrainerState, step_threshold
from sat_slime.plugin.inside.versions import ResponseFacts


@pytest.fixture(scope="module", autouse=True)
def slime():
    pytest.importorskip("megatron.core", reason="the threshold is over Megatron's ranks")
    fake_slime.install_where_missing()
    yield
    fake_slime.remove()


class Actor:
    """Stands for slime's trainer, as far as a forward pass of our own needs it."""

    def __init__(self, log_probs: list[torch.Tensor]):
        self.log_probs = log_probs

    def compute_log_prob(self, data_iterator, num_microbatches, store_prefix=""):
        assert num_microbatches == [2]
        return {f"{store_prefix}log_probs": self.log_probs}


def take(layout, args, data, actor):
    state = TrainerState()
    state.threshold = step_threshold(args, data, ResponseFacts(), actor)
    return state.threshold_for(plugin_method(args))


@pytest.mark.parametrize("denominator", ["checkpoint", "rollout"])
def test_a_pass_of_our_own_where_slime_makes_none(denominator: str) -> None:
    """Under `checkpoint` slime's log_probs are those of the generating weights; under `rollout` with
    --use-rollout-logprobs slime has none."""
    problem = make_problem()
    now = [values + 0.1 * torch.randn(len(values)) for values in problem.log_probs]
    spared = denominator == "rollout"
    section = {"base": "grpo", "sat": {"enabled": True, "scope": "step"}, "denominator": denominator}
    args = make_args({"method": section}, keep_old_actor=not spared, use_rollout_logprobs=spared)
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


def test_no_threshold_is_taken_for_micro_batches() -> None:
    args = make_args("sat-grpo")
    assert step_threshold(args, {}, ResponseFacts()) is None
    assert TrainerState().threshold_for(plugin_method(args)) is None


def test_a_threshold_does_not_outlive_its_step() -> None:
    args = make_args({"method": {"base": "grpo", "sat": {"enabled": True, "scope": "step"}}})
    state = TrainerState()
    state.threshold = torch.tensor(0.5)
    state.end_step(None)
    with pytest.raises(RuntimeError, match="no threshold was taken for this step"):
        state.threshold_for(plugin_method(args))
