"""Hooks in slime's rollout process, on slime's Sample and RolloutManager where it is installed, else on a stand-in."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_slime import make_args, make_routes, make_sample

from sat_slime.config.jsonl import read_rows
from sat_slime.evaluation.scores import summary
from sat_slime.plugin import rollout_hooks, versions
from sat_slime.plugin.rollout_hooks import log_eval, log_rollout, on_sample
from sat_slime.runs.trackers import split_log

pytestmark = pytest.mark.usefixtures("rollout_process")
WITHOUT_ROUTES = make_args(use_rollout_routing_replay=False, sat_slime={"method": {}}, vocab_size=100)
NAN, GOOD, DRPO = float("nan"), [-0.5] * 10, {"base": "drpo", "denominator": "checkpoint"}


def test_a_run_with_another_reward_needs_no_verifier():
    code = "import sys; sys.modules['math_verify'] = None; from sat_slime.plugin import rollout_hooks as hooks"
    subprocess.run([sys.executable, "-c", f"{code}; assert hooks.drain_metrics() == {{}}"], check=True)


def test_tokens_are_bounded_by_the_models_folder_where_no_flag_says_it(sample_class, tmp_path):
    """slime reads that folder in its trainers alone."""
    args = make_args(
        use_rollout_routing_replay=False, sat_slime={"method": {}}, vocab_size=None, hf_checkpoint=str(tmp_path)
    )
    sample = make_sample(sample_class, 7, tokens=[0] * 19 + [100])
    assert judged(sample, args) == ""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"text_config": {"vocab_size": 100}}')
    args.hf_checkpoint = str(tmp_path / "model")
    assert judged(sample, args) == "vocab_range"


def judged(sample, args: Namespace) -> str:
    """The reason for which a copy of a sample is left out; empty where it is not."""
    sample = copy.copy(sample)
    sample.metadata = {}
    on_sample(args, sample, rollout_id=5, evaluation=False)
    return sample.metadata.get("sat_slime_fault", "").partition(":")[0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rollout_log_probs": np.array([*GOOD[:-1], -np.inf])}, "log_prob_not_finite"),
        ({"rollout_log_probs": [*GOOD[:-1], None]}, "log_prob_not_finite"),
        ({"rollout_log_probs": [*GOOD[:-1], 1e-7]}, ""),
        ({"rollout_log_probs": [*GOOD[:-1], 0.5]}, "log_prob_positive"),
        ({"rollout_log_probs": torch.tensor(GOOD)}, ""),
        ({"rollout_log_probs": list(np.float32(GOOD)), "tokens": list(np.arange(20))}, ""),
        ({"rollout_log_probs": GOOD[:-1]}, "token_count"),
        ({"rollout_log_probs": None}, "log_probs_missing"),
        ({"rollout_log_probs": "-0.5"}, "log_probs_missing"),
        ({"rollout_log_probs": [*GOOD[:-1], NAN], "loss_mask": [1] * 9 + [0]}, ""),  # a tool's token
        ({"rollout_log_probs": [*GOOD[:-1], None], "loss_mask": [1] * 9 + [0]}, "log_prob_not_finite"),
        ({"loss_mask": [1] * 9}, "token_count"),
        ({"response_length": 20}, "token_count"),  # nothing predicts the first token
        ({"response_length": -1}, "token_count"),
        ({"tokens": [0] * 19 + [100], "rollout_log_probs": [*GOOD[:-2], NAN]}, "vocab_range"),
        ({"tokens": [0] * 19 + [7.0]}, "vocab_range"),
        ({"tokens": np.zeros(20, np.int64)}, ""),
        ({"response_length": 0, "rollout_log_probs": None, "tokens": [0] * 10}, ""),
    ],
)
def test_what_the_lab_runtime_refuses_is_left_out(sample_class, caplog, fields, reason):
    sample = make_sample(sample_class, 7, **fields)
    assert on_sample(WITHOUT_ROUTES, sample, rollout_id=5, evaluation=False) is None
    assert sample.remove_sample == bool(reason)
    assert sample.metadata.get("sat_slime_fault", "").startswith(reason)
    assert (f"sample 7 of rollout 5 is left out of training: {reason}: " in caplog.text) == bool(reason)
    numbers = torch.as_tensor(sample.rollout_log_probs, dtype=torch.float32)  # as slime, which multiplies the masked
    masked = torch.as_tensor(sample.loss_mask or [1] * sample.response_length) == 0
    assert len(numbers) == sample.response_length < len(sample.tokens) and (numbers.isfinite() | masked).all()
    assert min(sample.tokens) >= 0 and max(sample.tokens) < 100
    unjudged = make_sample(sample_class, 7, **fields, status=sample_class.Status.ABORTED)
    for evaluation in (False, True):  # it goes on later; it is not trained
        on_sample(WITHOUT_ROUTES, unjudged, rollout_id=5, evaluation=evaluation)
    assert not unjudged.remove_sample


@pytest.mark.parametrize("method", ["sat-grpo", "grpo-tis", {"denominator": "trainer"}, DRPO])
def test_log_probs_that_no_one_reads_may_be_missing(sample_class, method):
    missing = make_sample(sample_class, rollout_log_probs=None)
    flags = {"use_rollout_routing_replay": False, "custom_generate_function_path": "own.generate"}
    args = make_args(use_rollout_logprobs=False, sat_slime={"method": method}, **flags)
    assert (judged(missing, args) == "log_probs_missing") == (method != {"denominator": "trainer"})
    if method == "sat-grpo":
        on_sample(args, missing)
        with pytest.raises(RuntimeError, match="has to give rollout_log_probs"):
            log_rollout(5, args, [missing, missing], None, 1.0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda routes: routes, ""),
        (lambda routes: [[1, 2], [3]], "routed_experts_shape"),
        (lambda routes: "AAAA", "routed_experts_shape"),
        (lambda routes: routes[1:], "routed_experts_shape"),
        (lambda routes: routes[:, :2], "routed_experts_shape"),
        (lambda routes: routes[..., :3], "routed_experts_shape"),
        (lambda routes: routes.flatten(), "routed_experts_shape"),
        (lambda routes: routes.float(), "routed_experts_shape"),
        (lambda routes: routes.index_fill(0, torch.tensor([3]), 32), "expert_range"),
        (lambda routes: routes.index_fill(0, torch.tensor([3]), -1), "expert_range"),
        (lambda routes: routes.index_fill(0, torch.tensor([3]), 256), "expert_range"),  # 0 in a byte
        (lambda routes: routes.index_fill(0, torch.tensor([3]), 2), "duplicate_expert"),
        (lambda routes: None, "routed_experts_missing"),
    ],
)
def test_a_response_with_bad_routes_is_left_out_and_named(sample_class, caplog, spoil, reason):
    args, sample = make_args(), make_sample(sample_class, 7)
    sample.metadata["source_name"] = "polaris"
    whole = sample.rollout_routed_experts
    sample.rollout_routed_experts = spoil(whole)
    on_sample(args, sample, rollout_id=5, evaluation=False)
    assert sample.remove_sample == bool(reason)
    assert judged(sample, args) == "", "its own routes would end the replay"
    assert (f"sample 7 of rollout 5 (polaris) is left out of training: {reason}: " in caplog.text) == bool(reason)
    assert sample.metadata["source_name"] == "polaris"
    if not reason:
        assert sample.rollout_routed_experts.dtype == torch.uint8
        assert torch.equal(sample.rollout_routed_experts.int(), whole)
    on_sample(args, sample, rollout_id=5, evaluation=True)
    assert sample.rollout_routed_experts is None, "nothing is replayed of an evaluation"


def test_a_reason_is_logged_once_and_counted_always(sample_class, caplog):
    samples = [make_sample(sample_class, index % 40, rollout_routed_experts=None) for index in range(400)]
    for index in (1, 2, 3):
        samples[index].rollout_log_probs[4] = NAN if index < 3 else 0.5
    for sample in samples:
        on_sample(WITHOUT_ROUTES, sample, rollout_id=5, evaluation=False)
    metrics: dict[str, Any] = {}
    log_rollout(5, WITHOUT_ROUTES, samples, metrics, 1.0)
    assert caplog.text.count("left out of training") == 2
    counts = {"rollout/rejected": 3, "rollout/rejected/log_prob_not_finite": 2, "rollout/rejected/log_prob_positive": 1}
    assert metrics == counts
    assert samples[0].metadata["round_number"].rollout_metrics == {**counts, "time/rollout": 1.0}


@pytest.fixture
def samples(sample_class) -> list[Any]:
    """A batch that the hook has seen."""
    made = [make_sample(sample_class, index, response=5 + index % 7) for index in range(32)]
    for sample in made:
        on_sample(make_args(), sample, rollout_id=5, evaluation=False)
    return made


def test_versions_that_are_no_steps_are_not_carried(samples):
    """In a script of one's own slime counts its pushes, and nothing takes an origin out before slime would log it."""
    log_rollout(5, make_args(sat_slime_driven=False), samples, {}, 1.0)
    assert not any(sample.metadata for sample in samples)


