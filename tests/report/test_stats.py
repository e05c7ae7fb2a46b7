"""Levels over seeds and paired differences."""

import math

import numpy as np
import pandas as pd
import pytest
from synthetic import STEPS, write_cell

from sat_slime.config.jsonl import to_json
from sat_slime.report.comparison import main_table
from sat_slime.report.frames import collect, load_compared_run
from sat_slime.report.stats import against_best, contrasts, holm, judged, mean_interval, paired


def spread(n, mean):
    """n values of that mean whose standard error is 1."""
    values = np.arange(float(n))
    return mean + (values - values.mean()) * math.sqrt(n) / values.std(ddof=1)


@pytest.mark.parametrize(
    "degrees, t", [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (5, 2.57058), (9, 2.26216), (30, 2.04227)]
)
def test_students_quantiles(degrees, t):
    estimate = mean_interval(list(spread(degrees + 1, 0.5)))
    assert estimate["high"] - estimate["mean"] == pytest.approx(t, rel=1e-5)
    pairs = dict(enumerate(spread(degrees + 1, t)))
    assert paired(pairs, dict.fromkeys(pairs, 0.0))["p"] == pytest.approx(0.05, abs=1e-6)


@pytest.mark.filterwarnings("error")
def test_alike_differences_are_no_finding():
    """Two seeds of 64 answers differ alike by chance: with a p of 0 no correction would keep them out."""
    for degrees in (1, 2, 5, 6):
        none, one, near = (dict.fromkeys(range(degrees + 1), value) for value in (0.0, 0.1, 0.1 + 1e-16))
        assert [judged([paired(all_of, none)])["p"][0] for all_of in (none, one, near | {0: 0.1})] == [1, 1, 1]
        assert paired(one | {0: 0.1001}, none)["p"] < 0.001


def test_interval_of_fewer_seeds():
    assert math.isnan(mean_interval([1.0])["low"])
    assert mean_interval([math.nan, 1.0, 3.0])["n"] == 2 and mean_interval([])["n"] == 0


def test_differences_are_paired_by_seed():
    noise = {0: 10.0, 1: -7.0, 2: 3.0}
    shifted = {seed: value + 0.5 + 0.01 * seed for seed, value in noise.items()}
    difference = paired(shifted | {7: 99.0}, noise)
    assert difference["n"] == 3 and difference["mean"] == pytest.approx(0.51)
    assert difference["low"] == pytest.approx(0.5) and difference["high"] == pytest.approx(0.52)


def test_equal_signs_alone_are_no_finding():
    """Three differences of one sign leave 0 out of a bootstrap; the t-test has to agree."""
    difference = judged([paired({0: 0.1, 1: 1.0, 2: 5.0}, {0: 0.0, 1: 0.0, 2: 0.0})]).iloc[0]
    assert difference["low"] > 0 and difference["verdict"] == "within noise"


def test_holm():
    p = (0.01, 0.04, 0.03, 0.2, math.nan)
    assert holm(pd.Series(p)).tolist()[:4] == pytest.approx([0.04, 0.09, 0.09, 0.2])
    rows = [{"mean": 1, "low": 0.5, "high": 1.5, "p": value, "n": 3} for value in p[:4]]
    rows.append({"mean": 1, "low": math.nan, "high": 2, "p": math.nan, "n": 1})
    assert judged(rows)["verdict"].tolist() == ["beyond noise", "lead", "lead", "within noise", "one seed"]


