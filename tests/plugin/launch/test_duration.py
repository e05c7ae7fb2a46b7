"""Estimates of time and cost, against numbers computed by hand and against what a real run took."""

import json
from pathlib import Path

import pytest
from paper_commands import ROOT, paper

from sat_slime.config import load_config
from sat_slime.config.slime_schema import SlimeModelConfig
from sat_slime.plugin.launch.duration import (
    Measured,
    Parts,
    decode_seconds,
    duration_lines,
    estimate,
    estimates,
    evaluation_seconds,
    forward_flops,
    forward_passes,
    generation_seconds,
    iteration_ends,
    measured,
    problems,
    push_seconds,
    route_tokens_per_second,
    running_requests,
    save_seconds,
    training_seconds,
    words,
)

TOLERANCE = 0.2
"""The error that an estimate from a run's own speeds may have."""
RECORDED = Path(__file__).with_name("laptop_times.jsonl")
"""times.jsonl and the needed columns of metrics.jsonl of configs/slime/laptop.yaml on the whole slime, on two cores."""


def of_order(tmp_path, *overrides, iterations=3, lag=2):
    """The paper's run with few iterations, without evaluations and checkpoints."""
    bare = ("eval.every_n_iterations=0", "checkpoint.every_n_iterations=0", f"pipeline.iterations={iterations}")
    return paper(tmp_path, *bare, *overrides, lag=lag)


def recorded():
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [[row for row in rows if row["of"] == name] for name in ("metrics.jsonl", "times.jsonl")]


def laptop(*overrides):
    kept = ("pipeline.iterations=24", "eval.every_n_iterations=4", "checkpoint.every_n_iterations=8")
    return load_config(ROOT / "configs" / "slime" / "laptop.yaml", [*kept, *overrides])


# -------------------------------------------------------------------------------------------------------- the order


def test_lag_0_does_one_thing_after_another(tmp_path):
    assert iteration_ends(of_order(tmp_path, lag=0), Parts(10, 4, 1, 0, 0)) == [16, 31, 46]


@pytest.mark.parametrize(
    ("generate", "train", "ends"),
    [
        # push until 1, batch 1 until 11, trained until 15; batch 2 until 21, trained until 25, batch 3 until 31, push
        # until 32; trained until 36, push
        (10, 4, [15, 32, 37]),
        # batch 1 until 5, trained until 15 and 25, push; trained until 36, push
        (4, 10, [15, 26, 37]),
    ],
)
def test_with_a_lag_the_next_batch_is_generated_beside_training_and_a_push_waits_for_it(
    tmp_path, generate, train, ends
):
    assert iteration_ends(of_order(tmp_path), Parts(generate, train, 1, 0, 0)) == ends


def test_evaluations_wait_for_the_batch_in_flight_and_checkpoints_do_not(tmp_path):
    saves = of_order(tmp_path, "checkpoint.every_n_iterations=1")
    # saved from 15 to 17, 25 to 27, 36 to 38
    assert iteration_ends(saves, Parts(10, 4, 1, 0, 2)) == [17, 32, 39]
    evaluates = of_order(tmp_path, "eval.every_n_iterations=1")
    # push and evaluation until 4; batch 1 until 14, trained until 18, batch 2 until 24, evaluation until 27
    assert iteration_ends(evaluates, Parts(10, 4, 1, 3, 0))[0] == 27
    never_first = of_order(tmp_path, "eval.every_n_iterations=1", "hooks.evaluate_first=false")
    assert iteration_ends(never_first, Parts(10, 4, 1, 3, 0))[0] == 24


def test_in_mode_streaming_engines_pause_for_a_push_alone(tmp_path):
    streaming = of_order(tmp_path, "pipeline.mode=streaming", "method.denominator=rollout", iterations=4)
    # batches are complete at 11, 21, 32 (a push of 1 s came between) and 42
    assert iteration_ends(streaming, Parts(10, 4, 1, 0, 0)) == [15, 26, 36, 47]


# ------------------------------------------------------------------------------------------------- generation, training


def test_a_decoding_step_reads_weights_and_kv_cache(tmp_path):
    config = paper(tmp_path)
    # 30.53e9 parameters of 2 bytes on two GPUs, and 512 x 1,280 tokens of 49,152 bytes a GPU, at 1.7 TB/s
    assert decode_seconds(config, 512, 1280) == pytest.approx(4e-3 + (30.53e9 + 512 * 1280 * 49_152) / 1.7e12, rel=1e-3)
    # a request alone meets 8 of 128 experts: 3.35e9 parameters
    assert decode_seconds(config, 1, 0) == pytest.approx(4e-3 + 3.353e9 / 1.7e12, rel=2e-3)


