"""What runs with any reward may ask of the verifier: reward.py can be imported only where math-verify is."""

from __future__ import annotations

from sat_slime.reward import shared_pool

VERDICT = "sat_slime_verdict"
"""Key of a sample's metadata: the reason of its verdict."""


def drain_metrics(prefix: str = "rollout/verifier_") -> dict[str, float]:
    """Return the pool's counts since the last call, by names that begin with `prefix`; empty where nothing was
    verified."""
    counts = shared_pool().drain_metrics()
    return {f"{prefix}{name}": value for name, value in counts.items()} if counts["verdicts"] else {}