def with_scores(folder, scores):
    """The run in this folder, evaluated every tenth step."""
    rows = [{"step": 10 * i, "accuracy": score, "n_samples": 256} for i, score in enumerate(scores)]
    (folder / "eval.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    return folder


def test_the_numbers_of_a_run(tmp_path):
    scores = [0.9, 0.4, 0.7, 0.6, 0.5]  # untrained weights are no result
    folder = with_scores(write_cell(tmp_path / "run", "grpo", 8, 0, 40), scores)
    rows = [{"step": s, "mismatch/d_pi": float((s - 1) % 8)} for s in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    numbers = load_compared_run(folder).numbers
    assert [numbers[key] for key in ("initial", "best", "best_step", "final")] == [0.9, 0.7, 20, 0.5]
    assert numbers["late"] == pytest.approx(0.55) and numbers["d_pi"] == 3.5  # over whole lag cycles


N_SCORES = STEPS // 10 + 1


def test_contrasts_take_the_difference_of_equal_seeds(tmp_path):
    paths = [
        with_scores(write_cell(tmp_path / f"{method}{seed}", method, 1, seed), [0.3 + 0.05 * seed + gain] * N_SCORES)
        for method, gains in (("grpo", (0.0, 0.0, 0.0)), ("sat-grpo", (0.09, 0.1, 0.11)))
        for seed, gain in enumerate(gains)
    ]
    (contrast,) = contrasts(collect(paths, paper=True)).to_dict("records")
    assert (contrast["group"], contrast["difference"]) == ("SAT against its own base", "SAT-GRPO − GRPO")
    assert contrast["best mean"] == pytest.approx(0.1) and contrast["best verdict"] == "beyond noise"
    assert (contrast["paper AIME24"], contrast["paper d_pi"]) == pytest.approx((1.46, -0.0002))


def test_a_single_lucky_run_is_not_the_best_of_a_column(tmp_path):
    paths = [write_cell(tmp_path / f"g{seed}", "grpo", 1, seed) for seed in (0, 1)]
    lucky = with_scores(write_cell(tmp_path / "lucky", "gspo", 1, 0), [1.0] * N_SCORES)
    collection = collect([*paths, lucky])
    from_best = against_best(collection, 1, "best").T
    assert from_best["grpo"]["verdict"] == "best" and from_best["gspo"]["verdict"] == "one seed"
    paths.append(write_cell(tmp_path / "g2", "grpo", 1, 2))  # one of the better method's three failed
    paths.append(with_scores(write_cell(tmp_path / "lucky1", "gspo", 1, 1), [1.0] * N_SCORES))
    assert against_best(collect([*paths, lucky]), 1, "best").T["gspo"]["verdict"] == "best"


def test_the_best_of_a_column_is_picked_among_all_pairs(tmp_path):
    """p is 0.012: beyond noise if the three distances from the best were all that there is, but six pairs are."""
    gains = {"grpo": (0.0, 0.0, 0.0), "gspo": (-0.119, -0.1, -0.081), "dppo": (-0.1, 0, 0.05), "cispo": (-0.1, 0.05, 0)}
    paths = [
        with_scores(write_cell(tmp_path / f"{method}{seed}", method, 1, seed), [0.5 + gain] * N_SCORES)
        for method, by_seed in gains.items()
        for seed, gain in enumerate(by_seed)
    ]
    row = against_best(collect(paths), 1, "late").loc["gspo"]
    assert row["p"] * 3 < 0.05 < row["p"] * 6 and row["verdict"] == "lead"


def test_ends_of_an_interval_are_accuracies(tmp_path):
    """Two seeds have an interval of Student's t that reaches below 0 and above 1."""
    paths = [write_cell(tmp_path / str(seed), "gspo", 1, seed) for seed in (0, 1)]
    paths = [with_scores(path, [score] * N_SCORES) for path, score in zip(paths, (0.4, 0.6), strict=True)]
    wide = mean_interval([0.4, 0.6])
    assert wide["low"] < 0 and wide["high"] > 1
    row = main_table(collect(paths), 1).frame.iloc[0]
    assert (row["best mean"], row["best low"], row["best high"]) == (0.5, 0.0, 1.0)
    with_scores(paths[0], [-0.4] * N_SCORES)  # of rewards from -1 to 1
    row = main_table(collect(paths), 1).frame.iloc[0]
    assert row["best low"] == mean_interval([-0.4, 0.6])["low"] and row["d_pi low"] >= 0
