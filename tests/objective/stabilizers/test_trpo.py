"""TRPO's constraint is checked by brute force, on a model that is small enough to enumerate."""

from __future__ import annotations

import math
from collections.abc import Callable

import paper_equations as paper
import pytest
import torch

from sat_slime.objective import TRPO, backtrack, divergence_metrics, total_variation

STATES, VOCABULARY = 40, 16


def distribution(seed: int, spread: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(STATES, VOCABULARY, dtype=torch.float64, generator=generator) * spread).log_softmax(-1)


def test_total_variation_is_the_equation() -> None:
    mu, pi = distribution(0), distribution(1)
    expected = [paper.total_variation(m, p) for m, p in zip(mu.exp().tolist(), pi.exp().tolist(), strict=True)]
    assert total_variation(mu, pi).tolist() == pytest.approx(expected, abs=1e-14)
    assert not total_variation(mu, mu).any()
    # By Lemma tv-ratio D_TV is half the mean of |r - 1| under mu.
    ratio = (pi - mu).exp()
    assert (mu.exp() * (ratio - 1).abs()).sum(-1).tolist() == pytest.approx([2 * tv for tv in expected])


def test_total_variation_of_truncated_distributions() -> None:
    mu = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log()
    pi = torch.tensor([[0.0, 0.5, 0.5], [0.25, 0.5, 0.25]]).log()
    assert total_variation(mu, pi).tolist() == pytest.approx([0.5, 0.75])


@pytest.mark.parametrize(
    "over, before, after, stands",
    [
        ("state", [0.0, 0.0], [0.1, 0.05], True),
        ("state", [0.0, 0.0], [0.1, 0.11], False),
        ("state", [0.0, 0.3], [0.1, 0.3], True),  # it is outside the region already, and goes no further
        ("state", [0.0, 0.3], [0.1, 0.2], True),
        ("state", [0.0, 0.3], [0.1, 0.31], False),
        ("mean", [0.0, 0.0], [0.0, 0.2], True),
        ("mean", [0.0, 0.0], [0.01, 0.2], False),
        ("mean", [0.3, 0.3], [0.5, 0.1], True),
        ("mean", [0.3, 0.3], [0.5, 0.11], False),
        ("state", [], [], True),
        ("mean", [], [], True),
    ],
)
def test_a_step_stands_inside_the_region_or_where_it_leads_back(over, before, after, stands: bool) -> None:
    config = TRPO(delta=0.1, over=over)
    tensors = (torch.tensor(values, dtype=torch.float64) for values in (before, after))
    assert config.stands(*tensors) is stands


class Table:
    """A policy that is one table of logits, and a step of it."""

    def __init__(self, seed: int, size: float) -> None:
        self.mu = distribution(seed)
        self.old = self.mu + distribution(seed + 1, spread=0.1)
        self.step = size * torch.randn(STATES, VOCABULARY, dtype=torch.float64)
        self.logits = self.old.clone()

    def place(self, scale: float) -> None:
        self.logits = self.old + scale * self.step

    def divergence(self) -> torch.Tensor:
        return total_variation(self.mu, self.logits.log_softmax(-1))


def stands_by_the_equation(config: TRPO, table: Table) -> Callable[[float], bool]:
    def at(scale: float) -> list[float]:
        pi = (table.old + scale * table.step).log_softmax(-1).exp().tolist()
        return [paper.total_variation(m, p) for m, p in zip(table.mu.exp().tolist(), pi, strict=True)]

    before = at(0.0)

    def stands(scale: float) -> bool:
        after = at(scale)
        if config.over == "mean":
            return math.fsum(after) / STATES <= max(config.delta, math.fsum(before) / STATES)
        return all(now <= max(config.delta, was) for was, now in zip(before, after, strict=True))

    return stands


@pytest.mark.parametrize("over", ["state", "mean"])
@pytest.mark.parametrize("delta", [0.03, 0.1, 0.3])
@pytest.mark.parametrize("size", [0.01, 0.3, 3.0])
def test_the_largest_halving_that_stands_is_taken(over, delta: float, size: float) -> None:
    torch.manual_seed(int(100 * size))
    config, table = TRPO(delta, over, max_backtracks=6), Table(seed=7, size=size)
    before = table.divergence()
    scale, halvings = backtrack(config, table.place, lambda: config.stands(before, table.divergence()))

    stands = stands_by_the_equation(config, table)
    scales = [2.0**-k for k in range(7)]
    expected = next((s for s in scales if stands(s)), 0.0)
    assert scale == expected
    assert halvings == (scales.index(expected) if expected else 6)
    assert torch.equal(table.logits, table.old + scale * table.step)
    metrics = divergence_metrics(before, table.divergence())
    assert metrics["trpo/tv_max"] == table.divergence().max()
    assert metrics["trpo/tv_mean"] == pytest.approx(float(table.divergence().mean()))
    assert metrics["trpo/tv_mean_before"] == pytest.approx(float(before.mean()))
    assert metrics["trpo/tv_max_before"] == before.max()


def test_a_step_that_never_stands_is_given_up() -> None:
    placed: list[float] = []
    assert backtrack(TRPO(max_backtracks=2), placed.append, lambda: False) == (0.0, 2)
    assert placed == [1.0, 0.5, 0.25, 0.0]


def test_a_rank_without_states_has_metrics_too() -> None:
    assert set(divergence_metrics(torch.zeros(0), torch.zeros(0)).values()) == {0.0}
