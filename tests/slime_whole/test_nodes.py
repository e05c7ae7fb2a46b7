"""Two nodes on loopback: a node that sees another disk, or lacks the package, is found before the job, and a run goes
on after the death of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from whole_run import FILE, environment

from sat_slime.config.jsonl import read_rows

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of one node's own, which root alone may"),
]


def findings(slime, hidden, tmp_path, *more):
    """What the check of two nodes finds where the second does not see what is in a folder: (what, detail) of failures,
    and everything."""
    settings = [f"{key}={value}" for key, value in slime.settings.items()] + ["cluster.gpus_per_node=1"]
    program = Path(__file__).parent / "two_nodes.py"
    command = [sys.executable, program, FILE, hidden, tmp_path / "runs" / "two", *settings, *more]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return [(what, detail) for mark, what, detail in rows if mark == "FAIL"], rows


def test_a_node_with_another_disk(slime, tmp_path):
    (tmp_path / "runs").mkdir()
    failed, _ = findings(slime, tmp_path / "runs", tmp_path)
    assert failed == [("run folder", "node 127.0.0.3 does not see it: put output_dir on a disk that all nodes share")]


def test_a_node_without_the_rewards_package(slime, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "my_reward.py").write_text("async def reward(args, sample, **_):\n    return 1.0\n")
    settings = ("slime.custom-rm-path=my_reward.reward", f"cluster.python_path=[{mine}]")
    failed, _ = findings(slime, mine, tmp_path, *settings)
    assert [(what, detail.partition(" (")[0]) for what, detail in failed] == [
        ("plugin", "node 127.0.0.3 cannot import my_reward.reward")
    ]


def test_a_node_that_dies(slime):
    run = slime.runs / "dying"
    launch = slime.command("dying", "--skip-checks")
    options = {
        "cluster.gpus_per_node": 1,
        "cluster.restarts": 1,
        "slime.save-interval": 2,
        "pipeline.iterations": 6,
        "slime.eval-interval": 0,
    }
    words = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    program = [sys.executable, Path(__file__).parent / "dying_node.py", run, *launch[launch.index("launch") :], *words]
    done = subprocess.run(program, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "restart 1 of 1, from iteration 2" in done.stdout
    (row,) = read_rows(run / "restarts.jsonl")
    assert "sat_slime: node 127.0.0.3, on which this run was, has died" in row["reason"]
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
