"""GRPO's advantages of the embedded runtime. On slime they are slime's own."""

from __future__ import annotations

import numpy as np


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    """Return GRPO's advantages: (R - mean) / (std + 1e-6) in each group, std over n - 1 as in slime.

    Args:
        rewards: (groups, samples), samples >= 2: the rewards of the responses to each prompt.

    Returns:
        (groups, samples); 0 throughout a group whose rewards are all the same.
    """
    centered = rewards - rewards.mean(1, keepdims=True)
    return centered / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)
