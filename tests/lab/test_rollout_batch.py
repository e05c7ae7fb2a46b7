"""Requests of an iteration, advantages, and the batch's metrics."""

from __future__ import annotations

import pytest
from made_up_batch import CONFIG, make_batch

from sat_slime.config.schema import EvalConfig, LabConfig
from sat_slime.lab.rollout_batch import (
    evaluation_requests,
    training_group,
    training_requests,
)


def test_requests_depend_on_the_seed_and_the_iteration_alone():
    problems, requests = training_requests(CONFIG, 7)
    assert training_requests(CONFIG, 7) == (problems, requests)
    assert training_requests(CONFIG, 8)[0] != problems
    assert training_requests(CONFIG.model_copy(update={"seed": 1}), 7)[0] != problems
    assert [r.prompt_ids for r in requests] == [CONFIG.task.encode(p.prompt) for p in problems for _ in range(4)]
    assert len({r.seed for r in requests}) == len({r.request_id for r in requests}) == 12


@pytest.mark.parametrize("method, top_p, asks", [("trpo", 1.0, 16), ("grpo", 0.9, 16), ("grpo", 1.0, 0)])
def test_methods_and_a_nucleus_that_take_whole_distributions(method, top_p, asks):
    changed = {"method": {"base": method}, "rollout": {**CONFIG.rollout.model_dump(), "top_p": top_p}}
    config = LabConfig(**changed)
    asked = [*training_requests(config, 3)[1], *training_group(config, 4)[1]]
    assert {(request.distribution_size, request.top_p) for request in asked} == {(asks, top_p)}
    assert {(r.distribution_size, r.top_p) for r in evaluation_requests(config, 3)[1]} == {(0, 1.0)}


def test_a_diagnosed_batch_asks_for_whole_distributions():
    diagnose = {"every_n_steps": 5}
    config = CONFIG.model_copy(update={"diagnose": CONFIG.diagnose.model_copy(update=diagnose)})
    asked = [training_requests(config, i)[1][0].distribution_size for i in range(11)]
    assert asked == [16 if i % 5 == 0 else 0 for i in range(11)]
    assert not any(request.distribution_size for request in evaluation_requests(config, 5)[1])
    assert not training_requests(CONFIG, 0)[1][0].distribution_size
    # with two optimizer steps a batch, steps 0, 5, 10 fall on batches 0, 2, 5
    twice = config.model_copy(
        update={"pipeline": CONFIG.pipeline.model_copy(update={"optimizer_steps_per_rollout": 2})}
    )
    assert [i for i in range(7) if training_requests(twice, i)[1][0].distribution_size] == [0, 2, 5]


def test_evaluations_ask_the_same_held_out_problems_with_fresh_seeds():
    problems, requests = evaluation_requests(CONFIG, 0)
    again, later = evaluation_requests(CONFIG, 16)
    assert problems == again and all(map(CONFIG.task.is_held_out, problems))
    assert not {r.seed for r in requests} & {r.seed for r in later}


def test_metrics_of_a_batch():
    problems, _ = training_requests(CONFIG, 0)
    right = f"{int(problems[0].label):02d}$"
    batch = make_batch([right, "98$", "98$", right] + ["98$"] * 7 + ["11,22,33"])
    metrics = batch.metrics()
    assert metrics["reward/mean"] == pytest.approx(2 / 12)
    assert metrics["reward/flat_groups"] == pytest.approx(2 / 3)
    assert metrics["tokens/response_total"] == 11 * 3 + 8
    assert metrics["response/length_mean"] == pytest.approx(41 / 12)
    assert metrics["response/truncated"] == pytest.approx(1 / 12)
    assert metrics["rollout/rejected"] == 2
    assert [sample.reward for sample in batch.graded()] == batch.rewards.reshape(-1).tolist()
    advantages = [sample.advantage for sample in batch.graded()]
    assert advantages[0] == advantages[3] > 0 > advantages[1] and not any(advantages[4:])


def test_repeats_ask_so_often():
    config = CONFIG.model_copy(update={"eval": EvalConfig(problems=5, samples_per_problem=2, repeats=3)})
    _, requests = evaluation_requests(config, 0)
    assert len(requests) == 5 * 6 and len({request.seed for request in requests}) == 30


def test_the_final_weights_are_asked_as_often_as_is_said():
    scores = EvalConfig(problems=5, samples_per_problem=2, final_repeats=3)
    _, requests = evaluation_requests(CONFIG.model_copy(update={"eval": scores}), 8, scores.final.repeats)
    assert len(requests) == 5 * 6 and len({request.seed for request in requests}) == 30
    assert scores.repeats == 1 and scores.final.final_repeats is None
    assert EvalConfig(repeats=4).final.repeats == 4, "unset: as on the way"
