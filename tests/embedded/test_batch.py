"""Requests of an iteration, advantages, and the batch's metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded import task
from sat_slime.embedded.batch import RolloutBatch, evaluation_requests, group_advantages, training_requests
from sat_slime.rollout.types import Response

CONFIG = EmbeddedConfig(rollout={"prompts_per_iteration": 3, "samples_per_prompt": 4})


def test_requests_depend_on_the_seed_and_the_iteration_alone():
    problems, requests = training_requests(CONFIG, 7)
    assert training_requests(CONFIG, 7) == (problems, requests)
    assert training_requests(CONFIG, 8)[0] != problems
    assert training_requests(CONFIG.model_copy(update={"seed": 1}), 7)[0] != problems
    assert [r.prompt_ids for r in requests] == [p.prompt_ids for p in problems for _ in range(4)]
    assert len({r.seed for r in requests}) == len({r.request_id for r in requests}) == 12


def test_evaluations_ask_the_same_held_out_problems_with_fresh_seeds():
    problems, requests = evaluation_requests(CONFIG, 0)
    again, later = evaluation_requests(CONFIG, 16)
    assert problems == again and all(p.held_out for p in problems)
    assert not {r.seed for r in requests} & {r.seed for r in later}


def test_advantages_are_those_of_torch_std():
    rewards = np.array([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]], np.float32)
    expected = torch.tensor(rewards)
    expected = (expected - expected.mean(1, keepdim=True)) / (expected.std(1, keepdim=True) + 1e-6)
    np.testing.assert_allclose(group_advantages(rewards), expected, rtol=1e-6)
    assert not group_advantages(rewards)[1:3].any()


def make_batch(answers: list[str], version: int = 0) -> RolloutBatch:
    problems, requests = training_requests(CONFIG, 0)
    responses = []
    for request, answer in zip(requests, answers, strict=True):
        output = task.encode(answer)
        rows = len(request.prompt_ids) + len(output) - 1
        responses.append(
            Response(
                request_id=request.request_id,
                prompt_ids=request.prompt_ids,
                output_ids=output,
                log_probs=np.linspace(-1, 0, len(output), dtype=np.float32),
                routed_experts=np.arange(rows * 4, dtype=np.uint8).reshape(rows, 2, 2),
                finish_reason="stop" if answer.endswith("$") else "length",
                weight_version=version,
            )
        )
    return RolloutBatch(0, problems, responses, seconds=1.5, faults={"rejected": 2})


def test_metrics_of_a_batch():
    problems, _ = training_requests(CONFIG, 0)
    right = f"{sum(problems[0].digits):02d}$"
    batch = make_batch([right, "98$", "98$", right] + ["98$"] * 7 + ["11,22,33"])
    metrics = batch.metrics()
    assert metrics["reward/mean"] == pytest.approx(2 / 12)
    assert metrics["reward/flat_groups"] == pytest.approx(2 / 3)
    assert metrics["tokens/response_total"] == 11 * 3 + 8
    assert metrics["response/length_mean"] == pytest.approx(41 / 12)
    assert metrics["response/truncated"] == pytest.approx(1 / 12)
    assert metrics["rollout/rejected"] == 2
    advantages = [sample.advantage for sample in batch.samples()]
    assert advantages[0] == advantages[3] > 0 > advantages[1] and not any(advantages[4:])
