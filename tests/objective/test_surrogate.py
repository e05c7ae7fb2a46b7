from __future__ import annotations

import math
from dataclasses import replace

import paper_equations as paper
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_slime.objective import (
    DPPO,
    PAPER_METHODS,
    SAT,
    Clip,
    IcePop,
    Method,
    SeqClip,
    TokenBatch,
    compose,
    compose_method,
    method_names,
    named_method,
    policy_surrogate,
    tail_quantile,
    threshold_scores,
)
from sat_slime.objective.ratio import log_ratio

GSPO = named_method("gspo").base
LENGTHS = [5, 1, 0, 9, 3, 12, 2, 8]
METHODS = [named_method(name) for name in method_names()] + [
    compose(IcePop(0.8, 1.3, "weight")).called_by("icepop-weight-narrow"),
    compose(DPPO(delta=0.1)).called_by("dppo-wide"),
    compose(DPPO("kl", delta_kl=0.01)).called_by("dppo-kl-narrow"),
    compose_method("grpo", sat=True, denominator="checkpoint").called_by("grpo-checkpoint"),
    compose_method("dppo", sat=True),
    compose_method("grpo", sat=True, tis=True),
    compose_method("gspo", sat=True, tis=True),
    compose(GSPO, [SAT(alpha=0.7, exponent=3.0)], trust_region=Clip(0.1, 0.3)).called_by("gspo-p3"),
    replace(compose_method("grpo"), called="grpo-dual", trust_region=Clip(dual=1.3)),
    replace(compose_method("gspo", sat=True), called="gspo-dual", trust_region=Clip(dual=1.1)),
    replace(compose_method("grpo"), called="unclipped", trust_region=None),
]


def gradient_of(values: torch.Tensor, weights: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad((values * weights).sum(), log_probs)
    return gradient


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
    gradient = gradient_of(surrogate.values, weights, batch.log_probs)
    differences = paper.gradient(method, tokens, decisions, weights.tolist())
    assert gradient.tolist() == pytest.approx(differences, abs=1e-7, rel=1e-7)


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
    exact = TokenBatch(
        rounded.log_probs.detach().double().requires_grad_(),
        rounded.rollout_log_probs.double(),
        rounded.advantages.double(),
        rounded.mask,
        rounded.lengths,
        rounded.proximal_log_probs.double(),
    )
    low, high = policy_surrogate(method, rounded), policy_surrogate(method, exact)
    assert low.values.dtype == torch.float32
    torch.testing.assert_close(low.values.double(), high.values, rtol=1e-5, atol=1e-6)
    ones = torch.ones(len(rounded.mask))
    gradient = gradient_of(low.values, ones, rounded.log_probs)
    assert gradient.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    expected = gradient_of(high.values, ones, exact.log_probs)
    torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("base", ["ppo", "grpo", "gspo", "dppo", "icepop", "kpop", "seqclip"])
def test_sat_with_a_shut_gate_is_the_base_to_the_bit(base: str, dtype: torch.dtype) -> None:
    off = compose_method(base)
    tokens = paper.random_tokens(seed=7, lengths=LENGTHS)
    for eps in (0.2, 0.1, 0.27, 3e-4):
        plain = replace(off, trust_region=Clip(eps, 2 * eps))
        shut = compose(off.base, [SAT(alpha=1.0)], trust_region=Clip(eps, 2 * eps))
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
    expected = policy_surrogate(method, clean)
    expected_gradient = gradient_of(expected.values, torch.ones(len(inactive)), clean.log_probs)
    for garbage in (math.nan, math.inf, -math.inf, 1e30):
        dirty = tokens.batch()
        with torch.no_grad():
            for tensor in (dirty.log_probs, dirty.rollout_log_probs, dirty.advantages, dirty.proximal_log_probs):
                tensor[inactive] = garbage
        surrogate = policy_surrogate(method, dirty)
        assert torch.equal(surrogate.values, expected.values)
        gradient = gradient_of(surrogate.values, torch.ones(len(inactive)), dirty.log_probs)
        assert torch.equal(gradient, expected_gradient)
        assert not gradient[inactive].any()
        assert not surrogate.clipped[inactive].any()
        assert {k: v.item() for k, v in surrogate.metrics.items()} == {k: v.item() for k, v in expected.metrics.items()}


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [3, 0, 2], [1]])
def test_batches_without_active_tokens(method: Method, lengths: list[int]) -> None:
    n = sum(lengths)
    log_probs = torch.zeros(n, requires_grad=True)
    mask = torch.zeros(n, dtype=torch.bool)
    batch = TokenBatch(log_probs, torch.zeros(n), torch.ones(n), mask, lengths, torch.zeros(n))
    surrogate = policy_surrogate(method, batch)
    surrogate.values.sum().backward()
    assert surrogate.values.shape == (n,) and not surrogate.values.any()
    assert not log_probs.grad.any()
    assert all(math.isfinite(value) and value.dim() == 0 for value in surrogate.metrics.values())


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_log_ratios_give_finite_gradients(method: Method, dtype: torch.dtype) -> None:
    d = torch.tensor([100.0, -100.0, 900.0, -900.0, 0.1, 100.0, -100.0, 0.0], dtype=dtype)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, -1.0, -1.0, 1.0], dtype=dtype)
    log_probs = (d - 1.0).requires_grad_()
    batch = TokenBatch(
        log_probs,
        torch.full_like(d, -1.0),
        advantages,
        torch.ones(8, dtype=torch.bool),
        [1] * 8,
        torch.zeros_like(d) - 1,
    )
    surrogate = policy_surrogate(method, batch)
    surrogate.values.sum().backward()
    assert surrogate.values.isfinite().all()
    assert log_probs.grad.isfinite().all()
    assert log_probs.grad[4] == 0


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


