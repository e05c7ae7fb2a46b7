"""The command `sat-slime grid` on cells that run no engine; with engines in test_grid_engine.py."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import yaml
from command_line import TINY, sat_slime_command

from sat_slime.cli import grid_run, lab_run
from sat_slime.cli.grid_run import plan_grid
from sat_slime.config import load_grid
from sat_slime.config.jsonl import read_rows
from sat_slime.runs.folder import RunFolder, is_alive
from sat_slime.runs.grid import GridFolder, plan_cells
from sat_slime.runs.lock import FolderLock

STAND_IN = [sys.executable, str(Path(__file__).with_name("grid_stand_in.py"))]
CELLS = [f"{method}-lag{lag}-seed{seed}" for seed in (0, 1) for method in ("gspo", "sat-gspo") for lag in (1, 2)]


@pytest.fixture
def told(monkeypatch, tmp_path):
    """A grid in the working directory, and the folder that tells its cells what to do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid_run, "COMMAND", STAND_IN)
    monkeypatch.setattr(lab_run, "missing_engines", lambda: [])
    monkeypatch.setattr(grid_run, "POLL_S", 0.01)
    monkeypatch.setenv("GRID_STAND_IN", str(tmp_path / "told"))
    (tmp_path / "told").mkdir()
    write_grid()
    return tmp_path / "told"


def write_grid(**changes):
    values = {"name": "small", "parallel": 1, "run": str(TINY), "methods": ["gspo", "sat-gspo"], "lags": [1, 2]}
    values |= {"seeds": [0, 1], "retries": 1, **changes}
    Path("grid.yaml").write_text(yaml.safe_dump(values))


def tell(told, cell, *acts):
    (told / f"{cell}.json").write_text(json.dumps(acts))


def starts(told):
    """`CELL [--resume]` of every start so far."""
    lines = (told / "starts").read_text().splitlines() if (told / "starts").exists() else []
    return [line.rsplit(" ", 1)[0] for line in lines]


def sat_slime_grid(*arguments):
    return sat_slime_command("grid", *arguments)


def states(name="small"):
    folder = GridFolder(f"grids/{name}")
    return {cell.name: folder.state(cell) for cell in plan_cells(load_grid(folder.config))}


def histories(name="small"):
    return {cell: read_rows(f"grids/{name}/runs/{cell}/metrics.jsonl") for cell in CELLS}


def test_cells_run_in_order_seed_by_seed_and_finished_ones_are_left_alone(told):
    result = sat_slime_grid("grid.yaml")
    assert result.exit_code == 0, result.output
    assert starts(told) == CELLS
    assert "8 of 8 cells finished" in result.stdout
    for cell, state in states().items():
        config = yaml.safe_load(Path(f"grids/small/runs/{cell}/config.yaml").read_text())
        method, lag, seed = cell.replace("sat-gspo", "sat_gspo").split("-")
        assert (state, config["name"]) == ("finished", cell)
        assert (f"lag{config['pipeline']['lag']}", f"seed{config['seed']}") == (lag, seed)
        assert ("sat" in config["method"]) == (method == "sat_gspo")
    before = histories()
    for target in ("grid.yaml", "grids/small", "grids/small/grid.yaml"):
        assert sat_slime_grid(target).exit_code == 0
    assert starts(told) == CELLS and histories() == before
    cell = f"grids/small/runs/{CELLS[0]}"
    assert f"{cell} is a run, not a grid: sat-slime launch {cell} --resume" in sat_slime_grid(cell).stderr


def test_the_folder_is_enough_to_go_on(told):
    assert sat_slime_grid("grid.yaml", "--only", "gspo@1", "--set", "pipeline.iterations=4").exit_code == 0
    Path("grid.yaml").unlink()
    Path("grids/small").rename("moved")
    assert sat_slime_grid("moved").exit_code == 0
    assert starts(told)[2:] == [cell for cell in CELLS if not cell.startswith("gspo-lag1")]
    assert all(len(read_rows(f"moved/runs/{cell}/metrics.jsonl")) == 4 for cell in CELLS)


