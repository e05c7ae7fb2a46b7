"""Which grids a study holds, which is its base, and what the others change."""

import shutil

import pytest
from made_up_study import LAGS, SEEDS, STEPS, write_grid

from sat_slime.report.comparison.lag_tolerance import tolerance_of
from sat_slime.report.comparison.studies import is_study, load_study
from sat_slime.report.comparison.study_contrasts import radius_lags
from sat_slime.report.comparison.study_figures import seconds_per_update
from sat_slime.report.write_reports import write_reports
from sat_slime.runs.folder import RunFolderError


def test_the_base_is_the_grid_that_the_others_vary(folder):
    study = load_study(folder)
    assert study.base.name == "sweep" and tuple(study.base.lags) == LAGS
    changed = {grid.name: study.changed(grid) for grid in study.grids}
    assert changed == {
        "sweep": {},
        "eps-0.05": {"method.clip.eps_low": 0.05, "method.clip.eps_high": 0.05},
        "eps-0.01": {"method.clip.eps_low": 0.01, "method.clip.eps_high": 0.01},
        "half-lr": {"train.lr": 1e-4},
        "methods": {},
        "alone": {},
    }
    assert [grid.name for grid in study.sweeps] == ["sweep"]
    assert [grid.name for grid in study.variants] == ["eps-0.01", "eps-0.05", "half-lr"]
    assert {radius: grid.name for radius, grid in study.by_radius.items()} == {
        0.2: "sweep",
        0.05: "eps-0.05",
        0.01: "eps-0.01",
    }


def test_a_denominator_that_a_grid_sets_is_a_changed_setting(tmp_path):
    write_grid(tmp_path, "sweep", ("gspo", "sat-gspo"), (1, 8))
    write_grid(tmp_path, "checkpoint", ("sat-gspo",), (8,), {"method.denominator": "checkpoint"})
    study = load_study(tmp_path)
    assert [(grid.name, study.changed(grid)) for grid in study.variants] == [
        ("checkpoint", {"method.denominator": "checkpoint"})
    ]


def test_another_model_or_task_is_compared_with_nothing_of_the_base(tmp_path, draw_only):
    write_grid(tmp_path, "sweep", ("gspo", "sat-gspo"), (1, 8))
    write_grid(tmp_path, "half-lr", ("gspo",), (8,), {"train.lr": 1e-4})
    write_grid(tmp_path, "layers", ("gspo",), (8,), {"model.layers": 4})
    write_grid(tmp_path, "longer", ("gspo",), (8,), {"task.max_digits": 9, "train.lr": 1e-4})
    assert [grid.name for grid in load_study(tmp_path).variants] == ["half-lr"]
    draw_only("plane")
    (page,) = write_reports([tmp_path], None, [])
    tables = page.parent / "tables"
    effects = (tables / "variants_gspo.csv").read_text()
    assert "half-lr" in effects and "layers" not in effects and "longer" not in effects
    plane = (page.parent / "figures/plane.csv").read_text()
    assert "half-lr" in plane and "layers" not in plane and "longer" not in plane
    assert (tables / "levels_layers.csv").exists() and (tables / "levels_longer.csv").exists()


def test_a_grid_and_a_folder_of_one_are_no_study(folder, tmp_path):
    assert is_study(folder) and not is_study(folder / "sweep") and not is_study(folder / "sweep" / "runs")
    (tmp_path / "sweep").symlink_to(folder / "sweep")
    assert not is_study(tmp_path)


def test_a_study_without_a_finished_run_is_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "grid.yaml").write_text(f"name: {name}\n")
    with pytest.raises(RunFolderError, match="no grid with a finished run yet"):
        write_reports([tmp_path], None, [])


def test_a_lag_that_has_begun_counts_once_a_method_has_all_its_seeds(tmp_path):
    write_grid(tmp_path, "sweep", ("gspo", "sat-gspo"), LAGS)
    radius = {"method.clip.eps_low": 0.05, "method.clip.eps_high": 0.05}
    other = write_grid(tmp_path, "eps-0.05", ("gspo",), (1, 8, 32), radius)
    for seed in SEEDS[1:]:
        shutil.rmtree(other / "runs" / f"gspo-lag1-seed{seed}")
    study = load_study(tmp_path)
    (grid,) = study.others
    assert grid.lags == [1, 8, 32] and grid.whole_lags == [8, 32]
    assert study.sweeps == [study.base] and radius_lags(study) == [8, 32]


def test_another_radius_is_no_sweep_however_many_lags_it_has(tmp_path, draw_only):
    draw_only("radius", "plane")
    write_grid(tmp_path, "sweep", ("gspo", "sat-gspo"), LAGS)
    for radius, lags in ((0.05, (1, 8, 32)), (0.4, (8, 32))):
        clip = {"method.clip.eps_low": radius, "method.clip.eps_high": radius}
        write_grid(tmp_path, f"eps-{radius}", ("gspo", "sat-gspo"), lags, clip)
    write_grid(tmp_path, "methods", ("grpo",), (1, 8, 32))
    study = load_study(tmp_path)
    assert [grid.name for grid in study.sweeps] == ["sweep", "methods"]
    assert [grid.name for grid in study.variants] == ["eps-0.05", "eps-0.4"]
    assert radius_lags(study) == [8, 32]
    (page,) = write_reports([tmp_path], None, [])
    header = (page.parent / "figures/radius.csv").read_text().splitlines()[0]
    assert "lag 1: radius" in header and "lag 1 gspo late: mean" in header
    assert "eps-0.05: SAT against its base" in page.read_text()
    plane = (page.parent / "figures/plane.csv").read_text()
    assert "grpo,methods," in plane and "sat-gspo,eps-0.4," in plane


def test_a_seed_without_evaluations_is_not_compared(tmp_path):
    path = write_grid(tmp_path, "sweep", ("gspo",), (1, 8))
    write_grid(tmp_path, "other", ("grpo",), (1, 8))
    (path / "runs" / "gspo-lag1-seed0" / "eval.jsonl").write_text("")
    grid = next(grid for grid in load_study(tmp_path).grids if grid.name == "sweep")
    assert set(grid.scores("gspo", 1, "late")) == {1, 2} and set(grid.scores("gspo", 1, "d_pi")) == set(SEEDS)
    tolerance = tolerance_of(grid, "gspo")
    assert (tolerance.lag, tolerance.n) == (1, 2)


def test_an_interval_of_two_radii_is_told_as_both(tmp_path, draw_only):
    draw_only()
    clip = {"method.clip.eps_low": 0.2, "method.clip.eps_high": 0.28}
    write_grid(tmp_path, "sweep", ("gspo", "sat-gspo"), LAGS, clip)
    write_grid(tmp_path, "methods", ("grpo",), (1, 8), clip)
    (page,) = write_reports([tmp_path], None, [])
    assert "radii 0.2 and 0.28, mean of lag 8, 32" in page.read_text()


def test_the_time_of_an_update_is_its_part_of_the_iteration(tmp_path):
    steps = {"pipeline.optimizer_steps_per_rollout": 2, "pipeline.iterations": STEPS // 2}
    write_grid(tmp_path, "sweep", ("gspo",), (1, 8), steps)
    write_grid(tmp_path, "alone", ("gspo",), (1, 8), steps, parallel=1)
    (alone,) = [grid for grid in load_study(tmp_path).grids if grid.alone]
    assert seconds_per_update(alone, "gspo") == pytest.approx({1: 0.15, 8: 0.15})
