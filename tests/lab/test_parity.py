"""Megatron against SGLang at equal weights, through bench/parity.py on a small model."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]

ROOT = Path(__file__).parents[2]


def measured(cache: Path, *options: str, **more) -> dict:
    """What bench/parity.py says of a small model."""
    settings = {
        "rollout.prompts_per_iteration": 32,
        "rollout.samples_per_prompt": 16,
        "rollout.deterministic": "false",
        "train.tokens_per_microbatch": 4096,
        "warmup.steps": 60,
        "cache_dir": cache,
        **more,
    }
    command = [sys.executable, str(ROOT / "bench/parity.py"), "--json", "--batches", "2", *options]
    command += ["--config", str(ROOT / "configs/lab/tiny.yaml")]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> dict:
    return measured(tmp_path_factory.mktemp("cache"))


def test_fp32_engines_agree(table):
    assert table["float32"]["free"]["mean"] < 1e-5
    assert table["float32"]["replayed"]["mean"] < 1e-5


def test_replay_lowers_the_mismatch_of_a_bf16_engine(table):
    free, replayed = table["bfloat16"]["free"], table["bfloat16"]["replayed"]
    assert replayed["mean"] < free["mean"] and replayed["q99"] < free["q99"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_shifted_by_one_token_are_told_from_the_right_ones(dtype, table):
    assert table[dtype]["shifted"]["mean"] > 5 * table[dtype]["replayed"]["mean"]


def test_fp32_engines_agree_on_a_dense_family(tmp_path):
    """A warmed-up model: its biases and norms are no longer 0 and 1."""
    model = {"model.family": "qwen2", "model.experts": 0, "model.tied_embeddings": "true", "method": "grpo"}
    assert measured(tmp_path, "--dtype", "float32", **model)["float32"]["free"]["mean"] < 1e-5
