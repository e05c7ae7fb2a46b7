from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import paper_equations as paper
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods_under_test import ACTING, LENGTHS, METHODS, at

from sat_slime.objective import (
    PAPER_METHODS,
    SAT,
    Clip,
    Method,
    Surrogate,
    TokenBatch,
    compose,
    compose_method,
    named_method,
    policy_surrogate,
    tail_quantile,
    threshold_scores,
)
from sat_slime.objective.ratio import log_ratio
from sat_slime.objective.stabilizers import STABILIZERS


def gradient_of(values: torch.Tensor, weights: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad((values * weights).sum(), log_probs)
    return gradient


def surrogate_and_gradients(method: Method, batch: TokenBatch) -> tuple[Surrogate, list[torch.Tensor]]:
    """The surrogate, and the gradients of its sum in the log-probs, and in the head where the method reads it."""
    surrogate = policy_surrogate(method, batch)
    surrogate.values.sum().backward()
    return surrogate, [x.grad for x in (batch.log_probs, batch.policy_head) if x.grad is not None]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_value_and_gradient_are_the_equations(method: Method, spread: float) -> None:
    tokens = paper.random_tokens(seed=3, lengths=LENGTHS, spread=spread)
    weights = torch.rand(len(tokens.log_pi), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = tokens.batch()
    decisions = paper.decide(method, tokens)

    surrogate = policy_surrogate(method, batch)

    expected = paper.surrogate(method, tokens, decisions)
    assert surrogate.values.tolist() == pytest.approx(expected, abs=1e-9, rel=1e-9)
    total, inputs = (surrogate.values * weights).sum(), [batch.log_probs, batch.policy_head]
    gradient, head_gradient = torch.autograd.grad(total, inputs, allow_unused=True)
    differences = paper.gradient(method, tokens, decisions, weights.tolist())
    assert gradient.tolist() == pytest.approx(differences, abs=1e-7, rel=1e-7)
    assert (head_gradient is not None) == ("heads" in method.needs)
    if head_gradient is not None:
        rows = paper.head_gradient(method, tokens, decisions, weights.tolist())
        differences = [slope for row in rows for slope in row]
        assert head_gradient.flatten().tolist() == pytest.approx(differences, abs=1e-7, rel=1e-7)


@pytest.mark.parametrize("method", ACTING, ids=lambda m: m.name)
def test_the_settings_of_these_tests_act_on_some_tokens_and_not_on_others(method: Method) -> None:
    tokens = paper.random_tokens(seed=3, lengths=LENGTHS, spread=0.5)
    decisions = paper.decide(method, tokens).values()
    alike = Counter(round(decision.factor * decision.weight, 9) for decision in decisions).most_common(1)[0][1]
    assert 1 < alike < len(decisions), "dropped, kept or at the cap: the commonest fate is that of some"


@pytest.mark.parametrize("name", ["grpo", "sat-grpo", "dppo", "drpo"])
def test_gradient_in_closed_form(name: str) -> None:
    method = named_method(name)
    tokens = paper.random_tokens(seed=5, lengths=[40], spread=0.4)
    batch = tokens.batch()
    gradient = gradient_of(policy_surrogate(method, batch).values, torch.ones(40), batch.log_probs).tolist()
    for t, decision in paper.decide(method, tokens).items():
        r, advantage = math.exp(tokens.log_pi[t] - tokens.log_mu[t]), tokens.advantages[t]
        if name == "drpo":
            slope = advantage - abs(advantage) / 12.5 * math.exp(tokens.log_mu[t]) * (r - 1)
        else:
            shut = (advantage > 0 and r > decision.high) or (advantage < 0 and r < decision.low)
            slope = 0.0 if shut else advantage
        assert gradient[t] == pytest.approx(decision.factor * slope * r, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_lower_precision_inputs_are_computed_in_float32(method: Method, dtype: torch.dtype) -> None:
    rounded = paper.random_tokens(seed=11, lengths=LENGTHS).batch(dtype)
    columns = [name for name, column in vars(rounded).items() if isinstance(column, torch.Tensor) and name != "mask"]
    exact = replace(rounded, **{name: getattr(rounded, name).detach().double() for name in columns})
    exact.log_probs.requires_grad_()
    low, high = policy_surrogate(method, rounded), policy_surrogate(method, exact)
    assert low.values.dtype == torch.float32
    # The mass outside a head is a difference of two numbers close to each other.
    rough = 10 if "heads" in method.needs else 1
    torch.testing.assert_close(low.values.double(), high.values, rtol=rough * 1e-5, atol=rough * 1e-5)
    ones = torch.ones(len(rounded.mask))
    gradient = gradient_of(low.values, ones, rounded.log_probs)
    assert gradient.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    expected = gradient_of(high.values, ones, exact.log_probs)
    torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("score", ["log_ratio", "tv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("base", ["ppo", "grpo", "gspo", "dppo", "icepop", "kpop", "seqclip"])
def test_sat_with_a_shut_gate_is_the_base_to_the_bit(base: str, dtype: torch.dtype, score: str) -> None:
    off = compose_method(base)
    tokens = paper.random_tokens(seed=7, lengths=LENGTHS)
    for eps in (0.2, 0.1, 0.27, 3e-4):
        plain = replace(off, trust_region=Clip(eps, 2 * eps))
        shut = compose(off.base, [SAT(alpha=1.0, score=score)], trust_region=Clip(eps, 2 * eps))
        results = []
        for method in (plain, shut):
            batch = tokens.batch(dtype)
            surrogate = policy_surrogate(method, batch)
            surrogate.values.sum().backward()
            results.append((surrogate.values, batch.log_probs.grad, surrogate.clipped))
        for left, right in zip(*results, strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_inactive_tokens_may_hold_anything(method: Method) -> None:
    tokens = paper.random_tokens(seed=13, lengths=LENGTHS)
    clean = tokens.batch()
    inactive = ~clean.mask
    expected, expected_gradients = surrogate_and_gradients(method, clean)
    for garbage in (math.nan, math.inf, -math.inf, 1e30):
        dirty = tokens.batch()
        with torch.no_grad():
            for name, column in vars(dirty).items():
                if isinstance(column, torch.Tensor) and name != "mask":
                    column[inactive] = garbage
        surrogate, gradients = surrogate_and_gradients(method, dirty)
        assert torch.equal(surrogate.values, expected.values)
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            assert torch.equal(gradient, expected_gradient)
            assert not gradient[inactive].any()
        assert not surrogate.clipped[inactive].any()
        assert {k: v.item() for k, v in surrogate.metrics.items()} == {k: v.item() for k, v in expected.metrics.items()}


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_batches_without_active_tokens(method: Method) -> None:
    for lengths in [], [0], [0, 0], [3, 0, 2], [1]:
        tokens = paper.random_tokens(seed=2, lengths=lengths, inactive=1.0)
        batch = tokens.batch()
        surrogate = policy_surrogate(method, batch)
        surrogate.values.sum().backward()
        assert surrogate.values.shape == (sum(lengths),) and not surrogate.values.any()
        assert not batch.log_probs.grad.any()
        assert batch.policy_head.grad is None or not batch.policy_head.grad.any()
        assert all(math.isfinite(value) and value.dim() == 0 for value in surrogate.metrics.values())


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_responses_of_one_token(method: Method) -> None:
    tokens = paper.random_tokens(seed=4, lengths=[1, 0, 1, 1], spread=0.3, inactive=0.0)
    batch = tokens.batch()
    values = policy_surrogate(method, batch).values
    decisions = paper.decide(method, tokens)
    assert values.tolist() == pytest.approx(paper.surrogate(method, tokens, decisions), abs=1e-12)
    slopes = gradient_of(values, torch.ones(3), batch.log_probs)
    assert slopes.tolist() == pytest.approx(paper.gradient(method, tokens, decisions, [1.0] * 3), abs=1e-7)


HUGE = [100.0, -100.0, 900.0, -900.0, 0.1, 100.0, -100.0, 0.0]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_huge_log_ratios_give_finite_gradients(method: Method) -> None:
    for dtype, lengths in itertools.product((torch.float32, torch.float64), ([1] * 8, [8])):
        d = torch.tensor(HUGE, dtype=dtype)
        head = torch.stack([-1 - d.abs(), -1.1 * torch.ones_like(d)], -1)
        batch = TokenBatch(
            (d - 1.0).requires_grad_(),
            torch.full_like(d, -1.0),
            torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, -1.0, -1.0, 1.0], dtype=dtype),
            torch.ones(8, dtype=torch.bool),
            lengths,
            torch.full_like(d, -1.0),
            lags=torch.arange(8).to(dtype),
            rewards=torch.ones_like(d),
            rollout_head=torch.where(d[:, None] > 0, head, head.flip(-1)),
            policy_head=head.clone().requires_grad_(),
        )
        surrogate = policy_surrogate(method, batch)
        surrogate.values.sum().backward()
        assert surrogate.values.isfinite().all()
        assert batch.log_probs.grad.isfinite().all()
        assert batch.policy_head.grad is None or batch.policy_head.grad.isfinite().all()
        drawn_back = isinstance(method.replacement, STABILIZERS["ipo"] | STABILIZERS["dro"])
        if method.ratio == "token" and not drawn_back and len(lengths) == 8:
            assert batch.log_probs.grad[4] == 0, "without advantage there is no gradient, but that of a penalty"


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_log_prob_of_minus_infinity_gives_finite_values_and_gradients(method: Method) -> None:
    for advantage in 1.0, -1.0:
        head = torch.tensor([[-1.0, -math.inf]] * 3)
        batch = TokenBatch(
            torch.tensor([-1.0, -math.inf, -0.5], requires_grad=True),
            torch.tensor([-1.0, -1.0, -0.7]),
            torch.full((3,), advantage),
            torch.ones(3, dtype=torch.bool),
            [1, 1, 1],
            torch.tensor([-1.0, -1.0, -0.7]),
            lags=torch.tensor([0.0, 3.0, 3.0]),
            rewards=torch.ones(3),
            rollout_head=torch.full((3, 2), math.log(0.4)),
            policy_head=head.requires_grad_(),
        )
        surrogate = policy_surrogate(method, batch, quantile=0.1)
        surrogate.values.sum().backward()
        assert surrogate.values.isfinite().all()
        assert batch.log_probs.grad.isfinite().all()
        assert batch.policy_head.grad is None or batch.policy_head.grad.isfinite().all()


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_where_the_policies_agree_every_gradient_is_the_advantage(method: Method) -> None:
    tokens = paper.random_tokens(seed=9, lengths=[4, 1, 6, 3], inactive=0.0)
    tokens.advantages = [1.5] * 4 + [0.0] + [-0.5] * 6 + [2.0] * 3
    tokens.log_mu, tokens.log_proximal, tokens.rollout_head = tokens.log_pi, tokens.log_pi, tokens.policy_head
    batch = tokens.batch()
    policy_surrogate(method, batch).values.sum().backward()
    torch.testing.assert_close(batch.log_probs.grad, batch.advantages, rtol=1e-12, atol=1e-12)
    assert batch.policy_head.grad is None or batch.policy_head.grad.abs().max() < 1e-12


def test_no_mismatch_leaves_the_gate_shut_and_the_ratio_one() -> None:
    log_probs = torch.full((6,), -1.0, requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 0.0, 2.0, -2.0, 0.5])
    batch = TokenBatch(log_probs, log_probs.detach(), advantages, torch.ones(6, dtype=torch.bool), [6])
    surrogate = policy_surrogate(named_method("sat-grpo"), batch)
    surrogate.values.sum().backward()
    assert torch.equal(surrogate.values, advantages)
    assert torch.equal(log_probs.grad, advantages)
    assert surrogate.metrics["sat/q"] == 0 and surrogate.metrics["sat/gate_rate"] == 0
    assert surrogate.metrics["sat/c_min"] == 1


def test_tis_without_proximal_log_probs_has_the_papers_gradient() -> None:
    # Eq. app-tis: d/dtheta of sg[min(pi / mu, C)] A log pi is min(pi / mu, C) A.
    tokens = paper.random_tokens(seed=23, lengths=[20], spread=0.8, inactive=0.0)
    tokens.log_proximal = None
    batch = tokens.batch()
    policy_surrogate(named_method("grpo-tis"), batch).values.sum().backward()
    weight = (batch.log_probs.detach() - batch.rollout_log_probs).exp().clamp(max=2.0)
    torch.testing.assert_close(batch.log_probs.grad, weight * batch.advantages)


def test_gspo_tis_spreads_the_weights_of_a_response_over_its_tokens() -> None:
    tokens = paper.random_tokens(seed=23, lengths=[6, 9], spread=0.8, inactive=0.0)
    tokens.log_proximal, tokens.advantages = None, [1.5] * 6 + [-0.5] * 9
    batch = tokens.batch()
    policy_surrogate(named_method("gspo-tis"), batch).values.sum().backward()
    weight = (batch.log_probs.detach() - batch.rollout_log_probs).exp().clamp(max=2.0)
    mean = torch.cat([part.mean().expand_as(part) for part in weight.split([6, 9])])
    torch.testing.assert_close(batch.log_probs.grad, mean * batch.advantages)


@pytest.mark.parametrize("score", ["log_ratio", "tv"])
def test_step_scope_uses_the_quantile_that_it_is_given(score: str) -> None:
    method = at("gspo", SAT(scope="step", score=score))
    micro_batches = [paper.random_tokens(seed, [4, 7, 2, 5]) for seed in range(6)]
    scores = torch.cat([threshold_scores(method, tokens.batch()) for tokens in micro_batches])
    assert method.judge is not None and method.threshold_is_of_the_step
    q = method.judge.threshold_of(scores)
    assert q == tail_quantile(scores, 0.9)
    gated = []
    for tokens in micro_batches:
        surrogate = policy_surrogate(method, tokens.batch(), quantile=q)
        expected = paper.surrogate(method, tokens, paper.decide(method, tokens, q.item()))
        assert surrogate.values.tolist() == pytest.approx(expected, abs=1e-9)
        assert surrogate.metrics["sat/q"] == q
        gated.append(surrogate.metrics["sat/gate_rate"].item())
    assert max(gated) > 0


def test_m2po_of_a_step_drops_what_it_would_of_all_its_tokens_in_one_micro_batch() -> None:
    step, split = at("m2po", threshold=0.01), [[4, 7], [2, 5, 3], [6]]
    assert step.threshold_is_of_the_step and not at("m2po", scope="microbatch").threshold_is_of_the_step
    whole = paper.random_tokens(seed=14, lengths=[length for lengths in split for length in lengths])
    starts = [0, 11, 21, 27]
    parts = [
        whole.part(list(range(start, end)), lengths)
        for start, end, lengths in zip(starts[:-1], starts[1:], split, strict=True)
    ]
    scores = [threshold_scores(step, tokens.batch()) for tokens in parts]
    threshold = step.judge.threshold_of(torch.cat(scores))
    values = torch.cat([policy_surrogate(step, tokens.batch(), quantile=threshold).values for tokens in parts])
    assert values.tolist() == pytest.approx(paper.surrogate(step, whole, paper.decide(step, whole)), abs=1e-12)
    alone = torch.cat([policy_surrogate(step, tokens.batch()).values for tokens in parts])
    assert not torch.equal(alone, values), "a threshold for each micro-batch is another selection"


def test_nan_in_an_active_token_is_named() -> None:
    batch = paper.random_tokens(seed=1, lengths=[20], inactive=0.0).batch()
    with torch.no_grad():
        batch.log_probs[3] = math.nan
    with pytest.raises(ValueError, match="1 of 20 log-ratios are NaN"):
        policy_surrogate(named_method("sat-grpo"), batch)


@pytest.mark.parametrize("name, lacks", [("topr", "rewards"), ("grpo-a3po", "lags"), ("score-centering", "heads")])
def test_a_batch_without_what_a_method_needs_is_refused(name: str, lacks: str) -> None:
    columns = ["rollout_head", "policy_head"] if lacks == "heads" else [lacks]
    batch = replace(paper.random_tokens(seed=1, lengths=[4]).batch(), **dict.fromkeys(columns))
    assert named_method(name).needs == (lacks,) and not batch.has(lacks)
    with pytest.raises(ValueError, match=f"the batch has no {' and '.join(columns)}: pass {' and '.join(columns)}"):
        policy_surrogate(named_method(name), batch)


def test_checkpoint_denominator_needs_its_log_probs() -> None:
    tokens = paper.random_tokens(seed=1, lengths=[4])
    tokens.log_proximal = None
    with pytest.raises(ValueError, match="checkpoint needs proximal_log_probs"):
        policy_surrogate(compose_method("grpo", denominator="checkpoint"), tokens.batch())


def test_penalty_beside_a_clip_is_refused() -> None:
    tokens = paper.random_tokens(seed=1, lengths=[4])
    with pytest.raises(ValueError, match=r"sat-spo: SPO's penalty replaces the clip.*leave SAT and radius"):
        policy_surrogate(compose_method("spo", sat=True), tokens.batch())


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.01, 2.0), name=st.sampled_from(["sat-grpo", "sat-gspo"]))
def test_sat_is_pessimistic_and_changes_only_the_new_bands(seed: int, spread: float, name: str) -> None:
    method = named_method(name)
    tokens = paper.random_tokens(seed, [2] * 15, spread)
    sat, base = tokens.batch(), tokens.batch()
    with_sat = policy_surrogate(method, sat)
    without = policy_surrogate(method.without("sat"), base)
    assert (with_sat.values <= without.values).all()
    decisions = paper.decide(method, tokens)
    d = paper.log_ratios(method, tokens, tokens.log_mu, method.ratio == "sequence")
    changed = (with_sat.values != without.values).tolist()
    newly = (with_sat.clipped & ~without.clipped).tolist()
    for t in tokens.active:
        r, advantage, decision = math.exp(d[t]), tokens.advantages[t], decisions[t]
        assert 0.8 <= decision.low <= 1 <= decision.high <= 1.2
        in_band = (advantage > 0 and decision.high < r < 1.2) or (advantage < 0 and 0.8 < r < decision.low)
        assert newly[t] == in_band
        # A token that both clip differs in value, by the gap between the two ends, and in no gradient.
        assert changed[t] <= (in_band or without.clipped[t].item())
    slope_sat = torch.autograd.grad(with_sat.values.sum(), sat.log_probs)[0]
    slope_base = torch.autograd.grad(without.values.sum(), base.log_probs)[0]
    if method.ratio == "token":
        assert (slope_sat != slope_base).tolist() == newly


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), method=st.sampled_from(METHODS))
def test_order_of_responses_does_not_matter(seed: int, method: Method) -> None:
    lengths = [3, 1, 4, 0, 5]
    tokens = paper.random_tokens(seed, lengths)
    spans, start = [], 0
    for length in lengths:
        spans.append(list(range(start, start + length)))
        start += length
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    positions = [t for b in order for t in spans[b]]
    moved = tokens.part(positions, [lengths[b] for b in order])
    batch, other = tokens.batch(), moved.batch()
    values = policy_surrogate(method, batch).values
    permuted = policy_surrogate(method, other).values
    torch.testing.assert_close(values[positions], permuted, rtol=1e-12, atol=1e-12)


def test_every_paper_method_is_covered_here() -> None:
    assert set(PAPER_METHODS) <= set(METHODS)


def test_a_log_ratio_of_the_callers_own() -> None:
    method = named_method("sat-gspo")
    batch = paper.random_tokens(seed=2, lengths=LENGTHS).batch()
    taken = log_ratio(method.ratio, method.denominator, batch)
    given = torch.where(batch.mask, taken, math.nan)
    ours, theirs = policy_surrogate(method, batch), policy_surrogate(method, batch, d=given)
    assert torch.equal(ours.values, theirs.values)
    ones = torch.ones(len(batch.mask), dtype=torch.float64)
    assert torch.equal(
        gradient_of(ours.values, ones, batch.log_probs), gradient_of(theirs.values, ones, batch.log_probs)
    )
