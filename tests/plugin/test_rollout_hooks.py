"""Hooks in slime's rollout process, on slime's Sample and RolloutManager where it is installed, else on a stand-in."""

from __future__ import annotations

import asyncio
import enum
import inspect
import json
import logging
import os
import pickle
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from slime_host import import_slime
from synthetic_routes import make_routes

from sat_slime.config.jsonl import read_rows
from sat_slime.evaluation.scores import Graded, summary
from sat_slime.plugin import rollout_hooks
from sat_slime.plugin.inside import versions
from sat_slime.plugin.inside.routed_experts import fault
from sat_slime.plugin.rollout_hooks import log_eval, log_rollout, on_sample
from sat_slime.runs.slime_rows import split_log


@dataclass
class StandIn:
    """The fields of slime's Sample that the hooks read."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    index: int | None = None
    group_index: int | None = None
    rollout_id: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_routed_experts: Any = None
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict = field(default_factory=dict)


@pytest.fixture(params=["stand-in", pytest.param("slime", marks=pytest.mark.needs_slime)])
def sample_class(request):
    if request.param == "stand-in":
        return StandIn
    from slime.utils.types import Sample

    return Sample


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(rollout_hooks, "_generated", -1)
    rollout_hooks._announce.cache_clear()
    rollout_hooks._eval_file.cache_clear()


def make_args(hooks: dict[str, bool] | None = None, **other: Any) -> Namespace:
    settings = {
        "rollout_top_p": 1.0,
        "sat_slime": {"method": {"r3": True}, "hooks": hooks or {}},
        "use_rollout_routing_replay": True,
        "num_layers": 3,
        "moe_router_topk": 4,
        "num_experts": 32,
        "moe_layer_freq": 1,
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "eps_clip_c": None,
        "keep_old_actor": False,
        "use_rollout_logprobs": True,
        "rollout_batch_size": 8,
        "n_samples_per_prompt": 4,
        "global_batch_size": 32,
        "update_weight_transport": "nccl",
    }
    return Namespace(**(settings | other))


def make_sample(sample_class, index: int = 0, response: int = 10, version: str = "3", **other: Any):
    """A response to prompt `index // 4`, which has 10 tokens, with good routes."""
    group = index // 4
    routes = torch.cat([make_routes(11, seed=group), make_routes(response, seed=1000 + index)])
    fields = {
        "index": index,
        "group_index": group,
        "rollout_id": index,
        "tokens": [group] * 10 + [50 + index] * response,
        "response_length": response,
        "reward": float(index % 2),
        "status": sample_class.Status.COMPLETED,
        "rollout_routed_experts": routes,
        "rollout_log_probs": [-0.5] * response,
        "weight_versions": [version],
    }
    return sample_class(**(fields | other))


def test_routes_are_narrowed_as_they_arrive(sample_class):
    sample = make_sample(sample_class)
    wide = sample.rollout_routed_experts
    assert on_sample(make_args(), sample, rollout_id=5, evaluation=False) is None
    assert sample.rollout_routed_experts.dtype == torch.uint8
    assert torch.equal(sample.rollout_routed_experts.int(), wide)
    assert not sample.remove_sample and sample.metadata == {}


def test_routes_of_an_evaluation_are_dropped(sample_class):
    sample = make_sample(sample_class)
    on_sample(make_args(), sample, rollout_id=5, evaluation=True)
    assert sample.rollout_routed_experts is None and not sample.remove_sample


def test_without_routing_replay_nothing_happens(sample_class):
    sample = make_sample(sample_class, rollout_routed_experts=None)
    on_sample(make_args(use_rollout_routing_replay=False), sample, rollout_id=5, evaluation=False)
    assert sample == make_sample(sample_class, rollout_routed_experts=None)


@pytest.mark.parametrize(
    ("hooks", "dtype", "left_out"),
    [
        ({"narrow_routed_experts": False}, torch.uint8, True),  # the stand-in routes are narrow
        ({"check_routed_experts": False}, torch.uint8, False),
        ({"narrow_routed_experts": False, "check_routed_experts": False}, torch.int32, False),
    ],
)
def test_each_hook_is_switched_alone(sample_class, hooks, dtype, left_out):
    sample = make_sample(sample_class)
    sample.rollout_routed_experts[3, 0, 0] = sample.rollout_routed_experts[3, 0, 1]
    on_sample(make_args(hooks), sample, rollout_id=5, evaluation=False)
    assert sample.rollout_routed_experts.dtype == dtype
    assert sample.remove_sample == left_out


def test_hooks_are_told_once_and_only_when_on(sample_class, caplog):
    caplog.set_level(logging.INFO)
    off = dict.fromkeys(("narrow_routed_experts", "check_routed_experts", "version_by_step"), False)
    for hooks, told in [(off, []), ({}, ["narrow_routed_experts", "check_routed_experts", "version_by_step"])]:
        for index in range(3):
            on_sample(make_args(hooks), make_sample(sample_class, index), rollout_id=5, evaluation=False)
        log_rollout(5, make_args(hooks), [make_sample(sample_class)], {}, 1.0)
        messages = [record.getMessage() for record in caplog.records]
        assert [message.split()[2] for message in messages if "sat_slime: hook" in message] == told


@pytest.mark.parametrize("change", ["rows", "range", "twice", "none"])
def test_a_response_with_bad_routes_is_left_out_and_named(sample_class, caplog, change):
    sample = make_sample(sample_class, 7)
    sample.metadata["source_name"] = "polaris"
    routes = sample.rollout_routed_experts
    if change == "rows":
        sample.rollout_routed_experts = routes[1:]
    elif change == "range":
        routes[3, 1, 2] = 32
    elif change == "twice":
        routes[3, 1, 2] = routes[3, 1, 1]
    else:
        sample.rollout_routed_experts = None
    args = make_args()
    on_sample(args, sample, rollout_id=5, evaluation=False)
    assert sample.remove_sample
    assert fault(sample.rollout_routed_experts, len(sample.tokens), args) is None, "its own would end the replay"
    assert "sample 7 of rollout 5 (polaris) is left out of training: " in caplog.text
    assert sample.metadata["source_name"] == "polaris"


def test_an_aborted_response_is_not_judged(sample_class):
    for routes in (make_sample(sample_class).rollout_routed_experts[:5], None):
        sample = make_sample(sample_class, status=sample_class.Status.ABORTED, rollout_routed_experts=routes)
        on_sample(make_args(), sample, rollout_id=5, evaluation=False)
        assert not sample.remove_sample
        assert routes is None or sample.rollout_routed_experts.dtype == torch.uint8


@pytest.mark.needs_slime
def test_a_recorded_answer_of_sglang_has_no_fault():
    from slime.utils.types import Sample

    recorded = json.loads((Path(__file__).parents[1] / "rollout/recorded_response.json").read_text())
    meta = recorded["response"]["meta_info"]
    args = make_args(num_layers=2, moe_router_topk=2, num_experts=8)
    sample = Sample(index=0, tokens=list(recorded["request"]["input_ids"]))
    sample.append_response_tokens(
        args,
        tokens=[entry[1] for entry in meta["output_token_logprobs"]],
        log_probs=[entry[0] for entry in meta["output_token_logprobs"]],
        meta_info=meta,
    )
    on_sample(args, sample, rollout_id=5, evaluation=False)
    assert not sample.remove_sample
    assert sample.rollout_routed_experts.dtype == torch.uint8
    log_rollout(5, args, [sample], {}, 1.0)
    assert sample.metadata["round_number"] == -1 - int(meta["weight_version"])


@pytest.mark.needs_slime
def test_slime_calls_the_hook_on_every_sample_of_a_nested_rollout():
    from slime.rollout.sample_hooks import apply_rollout_sample_hooks, set_current_rollout_id
    from slime.utils.types import Sample

    args = make_args(rollout_sample_hook_path=["sat_slime.plugin.rollout_hooks.on_sample"])
    nested = [make_sample(Sample, 0), [make_sample(Sample, 1), make_sample(Sample, 2)]]
    set_current_rollout_id(4)
    first, (second, third) = asyncio.run(apply_rollout_sample_hooks(args, nested, evaluation=False))
    assert {one.rollout_routed_experts.dtype for one in (first, second, third)} == {torch.uint8}


def make_batch(sample_class, args: Namespace, count: int = 32, versions: list[str] | None = None) -> list[Any]:
    samples = []
    for index in range(count):
        sample = make_sample(sample_class, index, response=5 + index % 7, version=(versions or ["3"] * count)[index])
        on_sample(args, sample, rollout_id=5, evaluation=False)
        samples.append(sample)
    return samples


def test_versions_are_carried_to_the_trainer(sample_class):
    samples = make_batch(sample_class, make_args(), versions=["8"] * 30 + ["0", "16"])
    samples[0].weight_versions = ["16", "8", "16"]  # a partial rollout
    assert log_rollout(5, make_args(), samples, {}, 1.0) is False
    data = {"round_number": [sample.metadata["round_number"] for sample in samples]}
    assert [carried.oldest for carried in versions.unload(data)] == [8] * 30 + [0, 16]
    assert data == {}


def interrupted(sample_class, args, cuts: list[int], versions_: list[str], length: int, index: int = 0):
    """A sample that pushes cut off after the numbers of tokens in `cuts`, which the hook has seen each time. Its last
    routes are those of all its tokens, which were forwarded anew."""
    empty = {"tokens": [index // 4] * 10, "response_length": 0, "rollout_log_probs": [], "weight_versions": []}
    sample = make_sample(sample_class, index, **empty, rollout_routed_experts=None)
    for end, version in zip([*cuts, length], versions_, strict=True):
        added = end - sample.response_length
        sample.tokens, sample.response_length = sample.tokens + [50] * added, end
        sample.weight_versions = [*sample.weight_versions, version]
        if end:
            sample.rollout_routed_experts = make_routes(40, seed=1000 + int(version))[: 9 + end]
        sample.status = sample_class.Status.COMPLETED if end == length else sample_class.Status.ABORTED
        on_sample(args, sample, rollout_id=5, evaluation=False)
    return sample


def test_the_version_of_each_token_is_carried(sample_class):
    args = make_args(use_rollout_routing_replay=False, sat_slime={"method": {}})
    samples = [
        interrupted(sample_class, args, [4, 7], ["2", "3", "5"], 10),
        interrupted(sample_class, args, [0, 4], ["1", "3", "4"], 6),  # it was cut off before its first token
        make_sample(sample_class, 2, response=8, version="5"),
        make_sample(sample_class, 3, response=8, weight_versions=["3", "4"]),  # a conversation that was not cut off
    ]
    log_rollout(5, args, samples, {}, 1.0)
    data = pickle.loads(pickle.dumps({"round_number": [sample.metadata["round_number"] for sample in samples]}))
    carried = versions.unload(data)
    assert [one.parts for one in carried] == [((4, 2), (3, 3), (3, 5)), ((4, 3), (2, 4)), ((8, 5),), ()]
    assert [one.oldest for one in carried] == [2, 3, 5, 3]
    assert all(set(sample.metadata) == {"round_number"} for sample in samples)


def test_rows_forwarded_anew_keep_the_routes_of_their_time(sample_class):
    sample = interrupted(sample_class, make_args(), [4, 7], ["2", "3", "5"], 10)
    assert not sample.remove_sample and sample.rollout_routed_experts.dtype == torch.uint8
    assert sample.rollout_routed_experts.shape[0] == 19
    first, second, third = (make_routes(40, seed=1000 + version) for version in (2, 3, 5))
    expected = torch.cat([first[:13], second[13:16], third[16:19]])  # 9 of the prompt's rows predict nothing
    assert torch.equal(sample.rollout_routed_experts.int(), expected)
    assert set(sample.metadata) == {"sat_slime_cuts"}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda samples: samples[3].metadata.update(round_number=2), "use metadata['round_number'] themselves"),
        (lambda samples: samples[3].weight_versions.clear(), "not every response came with the version"),
        (lambda samples: samples[3].weight_versions.append("default"), ": 3, default"),
    ],
)
def test_a_batch_carries_all_versions_or_none(sample_class, caplog, spoil, words):
    samples = make_batch(sample_class, make_args())
    spoil(samples)
    before = [dict(sample.metadata) for sample in samples]
    log_rollout(5, make_args(), samples, {}, 1.0)
    assert [sample.metadata for sample in samples] == before
    assert words in caplog.text


@pytest.mark.parametrize("args", [{"hooks": {"version_by_step": False}}, {"update_weight_transport": "disk"}])
def test_versions_that_are_no_steps_are_not_carried(sample_class, args):
    samples = make_batch(sample_class, make_args())
    log_rollout(5, make_args(**args), samples, {}, 1.0)
    assert not any(sample.metadata for sample in samples)


def test_one_bad_response_does_not_end_a_rollout_and_two_in_a_hundred_do(sample_class):
    samples = make_batch(sample_class, make_args())
    metrics: dict[str, Any] = {}
    samples[9].rollout_routed_experts = samples[9].rollout_routed_experts[:-1]
    on_sample(make_args(), samples[9], rollout_id=5, evaluation=False)
    assert log_rollout(5, make_args(), samples, metrics, 1.0) is False
    assert metrics == {"rollout/rejected": 1}
    samples[11].rollout_routed_experts[3] = 0
    on_sample(make_args(), samples[11], rollout_id=5, evaluation=False)
    with pytest.raises(RuntimeError) as error:
        log_rollout(5, make_args(), samples, None, 1.0)
    assert str(error.value).startswith("rollout 5: 2 of 32 samples have routed experts that are not of their tokens")
    assert "sample 9 of rollout 5" in str(error.value) and "\n" not in str(error.value)


def test_routes_that_went_to_another_response_are_found_by_the_prompt(sample_class):
    samples = make_batch(sample_class, make_args())
    lengths = {len(sample.tokens): [] for sample in samples}
    for sample in samples:
        lengths[len(sample.tokens)].append(sample)
    one, other = lengths[15][:2]
    assert one.group_index != other.group_index
    one.rollout_routed_experts = other.rollout_routed_experts
    log_rollout(5, make_args(), samples, {}, 1.0)
    assert [sample.index for sample in samples if sample.remove_sample] == [one.index]


def rollout_manager():
    """slime's RolloutManager as the plain class, not as the actor that Ray makes of it."""
    (module,) = import_slime("slime.ray.rollout")
    return module.RolloutManager.__ray_metadata__.modified_class


