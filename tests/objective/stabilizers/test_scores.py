from __future__ import annotations

import math

import pytest
import torch
from methods_under_test import at
from newer_equations import bernoulli_kl
from views import factors, make_batch

from sat_slime.objective import Score, TokenBatch, policy_surrogate
from sat_slime.objective.stabilizers.scores.aspo import ASPO
from sat_slime.objective.stabilizers.scores.cispo import CISPO
from sat_slime.objective.stabilizers.scores.flash import Flash
from sat_slime.objective.stabilizers.scores.rollout_is import RolloutIS
from sat_slime.objective.stabilizers.scores.score_centering import ScoreCentering
from sat_slime.objective.stabilizers.scores.topr import TOPR
from sat_slime.objective.stabilizers.scores.vespo import VESPO

# The ratios are 8, 2, 1, 0.5, 0.125: exact in floats.
RATIOS = [8.0, 2.0, 1.0, 0.5, 0.125]
PI, MU = [0.5, 0.5, 0.5, 0.25, 0.0625], [0.0625, 0.25, 0.5, 0.5, 0.5]


def weights(one: Score, advantages: list[float], lengths: list[int] | None = None, **columns: list[float]) -> object:
    return pytest.approx(factors(one, make_batch(PI, MU, advantages, lengths or [1] * 5, **columns)).tolist())


def test_cispo_cuts_the_ratio_and_drops_nothing() -> None:
    assert weights(CISPO(), [1.0] * 5) == [5, 2, 1, 0.5, 0.125]
    assert weights(CISPO(eps_low=0.25, eps_high=0.5), [-1.0] * 5) == [1.5, 1.5, 1, 0.75, 0.75]


def test_rollout_is_drops_outside_a_range_without_its_ends() -> None:
    assert weights(RolloutIS(), [1.0] * 5) == [0, 0, 1, 0, 0]
    assert weights(RolloutIS(eps_low=0.51, eps_high=1.01), [-1.0] * 5) == [0, 2, 1, 0.5, 0]
    # Ends that are exact in floats, up to the rounding of log and exp, are tried from within and from without.
    inside = make_batch([0.5 * 1.4999, 0.5 * 1.5001], [0.5, 0.5], [1.0] * 2, [2])
    assert factors(RolloutIS(eps_high=0.5), inside).tolist() == pytest.approx([1.4999, 0])


def test_topr_trusts_good_responses_and_cuts_bad_ones_at_one() -> None:
    rewards = [1.0, 0.0, 1.0, -1.0, 0.5]
    assert weights(TOPR(), [-1.0, 1.0, 1.0, 1.0, -1.0], rewards=rewards) == [1, 1, 1, 0.5, 1]
    assert weights(TOPR(cap=1.5), [1.0] * 5, rewards=[0.0] * 5) == [1.5, 1.5, 1, 0.5, 0.125]
    assert weights(TOPR(good_by="advantage"), [-1.0, 0.0, 1.0, 1.0, -1.0]) == [1, 1, 1, 1, 0.125]


def test_aspo_turns_the_ratio_round_where_the_advantage_is_positive() -> None:
    assert weights(ASPO(), [1.0] * 5) == [0, 0, 1, 2, 3]
    assert weights(ASPO(), [-1.0] * 5) == [3, 2, 1, 0, 0]
    assert weights(ASPO(eps_low=0.9, eps_high=9.0, cap=100.0), [1.0] * 5) == [1 / r for r in RATIOS]
    assert weights(ASPO(eps_low=0.9, eps_high=9.0, cap=100.0), [-1.0] * 5) == RATIOS


def test_flash_keeps_the_raw_ratio_of_responses_within_its_divergence() -> None:
    # KL(Bernoulli(mu) || Bernoulli(pi)) is 0.459 and 0.131; 0; 0.144 and 0.725.
    means = [sum(map(bernoulli_kl, MU[:2], PI[:2])) / 2, 0.4346]
    assert means[0] == pytest.approx(0.295, abs=1e-3)
    assert weights(Flash(means[0] * 0.999), [1.0] * 5, [2, 1, 2]) == [0, 0, 1, 0, 0]
    assert weights(Flash(means[0] * 1.001), [1.0] * 5, [2, 1, 2]) == [8, 2, 1, 0, 0]
    assert weights(Flash(means[1] * 1.001), [1.0] * 5, [2, 1, 2]) == RATIOS
    certain = make_batch([1.0, 1.0], [1.0, 1 - 1e-9], [1.0] * 2, [2])
    assert factors(Flash(), certain).tolist() == pytest.approx([1, 1]), "probabilities of 1 have no divergence"


def test_vespo_is_one_at_ratio_one_and_largest_at_k_over_lambda() -> None:
    def phi(product: float, advantage: float) -> float:
        batch = make_batch([0.9 * product**0.5 / 2] * 2, [0.45, 0.45], [advantage] * 2, [2])
        first, second = factors(VESPO(), batch).tolist()
        assert first == second
        return first

    assert phi(1.0, 1.0) == pytest.approx(1) == phi(1.0, -1.0)
    assert phi(2 / 3, 1.0) == pytest.approx(1.2081, abs=1e-4) and phi(1.5, -1.0) == pytest.approx(1.2416, abs=1e-4)
    for peak, advantage in ((2 / 3, 1.0), (1.5, -1.0)):
        assert phi(peak, advantage) > max(phi(peak * 1.01, advantage), phi(peak * 0.99, advantage))
    assert phi(0.8, 0.0) == phi(0.8, 1.0), "an advantage of 0 counts as good"


