"""What a grid's file makes: cells, their runs, and the prompts that they share."""

from pathlib import Path

import pytest

from sat_slime.config import ConfigError, GridConfig, config_errors, config_warnings, load_config, load_grid
from sat_slime.config.loader import key_paths, vary
from sat_slime.lab.batch import evaluation_requests, training_requests
from sat_slime.lab.initial_model import cached_model
from sat_slime.launch.checks import settings_errors
from sat_slime.runs.grid import Cell, cell_config, plan_cells

ROOT = Path(__file__).parents[2]


def shipped(name):
    """{cell: its run} of a file in configs/grid."""
    file = ROOT / "configs" / "grid" / f"{name}.yaml"
    grid = load_grid(file)
    run = vary(load_config(file.parent / grid.run), [(str(file), grid.settings)])
    return {cell: cell_config(grid, file, run, cell, Path("runs")) for cell in plan_cells(grid)}


def test_the_lab_grid_is_the_papers():
    configs = shipped("lab")
    assert len(configs) == 13 * 2 * 3
    for cell, config in configs.items():
        assert config_errors(config) == [] and config_warnings(config) == [], cell
        assert config.pipeline.iterations % 8 == 0  # whole lag cycles
        assert config.eval.every_n_iterations % 8 == 0  # right after a broadcast, at both lags


def test_the_papers_grid_can_be_sent():
    configs = shipped("paper")
    assert len(configs) == 13 * 2
    assert not any(settings_errors(config, None) for config in configs.values())


def test_cells_of_a_seed_are_asked_the_same():
    configs = shipped("lab")
    for seed in (0, 1, 2):
        of_seed = [config for cell, config in configs.items() if cell.seed == seed]
        assert len({cached_model(config) for config in of_seed}) == 1
        for iteration in (0, 7):
            assert all(training_requests(c, iteration) == training_requests(of_seed[0], iteration) for c in of_seed[1:])
        assert all(evaluation_requests(c, 16) == evaluation_requests(of_seed[0], 16) for c in of_seed[1:])
    first, second = (configs[Cell("gspo", 8, seed)] for seed in (0, 1))
    assert training_requests(first, 0) != training_requests(second, 0)
    assert cached_model(first) != cached_model(second)


def test_every_setting_of_a_grid_is_in_its_document():
    text = (ROOT / "docs" / "grid.md").read_text()
    assert [path for path in key_paths(GridConfig) if f"`{'.'.join(path)}`" not in text] == []


def test_overrides_are_laid_on_in_the_order_of_the_file():
    grid = GridConfig(
        methods=["gspo", "sat-gspo"],
        overrides={"sat-*": {"train": {"lr": 1e-3}, "method.sat.scope": "step"}, "@8": {"train.lr": 2e-3}},
    )
    run = load_config(ROOT / "configs/lab/base.yaml")

    def of(method, lag):
        config = cell_config(grid, Path("x.yaml"), run, Cell(method, lag, 0), Path("runs"))
        return config.train.lr, config.method.sat and config.method.sat.scope

    assert of("gspo", 1) == (5e-4, None) and of("sat-gspo", 1) == (1e-3, "step")
    assert of("sat-gspo", 8) == (2e-3, "step")


def test_a_method_named_by_what_stands_beside_its_base_is_a_cell_of_its_full_name(tmp_path):
    file = tmp_path / "grid.yaml"
    run = ROOT / "configs" / "lab" / "quickstart.yaml"
    file.write_text(f"name: x\nrun: {run}\nmethods: [mis-geo, sat-decoupled]\nlags: [1]\nseeds: [1]\n")
    grid = load_grid(file)
    cells = plan_cells(grid)
    assert [cell.method for cell in cells] == ["grpo-mis-geo", "sat-grpo-decoupled"]
    assert all(cell_config(grid, file, load_config(run), cell, tmp_path) for cell in cells)
    file.write_text(f"name: x\nrun: {run}\nmethods: [mis-geo, grpo-mis-geo]\n")
    with pytest.raises(ConfigError, match="grpo-mis-geo more than once"):
        load_grid(file)
