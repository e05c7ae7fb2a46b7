"""Top-p: the tokens that SGLang samples from, and the distribution over them, from the log-probs of the vocabulary.

SGLang returns log-probs of the whole softmax, before it cuts off the tail (`Sampler.forward` in 0.5.15); so what it
really sampled with is taken here, by its own rule.
"""

from __future__ import annotations

import numpy as np


def nucleus(log_probs: np.ndarray, top_p: float) -> np.ndarray:
    """(T, V) bool: the tokens that top-p sampling keeps: those before which, from the most likely down, lies at most
    `top_p` of the mass (`top_k_top_p_min_p_sampling_from_probs_torch`). The most likely one always stays.

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
    """(T, V) float32 log-probs normalized over the kept tokens, -inf elsewhere."""
    inside = np.where(kept, log_probs.astype(np.float64), -np.inf)
    mass = np.log(np.exp(inside).sum(axis=-1, keepdims=True))
    return (inside - mass).astype(np.float32)
