"""Estimates of time and cost, against numbers computed by hand and against what a real run took."""

import json
from pathlib import Path

import pytest
from paper_commands import ROOT, paper

from sat_slime.config import load_config
from sat_slime.launch.duration import Measured, duration_lines, forward_flops, given, measured, time_of, words

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


def test_the_parts_by_given_speeds(tmp_path):
    # parameters that a token meets, the input embedding left out: attention 18,874,368, router 262,144 and experts
    # 37,748,736 in each of 48 layers, output 311,164,928; attention to half of 2,304 tokens with 32 heads of 128
    met = 48 * (18_874_368 + 262_144 + 37_748_736) + 311_164_928
    a_token = 2 * met + 2 * 48 * 32 * 128 * 2304
    assert forward_flops(paper(tmp_path), 2304) == pytest.approx(4096 * 2304 * a_token, rel=1e-3)
    speeds = ("estimate.engine_tokens_per_second=5e3", "estimate.push_gib_per_second=4", "estimate.trainer_tflops=100")
    seconds = given(paper(tmp_path, *speeds), 2048)
    assert seconds["generate"] == 4096 * 2048 / 2 / 5e3
    assert seconds["evaluate"] == 30 * 16 * 2048 / 2 / 5e3
    assert seconds["push"] == pytest.approx(30.53e9 * 2 / 2**30 / 4, rel=1e-3)
    assert seconds["save"] == pytest.approx(398 / 2, rel=1e-3)
    # forward and backward, recomputation, the reference; for denominator checkpoint those that generated, too
    once = 4096 * 2304 * a_token / 4 / 100e12
    assert seconds["train"] == pytest.approx(5 * once, rel=1e-3)
    for changes, passes in ((["loss.kl_coef=0"], 4), (["method.denominator=checkpoint"], 6)):
        assert given(paper(tmp_path, *speeds, *changes), 2048)["train"] == pytest.approx(passes * once, rel=1e-3)


def test_speeds_of_a_real_run():
    metrics, times = recorded()
    half = measured(laptop(), metrics[:12], times[:12])
    rows = metrics[1:12]  # the first warms up
    tokens, seconds = (sum(row[key] for row in rows) for key in ("tokens/response_total", "time/rollout"))
    assert half.iterations == 11 and half.length == pytest.approx(tokens / 11 / 256)
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


def test_what_is_told(tmp_path):
    known = Measured(12, 4000.0, 1820.0, {"start": 60.0, "generate": 4500.0, "train": 600.0})
    first, *basis = duration_lines(paper(tmp_path), known, done=44)
    assert "GPU-hours, of which" in first and "at 4,000 tokens a response: generate 75 min, train 10 min, push" in first
    assert basis == [
        "measured: 1,820 tokens/s an engine, responses of 4,000 tokens, over 12 iterations",
        "an estimate from given speeds (section estimate): push 8 GiB/s",
    ]
    document = (ROOT / "docs" / "launch.md").read_text()
    assert "\n".join(duration_lines(paper(tmp_path, method="sat-gspo-r3"))) in document
    assert duration_lines(laptop()) == ["no estimate on a CPU before the run has measured its own speeds"]
    times = (7.14, 89, 200, 5399, 5400, 172_800)
    assert [words(seconds) for seconds in times] == ["7.1 s", "89 s", "3.3 min", "90 min", "1.5 h", "2.0 days"]