@pytest.mark.parametrize("act, error", [("fail", "the engine broke"), ("crash", "its process was killed by SIGKILL")])
def test_a_cell_that_fails_is_retried_from_its_checkpoint_and_left_with_its_error_if_it_fails_on(told, act, error):
    tell(told, CELLS[0], *[[3, act]] * 2)
    tell(told, CELLS[1], [4, act])
    result = sat_slime_grid("grid.yaml", "--seeds", "0")
    assert result.exit_code == 1
    assert starts(told) == [CELLS[0], f"{CELLS[0]} --resume", CELLS[1], f"{CELLS[1]} --resume", *CELLS[2:4]]
    assert f"{CELLS[1]}: failed (attempt 1 of 2): {error}" in result.stdout
    assert [row["step"] for row in histories()[CELLS[1]]] == [1, 2, 3, 4, 5, 6]
    assert states()[CELLS[0]] == {"fail": "failed", "crash": "interrupted"}[act]
    assert [states()[cell] for cell in CELLS[1:4]] == ["finished"] * 3
    assert f"failed: {CELLS[0]}: {error}" in result.stdout
    assert "when that is fixed, start them again with: sat-slime grid grids/small" in result.stdout
    mended = sat_slime_grid("grid.yaml", "--seeds", "0")
    assert mended.exit_code == 0, mended.output
    assert starts(told)[6:] == [f"{CELLS[0]} --resume"] and states()[CELLS[0]] == "finished"


def test_bad_input_is_not_retried(told):
    tell(told, CELLS[0], [0, "refuse"], [0, "refuse"])
    assert sat_slime_grid("grid.yaml", "--only", "gspo").exit_code == 1
    assert starts(told).count(CELLS[0]) == 1 and states()[CELLS[0]] == "failed"
    folder = GridFolder("grids/small")
    assert folder.error(plan_cells(load_grid(folder.config))[0]) == "the key is wrong"


def test_ctrl_c_ends_the_cell_cleanly_and_the_next_call_goes_on(told):
    tell(told, CELLS[1], [4, "interrupt grid"])
    result = sat_slime_grid("grid.yaml")
    assert result.exit_code == 130, result.output
    assert "go on with: sat-slime grid grids/small" in result.stdout
    assert [*states().values()] == ["finished", "interrupted", *["planned"] * 6]
    assert sat_slime_grid("grids/small").exit_code == 0
    assert starts(told)[2:] == [f"{CELLS[1]} --resume", *CELLS[2:]]
    assert_as_undisturbed(told)


def assert_as_undisturbed(told):
    (told / f"{CELLS[1]}.json").unlink()
    assert sat_slime_grid("grid.yaml", "--name", "undisturbed").exit_code == 0
    assert histories() == histories("undisturbed")


