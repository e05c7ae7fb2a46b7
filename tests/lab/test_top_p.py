"""Top-p on the real engines: SGLang's nucleus is ours, and with its masks replayed equal weights have no mismatch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("forked"),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]

ROOT = Path(__file__).parents[2]
OURS_AGAINST_SGLANG = """
    import numpy as np, torch
    from sat_slime.rollout.sglang_on_cpu import patches
    patches.apply()
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch, top_p_normalize_probs_torch
    from sat_slime.lab.responses import nucleus, truncate

    n, vocabulary = 4000, 16
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(n, vocabulary, generator=generator)).softmax(-1)
    log_probs = probs.log().numpy()
    for top_p in (0.3, 0.9):
        top_ps, all_tokens = torch.full((n,), top_p), torch.full((n,), 1 << 30)
        kept = nucleus(log_probs, top_p)
        theirs = top_p_normalize_probs_torch(probs.clone(), top_ps).numpy()
        np.testing.assert_allclose(np.exp(truncate(log_probs, kept)), theirs, rtol=1e-5)
        seeds, positions = torch.arange(n), torch.zeros(n, dtype=torch.long)
        sampled = top_k_top_p_min_p_sampling_from_probs_torch(
            probs.clone(), all_tokens, top_ps, torch.zeros(n), False, seeds, positions
        )
        assert kept[np.arange(n), sampled.numpy()].all()
        print("equal")
"""


def test_the_nucleus_is_sglangs():
    command = [sys.executable, "-c", textwrap.dedent(OURS_AGAINST_SGLANG)]
    result = subprocess.run(
        command, env={"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}, capture_output=True, cwd=ROOT
    )
    assert result.stdout.decode().split() == ["equal", "equal"], result.stderr.decode()


def test_replayed_masks_leave_no_mismatch_at_equal_weights(tmp_path, model_cache):
    """The first step in fp32 at lag 0 has the same weights on both sides."""
    settings = {
        "rollout.top_p": 0.8,
        "pipeline.iterations": 1,
        "eval.every_n_iterations": 0,
        "output_dir": tmp_path,
        "cache_dir": model_cache,
    }
    command = [str(Path(sys.executable).parent / "sat-slime"), "launch", str(ROOT / "configs/lab/tiny.yaml")]
    command += ["--method", "grpo-topp", "--lag", "0", "--name", "top-p", "--no-live"]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [json.loads(line) for line in (tmp_path / "top-p" / "metrics.jsonl").read_text().splitlines()]
    assert row["mismatch/d_pi"] < 1e-6 and row["mismatch/max"] < 1e-5
