import json

import pytest
from synthetic import STEPS, write_cell

from sat_slime.report.comparison.compared_runs import collect, load_compared_run
from sat_slime.report.comparison.comparison_tables import NATS, PERCENT, _ends
from sat_slime.report.comparison.contrasts import Comparison, run_numbers
from sat_slime.report.comparison.paper_contrasts import paper_contrasts
from sat_slime.report.comparison.statistics import mean_interval
from sat_slime.runs.rows import to_json


def with_scores(tmp_path, scores, weights=None):
    folder = write_cell(tmp_path / "run", "grpo", 1, 0, 40)
    rows = [
        {"step": 10 * i, "weights_step": 10 * i if weights is None else weights[i], "accuracy": score}
        for i, score in enumerate(scores)
    ]
    (folder / "eval.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    return load_compared_run(folder)


def test_best_late_and_initial_score(tmp_path):
    numbers = run_numbers(with_scores(tmp_path, [0.9, 0.4, 0.7, 0.6, 0.5]))
    assert (numbers.initial, numbers.best, numbers.best_step) == (0.9, 0.7, 20)  # untrained weights are no result
    assert numbers.late == pytest.approx(0.55)
    assert numbers.final == 0.5


def test_scores_belong_to_the_weights_that_were_measured(tmp_path):
    numbers = run_numbers(with_scores(tmp_path, [0.1, 0.2, 0.7, 0.6, 0.5], [0, 8, 16, 24, 40]))
    assert numbers.best_step == 16


def test_late_d_pi_is_over_whole_lag_cycles(tmp_path):
    folder = write_cell(tmp_path / "run", "grpo", 8, 0, 40)
    rows = [{"step": s, "mismatch/d_pi": float((s - 1) % 8)} for s in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    assert run_numbers(load_compared_run(folder)).d_pi == 3.5


def test_contrasts_take_the_difference_of_equal_seeds(tmp_path):
    paths = []
    for method, gain in (("grpo", 0.0), ("sat-grpo", 0.1)):
        for seed in (0, 1, 2):
            folder = write_cell(tmp_path / f"{method}{seed}", method, 1, seed)
            steps = range(0, STEPS + 1, 10)
            rows = [{"step": s, "iteration": s, "accuracy": 0.3 + gain + 0.05 * seed, "n_samples": 256} for s in steps]
            (folder / "eval.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
            paths.append(folder)
    (contrast,) = paper_contrasts(Comparison(collect(paths), paper=True))
    assert (contrast.group, contrast.label) == ("SAT against its own base", "SAT-GRPO − GRPO")
    assert contrast["best"].mean == pytest.approx(0.1) and contrast["best"].verdict == "beyond noise"
    assert contrast.paper == pytest.approx((1.46, -0.0002))


def test_a_single_lucky_run_is_not_the_best_of_a_column(tmp_path):
    paths = [write_cell(tmp_path / f"g{seed}", "grpo", 1, seed) for seed in (0, 1)]
    lucky = write_cell(tmp_path / "lucky", "gspo", 1, 0)
    rows = [json.loads(line) | {"accuracy": 1.0} for line in (lucky / "eval.jsonl").read_text().splitlines()]
    (lucky / "eval.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    from_best = Comparison(collection := collect([*paths, lucky])).against_best(collection.methods, 1, "best")
    assert from_best["grpo"].mean == 0 and from_best["gspo"].verdict == "one seed"


def test_ends_of_an_interval_are_accuracies():
    """Two seeds have an interval of Student's t that reaches below 0 and above 1."""
    wide = mean_interval([0.4, 0.6])
    assert wide.low < 0 and wide.high > 1
    assert _ends(wide, PERCENT) == (0.5, 0.0, 1.0)
    assert _ends(wide, NATS) == (0.5, 0.0, wide.high)