def test_requests_run_side_by_side_as_far_as_their_kv_fits(tmp_path):
    config = paper(tmp_path)
    # 848 thousand tokens of KV an engine: 16,640 tokens each in the mean at 32k
    assert [running_requests(config, length) for length in (2048, 8192, 32768)] == [512, 194, 50]
    assert running_requests(config, 2048, responses=480) == 240


def test_generation_is_bound_by_engines_the_slowest_response_or_the_routes(tmp_path):
    assert generation_seconds(paper(tmp_path, "estimate.engine_tokens_per_second=5e3"), 2048) == (
        4096 * 2048 / 2 / 5e3,
        "generation",
    )
    few = ("rollout.prompts_per_iteration=1", "estimate.request_tokens_per_second=100")
    assert generation_seconds(paper(tmp_path, *few), 2048) == (327.68, "the slowest response")
    many = paper(tmp_path, "rollout.nodes=8", "estimate.engine_tokens_per_second=1e4", method="sat-gspo-r3")
    assert generation_seconds(many, 2048)[1] != "routes in the rollout manager"
    # 48 layers of 8 experts of 4 bytes at 50 MB/s: 32,552 tokens a second
    alone = ("rollout.nodes=8", "estimate.engine_tokens_per_second=1e4", "hooks.narrow_routed_experts=false")
    wide = paper(tmp_path, *alone, method="sat-gspo-r3")
    assert route_tokens_per_second(many) == 4 * route_tokens_per_second(wide)
    seconds, why = generation_seconds(wide, 2048)
    assert seconds == pytest.approx(4096 * 2048 / 32_552, rel=1e-4) and why == "routes in the rollout manager"


def test_the_flops_of_a_forward_pass(tmp_path):
    # parameters that a token meets, the input embedding left out: attention 18,874,368, router 262,144 and experts
    # 37,748,736 in each of 48 layers, output 311,164,928; attention to half of 2,304 tokens with 32 heads of 128
    met = 48 * (18_874_368 + 262_144 + 37_748_736) + 311_164_928
    a_token = 2 * met + 2 * 48 * 32 * 128 * 2304
    assert forward_flops(paper(tmp_path), 2048) == pytest.approx(4096 * 2304 * a_token, rel=1e-3)


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        ([], 5),  # forward and backward, recomputation, the reference
        (["loss.kl_coef=0"], 4),
        (["train.recompute=none"], 4),
        (["method.denominator=checkpoint"], 6),  # log-probs of the weights that generated
    ],
)
def test_passes_over_a_batch(tmp_path, overrides, passes):
    assert forward_passes(paper(tmp_path, *overrides)) == passes


def test_training_pushes_and_checkpoints(tmp_path):
    config = paper(tmp_path)
    flops = 5 * forward_flops(config, 2048)
    assert training_seconds(config, 2048) == pytest.approx(flops / 4 / 125e12 + 30.53, rel=1e-3), "and CPU Adam"
    assert training_seconds(paper(tmp_path, "train.optimizer_offload=false"), 2048) == flops / 4 / 125e12
    assert push_seconds(config) == pytest.approx(30.53e9 * 2 / 2**30 / 8, rel=1e-3)
    assert save_seconds(config) == pytest.approx(398 / 2, rel=1e-3)
    assert save_seconds(paper(tmp_path, "checkpoint.every_n_iterations=0")) == 0


def test_an_evaluation_lasts_as_long_as_its_slowest_response(tmp_path):
    file = tmp_path / "set.jsonl"
    file.write_text('{"prompt": "a"}\n' * 10)
    config = paper(tmp_path, f"eval.prompts.aime24={file}", "estimate.request_tokens_per_second=100")
    assert evaluation_seconds(config, 2048) == 327.68
    slow = paper(tmp_path, f"eval.prompts.aime24={file}", "estimate.engine_tokens_per_second=100")
    assert evaluation_seconds(slow, 2048) == 10 * 16 * 2048 / 2 / 100
    assert evaluation_seconds(paper(tmp_path, "eval.every_n_iterations=0"), 2048) == 0


