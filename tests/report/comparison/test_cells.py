import json

import numpy as np
import pytest
import yaml
from synthetic import step_metrics, write_cell, write_slime_log

from sat_slime.report.comparison.cells import collect, differing_settings, is_grid, label_of, load_cell
from sat_slime.report.comparison.contrasts import Comparison, cell_numbers, score_curve
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.rows import to_json
from sat_slime.runs.slime_rows import split_log


def test_a_run_folder_says_what_it_is(tmp_path):
    cell = load_cell(write_cell(tmp_path / "any-name", "sat-gspo-r3", 8, 2, state="finished"))
    assert (cell.method, cell.lag, cell.seed, cell.label) == ("sat-gspo-r3", 8, 2, "SAT-GSPO w/ R3")
    assert cell.counts and cell.data.period == 8 and cell.steps == cell.planned_steps == 200


@pytest.mark.parametrize("steps, state, counts", [(90, "failed", 0), (90, "running", 0), (200, None, 1), (0, None, 0)])
def test_only_whole_runs_count(tmp_path, steps, state, counts):
    assert load_cell(write_cell(tmp_path / "run", "grpo", 1, 0, steps, state)).counts == counts


def test_a_run_that_the_collapse_rule_ended_is_whole(tmp_path):
    assert load_cell(write_cell(tmp_path / "run", "gspo", 8, 0, 120, "finished", collapses=True)).counts


def test_without_a_config_the_name_tells(tmp_path):
    path = tmp_path / "gspo-tis-lag8-seed3"
    path.mkdir()
    (path / "metrics.jsonl").write_text(to_json(step_metrics(1)) + "\n")
    cell = load_cell(path)
    assert (cell.method, cell.lag, cell.seed, cell.counts) == ("gspo-tis", 8, 3, True)


def test_a_log_of_every_fourth_step_counts_where_no_plan_is_known(tmp_path):
    path = tmp_path / "grpo-lag1-seed0"
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(to_json(step_metrics(step)) + "\n" for step in (4, 8, 12)))
    cell = load_cell(path)
    assert (cell.steps, cell.missing, cell.counts) == (3, [], True)


def test_broken_files_are_left_out(tmp_path):
    folder = write_cell(tmp_path / "run", "grpo", 1, 0, 20)
    (folder / "config.yaml").write_bytes(b"{\xff")
    (folder / "state.json").write_text("[")
    (folder / "eval.jsonl").write_text('{"step": 1, "accuracy": null}\n{"step"')
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 21, "mism')
    cell = load_cell(folder)
    assert cell.steps == 20 and cell.method == "run"
    assert np.isnan(cell_numbers(cell).best)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="is no run, grid or file"):
        collect([tmp_path])
    with pytest.raises(RunFolderError, match="is no run, grid or file"):
        collect([tmp_path / "missing"])
    (tmp_path / "text.jsonl").write_text("hello")
    with pytest.raises(RunFolderError, match="no JSON lines"):
        collect([tmp_path / "text.jsonl"])


def test_a_grid_knows_its_missing_and_failed_cells(tmp_path):
    grid = tmp_path / "grid"
    write_cell(grid / "runs" / "grpo-lag1-seed0", "grpo", 1, 0, 20)
    (grid / "grid.yaml").write_text("methods: [grpo, gspo]\nlags: [1]\nseeds: [0, 1]\n")
    rows = [
        {"cell": "grpo-lag1-seed0", "method": "grpo", "lag": 1, "seed": 0, "state": "failed", "error": "no memory"},
        {"cell": "gspo-lag1-seed0", "method": "gspo", "lag": 1, "seed": 0, "state": "failed", "error": "no port"},
    ]
    (grid / "cells.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{torn")
    collection = collect([grid])
    assert is_grid(grid)
    assert [(cell.where, cell.status, cell.error) for cell in collection.cells] == [
        ("GRPO lag 1 seed 0", "failed", "no memory")
    ]
    assert len(collection.planned) == 4
    assert collection.left_out == ["gspo-lag1-seed0: no port"]
    assert collection.methods == ["grpo", "gspo"]


def test_a_second_run_of_a_cell_is_told_and_left_out(tmp_path):
    paths = [write_cell(tmp_path / name, "grpo", 1, 0, 20) for name in "ab"]
    collection = collect(paths)
    assert len(collection.cells) == 1
    assert "a second run of GRPO lag 1 seed 0" in collection.left_out[0]


def test_settings_that_differ_are_found(tmp_path):
    paths = [write_cell(tmp_path / str(seed), "grpo", 1, seed, 20) for seed in range(3)]
    assert differing_settings(collect(paths).cells) == {}
    config = paths[0] / "config.yaml"
    config.write_text(config.read_text().replace("max_digit: 5", "max_digit: 6"))
    assert differing_settings(collect(paths).cells) == {"task.max_digit": {"6": 1, "5": 2}}


def test_a_setting_that_newer_runs_lack_is_no_difference(tmp_path):
    paths = [write_cell(tmp_path / str(seed), "grpo", 1, seed, 20) for seed in range(3)]
    for path, port in zip(paths, ("null", "31000"), strict=False):
        values = yaml.safe_load((path / "config.yaml").read_text())
        values.setdefault("rollout", {})["base_port"] = yaml.safe_load(port)
        (path / "config.yaml").write_text(yaml.safe_dump(values))
    assert differing_settings(collect(paths).cells) == {}


def test_unknown_methods_keep_their_name_and_come_last(tmp_path):
    paths = [write_slime_log(tmp_path / f"{name}.jsonl") for name in ("my own", "sat-gspo-lag8-seed1")]
    collection = collect(paths)
    assert collection.methods == ["sat-gspo", "my own"]
    assert label_of("my own") == "my own"
    assert collection.lags == [8, None]