def interrupted(sample_class, args, cuts: list[int], versions_: list[str], length: int, index: int = 0):
    """A sample that pushes cut off after the numbers of tokens in `cuts`, which the hook has seen each time. Its last
    routes are those of all its tokens, which were forwarded anew. versions_: of each answer, empty where it has none.
    """
    empty = {"tokens": [index // 4] * 10, "response_length": 0, "rollout_log_probs": [], "weight_versions": []}
    sample = make_sample(sample_class, index, **empty, rollout_routed_experts=None)
    for end, version in zip([*cuts, length], versions_, strict=True):
        added = end - sample.response_length
        sample.tokens, sample.response_length = sample.tokens + [50] * added, end
        sample.rollout_log_probs = [*sample.rollout_log_probs, *[-0.5] * added]
        sample.weight_versions = [*sample.weight_versions, *([version] if version else [])]
        if end:
            sample.rollout_routed_experts = make_routes(40, seed=1000 + int(version or 0))[: 9 + end]
        sample.status = sample_class.Status.COMPLETED if end == length else sample_class.Status.ABORTED
        on_sample(args, sample, rollout_id=5, evaluation=False)
    return sample


def test_the_version_of_each_token_is_carried(sample_class):
    args = make_args(use_rollout_routing_replay=False, sat_slime={"method": {}})
    samples = [
        interrupted(sample_class, args, [4, 7], ["2", "3", "5"], 10),
        interrupted(sample_class, args, [0, 4], ["1", "3", "4"], 6),  # it was cut off before its first token
        interrupted(sample_class, args, [0, 4, 4], ["", "3", "", "4"], 6),  # or without a version then
        make_sample(sample_class, 2, response=8, version="5"),
        # a conversation that was not cut off, and a response that an agent began anew and made shorter
        make_sample(sample_class, 3, response=8, weight_versions=["4", "3", "4"]),
        make_sample(sample_class, 4, response=8, weight_versions=["4", "5"], metadata={versions.CUTS: [10]}),
    ]
    assert log_rollout(5, args, samples, {}, 1.0) is False
    data = pickle.loads(pickle.dumps({"round_number": [sample.metadata["round_number"] for sample in samples]}))
    origins = versions.take_origins(data)
    assert data == {}
    early, whole = ((4, 3), (2, 4)), [((8, version),) for version in (5, 3, 4)]
    assert [origin.parts for origin in origins] == [((4, 2), (3, 3), (3, 5)), early, early, *whole]
    assert all(set(sample.metadata) == {"round_number"} for sample in samples)


def test_rows_forwarded_anew_keep_the_routes_of_their_time(sample_class):
    # the second time it was cut off before another token
    sample = interrupted(sample_class, make_args(), [4, 4, 7], ["2", "9", "3", "5"], 10)
    assert not sample.remove_sample and sample.rollout_routed_experts.dtype == torch.uint8
    assert sample.rollout_routed_experts.shape[0] == 19
    first, second, third = (make_routes(40, seed=1000 + version) for version in (2, 3, 5))
    expected = torch.cat([first[:13], second[13:16], third[16:19]])  # 9 of the prompt's rows predict nothing
    assert torch.equal(sample.rollout_routed_experts.int(), expected)
    assert set(sample.metadata) == {"sat_slime_cuts"}


def test_a_response_begun_anew_has_new_routes_alone(sample_class):
    """An agent of the user's may drop what it had before the interruption."""
    sample = make_sample(sample_class, 3, response=4, status=sample_class.Status.ABORTED)
    on_sample(make_args(), sample, rollout_id=5, evaluation=False)
    again = make_sample(sample_class, 3, response=10, tokens=[51] * 20, metadata=sample.metadata)
    again.rollout_routed_experts = routes = make_routes(20, seed=9)[:19]
    on_sample(make_args(), again, rollout_id=5, evaluation=False)
    assert torch.equal(again.rollout_routed_experts.int(), torch.as_tensor(routes).int()) and not again.remove_sample


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda samples: samples[3].metadata.update(round_number=2), "use metadata['round_number'] themselves"),
        (lambda samples: samples[3].weight_versions.clear(), "not every response came with the version"),
        (lambda samples: samples[3].weight_versions.append("odd"), ": 3, odd"),
        (lambda samples: samples.append(interrupted(type(samples[0]), make_args(), [4], ["", "3"], 6)), ": 3, none"),
        (
            lambda samples: samples.append(interrupted(type(samples[0]), make_args(), [4, 7], ["3", "", "3"], 9)),
            ", none",
        ),
    ],
)
def test_a_batch_carries_all_versions_or_none(samples, caplog, spoil, words):
    spoil(samples)
    before = [dict(sample.metadata) for sample in samples]
    log_rollout(5, make_args(), samples, {}, 1.0)
    assert [sample.metadata for sample in samples] == before
    assert words in caplog.text


