"""The row of an evaluation, and the token dump of a step: each token with what belongs to it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from made_up_batch import CONFIG, make_batch

from sat_slime.config.schema import EvalConfig, LabConfig
from sat_slime.lab.loop.recording import evaluation_row, histogram_row, token_dump
from sat_slime.lab.rollout_batch import StepResult, group_advantages, training_requests
from sat_slime.rollout.token_dump import read_dump, write_dump

ANSWERS = ["14$", "08,10,14$", "1$", "08$"] * 3
V = 16


def log_softmax(values: np.ndarray) -> np.ndarray:
    return values - np.log(np.exp(values).sum(1, keepdims=True))


def make_result(tokens: int, step: int, **columns) -> StepResult:
    rng = np.random.default_rng(step)
    always = {"log_probs": -rng.random(tokens), "entropy": rng.random(tokens)}
    return StepResult({"step": step}, {}, {k: np.asarray(v, np.float32) for k, v in {**always, **columns}.items()})


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


@pytest.mark.parametrize(("score", "q"), [("log_ratio", 0.25), ("tv", None)])
def test_a_histogram_of_log_ratios_has_a_quantile_of_log_ratios(score, q):
    method = {"base": "gspo", "sat": {"enabled": True, "score": score}}
    config = LabConfig.model_validate(CONFIG.model_dump() | {"method": method})
    result = StepResult({"step": 3, "lag/mean": 2.0, "sat/q": 0.25}, {"edges": [0.1], "counts": [1, 2]}, None)
    row = {"step": 3, "lag": 2.0, "q": q, "edges": [0.1], "counts": [1, 2]}
    assert histogram_row(config, result) == row


def test_each_optimizer_step_of_a_batch_has_its_part():
    config = CONFIG.model_copy(
        update={"pipeline": CONFIG.pipeline.model_copy(update={"optimizer_steps_per_rollout": 3})}
    )
    batch = make_batch(ANSWERS)
    whole = token_dump(CONFIG, batch, make_result(sum(len(r.output_ids) for r in batch.responses), 1), 1, 0)
    parts = []
    for part in range(3):
        responses = batch.responses[4 * part : 4 * part + 4]
        result = make_result(sum(len(r.output_ids) for r in responses), 7 + part)
        parts.append(token_dump(config, batch, result, 3, part))
    assert [(dump.iteration, dump.step, dump.updates) for dump in parts] == [(3, 7, 6), (3, 8, 7), (3, 9, 8)]
    for name in ("lengths", "prompt_index", "rewards", "tokens", "rollout_log_probs", "advantages"):
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))


@pytest.mark.parametrize("known", [True, False])
def test_total_variation_is_that_of_whole_distributions(known):
    batch = make_batch(ANSWERS)
    rng = np.random.default_rng(1)
    mu = [log_softmax(rng.standard_normal((len(r.output_ids), V))) for r in batch.responses]
    if known:
        both = zip(batch.responses, mu, strict=True)
        responses = [dataclasses.replace(r, distribution=one.astype(np.float32)) for r, one in both]
        batch = dataclasses.replace(batch, responses=responses)
    n = sum(map(len, mu))
    pi, pi_l = (log_softmax(rng.standard_normal((n, V))) for _ in range(2))
    result = make_result(n, 1, log_distribution=pi, checkpoint_log_distribution=pi_l)
    more = token_dump(CONFIG, batch, result, 1, 0).more
    expected = {"tv_policy": (pi_l, pi)}
    if known:
        expected |= {"tv": (np.concatenate(mu), pi), "tv_implementation": (np.concatenate(mu), pi_l)}
    assert more.keys() == expected.keys()
    for name, (a, b) in expected.items():
        by_hand = [sum(abs(np.exp(a[i, v]) - np.exp(b[i, v])) for v in range(V)) / 2 for i in range(n)]
        np.testing.assert_allclose(more[name], by_hand, rtol=1e-5)


def test_the_row_of_an_evaluation():
    problems, _ = training_requests(CONFIG, 0)
    right = f"{int(problems[0].label):02d}$"
    batch = make_batch([right, right, "98$", right] + ["98$"] * 7 + ["11,22,33"], version=6)
    scores = EvalConfig(samples_per_problem=2, repeats=2, k=[1, 2, 4])
    row = evaluation_row(batch, scores, step=8, iteration=8)
    assert (row["step"], row["weights_step"], row["time/eval"]) == (8, 6, 1.5)
    assert row["accuracy"] == row["avg@2"] == row["pass@1"] == pytest.approx(3 / 12)
    assert row["pass@2"] == row["pass@4"] == pytest.approx(1 / 3)
    assert row["accuracy_by_run"] == pytest.approx([2 / 6, 1 / 6])
    assert row["accuracy/low"] < row["accuracy"] < row["accuracy/high"]
    assert (row["n_problems"], row["n_samples"]) == (3, 12)
    assert (row["reasons/number"], row["reasons/different"], row["reasons/no_answer"]) == (3, 8, 1)
    assert row["truncated"] == pytest.approx(1 / 12)
    assert not any(key.startswith("verifier/") for key in row)
    assert "pass@2" in evaluation_row(batch, EvalConfig(samples_per_problem=2, repeats=2), 8, 8), "k unset: 2"
