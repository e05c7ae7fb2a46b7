"""Two nodes on loopback: a run goes on after the death of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from whole_run import environment

from sat_slime.config.jsonl import read_rows

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a network of its own, which root alone may"),
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
