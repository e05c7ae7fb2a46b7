"""Estimates of time and cost, against numbers computed by hand and against what a real run took."""

import json
import math
from pathlib import Path

import pytest
from paper_commands import ROOT, paper

from sat_slime.config import load_config
from sat_slime.config.starters import CONFIGS
from sat_slime.launch.duration import Measured, duration_lines, forward_flops, given, measured, seconds_of, words

RECORDED = Path(__file__).with_name("laptop_times.jsonl")
"""times.jsonl and the needed columns of metrics.jsonl of configs/slime/laptop.yaml on the whole slime, on two cores."""


def laptop(*overrides):
    kept = ("pipeline.iterations=24", "slime.eval-interval=4", "slime.save-interval=8")
    return load_config(ROOT / "configs" / "slime" / "laptop.yaml", [*kept, *overrides])


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        (["pipeline.lag=0"], 10 + 4 + 1),  # one thing after another
        (["pipeline.lag=2"], 10 + 1 / 2),  # trained meanwhile
        (["pipeline.lag=2", "slime.save-interval=1"], 10 + 1 / 2),  # saved meanwhile
        (["pipeline.lag=2", "slime.eval-interval=2"], 10 + 1 / 2 + 3 / 2),
        (["pipeline.lag=1", "pipeline.mode=streaming", "slime.eval-interval=2"], 10 + 1),  # evaluated meanwhile
        (["pipeline.lag=2", "cluster.share_gpu=true"], 10 + 4 + 1 / 2),  # on one GPU
        (["pipeline.mode=streaming", "pipeline.lag=1", "cluster.share_gpu=true"], 10 + 4 + 1),
    ],
)
def test_what_is_done_beside_what(tmp_path, overrides, seconds):
    bare = ("slime.eval-interval=0", "slime.save-interval=0", "pipeline.iterations=3")
    parts = {"generate": 10, "train": 4, "push": 1, "evaluate": 3, "save": 2}
    assert seconds_of(paper(tmp_path, *bare, *overrides), parts) == 600 + 3 * seconds


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
    for change, passes in (("loss.kl_coef=0", 4), ("method.denominator=checkpoint", 6), ("slime.use-opd=true", 6)):
        assert given(paper(tmp_path, *speeds, change), 2048)["train"] == pytest.approx(passes * once, rel=1e-3)


def test_a_first_half_of_a_real_run_tells_how_long_the_second_takes():
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    metrics, times = ([row for row in rows if row["of"] == name] for name in ("metrics.jsonl", "times.jsonl"))
    half = measured(laptop(), metrics[:12], times[:12])
    assert half.iterations == 11  # the first warms up
    assert half.length == pytest.approx(sum(row["tokens/response_total"] for row in metrics[1:12]) / 11 / 256)
    took = sum(value for row in times[12:] for key, value in row.items() if key.startswith("time/"))
    assert 12 * half.seconds == pytest.approx(took, rel=0.2)
    assert measured(laptop(), metrics, []) is None and measured(laptop(), [], times) is None


def test_what_is_told(tmp_path):
    assert duration_lines(paper(tmp_path), Measured(12, 4500.0, 4000.0), done=44) == [
        "28 days, 5,441 GPU-hours, of which 26 days is left",
        "measured: 75 min an iteration, responses of 4,000 tokens, over 12",
    ]
    document = (ROOT / "docs" / "launch.md").read_text()
    assert "\n".join(duration_lines(paper(tmp_path, method="sat-gspo-r3"))) in document
    one_gpu = load_config(CONFIGS / "recipes" / "qwen3-0.6b-1gpu.yaml")
    assert duration_lines(one_gpu)[0].startswith("10 h, 10 GPU-hours at 2,048 tokens")
    assert duration_lines(laptop()) == ["no estimate on a CPU before the run has measured its own speed"]
    times = (7.14, 89, 200, 5399, 5400, 172_800)
    assert [words(seconds) for seconds in times] == ["7.1 s", "89 s", "3.3 min", "90 min", "1.5 h", "2.0 days"]
    assert words(math.inf) == "inf days"  # of speeds that are next to nothing