@pytest.mark.needs_slime
def test_through_slimes_conversion_to_the_trainers_batch(monkeypatch):
    from slime.utils.types import Sample

    args = make_args(
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=True,
        reward_key=None,
        rollout_top_p=1.0,
        micro_batch_size=4,
        use_dynamic_batch_size=False,
        balance_data=False,
        balance_by_flops=False,
    )
    samples = make_batch(Sample, args)
    samples[9].rollout_routed_experts = None
    on_sample(args, samples[9], rollout_id=5, evaluation=False)
    log_rollout(5, args, samples, {}, 1.0)
    manager_class = rollout_manager()
    manager = SimpleNamespace(
        args=args,
        custom_convert_samples_to_train_data_func=None,
        custom_reward_post_process_func=None,
        train_parallel_config={"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1},
    )
    manager._post_process_rewards = lambda samples: manager_class._post_process_rewards(manager, samples)
    data = manager_class._convert_samples_to_train_data(manager, samples)
    module = sys.modules[manager_class.__module__]
    monkeypatch.setattr(module, "ray", SimpleNamespace(put=lambda value: value))
    ranks = [box.inner for box in manager_class._split_train_data_by_dp(manager, data)]
    assert sum(len(rank["tokens"]) for rank in ranks) == 32
    for rank in ranks:
        assert {routes.dtype for routes in rank["rollout_routed_experts"]} == {torch.uint8}
        for place, routes in zip(rank["partition"], rank["rollout_routed_experts"], strict=True):
            assert torch.equal(routes, samples[place].rollout_routed_experts)
        masks = dict(zip(rank["partition"], rank["loss_masks"], strict=True))
        assert all(bool(mask.any()) == (place != 9) for place, mask in masks.items())
        assert [carried.oldest for carried in versions.unload(rank)] == [3] * len(rank["tokens"])


@pytest.fixture
def tracked(monkeypatch):
    """The metrics that go to slime's trackers, each call with the key that is its x axis."""
    seen = []
    fake = SimpleNamespace(
        log=lambda args, metrics, step_key: seen.append((step_key, metrics)),
        compute_rollout_step=lambda args, rollout_id: rollout_id,
    )
    monkeypatch.setattr(rollout_hooks, "slime_module", lambda name: fake)
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


def test_the_scores_of_an_evaluation_are_those_of_every_runtime(sample_class, tmp_path, tracked):
    args = make_args(
        sat_slime={"run_dir": str(tmp_path), "eval": {"k": [1, 2, 4], "repeats": 2}},
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
    graded = Graded(np.array(rewards).reshape(3, 4), lengths, np.array(data["truncated"]).reshape(3, 4), reasons)
    expected = summary(graded, [1, 2, 4], repeats=2)
    assert {key: row[key] for key in expected} == expected
    assert row["accuracy_by_run"] == pytest.approx([3 / 6, 1 / 6]) and row["pass@4"] == pytest.approx(2 / 3)
    shown = {key: value for _, metrics in tracked for key, value in metrics.items()}
    assert shown["eval/aime/pass@4"] == row["pass@4"] and shown["eval/aime/reasons/no_answer"] == 8
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
    ("hooks", "version"),
    [({"version_by_step": False}, "3"), ({}, "default"), ({}, "3 and 5")],
    ids=["hook off", "never sent weights", "two weights"],
)
def test_weights_that_are_not_known_for_sure_are_not_claimed(sample_class, tmp_path, tracked, hooks, version):
    config = {"run_dir": str(tmp_path), "hooks": hooks}
    args = make_args(sat_slime=config, use_rollout_routing_replay=False)
    data = evaluated(sample_class, version.split()[0])
    data["samples"][-1].weight_versions = [version.split()[-1]]
    log_eval(4, args, {"aime": data}, None)
    assert read_rows(tmp_path / "eval.jsonl")[0]["weights_step"] is None
    assert not any("weights" in key for _, metrics in tracked for key in metrics)


def test_an_evaluation_before_the_first_step_is_of_step_0(sample_class, tmp_path, tracked):
    args = make_args(sat_slime={"run_dir": str(tmp_path)}, use_rollout_routing_replay=False, global_batch_size=16)
    log_eval(0, args, {"aime": evaluated(sample_class, "0")}, None)
    log_rollout(0, args, [], {}, 1.0)
    log_eval(0, args, {"aime": evaluated(sample_class, "2")}, None)
    assert [(row["step"], row["weights_step"]) for row in read_rows(tmp_path / "eval.jsonl")] == [(0, 0), (2, 2)]


def test_a_resumed_run_replaces_the_evaluations_after_its_checkpoint(sample_class, tmp_path, tracked):
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps({"step": step, "old": True}) + "\n" for step in (5, 10, 15)) + '{"step": 20')
    args = make_args(sat_slime={"run_dir": str(tmp_path)}, use_rollout_routing_replay=False)
    for rollout_id in (9, 14):
        log_rollout(rollout_id, args, [], {}, 1.0)
        log_eval(rollout_id, args, {"a": evaluated(sample_class, "9"), "b": evaluated(sample_class, "9")}, None)
    rows = [(row["step"], row.get("dataset")) for row in read_rows(path)]
    assert rows == [(5, None), (10, "a"), (10, "b"), (15, "a"), (15, "b")]