# ----------------------------------------------------------------------------------------------- slime's names


def test_slime_log_by_our_names(tmp_path):
    cell = load_cell(write_slime_log(tmp_path / "gspo-lag8-seed1.jsonl", seed=1))
    assert (cell.method, cell.lag, cell.seed, cell.steps, cell.counts) == ("gspo", 8, 1, 60, True)
    assert cell.data.metrics["step"].tolist() == list(range(1, 61))
    expected = [step_metrics(step, 8, 1)["mismatch/d_pi"] for step in range(1, 61)]
    np.testing.assert_allclose(cell.data.metrics["mismatch/d_pi"], expected)
    assert {"reward/mean", "clip/fraction", "loss/total", "grad_norm"} <= cell.data.metrics.keys()
    assert cell.data.evals["step"].tolist() == list(range(5, 61, 5))
    assert cell.datasets == ("aime24",)


def test_several_optimizer_steps_per_rollout():
    rows = [{"rollout/step": r, "rollout/raw_reward": 0.1 * r} for r in range(3)]
    rows += [{"train/step": s, "train/grad_norm": float(s)} for s in range(6)] + [{"eval/step": 1, "eval/m": 0.5}]
    metrics, evals = split_log(rows)
    assert [(row["step"], row["reward/mean"], row["grad_norm"]) for row in metrics] == [
        (s + 1, pytest.approx(0.1 * (s // 2)), s) for s in range(6)
    ]
    assert evals[0]["step"] == 4


def test_an_evaluation_before_training_is_of_step_0():
    rows = [{"eval/step": 0, "eval/m": 0.1}, {"train/step": 0, "train/loss": 1.0}, {"eval/step": 0, "eval/m": 0.2}]
    assert [row["step"] for row in split_log(rows)[1]] == [0, 1]


def test_slimes_names_inside_a_run_folder(tmp_path):
    path = tmp_path / "grpo-lag1-seed0"
    path.mkdir()
    row = {"step": 1, "pg_clipfrac": 0.5, "train_rollout_logprob_abs_diff": 0.01, "clip/fraction": 0.25}
    (path / "metrics.jsonl").write_text(to_json(row) + "\n")
    evals = [{"step": 1, "dataset": name, "accuracy": value} for name, value in (("aime", 0.3), ("math", 0.9))]
    (path / "eval.jsonl").write_text("".join(to_json(row) + "\n" for row in evals))
    cell = load_cell(path)
    assert cell.data.metrics["mismatch/d_pi"].tolist() == [0.01]
    assert cell.data.metrics["clip/fraction"].tolist() == [0.25]  # our own is the one that counts
    assert cell.datasets == ("aime", "math") and score_curve(cell)[1].tolist() == [0.3]


# ---------------------------------------------------------------------------------------------------- numbers


def with_scores(tmp_path, scores, weights=None):
    folder = write_cell(tmp_path / "run", "grpo", 1, 0, 40)
    rows = [
        {"step": 10 * i, "weights_step": 10 * i if weights is None else weights[i], "accuracy": score}
        for i, score in enumerate(scores)
    ]
    (folder / "eval.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    return load_cell(folder)


def test_best_late_and_initial_score(tmp_path):
    numbers = cell_numbers(with_scores(tmp_path, [0.9, 0.4, 0.7, 0.6, 0.5]))
    assert (numbers.initial, numbers.best, numbers.best_step) == (0.9, 0.7, 20)  # untrained weights are no result
    assert numbers.late == pytest.approx(0.55)


def test_scores_belong_to_the_weights_that_were_measured(tmp_path):
    numbers = cell_numbers(with_scores(tmp_path, [0.1, 0.2, 0.7, 0.6, 0.5], [0, 8, 16, 24, 40]))
    assert numbers.best_step == 16


def test_late_d_pi_is_over_whole_lag_cycles(tmp_path):
    folder = write_cell(tmp_path / "run", "grpo", 8, 0, 40)
    rows = [{"step": s, "mismatch/d_pi": float((s - 1) % 8)} for s in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    assert cell_numbers(load_cell(folder)).d_pi == 3.5


def test_contrasts_take_the_difference_of_equal_seeds(tmp_path):
    paths = []
    for method, gain in (("grpo", 0.0), ("sat-grpo", 0.1)):
        for seed in (0, 1, 2):
            folder = write_cell(tmp_path / f"{method}{seed}", method, 1, seed)
            rows = [{"step": s, "accuracy": 0.3 + gain + 0.05 * seed, "n_samples": 256} for s in range(0, 201, 10)]
            (folder / "eval.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
            paths.append(folder)
    (contrast,) = Comparison(collect(paths)).contrasts
    assert (contrast.group, contrast.label) == ("SAT against its own base", "SAT-GRPO − GRPO")
    assert contrast.best.mean == pytest.approx(0.1) and contrast.best.verdict == "beyond noise"
    assert contrast.paper_best == pytest.approx(1.46) and contrast.paper_d_pi == pytest.approx(-0.0002)


def test_a_single_lucky_run_is_not_the_best_of_a_column(tmp_path):
    paths = [write_cell(tmp_path / f"g{seed}", "grpo", 1, seed, 200) for seed in (0, 1)]
    lucky = write_cell(tmp_path / "lucky", "gspo", 1, 0, 200)
    (lucky / "eval.jsonl").write_text('{"step": 10, "accuracy": 1.0}\n')
    from_best = Comparison(collect([*paths, lucky])).against_best(1, "best")
    assert from_best["grpo"].mean == 0 and from_best["gspo"].verdict == "one seed"
