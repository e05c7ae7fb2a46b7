"""Sums over the tokens of training dumps: how large d is, in which tokens and where, one optimizer step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sat_slime.report.dumps.step_batch import StepBatch

TAIL = 0.99
"""Quantile of a step's |d| beyond which its tail begins."""
POSITION_EDGES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Limits of the groups by place in the response, as a share of its length."""
PROBABILITY_EDGES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
"""Limits of the groups by μ."""
SIGNS = ("A > 0", "A < 0", "A = 0")


@dataclass(frozen=True)
class StepMismatch:
    """The mismatch of one dumped optimizer step."""

    name: str
    responses: int
    tokens: int
    """Active tokens."""
    mean: float
    """Mean |d|, nats."""
    quantiles: tuple[float, float, float]
    """90 %, 99 % and 99.9 % quantiles of |d|."""
    largest: float
    ess: float
    """(Σ r)² / (n Σ r²), r = π / μ: the share of the tokens that the raw importance weights leave."""
    no_signal: float
    """Share of the responses whose advantages are all 0."""
    truncated: float
    """Share of the responses that were cut; NaN where the dump does not tell."""


@dataclass
class Group:
    """Sums over the tokens of a group."""

    tokens: int = 0
    size: float = 0.0
    """Σ |d|."""
    drift: float = 0.0
    """Σ d."""
    tail: int = 0
    """Tokens in the tails of their steps."""

    def add(self, d: np.ndarray, in_tail: np.ndarray, inside: np.ndarray) -> None:
        """Add the tokens that are `inside`. d: (n,) nats; in_tail, inside: (n,) bool."""
        self.tokens += int(inside.sum())
        self.size += float(np.abs(d[inside]).sum())
        self.drift += float(d[inside].sum())
        self.tail += int(in_tail[inside].sum())


def _groups(edges: Sequence[float]) -> list[Group]:
    return [Group() for _ in edges[1:]]


@dataclass
class TokenSums:
    """Sums over optimizer steps, which are added one by one; each can be freed after that."""

    steps: list[StepMismatch] = field(default_factory=list)
    by_position: list[Group] = field(default_factory=lambda: _groups(POSITION_EDGES))
    by_probability: list[Group] = field(default_factory=lambda: _groups(PROBABILITY_EDGES))
    by_sign: list[Group] = field(default_factory=lambda: [Group() for _ in SIGNS])
    whole: Group = field(default_factory=Group)
    tail_ids: dict[int, int] = field(default_factory=dict)
    """{token id: times in a tail}."""
    ids: dict[int, int] = field(default_factory=dict)
    """{token id: times seen}."""
    concentrations: list[float] = field(default_factory=list)
    """Of each step that has a tail, the smallest share of the responses that holds half of it."""

    def add(self, step: StepBatch) -> None:
        """Add an optimizer step. One without an active token is passed over."""
        active = step.mask.numpy()
        if not active.any():
            return
        d = step.log_probs.double().numpy()[active] - step.rollout_log_probs.double().numpy()[active]
        size = np.abs(d)
        quantiles = np.quantile(size, (0.9, TAIL, 0.999))
        in_tail = size > quantiles[1]
        lengths = step.lengths.numpy()
        response = np.repeat(np.arange(len(lengths)), lengths)[active]
        advantages = step.advantages.numpy()[active]
        self.steps.append(_row(step, d, quantiles, response, advantages))
        everywhere = np.ones(len(d), bool)
        self.whole.add(d, in_tail, everywhere)
        _add_binned(self.by_position, POSITION_EDGES, _places(lengths)[active], d, in_tail)
        _add_binned(self.by_probability, PROBABILITY_EDGES, np.exp(step.rollout_log_probs.numpy()[active]), d, in_tail)
        for group, inside in zip(self.by_sign, (advantages > 0, advantages < 0, advantages == 0), strict=True):
            group.add(d, in_tail, inside)
        if in_tail.any():
            self.concentrations.append(_concentration(response[in_tail], len(lengths)))
        if step.token_ids is not None:
            self._count_ids(step.token_ids.numpy()[active], in_tail)

    def _count_ids(self, ids: np.ndarray, in_tail: np.ndarray) -> None:
        for counts, seen in ((self.tail_ids, ids[in_tail]), (self.ids, ids)):
            for token, times in zip(*np.unique(seen, return_counts=True), strict=True):
                counts[int(token)] = counts.get(int(token), 0) + int(times)


def _row(
    step: StepBatch, d: np.ndarray, quantiles: np.ndarray, response: np.ndarray, advantages: np.ndarray
) -> StepMismatch:
    # the ESS is free of the scale of r, so that its largest can be 1 and nothing overflows
    r = np.exp(d - d.max())
    signal = np.zeros(len(step.lengths), bool)
    signal[response[advantages != 0]] = True
    return StepMismatch(
        name=step.name,
        responses=len(step.lengths),
        tokens=len(d),
        mean=float(np.abs(d).mean()),
        quantiles=(float(quantiles[0]), float(quantiles[1]), float(quantiles[2])),
        largest=float(np.abs(d).max()),
        ess=float(r.sum() ** 2 / (len(r) * (r * r).sum())),
        no_signal=float(1 - signal.mean()),
        truncated=np.nan if step.truncated is None else float(step.truncated.double().mean()),
    )


def _places(lengths: np.ndarray) -> np.ndarray:
    """Return (N,) the place of each token in its response, from 0 to below 1."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return (np.arange(int(lengths.sum())) - starts) / np.repeat(np.maximum(lengths, 1), lengths)


def _add_binned(
    groups: list[Group], edges: Sequence[float], values: np.ndarray, d: np.ndarray, in_tail: np.ndarray
) -> None:
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(groups) - 1)
    for i, group in enumerate(groups):
        group.add(d, in_tail, bins == i)


def _concentration(response: np.ndarray, responses: int) -> float:
    """Return the smallest share of all responses that holds half of these tokens."""
    counts = np.sort(np.bincount(response, minlength=responses))[::-1]
    return float((np.searchsorted(np.cumsum(counts), len(response) / 2) + 1) / responses)