def test_a_killed_grid_leaves_nothing_running_and_goes_on_where_it_was(told):
    tell(told, CELLS[1], [4, "kill grid"])
    program = (
        "from sat_slime.cli import main, lab_run, grid_run; "
        f"grid_run.COMMAND = {STAND_IN!r}; lab_run.missing_engines = lambda: []; main()"
    )
    killed = subprocess.run([sys.executable, "-c", program, "grid", "grid.yaml"], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    result = sat_slime_grid("grid.yaml")  # waits for the cell, should it still be ending
    assert result.exit_code == 0, result.output
    assert starts(told) == [*CELLS[:2], f"{CELLS[1]} --resume", *CELLS[2:]]
    assert states()[CELLS[1]] == "finished"
    assert not [line for line in (told / "starts").read_text().splitlines() if is_alive(int(line.split()[-1]), "")]
    assert_as_undisturbed(told)


def test_a_cell_that_is_worked_on_is_waited_for(told, monkeypatch):
    sat_slime_grid("grid.yaml", "--only", "gspo@1", "--seeds", "0")
    run = RunFolder(f"grids/small/runs/{CELLS[1]}")
    run.path.mkdir()
    run.lock.take()
    asked = FolderLock.holder

    def until_it_is_seen(folder):
        if holder := asked(folder):
            run.lock.release()
        return holder

    monkeypatch.setattr(FolderLock, "holder", until_it_is_seen)
    result = sat_slime_grid("grid.yaml", "--only", "gspo@2", "--seeds", "0")
    assert result.exit_code == 0 and starts(told) == CELLS[:2]
    assert f"{CELLS[1]}: another process works on it: waiting for that" in result.stdout


def test_cells_side_by_side(told):
    write_grid(parallel=2)
    for cell in CELLS[:2]:
        tell(told, cell, [2, "meet"])
    assert sat_slime_grid("grid.yaml", "--seeds", "0").exit_code == 0
    assert sorted(starts(told)) == sorted(CELLS[:4])


def test_a_grid_that_fails_itself_lets_its_cells_save(told, monkeypatch):
    write_grid(parallel=2)
    tell(told, CELLS[0], [3, "wait"])
    tell(told, CELLS[1], [2, "meet"])
    monkeypatch.setattr(grid_run.GridRun, "_end", mock.Mock(side_effect=OSError(28, "No space left on device")))
    result = sat_slime_grid("grid.yaml")
    assert result.exit_code == 2 and result.stderr == "error: No space left on device\n"
    assert RunFolder(f"grids/small/runs/{CELLS[0]}").state()["status"] == "interrupted"


@pytest.mark.parametrize(
    "only, seeds, chosen",
    [
        (["sat-gspo@2"], [], [CELLS[3], CELLS[7]]),
        (["@1"], [1], [CELLS[4], CELLS[6]]),
        (["sat-*@1", "gspo@2"], [0], [CELLS[1], CELLS[2]]),
    ],
)
def test_some_cells_alone(told, only, seeds, chosen):
    assert [cell.name for cell in plan_grid(Path("grid.yaml"), None, only, seeds).wanted] == chosen


def test_dry_run_shows_plan_and_cost_and_starts_nothing(told):
    write_grid(settings={"method.sat.alpha": 0.8})
    result = sat_slime_grid("grid.yaml", "--dry-run")
    assert result.exit_code == 0 and "2 methods x 2 lags x 2 seeds = 8 cells" in result.stdout
    assert "unknown until a cell has run" in result.stdout
    assert starts(told) == [] and not Path("grids").exists()
    Path("grids/small").mkdir(parents=True)
    Path("grids/small/run.yaml").touch()
    assert "is not a grid folder" in sat_slime_grid("grid.yaml", "--dry-run").stderr, "the file may be the user's"
    Path("grids/small/cells").mkdir()  # as a full disk left it
    sat_slime_grid("grid.yaml", "--only", "@1")
    measured = sat_slime_grid("grid.yaml", "--dry-run").stdout
    assert "6 min 00 s left for 4 cells (measured: the median of finished cells)" in measured
    assert "4 finished, 4 planned" in measured


def test_commands_are_lines_for_a_shell_that_run_the_cells_which_are_left(runtime):
    write_grid(output_dir="my grids", methods=["sat-gspo"], seeds=[0], overrides={"@2": {"train.lr": 0.5}})

    def lines():
        return [shlex.split(line) for line in sat_slime_grid("grid.yaml", "--commands").stdout.splitlines()]

    def run(line, *options):
        assert line[0] == "sat-slime"
        return sat_slime_command(*line[1:], *options).exit_code

    first, second = lines()
    assert run(first, "--dry-run") == 0 and runtime.calls == []
    runtime.stop_after, runtime.end = 3, RuntimeError("the node died")
    assert run(first) == 1
    runtime.stop_after, runtime.end = 10**9, None
    assert run(second) == 0
    (resumed,) = lines()
    assert "--resume" in resumed and run(resumed) == 0
    assert lines() == []
    plan = plan_grid(Path("grid.yaml"))
    one, two = plan.configs.values()
    assert [call[0] for call in runtime.calls] == [one, two, one]
    runs = Path("my grids/small/runs").resolve()
    assert [call[1] for call in runtime.calls[:2]] == [runs / cell.name for cell in plan.wanted]


def test_a_grid_may_grow_but_not_change(told):
    sat_slime_grid("grid.yaml")
    write_grid(seeds=[0, 1, 2], parallel=2)
    assert sat_slime_grid("grid.yaml", "--only", "gspo@1").exit_code == 0
    assert starts(told)[8:] == ["gspo-lag1-seed2"]
    refused = sat_slime_grid("grid.yaml", "--set", "train.lr=0.1")
    assert refused.exit_code == 2 and "train.lr (0.0005 -> 0.1)" in refused.stderr and "--name X" in refused.stderr
    write_grid(settings={"pipeline": {"iterations": 4}}, overrides={"sat-*@2": {"train.lr": 1e-3}})
    refused = sat_slime_grid("grid.yaml")
    assert "pipeline.iterations (6 -> 4)" in refused.stderr
    assert len(starts(told)) == 9


@pytest.mark.parametrize(
    "changes, arguments, message",
    [
        ({"lags": [1, 1]}, [], "1 more than once"),
        ({"overrides": {"grpo": {"train.lr": 1}}}, [], "grpo is no cell of the grid"),
        ({"overrides": {"gspo@²": {}}}, [], "is not METHOD, METHOD@LAG or @LAG"),
        ({"overrides": {"gspo": {"pipline.lag": 1}}}, [], "unknown key 'pipline.lag'; did you mean 'pipeline.lag'?"),
        ({"overrides": {"gspo": {"method.r3": True}}}, [], "make the run of gspo-lag1-seed0 that of gspo-r3-lag1-"),
        ({}, ["--set", "pipeline.lag=2"], "pipeline.lag is set for all cells, and each has its own by the grid's lags"),
        ({}, ["--set", "name=x"], "name is set for all cells, and each has its own by the grid's name"),
        ({"settings": {"output_dir": "y"}}, [], "by the grid's output_dir"),
        ({"settings": {"seed": 9}}, [], "by the grid's seeds"),
        ({"settings": {"method": "grpo"}}, [], "by the grid's methods"),
        ({"settings": {"method": {"sat": True}}}, [], "method.sat is set for all cells"),
        ({"run": "nowhere.yaml"}, [], "there is no file nowhere.yaml"),
        ({"methods": ["gspo-r3"], "settings": {"model.experts": 0}}, [], "(all cells)"),
        ({"settings": {"method.kpop.phi": 0.2}}, [], "method.kpop has settings, and no method of the grid reads them"),
        ({"seed_keys": ["sed"]}, [], "unknown key 'sed'; did you mean 'seed'?"),
        ({"seed_keys": ["warmup.seed"]}, [], "seed_keys is warmup.seed, without seed: add it"),
        ({}, ["--skip-checks"], "--skip-checks is for runs of slime"),
        ({}, ["--seeds", "2"], "--seeds 2: the grid's seeds are 0, 1"),
        ({}, ["--seeds", "²"], "expected numbers with commas between"),
        ({"output_dir": "grid.yaml/x"}, [], "cannot be written"),
    ],
)
def test_bad_input_is_a_line_and_exit_code_2(told, changes, arguments, message):
    write_grid(**changes)
    result = sat_slime_grid("grid.yaml", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output and starts(told) == []


def test_two_at_once_are_refused(told):
    sat_slime_grid("grid.yaml", "--only", "gspo@1", "--seeds", "0")
    folder = GridFolder("grids/small")
    folder.lock.take()
    try:
        refused = sat_slime_grid("grid.yaml")
    finally:
        folder.lock.release()
    assert refused.exit_code == 2 and f"is being run by process {os.getpid()}" in refused.stderr


def test_status_of_a_grid(told):
    tell(told, CELLS[0], *[[3, "fail"]] * 2)
    tell(told, CELLS[2], [4, "interrupt grid"])
    write_grid(output_dir="(grids)")
    assert "sat-slime report '(grids)/small'\n" in sat_slime_grid("grid.yaml").stdout
    result = sat_slime_command("status", "(grids)/small")
    assert result.exit_code == 0, result.output
    assert f"{CELLS[0]}: the engine broke" in result.stdout
    table = result.stdout.partition(f"{CELLS[0]}:")[0]
    lines = {Path(words[0]).name.rstrip("'"): words for words in map(str.split, table.splitlines()) if words}
    assert lines[CELLS[0]][1:3] == ["failed", "2/6"] and lines[CELLS[2]][1:3] == ["interrupted", "3/6"]
    assert lines[CELLS[1]][1:3] == ["finished", "6/6"] and "0.0100" in lines[CELLS[1]] and CELLS[3] not in lines
    assert "1 of 8 finished, 1 failed, 1 interrupted, 5 planned" in result.stdout
    assert "not running: sat-slime grid '(grids)/small' goes on with it" in result.stdout
