"""Scores of an evaluation: graded responses in, numbers out. Both runtimes call `summary`.

An evaluation asks each of P problems `samples` times, and does so `repeats` times: N = samples x repeats responses a
problem. docs/runs.md says what each number is an estimate of.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
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
    """Return the numbers of an evaluation, by their names in eval.jsonl (docs/runs.md).

    Args:
        rewards: (P, N).
        lengths: (P, N) response tokens.
        truncated: (P, N) bool: the response was cut at the longest length.
        reasons: P x N reasons of the verifier, a problem's in a row; see reward.verdict.
        repeats: the evaluations that N is made of, in a row for each problem; accuracy_by_run has a number for each.

    Raises:
        ValueError: nothing was measured, or `repeats` does not divide N.
    """
    rewards = np.asarray(rewards, np.float64)
    if rewards.ndim != 2 or not rewards.size:
        raise ValueError(f"rewards of shape {rewards.shape}: an evaluation has at least one problem and one sample")
    problems, samples = rewards.shape
    if samples % repeats:
        raise ValueError(f"{samples} samples a problem are not {repeats} evaluations of equal size")
    means = rewards.mean(1)
    row: dict[str, Any] = {
        "accuracy": float(rewards.mean()),
        "accuracy_by_problem": means.tolist(),
        "n_problems": problems,
        "n_samples": rewards.size,
    }
    if repeats > 1:
        row["accuracy_by_run"] = rewards.reshape(problems, repeats, -1).mean((0, 2)).tolist()
    binary = bool(np.isin(rewards, (0.0, 1.0)).all())
    row |= _named("accuracy", interval_over_problems(means, samples, binary))
    row |= _named("accuracy", interval_over_samples(rewards, binary), "_samples")
    if lengths is not None:
        row["length_mean"] = float(np.mean(lengths))
    if truncated is not None:
        row["truncated"] = float(np.mean(truncated))
    if reasons is not None:
        row |= {f"reasons/{reason}": count for reason, count in sorted(Counter(reasons).items())}
    return row


def measured_weights(versions: Iterable[int | None]) -> int | None:
    """Return the one version of the weights that made all responses; None where they are several, or unknown."""
    known = set(versions)
    return known.pop() if len(known) == 1 else None


def interval_over_problems(values: np.ndarray, samples: int, binary: bool = True) -> tuple[float, float] | None:
    """Return the 95 % interval for the mean over all problems of this kind, of which these are a draw, each with fresh
    samples.

    Wilson's score interval of p, at the sample size n' = p (1 - p) / V that the variance V of the mean of problems
    stands for, with Student's t of P - 1 degrees. V comes from the spread of the problems' values, so it holds both
    the choice of problems and the sampling of responses; it is taken as if one more problem were there, half of it
    always right and half never: of few problems a rare kind is easily missing. n' is at most P x N, and P where all
    values are 0, or all 1.

    Args:
        values: (P,) estimate of each problem, in [0, 1] if `binary`.
        samples: N.
        binary: False: values of any size, and the plain t interval.

    Returns:
        None with fewer than two problems.
    """
    problems = len(values)
    if problems < 2:
        return None
    from scipy.special import stdtrit  # Student's quantile; its import takes long

    t = float(stdtrit(problems - 1, 0.975))
    mean, squares = float(values.mean()), float(((values - values.mean()) ** 2).sum())
    if not binary:
        return _plain(mean, squares / (problems - 1) / problems, t)
    spread = mean * (1 - mean)
    if spread <= 0:
        return _wilson(mean, problems, Z95)
    squares += mean**2 / 2 + (1 - mean) ** 2 / 2
    return _wilson(mean, min(problems * samples, spread / (squares / problems / problems)), t)


def interval_over_samples(rewards: np.ndarray, binary: bool = True) -> tuple[float, float] | None:
    """Return the 95 % interval for the mean over these very problems, of which only the responses are a draw.

    Wilson's score interval at the sample size n' = p (1 - p) / V, where V adds up the variances of the problems, of c
    right responses (c + 1/2) (N - c + 1/2) / (N (N + 1)): unbiased at even odds and above it elsewhere, so that no
    problem is taken for certain after N responses. n' is at least P x N, which is right where all are equally hard.

    Args:
        rewards: (P, N).
        binary: False: rewards of any size, and the plain normal interval.

    Returns:
        None with one sample a problem of rewards that are not binary.
    """
    problems, samples = rewards.shape
    mean = float(rewards.mean())
    if not binary:
        if samples < 2:
            return None
        return _plain(mean, float(rewards.var(1, ddof=1).sum()) / (samples * problems**2), Z95)
    correct = rewards.sum(1)
    variances = (correct + 0.5) * (samples - correct + 0.5) / (samples * (samples + 1))
    variance = float(variances.sum()) / (samples * problems**2)
    return _wilson(mean, max(rewards.size, mean * (1 - mean) / variance), Z95)


def _named(name: str, interval: tuple[float, float] | None, suffix: str = "") -> dict[str, float]:
    return {} if interval is None else {f"{name}/low{suffix}": interval[0], f"{name}/high{suffix}": interval[1]}


def _wilson(p: float, n: float, quantile: float) -> tuple[float, float]:
    """Wilson's score interval of a rate p among n, at a quantile of the normal or of Student's t."""
    shrink = quantile**2 / n
    center = (p + shrink / 2) / (1 + shrink)
    half = quantile / (1 + shrink) * math.sqrt(p * (1 - p) / n + shrink / (4 * n))
    return max(0.0, min(p, center - half)), min(1.0, max(p, center + half))


def _plain(mean: float, variance: float, quantile: float) -> tuple[float, float]:
    half = quantile * math.sqrt(variance)
    return mean - half, mean + half