def test_responses_of_weights_that_the_driver_never_sent_are_not_trained(samples):
    """An engine of another run answered so on the address of one that had died, with its initial weights."""
    args = make_args()
    samples[3].weight_versions = ["default"]
    with pytest.raises(RuntimeError, match=rf"rollout 5: 1 of {len(samples)} responses are of weights .* never sent"):
        log_rollout(5, args, samples, {}, 1.0)
    for flag in ("debug_rollout_only", "debug_train_only"):  # no trainer, or no engine: nothing is ever pushed
        assert log_rollout(5, make_args(**{flag: True}), samples, None, 1.0) is False


def test_samples_that_are_trained_on_again_carry_versions_with_the_new_ones(samples):
    """A rollout function of one's own may replay some. slime asks the first sample whether all have a round number."""
    log_rollout(5, make_args(), samples[:8], {}, 1.0)
    log_rollout(6, make_args(), samples[:16], {}, 2.0)
    assert {s.metadata["round_number"].rollout_metrics["time/rollout"] for s in samples[:16]} == {2.0}
    samples[20].weight_versions = []
    log_rollout(7, make_args(), [*samples[:8], *samples[16:]], {}, 3.0)
    assert not any("round_number" in sample.metadata for sample in [*samples[:8], *samples[16:]])