def test_problems_are_lines_of_the_file_or_of_its_part(tmp_path):
    file = tmp_path / "set.jsonl"
    file.write_text("{}\n" * 10 + "\n")
    assert [problems(f"{file}{part}") for part in ("", "@[0:4]", "@[-3:]", "@[8:100]")] == [10, 4, 3, 2]
    assert problems(str(tmp_path / "none.jsonl")) == 30


def test_the_papers_run_takes_days_to_months(tmp_path):
    """About 6 days at 2k and 25 at 8k by an estimate on paper that takes 10 to 16 thousand tokens a second; at 32k few
    requests fit the KV cache."""
    config = paper(tmp_path, method="sat-gspo-r3")
    days = [one.total / 86400 for one in estimates(config)]
    assert days == [pytest.approx(4.7, abs=0.1), pytest.approx(26, abs=1), pytest.approx(393, abs=10)]
    assert [one.bound for one in estimates(config)] == ["training", "generation", "generation"]
    short = paper(tmp_path, "rollout.max_response_tokens=4096")
    assert [one.length for one in estimates(short)] == [2048, 4096]


# -------------------------------------------------------------------------------------------------------- measured


def test_speeds_of_a_real_run():
    metrics, times = recorded()
    half = measured(laptop(), metrics[:12], times[:12])
    rows = metrics[1:12]  # the first warms up
    tokens, seconds = (sum(row[key] for row in rows) for key in ("tokens/response_total", "time/rollout"))
    assert half.iterations == 11
    assert half.length == pytest.approx(tokens / 11 / 256)
    assert half.engine_tokens_per_second == pytest.approx(tokens / seconds)
    assert half.train == pytest.approx(sum(row["time/train"] for row in times[1:12]) / 11)
    assert half.push == times[7]["time/push"] and half.save == times[7]["time/save"]
    assert half.start == times[0]["time/start"]
    assert 0 < half.hand_over < 0.2
    assert measured(laptop(), metrics, []) is None and measured(laptop(), [], times) is None


def test_a_first_half_tells_how_long_the_second_takes():
    (metrics, times), config = recorded(), laptop()
    half = measured(config, metrics[:12], times[:12])
    told = estimate(config, half.length, half, done=12)
    took = [sum(value for key, value in row.items() if key.startswith("time/")) for row in times]
    assert told.left == pytest.approx(sum(took[12:]), rel=TOLERANCE)
    assert told.total == pytest.approx(sum(took), rel=TOLERANCE)


def test_what_is_measured_replaces_what_is_assumed(tmp_path):
    config = paper(tmp_path)
    known = Measured(12, 4000.0, 1820.0, 5.0, 600.0, push=9.0, evaluate=300.0, start=60.0)
    (told,) = estimates(config, known)
    assert told.length == 4000
    assert told.parts == Parts(4096 * 4000 / 2 / 1820 + 5, 600, 9, 300, save_seconds(config))
    lines = duration_lines(config, known, done=44)
    assert "measured: 1,820 tokens/s an engine, responses of 4,000 tokens, over 12 iterations" in lines
    assert lines[-1] == "assumed (section estimate): disk 2 GiB/s"
    assert any(line.startswith("still to be done") for line in lines)


# ------------------------------------------------------------------------------------------------------------ text


def test_the_table(tmp_path):
    lines = duration_lines(paper(tmp_path, method="sat-gspo-r3"))
    assert len(lines) == 9
    assert [line[:26].rstrip() for line in lines[:7]] == [
        "mean response",
        "generate a batch",
        "train on it",
        "push, evaluate, save",
        "an iteration waits for",
        "all 544 iterations",
        "requests in the KV cache",
    ]
    assert "GPU-hours" in lines[5] and "disk: 3 checkpoints of 398 GiB" in lines[7] and "125 TFLOP/s" in lines[8]


def test_the_documents_table_is_what_the_command_prints(tmp_path):
    document = (ROOT / "docs" / "launch.md").read_text()
    assert "\n".join(duration_lines(paper(tmp_path, method="sat-gspo-r3"))) in document


def test_where_nothing_can_be_told():
    assert duration_lines(laptop()) == ["no estimate on a CPU before the run has measured its own speeds"]
    config = laptop("cluster.device=gpu")
    (line,) = duration_lines(config.model_copy(update={"model": SlimeModelConfig()}))
    assert line.startswith("no estimate: model.architecture")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.14, "7.1 s"), (89, "89 s"), (200, "3.3 min"), (5399, "90 min"), (5400, "1.5 h"), (172_800, "2.0 days")],
)
def test_times_in_words(seconds, text):
    assert words(seconds) == text
