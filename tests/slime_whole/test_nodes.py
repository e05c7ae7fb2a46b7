"""Two nodes on loopback: a node that sees another disk, or lacks the package, is found before the job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from whole_run import FILE, environment

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
    settings = ("data.reward=my_reward.reward", f"cluster.python_path=[{mine}]")
    failed, _ = findings(slime, mine, tmp_path, *settings)
    assert [(what, detail.partition(" (")[0]) for what, detail in failed] == [
        ("plugin", "node 127.0.0.3 cannot import my_reward.reward")
    ]