def test_one_bad_response_does_not_end_a_rollout_and_two_in_a_hundred_do(samples):
    metrics: dict[str, Any] = {}
    args = make_args()
    samples[9].rollout_routed_experts = samples[9].rollout_routed_experts[:-1]
    on_sample(args, samples[9], rollout_id=5, evaluation=False)
    assert log_rollout(5, args, samples, metrics, 1.0) is False
    assert metrics == {"rollout/rejected": 1, "rollout/rejected/routed_experts_shape": 1}
    samples[11].rollout_routed_experts[3] = 0
    on_sample(args, samples[11], rollout_id=5, evaluation=False)
    with pytest.raises(RuntimeError) as error:
        log_rollout(5, args, samples, None, 1.0)
    assert str(error.value).startswith("rollout 5: 2 of 32 samples cannot be trained on (routed_experts_shape 1")
    assert "sample 9 of rollout 5" in str(error.value) and "\n" not in str(error.value)


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


@pytest.fixture
def evaluate(sample_class, tmp_path, tracked):
    """Records an evaluation of data sets, and returns the rows that the run has. versions: of the samples, the last for
    those that follow. change: of what slime hands over. flags: over slime's arguments."""

    def record(
        rollout_id, versions=("0",), rewards=(1.0, 0.0, 0.0, 0.0), change=lambda data: None, names=("aime",), **flags
    ):
        flags = {"sat_slime": {"run_dir": str(tmp_path / "run")}, "use_rollout_routing_replay": False} | flags
        told = [*versions, *versions[-1:] * len(rewards)]
        samples = [make_sample(sample_class, i, response=10 + 2 * i, version=told[i]) for i in range(len(rewards))]
        data = {"rewards": list(rewards), "truncated": [False] * len(rewards), "samples": samples}
        change(data)
        assert log_eval(rollout_id, make_args(**flags), dict.fromkeys(names, data), None) is False
        return read_rows(tmp_path / "run" / "eval.jsonl")

    return record


def scores_of(tracked) -> list[tuple[str, float]]:
    """What a tracker's log of these metrics, with slime's own of the accuracy, is read as."""
    _, evals = split_log([metrics for _, metrics in tracked] + [{"eval/step": 4, "eval/aime": 0.25}])
    return [(one["dataset"], one["accuracy"]) for one in evals]


WEIGHTS = {
    "pushed every 8 rollouts": (4, ["0"], {}, (5, 0)),
    "pushed since": (9, ["8"], {}, (10, 8)),
    "a job that begins": (0, ["0"], {}, (0, 0)),
    "a job that goes on from the first iteration and begins with its evaluation": (0, ["1"], {}, (1, 1)),
    "the job before died between its last checkpoint and its end": (11, ["12"], {}, (12, 12)),
    "a script of one's own": (4, ["3"], {"sat_slime_driven": False}, (5, None)),
    "weights that were never sent": (4, ["default"], {}, (5, None)),
    "two weights": (4, ["3", "5"], {}, (5, None)),
}


