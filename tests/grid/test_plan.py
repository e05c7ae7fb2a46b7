"""What a grid's file makes: cells, their runs, the prompts that they share, and their cost."""

import math
from pathlib import Path

import pytest

from sat_slime.config import GridConfig, config_errors, config_warnings, load_config, load_grid
from sat_slime.config.grid_schema import CostConfig, matches
from sat_slime.config.loader import key_paths, vary
from sat_slime.embedded.initial_model import cached_model
from sat_slime.embedded.rollout_batch import evaluation_requests, training_requests
from sat_slime.grid.plan import Cell, cell_config, plan_cells
from sat_slime.grid.progress import CellSize, ProgressReader, expect, outlook
from sat_slime.grid.state import CellState, GridFolder
from sat_slime.plugin.launch.checks import settings_errors

ROOT = Path(__file__).parents[2]


def shipped(name):
    """(grid, {cell: its run}) of a file in configs/grid."""
    file = ROOT / "configs" / "grid" / f"{name}.yaml"
    grid = load_grid(file)
    run = vary(load_config(file.parent / grid.run), [(str(file), grid.settings)])
    return grid, {cell: cell_config(grid, file, run, cell, Path("runs")) for cell in plan_cells(grid)}


def test_the_embedded_grid_is_the_papers():
    grid, configs = shipped("embedded")
    assert len(configs) == 13 * 2 * 3
    for cell, config in configs.items():
        assert config_errors(config) == [] and config_warnings(config) == [], cell
        assert config.pipeline.iterations % 8 == 0  # whole lag cycles
        assert config.eval.every_n_iterations % 8 == 0  # right after a broadcast, at both lags
    assert grid.cost.seconds_per_iteration is not None


def test_the_papers_grid_can_be_sent():
    _, configs = shipped("paper")
    assert len(configs) == 13 * 2
    assert not any(settings_errors(config, None) for config in configs.values())


def test_cells_of_a_seed_are_asked_the_same():
    _, configs = shipped("embedded")
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


@pytest.mark.parametrize(
    "selector, meant",
    [
        ("gspo", True),
        ("gspo@8", True),
        ("@8", True),
        ("g*@8", True),
        ("gspo@1", False),
        ("grpo", False),
        ("gsp", False),
    ],
)
def test_selectors(selector, meant):
    assert matches(selector, "gspo", 8) is meant


def test_overrides_are_laid_on_in_the_order_of_the_file():
    grid = GridConfig(
        methods=["gspo", "sat-gspo"],
        overrides={"sat-*": {"train": {"lr": 1e-3}, "method.sat.scope": "step"}, "@8": {"train.lr": 2e-3}},
    )
    run = load_config(ROOT / "configs/embedded/base.yaml")

    def of(method, lag):
        config = cell_config(grid, Path("x.yaml"), run, Cell(method, lag, 0), Path("runs"))
        return config.train.lr, config.method.sat.scope

    assert of("gspo", 1) == (5e-4, "microbatch")
    assert of("sat-gspo", 1) == (1e-3, "step")
    assert of("sat-gspo", 8) == (2e-3, "step")


def finished(method, lag, minutes):
    return CellState(Cell(method, lag, 0), "finished", 1, minutes=minutes)


def test_expectations_are_measured_where_they_can_be():
    size, cost = CellSize(100, 100), CostConfig(start_s=60, seconds_per_iteration=1.2)
    cell = Cell("gspo", 8, 0)
    same = expect(
        cell, [finished("a", 8, 3), finished("b", 8, 5), finished("c", 8, 4), finished("a", 1, 9)], size, [], cost
    )
    assert same.minutes == 4 and "same lag" in same.source
    assert expect(cell, [finished("a", 1, 9)], size, [0.6], cost).minutes == 9
    running = expect(cell, [CellState(cell)], size, [0.6, math.nan], cost)
    assert running.minutes == 2 and "running" in running.source
    assert expect(cell, [], size, [], cost).minutes == 3
    assert math.isnan(expect(cell, [], size, [], CostConfig()).minutes)


def test_time_left_counts_what_is_done_and_what_runs_side_by_side(tmp_path):
    folder = GridFolder(tmp_path)
    states = [CellState(Cell("gspo", lag, 0)) for lag in (0, 1, 2, 3)]
    states[0].state = "running"
    run = folder.run_folder(states[0])
    run.path.mkdir(parents=True)
    run.metrics.write_text('{"step": 75, "iteration": 75}\n')
    sizes = {state.cell: CellSize(100, 100) for state in states}
    cost = CostConfig(start_s=0, seconds_per_iteration=6)  # ten minutes a cell
    wanted = [state.cell for state in states]
    ahead = outlook(states, wanted, sizes, ProgressReader(folder), cost, 1)
    assert (ahead.minutes_left, ahead.left[states[0].cell]) == (32.5, 2.5)
    assert outlook(states, wanted, sizes, ProgressReader(folder), cost, 2).minutes_left == 16.25
    assert outlook(states, wanted, sizes, ProgressReader(folder), cost, 9).minutes_left == 10
    states[1].state, states[2].state = "finished", "failed"
    assert set(outlook(states, wanted[1:], sizes, ProgressReader(folder), cost, 1).left) == {states[3].cell}


def test_progress_is_read_past_a_torn_line(tmp_path):
    folder, state = GridFolder(tmp_path), CellState(Cell("gspo", 1, 0))
    reader, run = ProgressReader(folder), folder.run_folder(state)
    assert reader.of(state).step == 0
    run.path.mkdir(parents=True)
    run.metrics.write_text('{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": 0.6}\n{"step": 3, "rew')
    assert (reader.of(state).step, reader.of(state).reward) == (2, 0.6)
    run.metrics.write_text('{"step": 1, "reward/mean": 0.5}\n')
    assert reader.of(state).step == 1
