"""A run that never happened, with the shapes of a real one: lag sawtooth, rising reward, shrinking d_pi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sat_slime.config import LabConfig, dump_config
from sat_slime.config.jsonl import to_json
from sat_slime.config.method_section import method_switches
from sat_slime.objective import PAPER_METHODS
from sat_slime.runs.folder import RunFolder


def step_metrics(step: int, lag: int = 8, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The metrics of optimizer step `step` (from 1)."""
    random = np.random.default_rng([seed, step])
    realized = min(step - 1, (step - 2) % lag + 1) if lag else 0
    progress = step / 200
    d_pi = 0.008 + 0.006 * realized * np.exp(-progress) * (1 + 0.1 * random.normal())
    row = {
        **{"step": step, "iteration": step, "rollout_id": step - 1, "tokens/response_total": 3300},
        **{"lag/mean": float(realized), "lag/min": realized, "lag/max": realized, "response/length_mean": 13.0},
        "reward/mean": float(np.clip(0.88 - 0.66 * np.exp(-2.5 * progress) + 0.04 * random.normal(), 0, 1)),
        **{"mismatch/d_pi": d_pi, "mismatch/k3_kl": d_pi**2, "mismatch/ess": 0.97, "sat/q": 1.1 * d_pi},
        **{f"mismatch/{name}": of * d_pi for name, of in (("q50", 0.3), ("q90", 2.4), ("q99", 12), ("max", 40))},
        "sat/gate_rate": 0.07 + 0.01 * random.normal(),
        "sat/newly_clipped": 0.012 + 0.004 * abs(random.normal()),
        **{f"sat/radius_{side}": 0.2 - of * random.random() for side, of in (("low", 0.004), ("high", 0.006))},
        **{f"clip/{side}": of + 0.001 * realized for side, of in (("upper", 0.012), ("lower", 0.008))},
        "clip/fraction": 0.02 + 0.002 * realized,
        **{f"loss/{name}": of + 0.01 * random.normal() for name, of in (("total", -0.02), ("policy", -0.021))},
        **{"loss/kl": 0.0006 * progress, "loss/entropy": 0.5 * np.exp(-progress)},
        **{name: of + 0.1 * random.random() for name, of in (("grad_norm", 0.4), ("time/rollout", 0.9))},
        **{"time/train": 0.7 + 0.1 * random.random(), "time/sync": 0.05 if realized == lag else 0.0},
        **{"time/wait": 0.25 + 0.05 * random.random(), "time/step": 1.2 + 0.1 * random.random()},
    }
    if step % 4 == 0:
        row |= {"mismatch/implementation": 0.007, "mismatch/policy": d_pi - 0.002}
    return {**row, **changes}


METHODS = tuple(method.name for method in PAPER_METHODS)
STEPS = 200


def effect(method: str, lag: int, seed: int) -> tuple[float, float]:
    """(final accuracy, factor on d_pi) that a made-up method has; no method's is that of a real one."""
    random = np.random.default_rng([seed, lag, METHODS.index(method) if method in METHODS else 99])
    accuracy = 0.84 - 0.006 * lag + (0.03 if method.startswith("sat-") and lag > 1 else 0) + 0.012 * random.normal()
    scale = (0.6 if method.endswith("-r3") else 1.0) * (0.8 if method.startswith("sat-") else 1.0)
    return accuracy, scale * (1 + 0.05 * random.normal())