@pytest.mark.parametrize(("rollout_id", "versions", "flags", "steps"), WEIGHTS.values(), ids=WEIGHTS)
def test_an_evaluation_is_that_of_the_weights_it_measured_and_of_none_that_are_not_sure(
    evaluate, tracked, rollout_id, versions, flags, steps
):
    (row,) = evaluate(rollout_id, versions, **flags)
    assert (row["step"], row["weights_step"]) == steps
    if steps[1] is None:
        assert not any("weights" in key for _, metrics in tracked for key in metrics)
    else:
        at_weights, (key, metrics) = tracked
        expected = {"eval_at_weights/aime": 0.25, "eval_at_weights/step": steps[1]}
        assert at_weights == ("eval_at_weights/step", expected)
        assert key == "eval/step" and (metrics["eval/aime-weights_step"], metrics[key]) == (steps[1], rollout_id)


def test_the_scores_of_an_evaluation_are_those_of_every_runtime(evaluate, tracked):
    rewards, given = [1.0, 1.0, 0.0, 1.0] + [0.0] * 4 + [0.0, 1.0, 0.0, 0.0], {}

    def change(data):
        data["truncated"][-1] = True
        for sample, reward in zip(data["samples"], rewards, strict=True):
            sample.metadata = {"sat_slime_verdict": "number" if reward else "no_answer"}
        given.update(data)

    of_aime = [SimpleNamespace(name="aime", n_samples_per_eval_prompt=4)]
    (row,) = evaluate(9, ["8"], rewards, change, eval_datasets=of_aime, n_samples_per_eval_prompt=16)
    lengths = [sample.response_length for sample in given["samples"]]
    by_problem = (np.array(values).reshape(3, 4) for values in (rewards, lengths, given["truncated"]))
    expected = summary(*by_problem, [sample.metadata["sat_slime_verdict"] for sample in given["samples"]])
    assert {key: row[key] for key in expected} == expected and row["dataset"] == "aime"
    shown = {key: value for _, metrics in tracked for key, value in metrics.items()}
    assert shown["eval/aime/accuracy/low_samples"] == row["accuracy/low_samples"]
    assert shown["eval/aime/reasons/no_answer"] == 8
    assert "eval/aime/accuracy" not in shown, "slime logs it as eval/aime"
    assert scores_of(tracked) == [("aime", 0.25)]


def test_an_evaluation_of_no_numbers_or_of_no_training_is_not_recorded(evaluate, tracked, caplog):
    (row,) = evaluate(4, change=lambda data: data.update(truncated=np.zeros(4, bool)))
    assert evaluate(9, rewards=[{"a": 1.0}] * 4) == [row] and "not recorded" in caplog.text
    assert evaluate(0, num_rollout=0, sat_slime_driven=False) == [row]


def test_what_the_verifier_counted_of_an_evaluation_is_no_score(evaluate, tracked, monkeypatch):
    monkeypatch.setattr(rollout_hooks, "drain_metrics", lambda prefix="rollout/": {f"{prefix}kills": 2.0})
    evaluate(4, sat_slime="gspo")
    assert ("eval/step", {"eval/verifier/kills": 2.0, "eval/step": 4}) in tracked
    assert scores_of(tracked) == [("aime", 0.25)]


def test_responses_that_no_problems_share_evenly_have_their_mean_alone(evaluate, caplog):
    (row,) = evaluate(4, n_samples_per_eval_prompt=3)
    assert (row["accuracy"], row["n_samples"], row["weights_step"]) == (0.25, 4, 0)
    assert "accuracy/low_samples" not in row and "4 rewards are not 3 samples a problem" in caplog.text

    *_, row = evaluate(5, n_samples_per_eval_prompt=2, change=lambda data: setattr(data["samples"][3], "index", 2))
    assert (row["accuracy"], "n_problems" in row) == (0.25, False), "an agent made two samples of the third"


def test_a_resumed_run_replaces_the_evaluations_after_its_checkpoint(evaluate, tmp_path):
    path = tmp_path / "run" / "eval.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"step": step, "old": True}) + "\n" for step in (5, 10, 15)) + '{"step": 20')
    evaluate(9, ["9"])
    rows = evaluate(14, ["9"], names=("aime", "math"))
    assert [(row["step"], row.get("dataset")) for row in rows] == [(5, None), (10, "aime"), (15, "aime"), (15, "math")]
