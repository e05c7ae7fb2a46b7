"""Token dumps of a run that never happened, whose parts are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from dump_files import token_dump

from sat_slime.rollout.token_dump import TokenDump, dump_path, write_dump

PARTS = {"policy_weights": 0.05, "policy_routes": 0.02, "routing": 0.01, "precision": 0.004, "rest": 0.002}
"""Their scales in nats."""
LAYERS, LAG = 2, 4


def made_up_dump(step: int, replayed: bool = False, responses: int = 24) -> TokenDump:
    """One diagnosed step, lag 1 to 4, whose parts are multiples of 2^-14 nats: fp32 holds them and their sums."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(1, 12, responses)
    n = int(lengths.sum())
    lag = (step - 1) % LAG + 1

    def some(scale: float) -> np.ndarray:
        return np.round(rng.standard_t(3, n) * scale * 16384) / 16384

    flips = rng.random((n, LAYERS)) < 0.1
    parts = {name: some(scale * (lag if name.startswith("policy") else 1)) for name, scale in PARTS.items()}
    parts["routing"] *= flips.any(1)
    log_mu = -np.round(rng.exponential(1.5, n) * 16384) / 16384
    in_engine_dtype = log_mu + parts["rest"]
    b_engine = in_engine_dtype + parts["precision"]
    b_own = b_engine + parts["routing"]
    a_engine = b_engine + parts["policy_weights"]
    a_own = b_own + parts["policy_weights"] + parts["policy_routes"]
    scores = {
        "checkpoint_log_probs": b_engine if replayed else b_own,
        "log_probs_own_routing": a_own,
        "log_probs_replayed": a_engine,
        "checkpoint_log_probs_own_routing": b_own,
        "checkpoint_log_probs_replayed": b_engine,
        "checkpoint_log_probs_engine_dtype": in_engine_dtype,
    }
    log_probs = a_engine if replayed else a_own
    return token_dump(
        step,
        lengths,
        mask=(rng.random(n) < 0.95) & (np.max([log_probs, *scores.values()], axis=0) <= 0),
        log_probs=log_probs.astype(np.float32),
        rollout_log_probs=log_mu.astype(np.float32),
        advantages=rng.standard_normal(n).astype(np.float32),
        versions=np.full(n, step - 1 - lag, np.int32),
        more={
            **{name: values.astype(np.float32) for name, values in scores.items()},
            "checkpoint_expert_flips": flips.astype(np.uint8),
            "expert_flips": (flips | (rng.random((n, LAYERS)) < 0.2)).astype(np.uint8),
        },
        metadata={"routing_replay": str(replayed).lower(), "lag": str(LAG)},
    )


def write_dumps(run: Path, steps: range = range(5, 45, 3), replayed: bool = False) -> list[TokenDump]:
    """Diagnosed dumps of these steps."""
    dumps = [made_up_dump(step, replayed) for step in steps]
    for dump in dumps:
        write_dump(dump_path(run, dump.iteration), dump)
    return dumps
