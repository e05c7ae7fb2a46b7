"""The paper's equations, token by token in plain Python floats; the tests compare the tensors with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from sat_slime.objective import DPPO, DRPO, SPO, TIS, IcePop, KPop, Method, SeqClip, TokenBatch

VOCABULARY, HEAD = 6, 4
"""Sizes of the distributions of random states, and of the head that a batch holds of them."""


@dataclass
class Tokens:
    """A micro-batch as lists of floats."""

    log_pi: list[float]
    log_mu: list[float]
    advantages: list[float]
    mask: list[bool]
    lengths: list[int]
    log_proximal: list[float] | None = None
    lags: list[float] | None = None
    rewards: list[float] | None = None
    rollout_head: list[list[float]] | None = None
    policy_head: list[list[float]] | None = None

    @property
    def responses(self) -> list[list[int]]:
        """Positions of the active tokens of each response."""
        spans, start = [], 0
        for length in self.lengths:
            spans.append([t for t in range(start, start + length) if self.mask[t]])
            start += length
        return spans

    @property
    def active(self) -> list[int]:
        return [t for span in self.responses for t in span]

    def part(self, positions: list[int], lengths: list[int]) -> Tokens:
        """The tokens at these positions, as responses of those lengths."""
        columns = {
            name: column and [column[t] for t in positions] for name, column in vars(self).items() if name != "lengths"
        }
        return Tokens(**columns, lengths=lengths)

    def batch(self, dtype: torch.dtype = torch.float64) -> TokenBatch:
        def tensor(values: list[float] | list[list[float]]) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype)

        def head(rows: list[list[float]] | None) -> torch.Tensor | None:
            return None if rows is None else tensor(rows).reshape(len(rows), HEAD)

        return TokenBatch(
            log_probs=tensor(self.log_pi).requires_grad_(),
            rollout_log_probs=tensor(self.log_mu),
            advantages=tensor(self.advantages),
            mask=torch.tensor(self.mask, dtype=torch.bool),
            lengths=self.lengths,
            proximal_log_probs=None if self.log_proximal is None else tensor(self.log_proximal),
            lags=None if self.lags is None else tensor(self.lags),
            rewards=None if self.rewards is None else tensor(self.rewards),
            rollout_head=head(self.rollout_head),
            policy_head=None if self.policy_head is None else head(self.policy_head).requires_grad_(),
        )


@dataclass
class Decision:
    """The detached quantities of one token."""

    low: float
    high: float
    factor: float
    gated: bool


def random_tokens(seed: int, lengths: list[int], spread: float = 0.3, inactive: float = 0.2) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    n = sum(lengths)

    def normal(scale: float) -> list[float]:
        return (torch.randn(n, generator=generator, dtype=torch.float64) * scale).tolist()

    log_mu = [-abs(x) - 0.05 for x in normal(1.0)]
    log_pi = [min(m + d, -1e-3) for m, d in zip(log_mu, normal(spread), strict=True)]
    log_proximal = [min(m + d, -1e-3) for m, d in zip(log_mu, normal(spread), strict=True)]
    mask = (torch.rand(n, generator=generator) >= inactive).tolist()
    advantages = normal(1.0)
    lags = torch.randint(0, 6, (n,), generator=generator).double().tolist()
    rewards = torch.randint(-1, 2, (len(lengths),), generator=generator).double()
    rewards = rewards.repeat_interleave(torch.tensor(lengths, dtype=torch.int64)).tolist()
    heads = random_heads(n, spread, generator)
    return Tokens(log_pi, log_mu, advantages, mask, lengths, log_proximal, lags, rewards, *heads)


def random_heads(n: int, spread: float, generator: torch.Generator) -> tuple[list[list[float]], list[list[float]]]:
    """Log-probs of the likeliest tokens of n states, under the engine and under the policy."""
    engine, moved = torch.randn(2, n, VOCABULARY, generator=generator, dtype=torch.float64)
    log_q = (1.5 * engine).log_softmax(-1)
    top = log_q.topk(HEAD).indices
    return log_q.gather(-1, top).tolist(), (log_q + spread * moved).log_softmax(-1).gather(-1, top).tolist()


def denominator(method: Method, tokens: Tokens) -> list[float]:
    """Log-probs of the denominator."""
    if method.denominator == "rollout":
        return tokens.log_mu
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


def decide(method: Method, tokens: Tokens, q: float | None = None) -> dict[int, Decision]:
    """Clip ends and weight of every active token."""
    d = log_ratios(method, tokens, denominator(method, tokens), method.ratio == "sequence")
    region, sat = method.trust_region, method.sat
    if sat is not None and q is None:
        q = quantile([abs(x) for x in d.values()], sat.alpha)
    rho = log_ratios(method, tokens, tokens.log_mu, sequence=True)
    decisions = {}
    for t in tokens.active:
        low, high, gated = -math.inf, math.inf, False
        if region is not None:
            c_low = c_high = 1.0
            if sat is not None:
                assert q is not None
                gated = q > 0 and abs(d[t]) > q
                if gated:
                    c_low = 1 / (1 + (max(-d[t], 0.0) / q) ** sat.exponent)
                    c_high = 1 / (1 + (max(d[t], 0.0) / q) ** sat.exponent)
            low, high = 1 - region.eps_low * c_low, 1 + region.eps_high * c_high

        pi, mu, advantage = math.exp(tokens.log_pi[t]), math.exp(tokens.log_mu[t]), tokens.advantages[t]
        trainer = math.exp(tokens.log_pi[t] if method.denominator == "rollout" else tokens.log_proximal[t])
        factor = 1.0
        for gate in method.gates:
            if isinstance(gate, DPPO):
                tv = gate.divergence == "tv"
                within = abs(pi - mu) <= gate.delta if tv else bernoulli_kl(mu, pi) <= gate.delta_kl
                factor *= float(advantage * (pi / mu - 1) <= 0 or within)
            elif isinstance(gate, IcePop):
                k = trainer / mu
                factor *= (k if gate.form == "weight" else 1.0) * (gate.low <= k <= gate.high)
            elif isinstance(gate, KPop):
                factor *= float(bernoulli_kl(trainer, mu) <= gate.phi and bernoulli_kl(mu, trainer) <= gate.phi)
            elif isinstance(gate, SeqClip):
                factor *= float(gate.low <= math.exp(rho[t]) <= gate.high)
        for weight in method.weights:
            assert isinstance(weight, TIS)
            factor *= min(trainer / mu, weight.cap)
        decisions[t] = Decision(low, high, factor, gated)
    return decisions


def truncated_log_probs(logits: list[float], nucleus: set[int]) -> list[float]:
    """Eq. app-top-p-replay for one token."""
    total = math.fsum(math.exp(logits[a]) for a in nucleus)
    return [logits[a] - math.log(total) if a in nucleus else -math.inf for a in range(len(logits))]


def total_variation(mu: list[float], pi: list[float]) -> float:
    """D_TV of one state, from the probabilities of all actions."""
    return 0.5 * math.fsum(abs(m - p) for m, p in zip(mu, pi, strict=True))


def bernoulli_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def surrogate(method: Method, tokens: Tokens, decisions: dict[int, Decision]) -> list[float]:
    """S of every token under the given detached decisions; 0 on inactive tokens."""
    d = log_ratios(method, tokens, denominator(method, tokens), method.ratio == "sequence")
    values = [0.0] * len(tokens.log_pi)
    for t in tokens.active:
        r, advantage, decision = math.exp(d[t]), tokens.advantages[t], decisions[t]
        if isinstance(method.replacement, SPO):
            value = r * advantage - abs(advantage) / (2 * method.replacement.eps) * (r - 1) ** 2
        elif isinstance(method.replacement, DRPO):
            weight = math.exp(tokens.log_mu[t])
            value = r * advantage - abs(advantage) / (2 * method.replacement.delta) * weight * (r - 1) ** 2
        else:
            value = min(r * advantage, min(max(r, decision.low), decision.high) * advantage)
            if method.trust_region is not None and method.trust_region.dual is not None and advantage < 0:
                value = max(value, method.trust_region.dual * advantage)
        values[t] = value * decision.factor
    return values


def gradient(method: Method, tokens: Tokens, decisions: dict[int, Decision], weights: list[float]) -> list[float]:
    """Central differences of sum_t w_t S_t in each log pi, with the detached decisions held fixed."""
    step = 1e-5
    gradient = []
    for t in range(len(tokens.log_pi)):
        ends = []
        for sign in (1, -1):
            moved = list(tokens.log_pi)
            moved[t] += sign * step
            values = surrogate(method, replace(tokens, log_pi=moved), decisions)
            ends.append(math.fsum(w * v for w, v in zip(weights, values, strict=True)))
        gradient.append((ends[0] - ends[1]) / (2 * step))
    return gradient
