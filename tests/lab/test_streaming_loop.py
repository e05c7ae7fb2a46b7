"""Mode streaming through the command line, on the real engines: the bound on lag, through a kill and a resume too."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from waiting import until

psutil = pytest.importorskip("psutil", reason="the lab runtime needs the engines: scripts/setup.sh")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
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
    "pipeline.canary": "stop",
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


def kill_server(run: subprocess.Popen) -> None:
    children = psutil.Process(run.pid).children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended meanwhile
            if "engine.sglang_process" in " ".join(child.cmdline()):
                child.kill()
                return
    raise AssertionError("there is no server")


def assert_books_balance(folder: Path, after: list[dict]) -> None:
    """Asserts the laws of docs/asynchrony.md by the rows and the last checkpoint."""
    saved = json.loads((folder / "checkpoints" / f"iteration-{ITERATIONS:06d}" / "queue.json").read_text())
    finished = sum(value for row in after for key, value in row.items() if key.startswith("rollout/finished/"))
    samples = yaml.safe_load((folder / "config.yaml").read_text())["rollout"]
    size, trained = samples["samples_per_prompt"], ITERATIONS * samples["prompts_per_iteration"]
    done = trained * size + sum(row["rollout/dropped"] for row in after) + len(saved["numbers"]) * size
    assert finished + len(saved["untold"]["finished"]) == done - sum(row["rollout/aborted"] for row in after)
    assert saved["next"] * size == done + len(saved["unfinished"]) * size


def test_the_bound_holds_through_kill_9_and_resume_and_versions_are_exact(tmp_path, model_cache):
    folder = tmp_path / "runs" / "stream"
    settings = SETTINGS | {"output_dir": tmp_path / "runs", "cache_dir": model_cache}
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    run = launch(tmp_path, str(ROOT / "configs/lab/tiny.yaml"), "--name", "stream", *sets)
    output = tmp_path / "out.txt"
    until(lambda: len(rows(folder)) >= 6, run, output.read_text)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    before = rows(folder)
    saved = json.loads((folder / "checkpoints" / "iteration-000004" / "queue.json").read_text())
    assert saved["numbers"] or saved["unfinished"]

    # in the resumed run a server dies, with several groups in flight
    resumed = launch(tmp_path, str(folder), "--resume")
    until(lambda: len(rows(folder)) >= 8, resumed, output.read_text)
    kill_server(resumed)
    assert resumed.wait() == 0, output.read_text()
    after = rows(folder)
    assert sum(row["rollout/restarts"] for row in [*after, *rows(folder, "eval")]) == 1
    assert (folder / "log.txt").read_text().count("1 server restart") == 1
    assert_books_balance(folder, after)
    for name in ("rejected", "lost", "resent", "restarts"):
        assert all(f"rollout/{name}" in row for row in [*after, *rows(folder, "eval")]), name
    assert [row["step"] for row in after] == list(range(1, ITERATIONS + 1))
    assert [row["rollout_id"] for row in after] == list(range(ITERATIONS))
    for row in [*before, *after]:
        assert row["lag/max"] <= STALENESS
        assert row["lag/mean"] == pytest.approx(row["lag/generation_mean"] + row["lag/queue_mean"])
        # fp32: under the weights that its version names each token has the log-prob that the engine reported, whatever
        # happened while its response was decoded
        assert row["mismatch/implementation"] < 1e-5, row
        assert row["queue/length"] + row["queue/in_generation"] <= 12
    # each push was taken, also by the servers that a resume and a death brought; the last push has no row after it
    scored = {row["step"]: row for row in after if "canary/d" in row}
    assert set(range(1, ITERATIONS)) <= set(scored)
    assert all(row["canary/d"] < 1e-5 and row["canary/faults"] == 0 for row in scored.values())
    assert max(row["lag/max"] for row in after) == STALENESS
    assert max(row["mismatch/policy"] for row in after) > 1e-3
    assert [row["weights_step"] for row in rows(folder, "eval")] == [0, 7, 14]
