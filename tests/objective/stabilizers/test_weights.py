from __future__ import annotations

import math

import paper_equations as paper
import pytest
import torch
from methods_under_test import at, beside
from views import factors, make_batch

from sat_slime.objective import SAT, TIS, Method, policy_surrogate
from sat_slime.objective.stabilizers.weights.decoupled import Decoupled
from sat_slime.objective.stabilizers.weights.seq_mask_tis import SeqMaskTIS
from sat_slime.objective.stabilizers.weights.seq_tis import SeqTIS


def outcome(method: Method, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    batch = paper.random_tokens(seed, [5, 1, 0, 9, 3], spread=0.8).batch()
    values = policy_surrogate(method, batch).values
    return values, torch.autograd.grad(values.sum(), batch.log_probs)[0]


@pytest.mark.parametrize(
    "method, other",
    [
        (at("grpo", beside("decoupled", cap=1.5)), at("icepop", form="weight", low=1e-12, high=1.5)),
        (at("grpo", beside("decoupled", cap=1.5, form="clamp")), at("grpo", beside("tis", cap=1.5))),
        (at("gspo", SAT(), beside("decoupled", form="clamp", cap=2.0)), at("gspo", SAT(), beside("tis"))),
        (
            at("grpo", beside("seq-mask-tis", low=0.8, high=1.3)),
            at("grpo", beside("decoupled", cap=math.inf), beside("mis-geo", low=0.8, high=1.3)),
        ),
    ],
    ids=["decoupled is icepop-weight", "its clamp is tis", "with sat", "seq-mask-tis is a gate and a weight"],
)
@pytest.mark.parametrize("seed", range(3))
def test_methods_that_are_the_same_data(method: Method, other: Method, seed: int) -> None:
    assert method.denominator == other.denominator
    for ours, theirs in zip(outcome(method, seed), outcome(other, seed), strict=True):
        assert torch.equal(ours, theirs) and ours.any()


# pi_proximal / mu is 1.25, 1.6; 0.5, 1; 3.
BATCH = make_batch([0.1] * 5, [0.4, 0.5, 0.8, 0.5, 0.2], [1.0] * 5, [2, 2, 1], [0.5, 0.8, 0.4, 0.5, 0.6])


def test_decoupled_drops_above_its_cap_and_clamps_in_its_other_form() -> None:
    assert factors(Decoupled(2.0), BATCH, "trainer").tolist() == pytest.approx([1.25, 1.6, 0.5, 1, 0])
    assert factors(Decoupled(2.0, "clamp"), BATCH, "trainer").tolist() == pytest.approx([1.25, 1.6, 0.5, 1, 2])


def test_seq_tis_takes_the_product_over_the_response() -> None:
    assert factors(SeqTIS(), BATCH, "trainer").tolist() == pytest.approx([2, 2, 0.5, 0.5, 2])
    assert factors(SeqTIS(5.0), BATCH, "trainer").tolist() == pytest.approx([2, 2, 0.5, 0.5, 3])
    assert factors(SeqTIS(2.5, "mask"), BATCH, "trainer").tolist() == pytest.approx([2, 2, 0.5, 0.5, 0])
    assert not torch.equal(factors(SeqTIS(5.0), BATCH, "trainer"), factors(TIS(5.0), BATCH, "trainer"))


def test_seq_tis_of_responses_of_one_token_is_tis() -> None:
    tokens = make_batch([0.1] * 4, [0.4, 0.5, 0.8, 0.1], [1.0] * 4, [1, 1, 0, 1, 1], [0.5, 0.8, 0.4, 0.9])
    ours, theirs = (factors(kind(1.5), tokens, "trainer") for kind in (SeqTIS, TIS))
    torch.testing.assert_close(ours, theirs, rtol=1e-15, atol=0)


def test_the_product_of_a_long_response_stays_finite() -> None:
    long = make_batch([0.5] * 100, [0.5] * 100, [1.0] * 100, [100], [1e-9] * 50 + [1e-8] * 50)
    assert factors(SeqTIS(), long, "trainer").tolist() == pytest.approx([math.exp(-20)] * 100)
    up = make_batch([0.5] * 100, [1e-9] * 100, [1.0] * 100, [100], [0.5] * 100)
    assert factors(SeqTIS(cap=1e30), up, "trainer").tolist() == pytest.approx([math.exp(20)] * 100)


def test_seq_mask_tis_keeps_the_raw_weight_of_responses_in_range() -> None:
    # The geometric means are sqrt 2, sqrt 0.5 and 3.
    assert factors(SeqMaskTIS(0.9, 1.5), BATCH, "trainer").tolist() == pytest.approx([1.25, 1.6, 0, 0, 0])
    assert factors(SeqMaskTIS(0.7, 3.1), BATCH, "trainer").tolist() == pytest.approx([1.25, 1.6, 0.5, 1, 3])
    with pytest.raises(ValueError, match="does not hold 1"):
        SeqMaskTIS(1.001, 1.2)
