"""Evaluation beside training, on the real engines: the numbers of the run that waits, whatever ends it meanwhile."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("forked"),
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]

ROOT = Path(__file__).parents[2]
ITERATIONS, EVERY = 9, 2
SETTINGS = [
    f"pipeline.iterations={ITERATIONS}",
    "pipeline.lag=3",  # some evaluations are of weights that lag
    f"eval.every_n_iterations={EVERY}",
    "eval.problems=16",
    "eval.samples_per_problem=4",
    "checkpoint.every_n_iterations=1",
    "warmup.steps=150",
]


def launch(root: Path, name: str, *arguments: str) -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "sat-slime"), "launch", "--no-live", *arguments]
    return subprocess.Popen(command, stdout=(root / f"{name}.out").open("a"), stderr=subprocess.STDOUT)


def begin(root: Path, cache: Path, name: str, *settings: str) -> subprocess.Popen:
    flags = [*SETTINGS, f"output_dir={root}", f"cache_dir={cache}", *settings]
    flags = [part for setting in flags for part in ("--set", setting)]
    return launch(root, name, str(ROOT / "configs/lab/tiny.yaml"), "--name", name, *flags)


def finish(root: Path, name: str, process: subprocess.Popen) -> None:
    assert process.wait() == 0, (root / f"{name}.out").read_text()


def rows(run: Path, name: str) -> list[dict]:
    path = run / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [json.loads(line) for line in lines if line.endswith("}")]
    timed = ("time/", "collapse/", "rollout/restarts", "delay")
    return [{key: value for key, value in row.items() if not key.startswith(timed)} for row in kept]


def test_beside_training_the_numbers_are_those_of_the_run_that_waits(tmp_path, model_cache):
    """Sampled responses, which depend on the last bits of all weights. One run is killed, as soon as a checkpoint has
    an evaluation that goes on, and resumed."""
    for name in ("none", "gaps", "engine"):
        finish(tmp_path, name, begin(tmp_path, model_cache, name, f"eval.beside={name}"))
    killed = begin(tmp_path, model_cache, "killed", "eval.beside=engine")
    until(lambda: goes_on(tmp_path / "killed"), killed, (tmp_path / "killed.out").read_text)
    killed.kill()
    killed.wait()
    finish(tmp_path, "killed", launch(tmp_path, "killed", str(tmp_path / "killed"), "--resume"))

    evaluations = rows(tmp_path / "none", "eval")
    held = [(0, 0), (2, 0), (4, 3), (6, 6), (8, 6), (9, 9)]
    assert [(row["step"], row["weights_step"]) for row in evaluations] == held
    assert len({row["length_mean"] for row in evaluations}) > 1, "the weights make a difference"
    for name in ("gaps", "engine", "killed"):
        for file in ("eval", "metrics", "histograms"):
            assert rows(tmp_path / name, file) == rows(tmp_path / "none", file), (name, file)


def goes_on(run: Path) -> bool:
    states = [json.loads(path.read_text()) for path in run.glob("checkpoints/iteration-??????/state.json")]
    return any(state["evaluation"] for state in states)
