"""Scores of an evaluation: graded responses in, numbers out. Both runtimes call `summary`.

An evaluation asks each of P problems `samples` times, and does so `repeats` times: N = samples x repeats responses a
problem. docs/runs.md says what each number is an estimate of.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

Z95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


def summary(
    rewards: np.ndarray,
    lengths: np.ndarray | None = None,
    truncated: np.ndarray | None = None,
    reasons: Sequence[str] | None = None,
    *,
    repeats: int = 1,
) -> dict[str, Any]:
    """Return the numbers of an evaluation, by their names in eval.jsonl (docs/runs.md). Raises ValueError where nothing
    was measured.

    Args:
        rewards: (P, N).
        lengths: (P, N) response tokens.
        truncated: (P, N) bool: the response was cut at the longest length.
        reasons: P x N reasons of the verifier, a problem's in a row; see reward.verdict.
        repeats: the evaluations that N is made of, in a row for each problem; accuracy_by_run has a number for each.
    """
    rewards = np.asarray(rewards, np.float64)
    if rewards.ndim != 2 or not rewards.size:
        raise ValueError(f"rewards of shape {rewards.shape}: an evaluation has at least one problem and one sample")
    problems = len(rewards)
    row: dict[str, Any] = {
        "accuracy": float(rewards.mean()),
        "accuracy_by_problem": rewards.mean(1).tolist(),
        "n_problems": problems,
        "n_samples": rewards.size,
    }
    if repeats > 1:
        row["accuracy_by_run"] = rewards.reshape(problems, repeats, -1).mean((0, 2)).tolist()
    if interval := interval_over_samples(rewards):
        row |= {"accuracy/low_samples": interval[0], "accuracy/high_samples": interval[1]}
    if lengths is not None:
        row["length_mean"] = float(np.mean(lengths))
    if truncated is not None:
        row["truncated"] = float(np.mean(truncated))
    if reasons is not None:
        row |= {f"reasons/{reason}": count for reason, count in sorted(Counter(reasons).items())}
    return row


def interval_over_samples(rewards: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % interval for the mean of (P, N) rewards over these very problems: only the responses are a draw.

    Wilson's score interval at the sample size n' = p (1 - p) / V, where V adds up the variances of the problems, of c
    right responses (c + 1/2) (N - c + 1/2) / (N (N + 1)): too large on average, the least at even odds, so that no
    problem is taken for certain after N responses. n' is at least P x N, which is right where all are equally hard.
    Rewards other than 0 and 1 have the plain normal interval; None with one sample a problem.
    """
    problems, samples = rewards.shape
    mean = float(rewards.mean())
    if not np.isin(rewards, (0.0, 1.0)).all():
        if samples < 2:
            return None
        half = Z95 * math.sqrt(float(rewards.var(1, ddof=1).sum()) / (samples * problems**2))
        return mean - half, mean + half
    correct = rewards.sum(1)
    variances = (correct + 0.5) * (samples - correct + 0.5) / (samples * (samples + 1))
    variance = float(variances.sum()) / (samples * problems**2)
    size = max(rewards.size, mean * (1 - mean) / variance)
    shrink = Z95**2 / size
    center = (mean + shrink / 2) / (1 + shrink)
    half = Z95 / (1 + shrink) * math.sqrt(mean * (1 - mean) / size + shrink / (4 * size))
    return max(0.0, min(mean, center - half)), min(1.0, max(mean, center + half))