def test_known_values() -> None:
    # One of ten tokens is in the tail: q is the ninth |d| = 0.05, c = 1 / (1 + (0.1 / 0.05)^2) = 0.2.
    d = torch.tensor([0.0, 0.01, 0.02, -0.03, 0.04, -0.01, 0.02, 0.03, 0.05, 0.1], dtype=torch.float64)
    log_probs = (d - 2.0).requires_grad_()
    batch = TokenBatch(
        log_probs, torch.full_like(d, -2.0), torch.ones_like(d), torch.ones(10, dtype=torch.bool), [4, 6]
    )
    surrogate = policy_surrogate(named_method("sat-grpo"), batch)
    metrics = {name: value.item() for name, value in surrogate.metrics.items()}
    assert surrogate.values[9].item() == pytest.approx(1.04)
    assert surrogate.clipped.tolist() == [False] * 9 + [True]
    assert metrics == pytest.approx(
        {
            "sat/q": 0.05,
            "sat/gate_rate": 0.1,
            "sat/newly_clipped": 0.1,
            "sat/eps_low_mean": 0.2,
            "sat/eps_high_mean": 0.2 * (1 - 0.08),
            "sat/c_min": 0.2,
            "sat/scope_too_small": 0.0,
            "clip/fraction": 0.1,
            "clip/upper": 0.1,
            "clip/lower": 0.0,
        }
    )


