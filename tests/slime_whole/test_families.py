"""Trainer and engine of the real slime agree for every dense family; for Qwen3-MoE see test_equal_weights."""

import dataclasses
import json
import subprocess
import sys

import pytest
from whole_run import environment

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

FP32 = 1e-5
OF_EXPERTS = (
    *("num-experts", "moe-router-topk", "moe-ffn-hidden-size", "moe-layer-freq", "moe-router-score-function"),
    *("moe-router-dtype", "moe-token-drop-policy", "moe-aux-loss-coeff"),
)
"""Flags of the laptop's architecture that a dense model has not."""
QWEN2 = {"qk-layernorm": "false", "add-qkv-bias": "true"}
TIED = {"untie-embeddings-and-output-weights": "false"}
FAMILIES = {
    "qwen3": ({}, {}),
    "qwen3-tied": ({"tied_embeddings": True}, TIED),
    "qwen2": ({"family": "qwen2"}, QWEN2),
    "qwen2-tied": ({"family": "qwen2", "tied_embeddings": True}, {**QWEN2, **TIED}),
}
"""The lab `model` section that makes the weights, and flags of the laptop's architecture that differ."""
MAKE = """
import json, sys
from pathlib import Path
from sat_slime.config.schema import LabConfig
from sat_slime.lab.for_slime import write_folder
write_folder(LabConfig.model_validate(json.loads(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("name", FAMILIES)
def test_every_batch_is_scored_as_it_was_generated(name, slime, tmp_path):
    """mu and pi_l are of the same weights, which went through slime's own mapping: their difference is rounding."""
    model, flags = FAMILIES[name]
    made = {"model": {"experts": 0, **model}, "warmup": {"steps": 40}, "cache_dir": str(tmp_path / "cache")}
    laptop = tmp_path / "laptop"
    subprocess.run([sys.executable, "-c", MAKE, json.dumps(made), str(laptop)], check=True, env=environment())
    settings = [
        *(f"slime.{flag}=false" for flag in OF_EXPERTS),
        *(f"slime.{flag}={value}" for flag, value in flags.items()),
        *("slime.rollout-batch-size=4", "slime.n-samples-per-prompt=4", "pipeline.iterations=4"),
        *("slime.eval-interval=0", "slime.save-interval=0", "method.denominator=checkpoint"),
        "loss.entropy_coef=0.01",  # so that weights move, however few answers are right
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    where = dataclasses.replace(slime, laptop=laptop)
    run = where.launch(f"family-{name}", "--method", "grpo", "--lag", "1", *options)
    assert run.code == 0, run.output
    assert run.column("mismatch/d_pi")[0] < FP32
    assert max(run.column("mismatch/implementation")) < FP32
    assert all(policy > 1e-3 for policy in run.column("mismatch/policy")[1:])
