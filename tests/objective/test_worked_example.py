"""One response of three tokens under every method: the gradient of the sum of S in log pi of each token.

mu is 0.4, 0.5, 0.2 and pi 0.44, 0.35, 0.6, so that r is 1.1, 0.7, 3; log pi_prox is half way. The clip is 0.2 on both
sides. The numbers were worked out by hand.
"""

from __future__ import annotations

import pytest
import torch
from methods_under_test import at

from sat_slime.objective import Method, TokenBatch, compose_method, named_method, policy_surrogate

PI, MU = [0.44, 0.35, 0.6], [0.4, 0.5, 0.2]
CLIPPED = ([1.1, 0.7, 0], [-1.1, 0, -3])
DROPPED = ([0, 0, 0], [0, 0, 0])

EXAMPLE: dict[str, tuple[list[float], list[float]]] = {
    "grpo": CLIPPED,
    "grpo-opsm": CLIPPED,
    "grpo-trm-max": CLIPPED,
    "grpo-veto": CLIPPED,
    "grpo-mis-geo": DROPPED,
    "grpo-trm-mean": DROPPED,
    "flash": DROPPED,
    "grpo-seq-mask-tis": DROPPED,
    "grpo-decoupled": ([1.1, 0.7, 0], [-1.1, -0.7, -3]),
    "grpo-seq-tis": ([1.5941, 1.2716, 0], [-1.5941, -1.2716, -2.6325]),
    "cispo": ([1.1, 0.7, 3], [-1.1, -0.7, -3]),
    "rollout-is": ([1.1, 0, 0], [-1.1, 0, 0]),
    "m2po": CLIPPED,
    "sapo": ([1.0973, 0.6845, 1.2599], [-1.0970, -0.6829, -1.1663]),
    "vespo": ([0.1048, 0.1048, 0.1048], [-0.8974, -0.8974, -0.8974]),
    "gmpo": ([1.0473, 1.0473, 0], [-1.3219, -1.3219, -1.3219]),
    "topr": ([1, 1, 1], [-1, -0.7, -1]),
    "aspo": ([0.9091, 1.4286, 0], [-1.1, 0, -3]),
    "cpgd": ([1, 1, 0], [-1, 0, -1]),
    "ipo": ([1.0998, 0.0007, -0.0022], [-1.1002, 0.0007, -0.0022]),
    "dro": ([0.9905, 1.0357, 0.8901], [-1.0095, -0.9643, -1.1099]),
}


def example(advantage: float) -> TokenBatch:
    pi, mu = (torch.tensor(values, dtype=torch.float64).log() for values in (PI, MU))
    return TokenBatch(
        pi.clone().requires_grad_(),
        mu,
        torch.full_like(pi, advantage),
        torch.ones(3, dtype=torch.bool),
        [3],
        proximal_log_probs=(pi + mu) / 2,
        rewards=torch.full_like(pi, advantage),
        lags=torch.full_like(pi, 2),  # A-3PO's denominator is half way at lag 2
    )


def gradient(method: Method, advantage: float) -> list[float]:
    batch = example(advantage)
    policy_surrogate(method, batch).values.sum().backward()
    return batch.log_probs.grad.tolist()


@pytest.mark.parametrize("name", EXAMPLE)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_worked_example(name: str, advantage: float) -> None:
    expected = EXAMPLE[name][0 if advantage > 0 else 1]
    assert gradient(named_method(name), advantage) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_same_methods_by_other_names(advantage: float) -> None:
    # The cap 2 of TIS and of Seq-TIS does not bind here.
    decoupled = gradient(named_method("grpo-decoupled"), advantage)
    assert gradient(named_method("grpo-tis"), advantage) == decoupled
    assert gradient(at("icepop", form="weight", low=0.1), advantage) == decoupled
    assert gradient(named_method("grpo-decoupled-a3po"), advantage) == pytest.approx(decoupled, abs=1e-12)
    assert gradient(compose_method("cispo"), advantage) == gradient(at("cispo", eps_high=2.0), advantage)


def test_score_centering_by_hand() -> None:
    """p = .6, .25, .1, .05 and q = .5, .3, .15, .05; the head is the first two tokens."""
    p, q = (torch.tensor([values] * 3, dtype=torch.float64).log() for values in ([0.6, 0.25], [0.5, 0.3]))
    for rule, slopes, centre in (("none", [-0.3, -1 / 30], 0.1995), ("tis", [-0.05, 0.0], 0.0255)):
        one = at("score-centering", rule=rule, cap=1.1).base
        head = p.clone().requires_grad_()
        values = one.centre(head, q)
        values.sum().backward()
        assert values.tolist() == pytest.approx([centre] * 3, abs=6e-5)
        assert head.grad[0].tolist() == pytest.approx(slopes, abs=1e-12)
