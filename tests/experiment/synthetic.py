"""A run that never happened, with the shapes of a real one: lag sawtooth, rising reward, shrinking d_pi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sat_slime.experiment.metrics import to_json

CONFIG = """\
runtime: embedded
name: synthetic
seed: 0
method:
  base: gspo
  sat: {enabled: true, alpha: 0.9, exponent: 2.0, scope: step}
  tis: {enabled: false, cap: 2.0}
  r3: true
  denominator: null
  clip: {eps_low: 0.2, eps_high: 0.2}
pipeline: {lag: 8, iterations: 200, optimizer_steps_per_rollout: 1}
train: {lr: 0.0005}
"""


def step_metrics(step: int, lag: int = 8, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The metrics of optimizer step `step` (from 1)."""
    random = np.random.default_rng([seed, step])
    realized = min(step - 1, (step - 2) % lag + 1) if lag else 0
    progress = step / 200
    d_pi = 0.008 + 0.006 * realized * np.exp(-progress) * (1 + 0.1 * random.normal())
    row = {
        "step": step,
        "iteration": step - 1,
        "rollout_id": step - 1,
        "lag/mean": float(realized),
        "lag/min": realized,
        "lag/max": realized,
        "reward/mean": float(np.clip(0.88 - 0.66 * np.exp(-2.5 * progress) + 0.04 * random.normal(), 0, 1)),
        "response/length_mean": 13.0,
        "mismatch/d_pi": d_pi,
        "mismatch/k3_kl": d_pi**2,
        "mismatch/q50": 0.3 * d_pi,
        "mismatch/q90": 2.4 * d_pi,
        "mismatch/q99": 12 * d_pi,
        "mismatch/max": 40 * d_pi,
        "mismatch/ess": 0.97,
        "sat/q": 1.1 * d_pi,
        "sat/gate_rate": 0.07 + 0.01 * random.normal(),
        "sat/newly_clipped": 0.012 + 0.004 * abs(random.normal()),
        "sat/eps_low_mean": 0.2 - 0.004 * random.random(),
        "sat/eps_high_mean": 0.2 - 0.006 * random.random(),
        "sat/c_min": 0.05 + 0.02 * random.random(),
        "clip/fraction": 0.02 + 0.002 * realized,
        "clip/upper": 0.012 + 0.001 * realized,
        "clip/lower": 0.008 + 0.001 * realized,
        "loss/total": -0.02 + 0.01 * random.normal(),
        "loss/policy": -0.021 + 0.01 * random.normal(),
        "loss/kl": 0.0006 * progress,
        "loss/entropy": 0.5 * np.exp(-progress),
        "grad_norm": 0.4 + 0.1 * random.random(),
        "time/rollout": 0.9 + 0.1 * random.random(),
        "time/train": 0.7 + 0.1 * random.random(),
        "time/sync": 0.05 if realized == lag else 0.0,
        "time/wait": 0.25 + 0.05 * random.random(),
        "time/step": 1.2 + 0.1 * random.random(),
        "tokens/response_total": 3300,
    }
    if step % 4 == 0:
        row |= {"mismatch/implementation": 0.007, "mismatch/policy": d_pi - 0.002}
    return {**row, **changes}


def histogram_row(step: int, lag: int = 8, seed: int = 0) -> dict[str, Any]:
    """A histogram of |d| at `step`."""
    random = np.random.default_rng([seed, step, 1])
    metrics = step_metrics(step, lag, seed)
    values = metrics["mismatch/d_pi"] * np.exp(1.4 * random.normal(size=3300) - 1)
    edges = np.geomspace(1e-5, 10, 49)
    counts, _ = np.histogram(values, [0.0, *edges, np.inf])
    return {
        "step": step,
        "lag": metrics["lag/mean"],
        "q": metrics["sat/q"],
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }


def write_run(folder: Path, steps: int = 200, lag: int = 8, state: str | None = None) -> Path:
    """A run folder with `steps` optimizer steps, an evaluation every 16 and a histogram every 4."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG.replace("lag: 8", f"lag: {lag}"))
    lines = [to_json(step_metrics(step, lag)) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    evals = [
        {
            "step": step,
            "weights_step": max(0, step - 3),
            "accuracy": 0.24 + 0.6 * (1 - np.exp(-step / 70)),
            "n_samples": 256,
        }
        for step in range(0, steps + 1, 16)
    ]
    (folder / "eval.jsonl").write_text("".join(to_json(row) + "\n" for row in evals))
    rows = [histogram_row(step, lag) for step in range(1, steps + 1, 4)]
    (folder / "histograms.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    if state:
        (folder / "state.json").write_text(state)
    return folder
