from __future__ import annotations

import math
from dataclasses import replace

import paper_equations as paper
import pytest
import torch
from test_surrogate import gradient_of

from sat_slime.objective import (
    DPPO,
    SAT,
    Clip,
    Method,
    SeqClip,
    TokenBatch,
    compose,
    named_method,
    policy_surrogate,
)


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


def test_the_dual_clip_counts_what_it_cuts() -> None:
    log_probs = torch.tensor([math.log(3.0), math.log(3.0), math.log(1.1), 0.0], requires_grad=True)
    batch = TokenBatch(
        log_probs, torch.zeros(4), torch.tensor([-1.0, 1.0, -1.0, -1.0]), torch.tensor([True] * 3 + [False]), [4]
    )
    surrogate = policy_surrogate(replace(named_method("grpo"), trust_region=Clip(dual=2.0)), batch)
    assert surrogate.values.tolist() == pytest.approx([-2.0, 1.2, -1.1, 0.0])
    assert float(surrogate.metrics["clip/dual"]) == pytest.approx(1 / 3)
    assert gradient_of(surrogate.values, torch.ones(4), log_probs).tolist() == pytest.approx([0.0, 0.0, -1.1, 0.0])