@pytest.mark.needs_slime
def test_slimes_own_logging_of_an_evaluation_goes_on(tmp_path, monkeypatch):
    from slime.utils.types import Sample

    try:
        (module,) = import_slime("slime.observability.rollout_metrics")
        log = module.log_eval_rollout_data
    except ModuleNotFoundError:  # v0.3.1
        (module,) = import_slime("slime.ray.rollout")
        log = module._log_eval_rollout_data
    seen = {}
    monkeypatch.setattr(module.logging_utils, "log", lambda args, metrics, step_key: seen.update(metrics))
    args = make_args(
        sat_slime={"run_dir": str(tmp_path)},
        use_rollout_routing_replay=False,
        custom_eval_rollout_log_function_path="sat_slime.plugin.rollout_hooks.log_eval",
        log_passrate=False,
        advantage_estimator="grpo",
        reward_key=None,
        sglang_speculative_algorithm=None,
        log_reward_category=None,
        wandb_always_use_train_step=False,
    )
    log_rollout(4, args, [], {}, 1.0)
    log(4, args, {"aime": evaluated(Sample, "3")}, None)
    assert seen["eval/aime"] == 0.25 and seen["eval/step"] == 4
    assert seen["eval_at_weights/aime"] == 0.25 and seen["eval_at_weights/step"] == 3
    assert read_rows(tmp_path / "eval.jsonl")[0]["weights_step"] == 3


@pytest.mark.needs_slime
def test_the_stand_in_has_slimes_fields():
    from slime.utils.types import Sample

    assert set(inspect.signature(StandIn).parameters) <= set(inspect.signature(Sample).parameters)


@pytest.mark.needs_slime
def test_slimes_plugin_contracts_hold_for_our_hooks():
    import slime

    root = Path(slime.__path__[0]).parent
    contracts = root / "tests/plugin_contracts/test_plugin_runtime_hook_contracts.py"
    if not contracts.exists():
        pytest.skip("this slime is installed without its tests")
    paths = {
        "CUSTOM_ROLLOUT_LOG_FUNCTION_PATH": "contract_hooks.log_rollout",
        "CUSTOM_EVAL_ROLLOUT_LOG_FUNCTION_PATH": "contract_hooks.log_eval",
        "ROLLOUT_DATA_POSTPROCESS_PATH": "contract_hooks.postprocess",
    }
    here = Path(__file__).parent
    search = [str(root), str(here.parents[1]), str(here), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", str(contracts)],
        cwd=root,
        env=os.environ
        | {f"SLIME_CONTRACT_{key}": path for key, path in paths.items()}
        | {"PYTHONPATH": os.pathsep.join(search), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "10 passed" in done.stdout
