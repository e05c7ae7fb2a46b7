"""Requests of an iteration, verdicts, advantages, a batch's metrics, and its rows in the run folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_up_batch import CONFIG, make_batch

from sat_slime.config.schema import EvalConfig
from sat_slime.lab.batch import (
    StepResult,
    evaluation_requests,
    evaluation_row,
    group_advantages,
    token_dump,
    training_group,
    training_requests,
)
from sat_slime.rollout.token_dump import read_dump, write_dump


def test_requests_depend_on_the_seed_and_the_iteration_alone():
    problems, requests = training_requests(CONFIG, 7)
    assert training_requests(CONFIG, 7) == (problems, requests)
    assert training_requests(CONFIG, 8)[0] != problems
    assert training_requests(CONFIG.model_copy(update={"seed": 1}), 7)[0] != problems
    assert [r.prompt_ids for r in requests] == [CONFIG.task.encode(p.prompt) for p in problems for _ in range(4)]
    assert len({r.seed for r in requests}) == len({r.request_id for r in requests}) == 12


def test_groups_are_the_problems_of_the_batches_in_order():
    for iteration in (0, 3):
        problems, requests = training_requests(CONFIG, iteration)
        groups = [training_group(CONFIG, iteration * 3 + place) for place in range(3)]
        assert [problem for (problem,), _ in groups] == problems
        assert [request for _, group in groups for request in group] == requests


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
    assert [sample.reward for sample in batch.graded()] == batch.rewards.reshape(-1).tolist()
    advantages = [sample.advantage for sample in batch.graded()]
    assert advantages[0] == advantages[3] > 0 > advantages[1] and not any(advantages[4:])


def test_advantages_are_those_of_torch_std():
    rewards = np.array([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]], np.float32)
    expected = torch.tensor(rewards)
    expected = (expected - expected.mean(1, keepdim=True)) / (expected.std(1, keepdim=True) + 1e-6)
    np.testing.assert_allclose(group_advantages(rewards), expected, rtol=1e-6)
    assert not group_advantages(rewards)[1:3].any()


# ----------------------------------------------------------------------------------------------- rows of the run folder


ANSWERS = ["14$", "08,10,14$", "1$", "08$"] * 3


def make_result(tokens: int, step: int, **columns) -> StepResult:
    rng = np.random.default_rng(step)
    always = {"log_probs": -rng.random(tokens), "entropy": rng.random(tokens)}
    return StepResult({"step": step}, {k: np.asarray(v, np.float32) for k, v in {**always, **columns}.items()})


def test_a_dump_holds_the_batch_in_its_order(tmp_path):
    batch = make_batch(ANSWERS, version=5)
    lengths = [len(response.output_ids) for response in batch.responses]
    result = make_result(sum(lengths), 9, checkpoint_log_probs=-np.arange(sum(lengths)))
    write_dump(tmp_path / "x", token_dump(CONFIG, batch, result, 9, 0))
    dump = read_dump(tmp_path / "x")
    assert (dump.iteration, dump.step, dump.updates, dump.method, dump.temperature) == (9, 9, 8, "gspo", 1.0)
    assert dump.metadata["routing_replay"] == "false" and dump.metadata["engine_dtype"] == "bfloat16"
    assert dump.lengths.tolist() == lengths and dump.prompt_index.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dump.tokens.tolist() == [t for r in batch.responses for t in r.output_ids]
    assert dump.rewards.tolist() == batch.rewards.reshape(-1).tolist()
    advantages = group_advantages(batch.rewards).reshape(-1)
    for i, response in enumerate(batch.responses):
        mine = slice(sum(lengths[:i]), sum(lengths[: i + 1]))
        assert dump.rollout_log_probs[mine].tolist() == response.log_probs.tolist()
        assert (dump.advantages[mine] == advantages[i]).all()
    assert (dump.versions == 5).all() and dump.mask.all()
    assert result.tokens is not None
    for name, values in (("log_probs", dump.log_probs), ("entropy", dump.entropy), *dump.more.items()):
        np.testing.assert_array_equal(values, result.tokens[name])


def test_the_row_of_an_evaluation():
    problems, _ = training_requests(CONFIG, 0)
    right = f"{int(problems[0].label):02d}$"
    batch = make_batch([right, right, "98$", right] + ["98$"] * 7 + ["11,22,33"], version=6)
    scores = EvalConfig(samples_per_problem=2, repeats=2)
    row = evaluation_row(batch, scores, step=8, iteration=8)
    assert (row["step"], row["weights_step"], row["time/eval"]) == (8, 6, 1.5)
    assert row["accuracy"] == pytest.approx(3 / 12)
    assert row["accuracy_by_run"] == pytest.approx([2 / 6, 1 / 6])
    assert row["accuracy/low_samples"] < row["accuracy"] < row["accuracy/high_samples"]
    assert (row["n_problems"], row["n_samples"]) == (3, 12)
    assert (row["reasons/number"], row["reasons/different"], row["reasons/no_answer"]) == (3, 8, 1)
    assert row["truncated"] == pytest.approx(1 / 12)
