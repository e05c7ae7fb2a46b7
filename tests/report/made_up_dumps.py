"""Token dumps of a run that never happened, whose parts are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from dump_files import write_run_dump

PARTS = {"policy_weights": 0.05, "policy_routes": 0.02, "routing": 0.01, "precision": 0.004, "rest": 0.002}
"""Their scales in nats."""
LAG = 4
Columns = dict[str, np.ndarray]


def made_up(step: int, replayed: bool = False, responses: int = 24) -> tuple[list[int], Columns]:
    """Lengths and columns of one diagnosed step, lag 1 to 4, whose parts are multiples of 2^-14 nats: fp32 holds them
    and their sums."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(1, 12, responses).tolist()
    n = sum(lengths)
    lag = (step - 1) % LAG + 1

    def some(scale: float) -> np.ndarray:
        return np.round(rng.standard_t(3, n) * scale * 16384) / 16384

    parts = {name: some(scale * (lag if name.startswith("policy") else 1)) for name, scale in PARTS.items()}
    parts["routing"] *= rng.random(n) < 0.2
    log_mu = -np.round(rng.exponential(1.5, n) * 16384) / 16384
    in_engine_dtype = log_mu + parts["rest"]
    b_engine = in_engine_dtype + parts["precision"]
    b_own = b_engine + parts["routing"]
    a_engine = b_engine + parts["policy_weights"]
    a_own = b_own + parts["policy_weights"] + parts["policy_routes"]
    scores = {
        "log_probs": a_engine if replayed else a_own,
        "rollout_log_probs": log_mu,
        "checkpoint_log_probs": b_engine if replayed else b_own,
        "log_probs_own_routing": a_own,
        "log_probs_replayed": a_engine,
        "checkpoint_log_probs_own_routing": b_own,
        "checkpoint_log_probs_replayed": b_engine,
        "checkpoint_log_probs_engine_dtype": in_engine_dtype,
    }
    mask = (rng.random(n) < 0.95) & (np.max(list(scores.values()), axis=0) <= 0)
    return lengths, {
        **{name: values.astype(np.float32) for name, values in scores.items()},
        "loss_masks": mask.astype(np.int32),
        "advantages": rng.standard_normal(n).astype(np.float32),
        "lags": np.full(n, lag),
    }


def write_step(run: Path, step: int, iteration: int = 0, without=(), replayed: bool = False, **columns) -> Columns:
    """Write the dump of a made-up step, as that of another iteration where it is given, other columns in the place of
    its own, and those whose names end `without` left out; returns its columns."""
    lengths, made = made_up(step, replayed)
    made = {name: values for name, values in {**made, **columns}.items() if not name.endswith(tuple(without))}
    write_run_dump(run, lengths, iteration or step, columns=made, replayed=replayed)
    return made


def write_dumps(run: Path, steps: range = range(5, 45, 3), replayed: bool = False, without=()) -> list[Columns]:
    """Diagnosed dumps of these steps."""
    return [write_step(run, step, replayed=replayed, without=without) for step in steps]
