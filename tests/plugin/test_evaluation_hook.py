"""The hook of evaluations in slime's rollout process, on slime's Sample where it is installed, else on a stand-in."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hook_samples import make_args, make_sample

from sat_slime.config.jsonl import read_rows
from sat_slime.evaluation.scores import summary
from sat_slime.plugin import rollout_hooks
from sat_slime.plugin.rollout_hooks import log_eval, log_rollout
from sat_slime.runs.trackers import split_log

pytestmark = pytest.mark.usefixtures("rollout_process")


@pytest.fixture
def tracked(monkeypatch):
    """The metrics that go to slime's trackers, each call with the key that is its x axis."""
    seen = []
    fake = SimpleNamespace(
        log=lambda args, metrics, step_key: seen.append((step_key, metrics)),
        compute_rollout_step=lambda args, rollout_id: rollout_id,
    )
    monkeypatch.setattr(rollout_hooks, "slime_function", lambda name: getattr(fake, name))
    return seen


def evaluated(sample_class, version: str, rewards=(1.0, 0.0, 0.0, 0.0)) -> dict[str, Any]:
    samples = [make_sample(sample_class, i, response=10 + 2 * i, version=version) for i in range(len(rewards))]
    return {"rewards": list(rewards), "truncated": [False] * len(rewards), "samples": samples}


def test_an_evaluation_is_that_of_the_weights_it_measured(sample_class, tmp_path, tracked):
    """Weights are pushed every 8 rollouts and evaluated every 5."""
    args = make_args(sat_slime={"run_dir": str(tmp_path / "run")}, use_rollout_routing_replay=False)
    for rollout_id, version in [(4, "0"), (9, "8"), (14, "8"), (19, "16")]:
        log_rollout(rollout_id + 1, args, [], {}, 1.0)
        assert log_eval(rollout_id, args, {"aime": evaluated(sample_class, version)}, None) is False
    rows = read_rows(tmp_path / "run" / "eval.jsonl")
    assert [(row["step"], row["weights_step"]) for row in rows] == [(5, 0), (10, 8), (15, 8), (20, 16)]
    assert {key: rows[0][key] for key in ("dataset", "accuracy", "n_samples", "length_mean")} == {
        "dataset": "aime",
        "accuracy": 0.25,
        "n_samples": 4,
        "length_mean": 13.0,
    }
    assert tracked[0] == ("eval_at_weights/step", {"eval_at_weights/aime": 0.25, "eval_at_weights/step": 0})
    key, metrics = tracked[1]
    assert key == "eval/step" and (metrics["eval/aime-weights_step"], metrics["eval/step"]) == (0, 4)


@pytest.mark.parametrize(
    ("rollout_id", "version"),
    [
        (0, 0),
        (0, 1),  # a job that goes on from the first iteration may begin with its evaluation
        (11, 12),  # the job before died between its last checkpoint and its end: nothing is generated in this one
    ],
)
def test_a_job_that_begins_or_ends_with_an_evaluation_says_of_what(
    sample_class, tmp_path, tracked, rollout_id, version
):
    args = make_args(sat_slime={"run_dir": str(tmp_path)}, use_rollout_routing_replay=False)
    log_eval(rollout_id, args, {"aime": evaluated(sample_class, str(version))}, None)
    assert [(row["step"], row["weights_step"]) for row in read_rows(tmp_path / "eval.jsonl")] == [(version, version)]


