"""What a grid's file makes: cells, their runs, and the prompts that they share."""

from pathlib import Path

import pytest

from sat_slime.config import ConfigError, GridConfig, config_errors, config_warnings, load_config, load_grid
from sat_slime.config.loader import key_paths, vary
from sat_slime.lab.batch import evaluation_requests, training_requests
from sat_slime.lab.initial_model import cached_model
from sat_slime.launch.checks import settings_errors
from sat_slime.runs.grid import Cell, GridFolder, cell_config, plan_cells

ROOT = Path(__file__).parents[2]


def shipped(name):
    """(grid, {cell: its run}) of a file in configs/grid."""
    file = ROOT / "configs" / "grid" / f"{name}.yaml"
    grid = load_grid(file)
    run = vary(load_config(file.parent / grid.run), [(str(file), grid.settings)])
    return grid, {cell: cell_config(grid, file, run, cell, Path("runs")) for cell in plan_cells(grid)}


def test_the_lab_grid_is_the_papers():
    grid, configs = shipped("lab")
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
    _, configs = shipped("lab")
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

    assert of("gspo", 1) == (5e-4, None)
    assert of("sat-gspo", 1) == (1e-3, "step")
    assert of("sat-gspo", 8) == (2e-3, "step")


def test_cells_of_two_tasks_are_never_one(tmp_path):
    file, run = tmp_path / "grid.yaml", ROOT / "configs" / "lab" / "quickstart.yaml"
    text = f"name: x\nrun: {run}\nmethods: [gspo]\nlags: [1]\nseeds: [0, 1]\n"
    file.write_text(f"{text}tasks: {{running_sums: {{}}, pointer_chasing: {{task.hops: 4}}}}\n")
    grid, base = load_grid(file), load_config(run, ["task.max_digits=7"])
    configs = {cell: cell_config(grid, file, base, cell, tmp_path) for cell in plan_cells(grid)}
    assert [cell.name for cell in configs] == [
        f"gspo-lag1-seed{seed}-on-{task}" for seed in (0, 1) for task in ("running_sums", "pointer_chasing")
    ]
    assert all(config.name == cell.name and config_errors(config) == [] for cell, config in configs.items())
    sums, pointers = list(configs.values())[:2]
    assert (sums.task.max_digits, pointers.task.name, pointers.task.hops) == (7, "pointer_chasing", 4)
    assert cached_model(sums) != cached_model(pointers)
    folder = GridFolder(tmp_path)
    folder.save([*configs])
    assert folder.observe() == [*configs]


@pytest.mark.parametrize(
    ("run", "more", "message"),
    [
        ("lab/quickstart", "tasks: {runing_sums: {}}", "'runing_sums' is no task"),
        ("lab/quickstart", "tasks: {running_sums: {task.hops: 4}}", "unknown key 'task.hops'"),
        (
            "lab/quickstart",
            "tasks: {running_sums: {}}\noverrides: {gspo: {task.name: pointer_chasing}}",
            "that of gspo-lag1-seed0-on-pointer_chasing: leave",
        ),
        ("slime/laptop", "tasks: {running_sums: {}}", "tasks are for lab runs"),
    ],
)
def test_tasks_that_cannot_be(tmp_path, run, more, message):
    file, path = tmp_path / "grid.yaml", ROOT / "configs" / f"{run}.yaml"
    file.write_text(f"name: x\nrun: {path}\nmethods: [gspo]\nlags: [1]\nseeds: [0]\n{more}\n")
    grid = load_grid(file)
    with pytest.raises(ConfigError, match=message):
        cell_config(grid, file, load_config(path), plan_cells(grid)[0], tmp_path)


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