@pytest.mark.parametrize(
    "method, spread",
    [
        (named_method("sat-grpo"), 0.07),
        (named_method("sat-gspo"), 0.15),
        (compose(DPPO(delta=0.08), [SAT()]), 0.07),
        (compose(SeqClip(0.85, 1.15), [SAT()]), 0.09),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_metrics_are_the_papers_table(method: Method, spread: float) -> None:
    tokens = paper.random_tokens(seed=17, lengths=[3] * 40, spread=spread)
    decisions = paper.decide(method, tokens)
    base = paper.decide(method.without("sat"), tokens)
    d = paper.log_ratios(method, tokens, tokens.log_mu, method.ratio == "sequence")

    def newly_clipped(t: int) -> bool:  # Eq. bands, among the tokens that have a gradient to lose
        r, advantage = math.exp(d[t]), tokens.advantages[t]
        if decisions[t].factor == 0:
            return False
        above = advantage > 0 and decisions[t].high < r < base[t].high
        return above or (advantage < 0 and base[t].low < r < decisions[t].low)

    def cut(t: int) -> int:
        r, advantage = math.exp(d[t]), tokens.advantages[t]
        return int(advantage > 0 and r > decisions[t].high) - int(advantage < 0 and r < decisions[t].low)

    active = tokens.active
    expected = {
        "sat/gate_rate": sum(decisions[t].gated for t in active) / len(active),
        "sat/newly_clipped": sum(map(newly_clipped, active)) / len(active),
        "sat/eps_low_mean": sum(1 - decisions[t].low for t in active) / len(active),
        "sat/eps_high_mean": sum(decisions[t].high - 1 for t in active) / len(active),
        "sat/c_min": min(min(1 - decisions[t].low, decisions[t].high - 1) for t in active) / 0.2,
        "clip/upper": sum(cut(t) > 0 for t in active) / len(active),
        "clip/lower": sum(cut(t) < 0 for t in active) / len(active),
        "clip/fraction": sum(cut(t) != 0 for t in active) / len(active),
    }
    surrogate = policy_surrogate(method, tokens.batch())
    metrics = {key: surrogate.metrics[key].item() for key in expected}
    assert metrics == pytest.approx(expected, abs=1e-12)
    assert expected["sat/newly_clipped"] > 0
    assert surrogate.clipped.tolist() == [t in active and cut(t) != 0 for t in range(len(tokens.log_pi))]


@pytest.mark.parametrize(
    "name, metric",
    [
        ("dppo", "dppo/masked"),
        ("dppo-kl", "dppo/masked"),
        ("icepop", "icepop/masked"),
        ("icepop-weight", "icepop/masked"),
        ("kpop", "kpop/masked"),
    ],
)
def test_masked_fraction_of_a_gate(name: str, metric: str) -> None:
    tokens = paper.random_tokens(seed=19, lengths=[60], spread=0.8)
    decisions = paper.decide(named_method(name), tokens)
    share = sum(decision.factor == 0 for decision in decisions.values()) / len(decisions)
    assert share > 0
    assert policy_surrogate(named_method(name), tokens.batch()).metrics[metric].item() == pytest.approx(share)


def test_tis_metrics() -> None:
    ratios = torch.tensor([0.5, 1.0, 3.0, 5.0])
    log_probs = torch.full((4,), -3.0, requires_grad=True)
    proximal = log_probs.detach()
    batch = TokenBatch(
        log_probs, proximal - ratios.log(), torch.ones(4), torch.ones(4, dtype=torch.bool), [4], proximal
    )
    surrogate = policy_surrogate(named_method("grpo-tis"), batch)
    assert surrogate.values.tolist() == pytest.approx([0.5, 1.0, 2.0, 2.0])
    assert surrogate.metrics["tis/weight"].item() == pytest.approx(1.375)
    assert surrogate.metrics["tis/capped"].item() == pytest.approx(0.5)


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


def test_step_scope_uses_the_quantile_that_it_is_given() -> None:
    method = compose(GSPO, [SAT(scope="step")])
    micro_batches = [paper.random_tokens(seed, [4, 7, 2, 5]) for seed in range(6)]
    scores = [threshold_scores(method, tokens.batch()) for tokens in micro_batches]
    assert method.judge is not None
    q = method.judge.threshold_of(torch.cat(scores))
    assert q == tail_quantile(torch.cat(scores), 0.9)
    gated = []
    for tokens in micro_batches:
        surrogate = policy_surrogate(method, tokens.batch(), quantile=q)
        expected = paper.surrogate(method, tokens, paper.decide(method, tokens, q.item()))
        assert surrogate.values.tolist() == pytest.approx(expected, abs=1e-9)
        assert surrogate.metrics["sat/q"] == q
        gated.append(surrogate.metrics["sat/gate_rate"].item())
    assert max(gated) > 0


def test_scope_too_small_says_when_the_longest_response_shuts_the_gate() -> None:
    def metric(name: str, lengths: list[int]) -> float:
        tokens = paper.random_tokens(seed=29, lengths=lengths, inactive=0.0)
        return policy_surrogate(named_method(name), tokens.batch()).metrics["sat/scope_too_small"].item()

    assert metric("sat-gspo", [10, 10]) == 1.0
    assert metric("sat-gspo", [10] * 9) == 1.0
    assert metric("sat-gspo", [10] * 10) == 0.0
    assert metric("sat-gspo", [10] * 9 + [11]) == 1.0
    assert metric("sat-grpo", [9]) == 1.0
    assert metric("sat-grpo", [10]) == 0.0


def test_nan_in_an_active_token_is_named() -> None:
    batch = paper.random_tokens(seed=1, lengths=[20], inactive=0.0).batch()
    with torch.no_grad():
        batch.log_probs[3] = math.nan
    with pytest.raises(ValueError, match="1 of 20 log-ratios are NaN"):
        policy_surrogate(named_method("sat-grpo"), batch)


def test_checkpoint_denominator_needs_its_log_probs() -> None:
    tokens = paper.random_tokens(seed=1, lengths=[4])
    tokens.log_proximal = None
    with pytest.raises(ValueError, match="checkpoint needs proximal_log_probs"):
        policy_surrogate(compose_method("grpo", denominator="checkpoint"), tokens.batch())


def test_penalty_beside_a_clip_is_refused() -> None:
    tokens = paper.random_tokens(seed=1, lengths=[4])
    with pytest.raises(ValueError, match="penalty replaces the clip"):
        policy_surrogate(compose_method("spo", sat=True), tokens.batch())


@settings(max_examples=40, deadline=None)
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


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(["sat-grpo", "sat-gspo", "dppo", "seqclip", "grpo-tis"]))
def test_order_of_responses_does_not_matter(seed: int, name: str) -> None:
    method = named_method(name)
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


def test_the_dual_clip_counts_what_it_cuts() -> None:
    log_probs = torch.tensor([math.log(3.0), math.log(3.0), math.log(1.1), 0.0], requires_grad=True)
    batch = TokenBatch(
        log_probs, torch.zeros(4), torch.tensor([-1.0, 1.0, -1.0, -1.0]), torch.tensor([True] * 3 + [False]), [4]
    )
    surrogate = policy_surrogate(replace(named_method("grpo"), trust_region=Clip(dual=2.0)), batch)
    assert surrogate.values.tolist() == pytest.approx([-2.0, 1.2, -1.1, 0.0])
    assert float(surrogate.metrics["clip/dual"]) == pytest.approx(1 / 3)
    assert gradient_of(surrogate.values, torch.ones(4), log_probs).tolist() == pytest.approx([0.0, 0.0, -1.1, 0.0])
