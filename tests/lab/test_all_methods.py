"""Every stabilizer beside the paper's methods on the real engines; those methods run on both runtimes in
slime_whole/test_all_methods.py. Many minutes: `pytest -m slow`."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from sat_slime.objective import PAPER_METHODS, method_names, named_method
from sat_slime.objective.metrics import metric_named

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("methods")


PAPER = [method.name for method in PAPER_METHODS]
OTHERS = [name for name in method_names() if name not in PAPER and not named_method(name).top_p_replay]


@pytest.mark.parametrize("name", OTHERS)
def test_ten_steps_of_the_other_stabilizers(name, root):
    method = named_method(name)
    rows = run(name, 8, root)
    for row in rows:
        assert all(0 <= row[f"{gate.prefix()}/masked"] <= 1 for gate in method.gates)
        assert all(row[f"{weight.prefix()}/weight"] >= 0 for weight in method.weights)


def run(method: str, lag: int, root: Path) -> list[dict]:
    """Metrics of ten steps of a run, all of them finite."""
    name = f"{method}-lag{lag}"
    settings = {
        "pipeline.iterations": 10,
        "eval.every_n_iterations": 0,
        "checkpoint.every_n_iterations": 0,
        "rollout.dtype": "bfloat16",
        "rollout.deterministic": "false",
        "output_dir": root,
        "cache_dir": root / "cache",
    }
    command = [str(Path(sys.executable).parent / "sat-slime"), "launch", str(ROOT / "configs/lab/tiny.yaml")]
    command += ["--method", method, "--lag", str(lag), "--name", name]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (root / name / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 10
    assert max(row["lag/max"] for row in rows) == lag
    for row in rows:
        # An undefined figure is null in the file; a finite run has none.
        assert all(value is not None and math.isfinite(value) for value in row.values()), row
        assert not [key for key in row if metric_named(key) is None], "keys outside the table of metrics"
    return rows