def write_cell(
    folder: Path, method: str, lag: int, seed: int, steps: int = STEPS, state: str | None = None, collapses=False
) -> Path:
    """A run folder with the resolved config of a cell; `state` is its status."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = {"pipeline": {"lag": lag, "iterations": STEPS}, "eval": {"every_n_iterations": 10}}
    own = {"name": folder.name, "seed": seed, "method": method_switches(method)}
    config = LabConfig.model_validate(own | sections)
    (folder / "config.yaml").write_text(dump_config(config))
    accuracy, scale = effect(method, lag, seed)
    rows, evals = [], []
    for step in range(0, steps + 1):
        fallen = max(0.0, (step - 100) / 60) if collapses else 0.0
        score = (0.24 + (accuracy - 0.24) * (1 - np.exp(-step / 50))) * max(0.15, 1 - fallen)
        if step % 10 == 0:
            weights = step if step == STEPS else lag * (step // lag)
            noise = 0.01 * np.random.default_rng([seed, step]).normal()
            evals.append(
                {"step": step, "iteration": step, "weights_step": weights, "accuracy": score + noise, "n_samples": 256}
            )
        if step == 0:
            continue
        row = step_metrics(step, lag, seed)
        for key in [key for key in row if key.startswith("mismatch/q") or key in ("mismatch/d_pi", "sat/q")]:
            row[key] *= scale * (1 + 6 * min(fallen, 1.0))
        row |= {"mismatch/k3_kl": row["mismatch/d_pi"] ** 2, "reward/mean": score + row["reward/mean"] - 0.6}
        if not method.startswith("sat-"):
            row = {key: value for key, value in row.items() if not key.startswith("sat/")}
        rows.append(row)
    for name, lines in (("metrics", rows), ("eval", evals)):
        (folder / f"{name}.jsonl").write_text("".join(to_json(line) + "\n" for line in lines))
    if state:
        RunFolder(folder).ended(state, "engine 0 died <often>" if state == "failed" else None)
    return folder


def write_grid(
    folder: Path, methods: tuple[str, ...] = METHODS, seeds: tuple[int, ...] = (0, 1, 2), lags: tuple[int, ...] = (1, 8)
) -> Path:
    """A grid at lags 1 and 8: gspo at lag 8 collapses with seed 1, grpo-tis at lag 8 fails with seed 2, dppo at lag 1
    was not run with seed 1, sat-gspo has one seed at lag 1."""
    (folder / "runs").mkdir(parents=True)
    names = ", ".join(methods)
    (folder / "grid.yaml").write_text(f"methods: [{names}]\nlags: {list(lags)}\nseeds: {list(seeds)}\n")
    for method in methods:
        for lag in lags:
            for seed in seeds:
                cell = (method, lag, seed)
                if cell == ("dppo", 1, 1) or (method == "sat-gspo" and lag == 1 and seed > 0):
                    continue
                fails = cell == ("grpo-tis", 8, 2)
                path = folder / "runs" / f"{method}-lag{lag}-seed{seed}"
                collapses = cell == ("gspo", 8, 1)
                write_cell(path, *cell, 90 if fails else STEPS, "failed" if fails else "finished", collapses)
    return folder


def write_slime_log(path: Path, seed: int = 0, steps: int = 60) -> Path:
    """What slime hands its trackers, by slime's names, one optimizer step per rollout, an evaluation every fifth."""
    lines: list[dict[str, Any]] = []
    for step in range(steps):
        row = step_metrics(step + 1, 8, seed)
        train = {"step": step, "loss": 0.1, "grad_norm": 0.3, "pg_clipfrac": row["clip/fraction"]}
        train["train_rollout_logprob_abs_diff"] = row["mismatch/d_pi"]
        lines.append({"rollout/step": step, "rollout/raw_reward": row["reward/mean"]})
        lines.append({f"train/{name}": value for name, value in train.items()})
        if (step + 1) % 5 == 0:
            lines.append({"eval/step": step, "eval/aime24": 0.2 + 0.001 * step, "eval/aime24-truncated_ratio": 0.5})
    path.write_text("".join(to_json(line) + "\n" for line in lines))
    return path


def write_run(folder: Path, steps: int = STEPS, lag: int = 8, state: str | None = None) -> Path:
    """A run folder of SAT-GSPO with R3 and of `steps` optimizer steps; state: the text of its state.json."""
    write_cell(folder, "sat-gspo-r3", lag, 0, steps)
    if state:
        (folder / "state.json").write_text(state)
    return folder
