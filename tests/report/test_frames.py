from pathlib import Path

import numpy as np
import pytest
import yaml
from synthetic import write_cell, write_grid

from sat_slime.config import GridConfig, load_config
from sat_slime.report.comparison import write_comparison
from sat_slime.report.frames import ComparedRun, collect, curve, differing_settings, load_compared_run, seed_curve
from sat_slime.report.methods import label_of, pairs_without
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.grid import GridFolder
from sat_slime.runs.reading import RunData

ROOT = Path(__file__).parents[2]


def test_a_run_folder_says_what_it_is(tmp_path):
    run = load_compared_run(write_cell(tmp_path / "any-name", "sat-gspo-r3", 8, 2, state="finished"))
    assert (run.method, run.lag, run.seed, run.where) == ("sat-gspo-r3", 8, 2, "SAT-GSPO w/ R3 lag 8 seed 2")
    assert run.counts and run.data.period == 8 and run.steps == run.planned_steps == 200


@pytest.mark.parametrize("steps, state, counts", [(90, "failed", 0), (90, "running", 0), (200, None, 1), (0, None, 0)])
def test_only_whole_runs_count(tmp_path, steps, state, counts):
    assert load_compared_run(write_cell(tmp_path / "run", "grpo", 1, 0, steps, state)).counts == counts


def test_broken_files_are_left_out(tmp_path, monkeypatch):
    folder = write_cell(tmp_path / "run", "grpo", 1, 0, 20)
    (folder / "config.yaml").write_bytes(b"{\xff")
    (folder / "state.json").write_text("[")
    (folder / "eval.jsonl").write_text('{"step": 1, "accuracy": null}\n{"step"')
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 21, "mism')
    monkeypatch.chdir(folder)
    run = load_compared_run(Path())
    assert run.steps == 20 and run.method == "run" and np.isnan(run.numbers["best"])


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="is no run, grid or file"):
        collect([tmp_path])
    with pytest.raises(RunFolderError, match="is no run, grid or file"):
        collect([tmp_path / "missing"])
    (tmp_path / "text.jsonl").write_text("hello")
    with pytest.raises(RunFolderError, match="unknown kind, which starts with 'hello'"):
        collect([tmp_path / "text.jsonl"])


@pytest.fixture
def failed_grid(tmp_path):
    """grpo-lag1-seed0 was refused before it had a run folder, gspo-lag1-seed0 failed in its third step,
    grpo-lag1-seed1 finished, gspo-lag1-seed1 is not begun."""
    folder, grid = GridFolder(tmp_path / "grid"), GridConfig(methods=["grpo", "gspo"], lags=[1], seeds=[0, 1])
    with folder.held(grid, load_config(ROOT / "configs/lab/tiny.yaml")):
        (folder.logs / "grpo-lag1-seed0.txt").write_text("--- sat-slime launch\nerror: the key is wrong\n")
    write_cell(folder.runs / "grpo-lag1-seed1", "grpo", 1, 1, state="finished")
    write_cell(folder.runs / "gspo-lag1-seed0", "gspo", 1, 0, 2)
    RunFolder(folder.runs / "gspo-lag1-seed0").ended("failed", "the engine broke")
    return folder.path


def test_what_failed_in_a_grid_reaches_its_report(failed_grid):
    collection = collect([failed_grid])
    assert [(run.where, run.status, run.state.get("error")) for run in collection.runs] == [
        ("GRPO lag 1 seed 1", "finished", None),
        ("GSPO lag 1 seed 0", "failed", "the engine broke"),
    ]
    assert collection.left_out == ["grpo-lag1-seed0: the key is wrong"]
    assert len(collection.planned) == 4 and collection.methods == ["grpo", "gspo"]
    assert [cell.name for cell in collection.not_run] == ["grpo-lag1-seed0", "gspo-lag1-seed1"]
    page = write_comparison([failed_grid])
    text = page.read_text()
    assert "<li>grpo-lag1-seed0: the key is wrong</li>" in text
    assert "GSPO lag 1 seed 0, failed after 2 steps (the engine broke)." in text


def test_a_damaged_grid_yaml_is_told_and_the_runs_are_read(failed_grid):
    (failed_grid / "grid.yaml").write_text("methods: [nope]")
    collection = collect([failed_grid])
    assert len(collection.runs) == 2 and collection.planned == [] and "nope" in collection.left_out[0]


def test_a_second_run_of_a_cell_is_told_and_left_out(tmp_path):
    paths = [write_cell(tmp_path / name, "grpo", 1, 0, 20) for name in "ab"]
    collection = collect(paths)
    assert len(collection.runs) == 1 and "a second run of GRPO lag 1 seed 0" in collection.left_out[0]


def test_runs_that_differ_in_a_setting_are_named_by_it(tmp_path):
    paths = [write_cell(tmp_path / name, "sat-gspo", 1, 0, 24) for name in "ab"]
    config = yaml.safe_load((paths[1] / "config.yaml").read_text())
    config["train"]["lr"] = 2e-4
    (paths[1] / "config.yaml").write_text(yaml.safe_dump(config))
    collection = collect(paths)
    assert [label_of(run.method) for run in collection.runs] == ["SAT-GSPO with lr 0.0005", "SAT-GSPO with lr 0.0002"]
    assert collection.left_out == []


