"""Micro-batches: every sample once, and logits rows that predict the right tokens."""

from __future__ import annotations

import dataclasses
from typing import get_args

import numpy as np
import pytest

pytest.importorskip("megatron.core", reason="packing builds Megatron's layout")

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_up_batch import make_batch

from sat_slime.config.method_section import build_method, expand_switches, method_switches
from sat_slime.config.schema import LabConfig
from sat_slime.lab.rollout_batch import lag_metrics
from sat_slime.lab.trainer.loss import policy_loss
from sat_slime.lab.trainer.packing import forwarded_tokens, pack, plan_microbatches
from sat_slime.objective import mismatch_metrics, threshold_scores
from sat_slime.objective.terms import Need
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.rollout.types import TOOL


@settings(max_examples=200)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60), bound=st.integers(40, 200))
@example(sizes=[22, 40, 1], bound=40)  # equal cuts never part the last two
def test_plans_place_every_sample_once_within_the_bound(sizes, bound):
    plan = plan_microbatches(sizes, bound)
    assert [i for part in plan for i in part] == list(range(len(sizes)))
    assert all(part and sum(sizes[i] for i in part) <= bound for part in plan)


def test_one_micro_batch_when_all_fits():
    assert plan_microbatches([10, 20, 30], 60) == [[0, 1, 2]]


def test_rows_predict_the_response_tokens():
    samples = make_batch(["14$", "08,10,14$", "1$"] * 4).graded()
    part = [1, 0, 5]
    used = sum(forwarded_tokens(samples[i]) for i in part)
    micro = pack(samples, part, routed=True)
    assert len(micro.token_ids) == used and sum(micro.lengths) == len(micro.output_ids) == len(micro.rows)
    start = response_start = 0
    for i, length in zip(part, micro.lengths, strict=True):
        response = samples[i]
        whole = (*response.prompt_ids, *response.output_ids)
        span = slice(start, start + len(whole) - 1)
        assert micro.token_ids[span].tolist() == list(whole[:-1])
        assert micro.layout.position_ids[0, 0, span].tolist() == list(range(len(whole) - 1))
        np.testing.assert_array_equal(micro.routed_experts[span].numpy(), response.routed_experts)
        mine = slice(response_start, response_start + length)
        # The row of a response token is that of the token before it.
        for row, target in zip(micro.rows[mine].tolist(), micro.output_ids[mine].tolist(), strict=True):
            assert whole[row - start + 1] == target
        np.testing.assert_array_equal(micro.rollout_log_probs[mine].numpy(), response.log_probs)
        assert micro.advantages[mine].tolist() == [np.float32(samples[i].advantage)] * length
        start, response_start = start + len(whole) - 1, response_start + length


def test_the_objective_gets_what_the_method_needs_and_nothing_else():
    batch = make_batch(["14$", "08,10,14$", "1$"] * 4, version=3)
    mu = [np.log(np.full((len(r.output_ids), 16), 1 / 16, np.float32)) for r in batch.responses]
    responses = [dataclasses.replace(r, distribution=d) for r, d in zip(batch.responses, mu, strict=True)]
    samples = [
        dataclasses.replace(r, reward=float(i))
        for i, r in enumerate(dataclasses.replace(batch, responses=responses).graded())
    ]
    part = [4, 1, 3]
    micro = pack(samples, part, routed=False)
    log_probs = torch.zeros(len(micro.output_ids))

    plain = micro.token_batch((), 8, log_probs)
    assert plain.lags is None and plain.rewards is None
    whole = micro.token_batch(get_args(Need), 8, log_probs)
    assert whole.lags.tolist() == [5] * len(log_probs)
    assert whole.rewards.tolist() == np.repeat(part, micro.lengths).tolist()
    np.testing.assert_array_equal(micro.distribution, np.concatenate([mu[i] for i in part]))


def test_a_tools_tokens_have_no_lag_and_are_not_trained():
    """By hand: a response of weights 3 and 5 around a tool's tokens, and one in which the tool has the last word."""
    around, ended = np.array([3] * 3 + [TOOL] * 3 + [5] * 3), np.array([4] * 4 + [TOOL] * 5)
    responses = [
        dataclasses.replace(response, versions=versions)
        for response, versions in zip(make_batch(["08,10,14$"] * 12).responses, (around, ended), strict=False)
    ]
    metrics = lag_metrics(responses, updates=7)
    assert metrics["lag/mean"] == pytest.approx(np.mean([4] * 3 + [2] * 3 + [3] * 4))
    assert (metrics["lag/min"], metrics["lag/max"]) == (2, 4)
    assert metrics["lag/queue_mean"] == pytest.approx(np.mean([2] * 6 + [3] * 4))
    assert [response.weight_version for response in responses] == [5, 4]
    micro = pack(responses, [0, 1], routed=True)
    assert micro.mask.tolist() == [True] * 3 + [False] * 3 + [True] * 7 + [False] * 5
    lags = micro.token_batch({"lags"}, 7, torch.zeros(18)).lags
    assert lags.tolist() == [4] * 3 + [0] * 3 + [2] * 3 + [3] * 4 + [0] * 5


@pytest.mark.parametrize("name", ["sat-gspo", "sat-grpo", "gspo", "m2po"])
def test_a_tools_log_probs_are_in_no_metric_no_gradient_and_no_quantile(name):
    versions = np.array([0] * 3 + [TOOL] * 3 + [1] * 3)
    responses = [
        dataclasses.replace(response, versions=versions, advantage=1.0 - 2 * (i % 2))
        for i, response in enumerate(make_batch(["08,10,14$"] * 12).responses)
    ]
    method, seen = build_method(LabConfig(method=expand_switches(method_switches(name))).method), []
    for noise in (0.0, 9.0):
        micro = pack(responses, list(range(12)), routed=True)
        mu = micro.rollout_log_probs
        d = 0.1 * torch.arange(len(mu)).sin()
        log_probs = torch.where(micro.mask, mu + d, mu - noise).requires_grad_()
        tokens = micro.token_batch(method.needs, 2, log_probs)
        loss = policy_loss(method, tokens, response_mean_weights(tokens.mask, tokens.lengths, 12))
        loss.total.backward()
        assert not log_probs.grad[~micro.mask].any() and log_probs.grad[micro.mask].any()
        metrics = loss.metrics | mismatch_metrics(log_probs.detach(), mu, micro.mask)
        seen.append((metrics, log_probs.grad, threshold_scores(method, tokens) if method.judge else None))
    assert seen[0][0] == seen[1][0] and torch.equal(seen[0][1], seen[1][1])
    assert seen[0][2] is None or torch.equal(seen[0][2], seen[1][2])
    assert seen[0][0]["mismatch/d_pi"] == pytest.approx(float(d[micro.mask].abs().mean()), rel=1e-4)
    if name == "sat-grpo":  # by brute force: the quantile of |d| over what the model generated
        assert torch.allclose(seen[0][2].sort().values, d[micro.mask].abs().sort().values, atol=1e-5)
