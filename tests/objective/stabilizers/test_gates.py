from __future__ import annotations

import math

import pytest
import torch

from sat_slime.objective import DPPO, BatchView, Gate, IcePop, KPop, SeqClip, TokenBatch
from sat_slime.objective.bernoulli import bernoulli_kl
from sat_slime.objective.ratio import Denominator, log_ratio


def make_batch(pi: list[float], mu: list[float], advantages: list[float], lengths: list[int]) -> TokenBatch:
    def log(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64).log()

    n = len(pi)
    return TokenBatch(log(pi), log(mu), torch.tensor(advantages).double(), torch.ones(n, dtype=torch.bool), lengths)


def factors(gate: Gate, batch: TokenBatch, denominator: Denominator = "rollout") -> torch.Tensor:
    d = log_ratio(gate.ratio, denominator, batch)
    return gate.factor(BatchView(batch, denominator, d, batch.advantages))


def test_dppo_keeps_pull_back_and_small_moves_of_mass() -> None:
    batch = make_batch(
        pi=[0.6, 0.6, 0.4, 0.4, 0.0019, 0.503, 0.5, 0.6],
        mu=[0.5, 0.5, 0.5, 0.5, 0.001, 0.5, 0.5, 0.5],
        advantages=[1, -1, 1, -1, 1, 1, 1, 0],
        lengths=[8],
    )
    gate = factors(DPPO(delta=1e-3), batch)
    assert gate.tolist() == [0, 1, 1, 0, 1, 0, 1, 1]


def test_dppo_by_the_binary_kl() -> None:
    batch = make_batch(
        pi=[0.6, 0.6, 0.4, 0.4, 0.02, 0.003, 0.9],
        mu=[0.5, 0.5, 0.5, 0.5, 0.001, 0.001, 0.5],
        advantages=[1, -1, 1, -1, 1, 1, 0],
        lengths=[7],
    )
    # KL(mu || pi) is 0.0204 for 0.5 and 0.6 or 0.4, 0.0162 for 0.001 and 0.02, 0.0009 for 0.001 and 0.003.
    assert factors(DPPO("kl", delta_kl=0.02), batch).tolist() == [0, 1, 1, 0, 1, 1, 1]
    assert factors(DPPO("kl", delta_kl=0.021), batch).tolist() == [1] * 7
    assert factors(DPPO("kl", delta_kl=0.01), batch).tolist() == [0, 1, 1, 0, 0, 1, 1]


def test_dppo_reads_mu_whatever_the_clips_denominator() -> None:
    batch = make_batch([0.6, 0.4], [0.5, 0.5], [1.0, 1.0], [2])
    gate = factors(DPPO(), batch, "trainer")
    assert gate.tolist() == [0, 1]


def test_icepop_range_includes_its_ends() -> None:
    batch = make_batch([0.125, 0.25, 0.5, 0.75, 1.0], [0.5, 0.5, 0.5, 0.5, 0.125], [1.0] * 5, [5])
    assert factors(IcePop(0.5, 5.0), batch).tolist() == [0, 1, 1, 1, 0]
    assert factors(IcePop(0.5, 5.0, "weight"), batch).tolist() == pytest.approx([0, 0.5, 1, 1.5, 0])


def test_kpop_is_symmetric_in_direction() -> None:
    batch = make_batch([0.9, 0.1, 0.5, 0.52, 0.2], [0.1, 0.9, 0.5, 0.5, 0.9], [1.0, -1.0, 1.0, 1.0, 1.0], [5])
    assert factors(KPop(0.1), batch).tolist() == [0, 0, 1, 1, 0]


def test_bernoulli_kl_known_values() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.9], dtype=torch.float64), torch.tensor([0.25, 0.5, 0.5], dtype=torch.float64)
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.0, 0.9 * math.log(1.8) + 0.1 * math.log(0.2)]
    assert bernoulli_kl(p.log(), q.log()).tolist() == pytest.approx(expected)


def test_bernoulli_kl_at_the_edges_and_never_negative() -> None:
    log_p = torch.tensor([0.0, 0.0, -1.0, -math.inf, -math.inf, -1.0, 1e-6])
    log_q = torch.tensor([0.0, -1.0, 0.0, -1.0, -math.inf, -math.inf, -1.0])
    kl = bernoulli_kl(log_p, log_q).tolist()
    assert kl == pytest.approx([0, 1, math.inf, -math.log1p(-math.exp(-1)), 0, math.inf, 1], rel=1e-5)
    close = -torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    assert (bernoulli_kl(close, close * (1 + 1e-7)) >= 0).all()


def test_seqclip_judges_whole_responses() -> None:
    batch = make_batch([0.5, 0.3, 0.9, 0.9], [0.5, 0.2, 0.1, 0.9], [1.0] * 4, [2, 2])
    gate = factors(SeqClip(0.8, 1.25), batch)
    assert gate.tolist() == [1, 1, 0, 0]