def test_the_scores_of_an_evaluation_are_those_of_every_runtime(sample_class, tmp_path, tracked):
    args = make_args(
        sat_slime={"run_dir": str(tmp_path)},
        use_rollout_routing_replay=False,
        eval_datasets=[SimpleNamespace(name="aime", n_samples_per_eval_prompt=4)],
        n_samples_per_eval_prompt=16,
    )
    rewards = [1.0, 1.0, 0.0, 1.0] + [0.0] * 4 + [0.0, 1.0, 0.0, 0.0]
    data = evaluated(sample_class, "8", rewards)
    data["truncated"] = [False] * 11 + [True]
    for sample, reward in zip(data["samples"], rewards, strict=True):
        sample.metadata = {"sat_slime_verdict": "number" if reward else "no_answer"}
    log_eval(9, args, {"aime": data}, None)
    (row,) = read_rows(tmp_path / "eval.jsonl")
    lengths = np.array([sample.response_length for sample in data["samples"]]).reshape(3, 4)
    reasons = [sample.metadata["sat_slime_verdict"] for sample in data["samples"]]
    graded = np.array(rewards).reshape(3, 4), lengths, np.array(data["truncated"]).reshape(3, 4), reasons
    expected = summary(*graded)
    assert {key: row[key] for key in expected} == expected
    shown = {key: value for _, metrics in tracked for key, value in metrics.items()}
    assert shown["eval/aime/accuracy/low"] == row["accuracy/low"] and shown["eval/aime/reasons/no_answer"] == 8
    assert "eval/aime/accuracy" not in shown, "slime logs it as eval/aime"
    _, evals = split_log([metrics for _, metrics in tracked] + [{"eval/step": 9, "eval/aime": row["accuracy"]}])
    assert [(one["dataset"], one["accuracy"]) for one in evals] == [("aime", row["accuracy"])]


def test_what_the_verifier_counted_of_an_evaluation_is_no_score(sample_class, tracked, monkeypatch):
    monkeypatch.setattr(rollout_hooks.reward, "drain_metrics", lambda prefix="rollout/": {f"{prefix}kills": 2.0})
    args = make_args(sat_slime="gspo", use_rollout_routing_replay=False)
    log_eval(4, args, {"aime": evaluated(sample_class, "0")}, None)
    assert ("eval/step", {"eval/verifier/kills": 2.0, "eval/step": 4}) in tracked
    _, evals = split_log([metrics for _, metrics in tracked] + [{"eval/step": 4, "eval/aime": 0.25}])
    assert [(one["dataset"], one["accuracy"]) for one in evals] == [("aime", 0.25)]


def test_responses_that_no_problems_share_evenly_have_their_mean_alone(sample_class, tmp_path, tracked, caplog):
    args = make_args(
        sat_slime={"run_dir": str(tmp_path)}, use_rollout_routing_replay=False, n_samples_per_eval_prompt=3
    )
    log_eval(4, args, {"aime": evaluated(sample_class, "0")}, None)
    (row,) = read_rows(tmp_path / "eval.jsonl")
    assert (row["accuracy"], row["n_samples"], row["weights_step"]) == (0.25, 4, 0)
    assert "accuracy/low" not in row and "4 rewards are not 3 samples a problem" in caplog.text


@pytest.mark.parametrize(
    ("driven", "version"),
    [(False, "3"), (True, "default"), (True, "3 and 5")],
    ids=["a script of one's own", "never sent weights", "two weights"],
)
def test_weights_that_are_not_known_for_sure_are_not_claimed(sample_class, tmp_path, tracked, driven, version):
    config = {"run_dir": str(tmp_path)}
    args = make_args(sat_slime=config, use_rollout_routing_replay=False, sat_slime_driven=driven)
    data = evaluated(sample_class, version.split()[0])
    data["samples"][-1].weight_versions = [version.split()[-1]]
    log_eval(4, args, {"aime": data}, None)
    assert read_rows(tmp_path / "eval.jsonl")[0]["weights_step"] is None
    assert not any("weights" in key for _, metrics in tracked for key in metrics)


def test_a_resumed_run_replaces_the_evaluations_after_its_checkpoint(sample_class, tmp_path, tracked):
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps({"step": step, "old": True}) + "\n" for step in (5, 10, 15)) + '{"step": 20')
    args = make_args(sat_slime={"run_dir": str(tmp_path)}, use_rollout_routing_replay=False)
    for rollout_id in (9, 14):
        log_rollout(rollout_id, args, [], {}, 1.0)
        log_eval(rollout_id, args, {"a": evaluated(sample_class, "9"), "b": evaluated(sample_class, "9")}, None)
    rows = [(row["step"], row.get("dataset")) for row in read_rows(path)]
    assert rows == [(5, None), (10, "a"), (10, "b"), (15, "a"), (15, "b")]
