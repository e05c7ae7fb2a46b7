"""Requests of an iteration, verdicts, advantages, a batch's metrics, and its rows in the run folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_up_batch import CONFIG, make_batch

from sat_slime.config.schema import EvalConfig
from sat_slime.lab.batch import (
    evaluation_requests,
    evaluation_row,
    group_advantages,
    sample_rows,
    training_group,
    training_requests,
)
from sat_slime.lab.dump import DumpedStep, write_dump
from sat_slime.objective import named_method
from sat_slime.report.dumps import load_payload, read_rollout


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


def test_a_row_of_samples_has_the_prompt_that_was_answered():
    problems, _ = training_requests(CONFIG, 0)
    batch = make_batch([f"{n:02d}$" for n in range(12)])
    rows = sample_rows(batch)
    assert [row["prompt"] for row in rows] == [problem.prompt for problem in problems for _ in range(4)]
    assert [row["response"] for row in rows] == [f"{n:02d}$" for n in range(12)]
    assert [row["reward"] for row in rows] == batch.rewards.reshape(-1).tolist()


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


ANSWERS = ["14$", "08,10,14$", "1$", "08$"] * 3


def test_a_dump_is_read_as_the_steps_that_were_written(tmp_path):
    """Of three steps the second is not dumped; the third has two micro-batches."""
    batch = make_batch(ANSWERS)
    parts = [batch.graded()[i : i + 4] for i in (0, 4, 8)]
    written = []
    for part in parts:
        lengths = [len(response.output_ids) for response in part]
        rng = np.random.default_rng(sum(lengths))
        columns = {name: -rng.random(sum(lengths), np.float32) for name in ("log_probs", "checkpoint_log_probs")}
        columns["rollout_log_probs"] = np.concatenate([response.log_probs for response in part])
        columns["advantages"] = np.repeat(np.float32([response.advantage for response in part]), lengths)
        columns["lags"] = rng.integers(0, 8, sum(lengths))
        columns["loss_masks"] = rng.integers(0, 2, sum(lengths))
        tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
        written.append(DumpedStep(part, [4] if part is parts[0] else [1, 3], tensors))
    path = tmp_path / "dumps" / "9.pt"
    write_dump(path, named_method("gspo-r3"), [written[0], None, written[2]])
    assert [file.name for file in path.parent.iterdir()] == ["9.pt"]
    found = read_rollout([path])
    assert [step.name for step in found] == ["rollout 8, step 1", "rollout 8, step 3"]
    assert [step.microbatches for step in found] == [[4], [1, 3]]
    for step, of in zip(found, (written[0], written[2]), strict=True):
        columns = of.columns
        assert step.replayed and step.more.keys() == {"lags", "checkpoint_log_probs"}
        assert torch.equal(step.mask, columns["loss_masks"] == 1)
        read = {"advantages": step.advantages, "log_probs": step.log_probs} | dict(step.more)
        read |= {"rollout_log_probs": step.rollout_log_probs}
        assert all(torch.equal(values, columns[name].float()) for name, values in read.items())
    samples = load_payload(path)["samples"]
    dumped = [*batch.graded()[:4], *batch.graded()[8:]]
    assert [sample["rollout_position"] for sample in samples] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert [sample["rewards"] for sample in samples] == [response.reward for response in dumped]
    assert [sample["tokens"] for sample in samples] == [[*r.prompt_ids, *r.output_ids] for r in dumped]


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