def test_vespo_takes_the_product_and_not_its_mean() -> None:
    one = factors(VESPO(), make_batch([0.55], [0.5], [1.0], [1]))
    four = factors(VESPO(), make_batch([0.55] * 4, [0.5] * 4, [1.0] * 4, [4]))
    assert one[0].item() == pytest.approx(1.1**2 * math.exp(3 * (1 - 1.1)))
    assert four.tolist() == pytest.approx([1.1**8 * math.exp(3 * (1 - 1.1**4))] * 4)


# ------------------------------------------------------------------------------------------------- score centering

RULES = [
    ScoreCentering(),
    ScoreCentering("tis", cap=1.1),
    ScoreCentering("icepop", low=0.8, high=1.25),
]


def distributions(states: int, vocabulary: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(states, vocabulary) log p and log q, close to each other."""
    noise = torch.randn(2, states, vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (noise[0] + 0.3 * noise[1]).log_softmax(-1), noise[0].log_softmax(-1)


@pytest.mark.parametrize("one", RULES, ids=lambda one: one.rule)
def test_over_the_whole_vocabulary_what_is_taken_out_is_the_exact_expectation(one: ScoreCentering) -> None:
    """The mean under q of w times the score is what REINFORCE would drift by whatever the reward is."""
    log_p, log_q = distributions(20, 6)
    logits = log_p.clone().requires_grad_()
    (taken,) = torch.autograd.grad(one.centre(logits.log_softmax(-1), log_q).sum(), logits)
    w = one.weight_of((log_p - log_q).exp())
    scores = torch.eye(6, dtype=torch.float64) - log_p.exp()[:, None, :]  # of token a, in logit v
    expectation = torch.einsum("sa,sa,sav->sv", log_q.exp(), w, scores)
    torch.testing.assert_close(taken, expectation, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("one", RULES, ids=lambda one: one.rule)
def test_the_whole_gradient_is_zero_in_the_mean_under_the_engine(one: ScoreCentering) -> None:
    log_p, log_q = distributions(20, 6)
    logits, states = log_p.clone().requires_grad_(), torch.arange(20)
    total = torch.zeros_like(log_p)
    for a in range(6):
        log_pi = logits.log_softmax(-1)
        ones = torch.ones(20, dtype=torch.float64)
        batch = TokenBatch(log_pi[:, a], log_q[:, a], ones, ones.bool(), [20], rollout_head=log_q, policy_head=log_pi)
        values = policy_surrogate(at("score-centering", **vars(one)), batch).values
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        total += log_q[states, a, None].exp() * gradient
    assert total.abs().max() < 1e-12 and gradient.abs().max() > 0.01


def test_with_full_weights_nothing_is_taken_out() -> None:
    log_p, log_q = distributions(20, 6)
    for k in (6, 3):  # the whole vocabulary, and a head of it
        logits = log_p.clone().requires_grad_()
        head = logits.log_softmax(-1)[:, :k]
        (taken,) = torch.autograd.grad(ScoreCentering("tis", cap=1e9).centre(head, log_q[:, :k]).sum(), logits)
        assert taken.abs().max() < 1e-12


def test_the_tail_is_a_multiple_of_the_policys() -> None:
    """Where q outside the head is in truth a multiple of p, the head alone gives the exact expectation."""
    log_p, log_q = distributions(20, 6)
    p, q = log_p.exp(), log_q.exp()
    rest = (1 - q[:, :3].sum(-1, keepdim=True)) / p[:, 3:].sum(-1, keepdim=True)
    log_q = torch.cat([q[:, :3], rest * p[:, 3:]], -1).log()
    for one in RULES:
        logits = log_p.clone().requires_grad_()
        log_pi = logits.log_softmax(-1)
        part = torch.autograd.grad(one.centre(log_pi[:, :3], log_q[:, :3]).sum(), logits, retain_graph=True)[0]
        whole = torch.autograd.grad(one.centre(log_pi, log_q).sum(), logits)[0]
        torch.testing.assert_close(part, whole, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("one", RULES, ids=lambda one: one.rule)
def test_tokens_that_the_engine_would_not_sample_add_no_drift(one: ScoreCentering) -> None:
    """As with top-p, where both are normalized over the engine's tokens, and the rest is -inf in both."""
    log_p, log_q = (x.log_softmax(-1) for x in distributions(20, 4))
    hole = torch.full((20, 2), -math.inf, dtype=torch.float64)
    head, narrow = (x.clone().requires_grad_() for x in (torch.cat([log_p, hole], -1), log_p))
    wide = one.centre(head, torch.cat([log_q, hole], -1))
    torch.testing.assert_close(wide, one.centre(narrow, log_q))
    (slopes,) = torch.autograd.grad(wide.sum(), head)
    assert slopes.isfinite().all() and not slopes[:, 4:].any()
    # A token that only the policy gives mass is drawn down by its share of the tail.
    alone = one.centre(head, torch.cat([log_q[:, :3], hole[:, :1], hole], -1))
    assert alone.isfinite().all()


def test_a_tail_without_mass_on_either_side_is_a_quotient_of_floors() -> None:
    log_p, log_q = distributions(5, 6)
    for one in RULES:
        slopes = one.centre(log_p.clone().requires_grad_(), log_q)
        assert slopes.isfinite().all()
    certain = torch.tensor([[0.0, -math.inf]])
    assert ScoreCentering().centre(certain, certain).item() == 0
    assert ScoreCentering().centre(torch.tensor([[-0.1]]), torch.tensor([[-50.0]])).isfinite().all()


def test_a_rule_names_the_settings_that_it_does_not_read() -> None:
    assert ScoreCentering().unread == ("cap", "low", "high")
    assert ScoreCentering("tis").unread == ("low", "high") and ScoreCentering("icepop").unread == ("cap",)
    with pytest.raises(ValueError, match="does not hold 1"):
        ScoreCentering("icepop", low=1.5)
