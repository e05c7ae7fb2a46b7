"""The paper's equations, token by token in plain Python floats; the tests compare the tensors with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import newer_equations as newer
from newer_equations import Numbers, bernoulli_kl
from paper_tokens import Tokens, random_tokens

from sat_slime.objective import Method, Score
from sat_slime.objective.gates import DPPO, IcePop, KPop, SeqClip
from sat_slime.objective.penalties import DRPO, SPO

__all__ = ["Decision", "Tokens", "decide", "gradient", "quantile", "random_tokens", "surrogate"]


@dataclass
class Decision:
    """The detached quantities of one token."""

    low: float
    high: float
    factor: float
    gated: bool
    log_denominator: float
    weight: float = 1.0
    """w of a score form, the indicator of IPO."""


def denominator(method: Method, tokens: Tokens) -> list[float]:
    """Log-probs of the denominator."""
    if method.denominator == "rollout":
        return tokens.log_mu
    if method.denominator == "a3po":
        return newer.a3po_log_probs(tokens)
    assert tokens.log_proximal is not None
    return tokens.log_proximal


def log_ratios(method: Method, tokens: Tokens, log_denominator: list[float], sequence: bool) -> dict[int, float]:
    """d of each active token: Eq. ratio-def, or Eq. gspo-ratio broadcast."""
    d = {t: tokens.log_pi[t] - log_denominator[t] for t in tokens.active}
    if sequence:
        for span in tokens.responses:
            mean = math.fsum(d[t] for t in span) / len(span) if span else 0.0
            d.update({t: mean for t in span})
    return d


def quantile(magnitudes: list[float], alpha: float) -> float:
    """Eq. quantile by its definition: the smallest value with at least a fraction alpha at or below it."""
    n = len(magnitudes)
    for x in sorted(magnitudes):
        if Fraction(sum(m <= x for m in magnitudes), n) >= Fraction(str(alpha)):
            return x
    return 0.0


def numbers_of(method: Method, tokens: Tokens) -> Numbers:
    """The log-ratios of the active tokens."""
    log_denominator = denominator(method, tokens)
    log_proximal = tokens.log_pi if method.denominator == "rollout" else log_denominator
    return Numbers(
        tokens,
        d=log_ratios(method, tokens, log_denominator, method.ratio == "sequence"),
        e={t: log_proximal[t] - tokens.log_mu[t] for t in tokens.active},
        response={t: span for span in tokens.responses for t in span},
    )


def decide(method: Method, tokens: Tokens, q: float | None = None) -> dict[int, Decision]:
    """The detached quantities of every active token. q: the threshold of SAT or M2PO, where it was taken elsewhere."""
    numbers = numbers_of(method, tokens)
    log_denominator, stale = denominator(method, tokens), {t: abs(x) for t, x in numbers.d.items()}
    tail = quantile(list(stale.values()), method.sat.alpha) if method.sat is not None and q is None else q
    decisions = {}
    for t in tokens.active:
        low, high, gated = interval(method, numbers.d[t], stale[t], tail, newer.radii(method, numbers, t, q))
        factor = math.prod(one_factor(one, method, numbers, t, q) for one in (*method.gates, *method.weights))
        decision = decisions[t] = Decision(low, high, factor, gated, log_denominator[t])
        if method.instead is not None:
            decision.weight = newer.score_weight(method.instead, numbers, t)
    return decisions


def interval(
    method: Method, d: float, stale: float, q: float | None, base: tuple[float, float]
) -> tuple[float, float, bool]:
    """Ends of the clip interval (Eqs. kernel, gate, adaptive-eps), and whether SAT's gate is open. base: the radii that
    SAT contracts."""
    region, sat = method.clip, method.sat
    if region is None:
        return -math.inf, math.inf, False
    c_low = c_high = 1.0
    gated = False
    if sat is not None:
        assert q is not None
        gated = q > 0 and stale > q
        if gated:
            c_low = 1 / (1 + ((stale if d < 0 else 0.0) / q) ** sat.exponent)
            c_high = 1 / (1 + ((stale if d > 0 else 0.0) / q) ** sat.exponent)
    return 1 - base[0] * c_low, 1 + base[1] * c_high, gated


def one_factor(one: object, method: Method, numbers: Numbers, t: int, q: float | None) -> float:
    """What a gate or a weight multiplies S by."""
    pi, mu, advantage = numbers.pi(t), numbers.mu(t), numbers.tokens.advantages[t]
    k = math.exp(numbers.e[t])
    trainer = k * mu
    if isinstance(one, DPPO):
        within = abs(pi - mu) <= one.delta if one.divergence == "tv" else bernoulli_kl(mu, pi) <= one.delta_kl
        return float(advantage * (pi / mu - 1) <= 0 or within)
    if isinstance(one, IcePop):
        return (k if one.form == "weight" else 1.0) * (one.low <= k <= one.high)
    if isinstance(one, KPop):
        return float(bernoulli_kl(trainer, mu) <= one.phi and bernoulli_kl(mu, trainer) <= one.phi)
    if isinstance(one, SeqClip):
        rho = log_ratios(method, numbers.tokens, numbers.tokens.log_mu, sequence=True)
        return float(one.low <= math.exp(rho[t]) <= one.high)
    return newer.factor(one, numbers, t, q)


def surrogate(method: Method, tokens: Tokens, decisions: dict[int, Decision]) -> list[float]:
    """S of every token under the given detached decisions; 0 on inactive tokens."""
    log_denominator = [0.0] * len(tokens.log_pi)
    for t, decision in decisions.items():
        log_denominator[t] = decision.log_denominator
    d = log_ratios(method, tokens, log_denominator, method.ratio == "sequence")
    values = [0.0] * len(tokens.log_pi)
    for span in tokens.responses:
        for t in span:
            instead = method.instead is not None
            value = (
                replaced(method, tokens, decisions[t], d, span, t)
                if instead
                else clipped(method, tokens, decisions[t], d[t], t)
            )
            values[t] = value * decisions[t].factor
    return values


def clipped(method: Method, tokens: Tokens, decision: Decision, d: float, t: int) -> float:
    """S on the clip interval (Eqs. ppo-objective, satrloss)."""
    r, advantage, clip = math.exp(d), tokens.advantages[t], method.clip
    value = min(r * advantage, min(max(r, decision.low), decision.high) * advantage)
    return max(value, clip.dual * advantage) if clip and clip.dual is not None and advantage < 0 else value


def replaced(method: Method, tokens: Tokens, decision: Decision, d: dict[int, float], span: list[int], t: int) -> float:
    """S of what stands in the place of the clip; span: the active tokens of the token's response."""
    one, r, advantage = method.instead, math.exp(d[t]), tokens.advantages[t]
    if isinstance(one, SPO):
        return r * advantage - abs(advantage) / (2 * one.eps) * (r - 1) ** 2
    if isinstance(one, DRPO):
        return r * advantage - abs(advantage) / (2 * one.delta) * math.exp(tokens.log_mu[t]) * (r - 1) ** 2
    if isinstance(one, Score):
        return advantage * decision.weight * tokens.log_pi[t]
    assert one is not None
    match one.name:
        case "sapo":
            return newer.sapo(one, r, advantage)
        case "ipo":
            return decision.weight * r * advantage - one.kl_tau * d[t] ** 2
    raise AssertionError(f"no equation of {one.name}")


def gradient(method: Method, tokens: Tokens, decisions: dict[int, Decision], weights: list[float]) -> list[float]:
    """Central differences of sum_t w_t S_t in each log pi, with the detached decisions held fixed."""

    def moved(t: int, by: float) -> Tokens:
        log_pi = list(tokens.log_pi)
        log_pi[t] += by
        return replace(tokens, log_pi=log_pi)

    return [difference(method, moved(t, STEP), moved(t, -STEP), decisions, weights) for t in range(len(tokens.log_pi))]


STEP = 1e-5


def difference(method: Method, up: Tokens, down: Tokens, decisions: dict[int, Decision], weights: list[float]) -> float:
    ends = [surrogate(method, tokens, decisions) for tokens in (up, down)]
    above, below = (math.fsum(w * v for w, v in zip(weights, values, strict=True)) for values in ends)
    return (above - below) / (2 * STEP)
