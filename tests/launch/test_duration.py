"""Estimates of time and cost, against numbers computed by hand and against what a real run took."""

import json
from pathlib import Path

import pytest
from paper_commands import ROOT, paper

from sat_slime.config import load_config
from sat_slime.launch.duration import (
    Measured,
    duration_lines,
    forward_flops,
    given,
    measured,
    time_of,
    words,
)

TOLERANCE = 0.2
"""The error that an estimate from a run's own speeds may have."""
RECORDED = Path(__file__).with_name("laptop_times.jsonl")
"""times.jsonl and the needed columns of metrics.jsonl of configs/slime/laptop.yaml on the whole slime, on two cores."""


def recorded():
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [[row for row in rows if row["of"] == name] for name in ("metrics.jsonl", "times.jsonl")]


def laptop(*overrides):
    kept = ("pipeline.iterations=24", "slime.eval-interval=4", "slime.save-interval=8")
    return load_config(ROOT / "configs" / "slime" / "laptop.yaml", [*kept, *overrides])


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        (["pipeline.lag=0"], 1 + 3 * (10 + 4 + 1)),  # one thing after another, a push before and after each iteration
        # push until 1; batches 10 s each beside training, the last one's training 4, pushes after 2 and 3
        (["pipeline.lag=2"], 1 + 3 * 10 + 4 + 2),
        (["pipeline.lag=2", "slime.save-interval=1"], 1 + 3 * 10 + 4 + 2),  # saved meanwhile
        (["pipeline.lag=2", "slime.eval-interval=2"], 1 + 3 * 10 + 4 + 2 + 3 * 3),  # before, after 2 and at the end
    ],
)
def test_what_is_done_beside_what(tmp_path, overrides, seconds):
    """The paper's run with three iterations, without evaluations and checkpoints unless they are asked for."""
    bare = ("slime.eval-interval=0", "slime.save-interval=0", "pipeline.iterations=3")
    parts = {"generate": 10, "train": 4, "push": 1, "evaluate": 3, "save": 2}
    assert time_of(paper(tmp_path, *bare, *overrides), parts, 0, 3) == seconds


# ------------------------------------------------------------------------------------------------------ given speeds


def test_the_flops_of_a_forward_pass(tmp_path):
    # parameters that a token meets, the input embedding left out: attention 18,874,368, router 262,144 and experts
    # 37,748,736 in each of 48 layers, output 311,164,928; attention to half of 2,304 tokens with 32 heads of 128
    met = 48 * (18_874_368 + 262_144 + 37_748_736) + 311_164_928
    a_token = 2 * met + 2 * 48 * 32 * 128 * 2304
    assert forward_flops(paper(tmp_path), 2304) == pytest.approx(4096 * 2304 * a_token, rel=1e-3)


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        ([], 5),  # forward and backward, recomputation, the reference
        (["loss.kl_coef=0"], 4),
        (["slime.recompute-granularity=false"], 4),
        (["method.denominator=checkpoint"], 6),  # log-probs of the weights that generated
    ],
)
def test_training_is_passes_over_a_batch_of_prompts_and_responses(tmp_path, overrides, passes):
    config = paper(tmp_path, "estimate.trainer_tflops=100", *overrides)
    assert given(config, 2048)["train"] == pytest.approx(passes * forward_flops(config, 256 + 2048) / 4 / 100e12)


def test_the_other_parts(tmp_path):
    speeds = ("estimate.engine_tokens_per_second=5e3", "estimate.push_gib_per_second=4")
    seconds = given(paper(tmp_path, *speeds), 2048)
    assert seconds["generate"] == 4096 * 2048 / 2 / 5e3
    assert seconds["evaluate"] == 30 * 16 * 2048 / 2 / 5e3
    assert seconds["push"] == pytest.approx(30.53e9 * 2 / 2**30 / 4, rel=1e-3)
    assert seconds["save"] == pytest.approx(398 / 2, rel=1e-3)


# -------------------------------------------------------------------------------------------------------- measured


def test_speeds_of_a_real_run():
    metrics, times = recorded()
    half = measured(laptop(), metrics[:12], times[:12])
    rows = metrics[1:12]  # the first warms up
    tokens, seconds = (sum(row[key] for row in rows) for key in ("tokens/response_total", "time/rollout"))
    assert half.iterations == 11
    assert half.length == pytest.approx(tokens / 11 / 256)
    assert half.tokens_per_second == pytest.approx(tokens / seconds)
    assert half.parts["train"] == pytest.approx(sum(row["time/train"] for row in times[1:12]) / 11)
    for part, row in (("push", 7), ("save", 7), ("start", 0)):
        assert half.parts[part] == times[row][f"time/{part}"]
    assert measured(laptop(), metrics, []) is None and measured(laptop(), [], times) is None


@pytest.mark.parametrize(
    ("overrides", "generate"),
    [
        (["pipeline.lag=0"], 12.0),  # the driver waits until it has the batch
        (["pipeline.lag=8"], 10.0),
        (["pipeline.mode=streaming", "method.denominator=rollout"], 12 + 4 + 3 + 2),  # all but the push
    ],
)
def test_what_counts_as_generation(overrides, generate):
    metrics = [{"step": 1, "time/rollout": 10.0, "tokens/response_total": 2560.0}]
    times = [{"iteration": 1, "time/collect": 12, "time/train": 4, "time/save": 3, "time/eval": 2, "time/push": 1}]
    known = measured(laptop("pipeline.optimizer_steps_per_rollout=1", *overrides), metrics, times)
    assert known.parts == {"generate": generate, "train": 4, "push": 1, "evaluate": 2, "save": 3}
    assert known.tokens_per_second == pytest.approx(2560 / generate) and known.length == 10


def test_a_first_half_tells_how_long_the_second_takes():
    (metrics, times), config = recorded(), laptop()
    half = measured(config, metrics[:12], times[:12])
    parts = {**given(config, half.length), **half.parts}
    took = [sum(value for key, value in row.items() if key.startswith("time/")) for row in times]
    assert time_of(config, parts, 12, 24) == pytest.approx(sum(took[12:]), rel=TOLERANCE)
    assert parts["start"] + time_of(config, parts, 0, 24) == pytest.approx(sum(took), rel=TOLERANCE)


def test_what_is_measured_replaces_what_is_given(tmp_path):
    known = Measured(12, 4000.0, 1820.0, {"start": 60.0, "generate": 4500.0, "train": 600.0})
    lines = duration_lines(paper(tmp_path), known, done=44)
    assert lines[0].split() == ["mean", "response", "4,000", "tokens"] and lines[5].startswith("still to be done")
    assert lines[-2:] == [
        "measured: 1,820 tokens/s an engine, responses of 4,000 tokens, over 12 iterations",
        "an estimate from given speeds (section estimate): push 8 GiB/s",
    ]


# ------------------------------------------------------------------------------------------------------------ text


def test_the_documents_table_is_what_the_command_prints(tmp_path):
    document = (ROOT / "docs" / "launch.md").read_text()
    assert "\n".join(duration_lines(paper(tmp_path, method="sat-gspo-r3"))) in document


def test_where_nothing_can_be_told():
    assert duration_lines(laptop()) == ["no estimate on a CPU before the run has measured its own speeds"]
    config = laptop("cluster.device=gpu")
    (line,) = duration_lines(config.model_copy(update={"slime": {}}))
    assert line.startswith("no estimate: slime has no flags")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.14, "7.1 s"), (89, "89 s"), (200, "3.3 min"), (5399, "90 min"), (5400, "1.5 h"), (172_800, "2.0 days")],
)
def test_times_in_words(seconds, text):
    assert words(seconds) == text
