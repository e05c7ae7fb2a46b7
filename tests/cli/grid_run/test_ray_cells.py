"""A grid on a Ray cluster of two nodes, whose cells run no engine: tests/grid/grid_stand_in.py. Of real cells:
tests/grid/test_grid_engine.py."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray_cluster import environment, ray_cluster

from sat_slime.cli.grid_run import ray_cells, ray_node
from sat_slime.config import ConfigError

ROOT = Path(__file__).parents[3]
STAND_IN = str(ROOT / "tests" / "grid" / "grid_stand_in.py")
CELLS = ["gspo-lag1-seed0", "gspo-lag2-seed0", "gspo-lag1-seed1", "gspo-lag2-seed1"]
PROGRAM = f"""
from sat_slime.cli import main
from sat_slime.cli.grid_run import cells, grid_start, ray_cells, ray_node
from sat_slime.cli.embedded_run import engine_packages
import contextlib, sys
ray_cells.COMMAND = ("{{python}}", {STAND_IN!r}, "{{parent}}")
cells.COMMAND = (sys.executable, {STAND_IN!r})
grid_start.fork_servers = lambda log: contextlib.nullcontext({{}})
engine_packages.missing_engines = lambda: []
main()
"""

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a cluster, and the folder that tells cells what to do; grids stand beside it."""
    told = tmp_path_factory.mktemp("cluster") / "told"
    told.mkdir()
    with ray_cluster({"GRID_STAND_IN": str(told)}, told.parent / "ray.txt") as address:
        yield address, told


def run_grid(told, name, *options):
    values = {
        "name": name,
        "run": str(ROOT / "configs/embedded/tiny.yaml"),
        "methods": ["gspo"],
        "lags": [1, 2],
        "seeds": [0, 1],
        "retries": 0,
    }
    (told.parent / f"{name}.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, "-c", PROGRAM, "grid", f"{name}.yaml", "--no-live", *options]
    done = subprocess.run(
        command, cwd=told.parent, env=environment(GRID_STAND_IN=str(told)), capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def tell(told, cell, *acts):
    (told / f"{cell}.json").write_text(json.dumps(acts))


def rows(told, name):
    """Of each cell its state, and the text of its metrics."""
    folder = told.parent / "grids" / name
    states = {row["cell"]: row["state"] for row in json.loads((folder / "state.json").read_text())["cells"]}
    return {cell: (states[cell], (folder / "runs" / cell / "metrics.jsonl").read_text()) for cell in states}


@needs_ray
def test_a_grid_spreads_over_the_nodes_and_ends_as_it_does_on_one_machine(cluster):
    """Each node has one core, and the first cell goes on only once another has begun."""
    address, told = cluster
    assert run_grid(told, "here", "--set", "pipeline.iterations=4")[0] == 0
    (told / "starts").unlink()
    tell(told, CELLS[0], [2, "meet"])
    tell(told, CELLS[1], [2, "tell environment"])
    code, output = run_grid(told, "spread", "--ray", address, "--set", "pipeline.iterations=4")
    assert code == 0, output
    assert rows(told, "spread") == rows(told, "here")
    assert output.count("started on ") == 4
    variables = json.loads((told.parent / "grids/spread/runs" / CELLS[1] / "environment.json").read_text())
    assert not [name for name in variables if name.startswith("RAY_")]
    assert variables.get("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS"), "Ray has its own for its processes"


@needs_ray
def test_ctrl_c_ends_the_cells_on_all_nodes(cluster):
    address, told = cluster
    (told / "starts").unlink(missing_ok=True)
    tell(told, CELLS[0], [3, "interrupt grid of its run"])
    tell(told, CELLS[1], [2, "wait"])
    code, output = run_grid(told, "ended", "--ray", address)
    assert code == 130, output
    states = [row["state"] for row in json.loads((told.parent / "grids/ended/state.json").read_text())["cells"]]
    assert states == ["interrupted", "interrupted", "planned", "planned"]
    assert f"go on with: sat-slime grid grids/ended --ray {address}" in output
    for cell in CELLS[:2]:
        state = json.loads((told.parent / "grids/ended/runs" / cell / "state.json").read_text())
        assert state["status"] == "interrupted"


@needs_ray
def test_a_cell_whose_node_dies_is_run_on_another(cluster):
    """The last of this file: the cluster has one node less behind it."""
    address, told = cluster
    (told / "starts").unlink(missing_ok=True)
    for cell in CELLS:
        (told / f"{cell}.json").unlink(missing_ok=True)
    tell(told, CELLS[1], [3, "kill node"])
    code, output = run_grid(told, "lost", "--ray", address, "--set", "pipeline.iterations=4")
    assert code == 0, output
    assert f"{CELLS[1]}: its node is gone: it ran on " in output
    assert rows(told, "lost") == rows(told, "here")
    starts = [line.rsplit(" ", 1)[0] for line in (told / "starts").read_text().splitlines()]
    assert starts.count(CELLS[1]) + starts.count(f"{CELLS[1]} --resume") == 2 and len(starts) == 5


@pytest.mark.parametrize(
    "address, said",
    [
        ("127.0.0.1:1", "--ray 127.0.0.1:1: no Ray cluster answers ([Errno 111] Connection refused): start it"),
        ("auto", "--ray auto: expected HOST:PORT"),
    ],
)
def test_no_cluster_is_a_line(address, said):
    with pytest.raises(ConfigError) as failure:
        ray_cells._look_for(address)
    assert str(failure.value).startswith(said)


HERE = {"locked": True, "missing": [], "package": "abc", "memory": 8.0}


@pytest.mark.parametrize(
    "change, said",
    [
        ({}, None),
        ({"locked": False}, "does not see the lock of /grids/x: put the grid on a disk that all nodes share"),
        ({"missing": ["ray", "sglang"]}, "lacks ray, sglang"),
        ({"package": "abd"}, "has other code of sat_slime than this machine"),
        ({"error": "python3: No module named sat_slime"}, "cannot start a cell (python3: No module named sat_slime)"),
    ],
)
def test_what_a_node_lacks_is_said_before_the_first_cell(change, said):
    fault = ray_cells._fault({**HERE, **change}, HERE, Path("/grids/x/.lock"))
    assert fault is None if said is None else fault.startswith(said)


def test_a_node_without_the_folder_or_the_package(tmp_path, monkeypatch):
    gone = str(tmp_path / "gone")
    assert ray_node.look(gone, "lock", {}) == {"error": f"{gone}: No such file or directory"}
    monkeypatch.setattr(ray_node, "LOOK", ("-c", "import no_such_package"))
    assert "No module named 'no_such_package'" in ray_node.look(str(tmp_path), "lock", {})["error"]


def test_a_cell_that_is_told_to_end_before_it_began_does_not_begin(tmp_path):
    cell = ray_node.NodeCell()
    cell.signal(15)
    assert cell.run(["{python}", "-c", "1 / 0"], str(tmp_path / "out"), str(tmp_path), {}) == ray_node.INTERRUPTED
    assert not (tmp_path / "out").exists()
