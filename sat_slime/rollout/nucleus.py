"""Top-p sampling: the tokens that SGLang samples from, and the distribution over them.

SGLang returns the log-probs of the whole softmax, before it cuts off the tail (`Sampler.forward` in 0.5.15). So this
module works out what it really sampled with, by SGLang's own rule.
"""

from __future__ import annotations

import numpy as np


def nucleus(log_probs: np.ndarray, top_p: float) -> np.ndarray:
    """Return (T, V) bool: the tokens that top-p sampling keeps (`top_k_top_p_min_p_sampling_from_probs_torch`).

    A token is kept if all more likely ones together have at most `top_p` of the mass, so the most likely always is.

    Args:
        log_probs: (T, V) of the whole softmax at the sampling temperature.
    """
    probs = np.exp(log_probs.astype(np.float64))
    order = np.argsort(-probs, axis=-1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=-1)
    kept = np.empty(probs.shape, dtype=bool)
    np.put_along_axis(kept, order, np.cumsum(ordered, axis=-1) - ordered <= top_p, axis=-1)
    return kept


def truncate(log_probs: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return (T, V) float32 log-probs normalized over the kept tokens, -inf elsewhere."""
    inside = np.where(kept, log_probs.astype(np.float64), -np.inf)
    mass = np.log(np.exp(inside).sum(axis=-1, keepdims=True))
    return (inside - mass).astype(np.float32)
