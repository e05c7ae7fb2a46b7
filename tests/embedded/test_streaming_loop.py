"""Mode streaming through the command line, on the real engines: the bound on lag, through a kill and a resume too."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("ray", "sglang", "megatron")),
        reason="the embedded runtime needs the engines: scripts/setup.sh",
    ),
]

ROOT = Path(__file__).parents[2]
ITERATIONS, STALENESS = 14, 1
SETTINGS = {
    "method": "sat-gspo",
    "pipeline.mode": "streaming",
    "pipeline.lag": 1,
    "pipeline.iterations": ITERATIONS,
    "pipeline.max_staleness": STALENESS,
    "pipeline.queue_prompts": 12,
    "rollout.deterministic": "false",
    "diagnose.split_every_n_steps": 1,
    "checkpoint.every_n_iterations": 4,
    "eval.every_n_iterations": 7,
    "train.lr": 0.005,
}


def launch(root: Path, *arguments: str) -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "sat-slime"), "launch", *arguments, "--no-live"]
    return subprocess.Popen(
        command, stdout=(root / "out.txt").open("a"), stderr=subprocess.STDOUT, start_new_session=True
    )


def rows(folder: Path, name: str = "metrics") -> list[dict]:
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def test_the_bound_holds_through_kill_9_and_resume_and_versions_are_exact(tmp_path):
    folder = tmp_path / "runs" / "stream"
    settings = SETTINGS | {"output_dir": tmp_path / "runs", "cache_dir": tmp_path / "cache"}
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    run = launch(tmp_path, str(ROOT / "configs/embedded/tiny.yaml"), "--name", "stream", *sets)
    output = tmp_path / "out.txt"
    deadline = time.monotonic() + 400
    while len(rows(folder)) < 6:
        assert run.poll() is None and time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    before = rows(folder)
    saved = json.loads((folder / "checkpoints" / "iteration-000004" / "queue.json").read_text())
    assert saved["numbers"] or saved["unfinished"]

    assert launch(tmp_path, str(folder), "--resume").wait(400) == 0, output.read_text()
    after = rows(folder)
    assert [row["step"] for row in after] == list(range(1, ITERATIONS + 1))
    assert [row["rollout_id"] for row in after] == list(range(ITERATIONS))
    for row in [*before, *after]:
        assert row["lag/max"] <= STALENESS
        assert row["lag/mean"] == pytest.approx(row["lag/generation_mean"] + row["lag/queue_mean"])
        # fp32: under the weights that its version names each token has the log-prob that the engine reported, whatever
        # happened while its response was decoded
        assert row["mismatch/implementation"] < 1e-5, row
        assert row["queue/length"] + row["queue/in_generation"] <= 12
    assert max(row["lag/max"] for row in after) == STALENESS
    assert max(row["mismatch/policy"] for row in after) > 1e-3
    assert [row["weights_step"] for row in rows(folder, "eval")] == [0, 7, 14]