def test_seeds_of_one_name_and_other_settings_of_the_method_are_no_seeds_of_one_method(tmp_path):
    paths = [write_cell(tmp_path / name, "dppo", 1, seed, 24) for seed, name in enumerate("abc")]
    config = yaml.safe_load((paths[2] / "config.yaml").read_text())
    config["method"]["dppo"]["divergence"] = "kl"
    (paths[2] / "config.yaml").write_text(yaml.safe_dump(config))
    told = [label_of(run.method).rpartition(" with ")[2] for run in collect(paths).runs]
    assert told == ["divergence tv", "divergence tv", "divergence kl"]


def test_runs_of_two_grids_over_other_denominators_are_no_runs_of_one_method(tmp_path):
    grids = [write_grid(tmp_path / name, ("grpo", "grpo-r3"), (0,), (1,)) for name in ("mu", "trainer")]
    for file in grids[1].glob("runs/*/config.yaml"):
        file.write_text(file.read_text().replace("base: grpo", "base: grpo\n  denominator: trainer"))
    collection = collect(grids)
    assert [label_of(run.method) for run in collection.runs] == [
        *("GRPO", "GRPO w/ R3", "GRPO with denominator trainer", "GRPO w/ R3 with denominator trainer")
    ]
    assert collection.left_out == [] and collection.not_run == []
    assert differing_settings(collection.runs) == {"method.denominator": {"unset": 2, "trainer": 2}}
    assert [label_of(run.method) for run in collect(grids[1:]).runs] == ["GRPO", "GRPO w/ R3"]


def test_a_radius_is_behind_the_names_of_a_method_and_of_its_base(tmp_path):
    """They pair, though one of them alone ran at two."""
    cells = [write_cell(tmp_path / str(i), of, 8, 0, 20) for i, of in enumerate(("grpo", "sat-grpo", "sat-grpo"))]
    for cell, radius in zip(cells, (0.2, 0.2, 0.8), strict=True):
        config = yaml.safe_load((cell / "config.yaml").read_text())
        config["method"]["clip"] = {"eps_high": radius}
        (cell / "config.yaml").write_text(yaml.safe_dump(config))
    names = collect(cells).run_methods
    assert sorted(names) == [
        f"{of} with eps_high {at}" for of, at in (("grpo", 0.2), ("sat-grpo", 0.2), ("sat-grpo", 0.8))
    ]
    assert pairs_without("sat", names)[0] == ("sat-grpo with eps_high 0.2", "grpo with eps_high 0.2")
    for of_sat, both in ((" with alpha 0.8", ""), (" with eps_high 0.2, alpha 0.8", " with eps_high 0.2")):
        assert pairs_without("sat", [f"sat-grpo{of_sat}"]) == [(f"sat-grpo{of_sat}", f"grpo{both}")], "SAT's own"


def test_curves_are_averaged_over_whole_cycles_and_their_seeds(tmp_path):
    runs = collect(
        [write_cell(tmp_path / str(seed), "gspo", 8, seed, steps) for seed, steps in ((0, 200), (1, 90))]
    ).runs
    own = [run.data.metrics["mismatch/d_pi"] for run in runs]
    means = [curve(run, "mismatch/d_pi")["y"].to_numpy() for run in runs]
    np.testing.assert_allclose(means[0][100], own[0][100 - 4 : 100 + 4].mean())  # a twentieth of the run: one cycle
    frame = seed_curve(runs, "mismatch/d_pi")
    both = np.stack([means[0][:90], means[1]])
    assert frame["x"].tolist() == list(range(1, 91)), "where one ends, the mean of the others would jump"
    for column, expected in {"y": both.mean(0), "low": both.min(0), "high": both.max(0)}.items():
        np.testing.assert_allclose(frame[column], expected)
    assert not len(seed_curve(runs, "nope")) and not len(seed_curve([], "accuracy"))


def test_the_papers_numbers_are_there_on_request_alone(tmp_path):
    paths = [write_cell(tmp_path / name, name, 8, 0, 24) for name in ("gspo", "sat-gspo")]
    for paper in (False, True):
        page = write_comparison(paths, tmp_path / "out", paper=paper)
        text = page.read_text()
        for part in ("paper, 30B", "AIME24", "--paper</code>"):
            assert (part in text) == paper, part


def test_settings_that_differ_are_found(tmp_path):
    paths = [write_cell(tmp_path / str(seed), "grpo", 1, seed, 20) for seed in range(3)]
    assert differing_settings(collect(paths).runs) == {}
    config = paths[0] / "config.yaml"
    config.write_text(config.read_text().replace("max_digit: 5", "max_digit: 6"))
    assert differing_settings(collect(paths).runs) == {"task.max_digit": {"6": 1, "5": 2}}


def test_settings_of_a_base_that_is_not_ours_are_those_of_its_runs_alone():
    def run(base, **settings):
        config = {"method": {"base": base, "settings": settings}}
        return ComparedRun(RunFolder(base), config, {}, RunData(), base, 1, 0)

    runs = [run("grpo"), run("my.gate", band=0.1), run("my.gate", band=0.1)]
    assert differing_settings(runs) == {}
    assert differing_settings([*runs, run("my.gate", band=0.2)]) == {"method.settings.band": {"0.1": 2, "0.2": 1}}
