from __future__ import annotations

import math

import pytest
import torch
from views import factors, make_batch

from sat_slime.objective import DPPO, IcePop, KPop, SeqClip
from sat_slime.objective.stabilizers.gates.kpop import bernoulli_kl
from sat_slime.objective.stabilizers.gates.mis_geo import MISGeo
from sat_slime.objective.stabilizers.gates.opsm import OPSM
from sat_slime.objective.stabilizers.gates.trm_max import TRMMax
from sat_slime.objective.stabilizers.gates.trm_mean import TRMMean
from sat_slime.objective.stabilizers.gates.veto import Veto


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


# pi / mu is 1, 1.1 and 2, 0.5: the geometric mean of the first response is 1.0488, that of the second 1.
PAIRS = {"pi": [0.5, 0.55, 0.8, 0.2], "mu": [0.5, 0.5, 0.4, 0.4], "lengths": [2, 2]}


@pytest.mark.parametrize(
    "low, high, expected", [(0.99, 1.01, [0, 0, 1, 1]), (0.99, 1.05, [1] * 4), (1, 1, [0, 0, 1, 1])]
)
def test_mis_geo_judges_the_geometric_mean_of_a_response(low: float, high: float, expected: list[float]) -> None:
    batch = make_batch(**PAIRS, advantages=[1.0, -1.0, 1.0, 0.0])
    assert factors(MISGeo(low, high), batch).tolist() == expected
    assert factors(SeqClip(low, high), batch).tolist() == expected, "over mu it is SeqClip's gate on any ratio"


def test_gates_on_a_response_read_the_proximal_policy_where_there_is_one() -> None:
    batch = make_batch(**PAIRS, advantages=[1.0] * 4, proximal=[0.5, 0.5, 0.8, 0.4])
    for gate in (MISGeo(), TRMMax(0.1), TRMMean(0.1), Veto(high=1.5)):
        assert factors(gate, batch, "checkpoint").tolist() == [1, 1, 0, 0]
    assert factors(OPSM(), batch, "checkpoint").tolist() == factors(OPSM(), batch).tolist(), "it reads pi and mu"


def test_opsm_drops_bad_responses_that_the_policy_moved_away_from() -> None:
    # The means of log(mu / pi) are log 2 = 0.69, -log 2 and 0.
    pi, mu = [0.2, 0.2, 0.8, 0.8, 0.2, 0.8], [0.4, 0.4, 0.4, 0.4, 0.4, 0.4]
    bad, good, mixed = [-1.0] * 6, [1.0] * 6, [-1.0, 0.0, -1.0, 1.0, -1.0, 1.0]
    assert factors(OPSM(), make_batch(pi, mu, bad, [2, 2, 2])).tolist() == [0, 0, 1, 1, 1, 1]
    assert factors(OPSM(), make_batch(pi, mu, good, [2, 2, 2])).tolist() == [1] * 6
    assert factors(OPSM(), make_batch(pi, mu, mixed, [2, 2, 2])).tolist() == [0, 1, 1, 1, 1, 1]
    assert factors(OPSM(delta=0.7), make_batch(pi, mu, bad, [2, 2, 2])).tolist() == [1] * 6


def test_trm_by_the_worst_token_and_by_the_mean() -> None:
    batch = make_batch(**PAIRS, advantages=[1.0] * 4)
    worst, k3 = math.log(2) ** 2 / 2, (2 - 1 - math.log(2) + 0.5 - 1 + math.log(2)) / 2
    assert factors(TRMMax(worst * 1.001), batch).tolist() == [1] * 4
    assert factors(TRMMax(worst * 0.999), batch).tolist() == [1, 1, 0, 0]
    assert factors(TRMMean(k3 * 1.001), batch).tolist() == [1] * 4
    assert factors(TRMMean(k3 * 0.999), batch).tolist() == [1, 1, 0, 0]


def test_trm_sees_a_broken_token() -> None:
    batch = make_batch([1e-300, 0.5], [0.5, 0.5], [1.0, 1.0], [2])
    assert factors(TRMMax(), batch).tolist() == factors(TRMMean(), batch).tolist() == [0, 0]


def test_veto_drops_a_response_for_one_token() -> None:
    batch = make_batch([0.5, 4e-5, 0.5, 6e-5, 0.5, 0.5], [0.5] * 4 + [4e-3, 0.5], [1.0] * 6, [2, 2, 2])
    assert factors(Veto(), batch).tolist() == [0, 0, 1, 1, 1, 1]
    assert factors(Veto(high=100), batch).tolist() == [0, 0, 1, 1, 0, 0]
    assert factors(Veto(high=126), batch).tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", [SeqClip, IcePop, MISGeo, Veto])
@pytest.mark.parametrize("low, high", [(1.1, 2.0), (0.5, 0.9)])
def test_a_range_that_does_not_hold_1_is_refused(kind: type, low: float, high: float) -> None:
    with pytest.raises(ValueError, match=f"the range of low {low} and high {high} does not hold 1"):
        kind(low=low, high=high)
