"""The equations of the paper and of the newer stabilizers, token by token in plain floats. They are written from the
published formulas and not from the package, which the tests hold against them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from sat_slime.objective import Method, Score, Stabilizer, TokenBatch


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
    entropies: list[float] | None = None

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
        def tensor(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype)

        return TokenBatch(
            log_probs=tensor(self.log_pi).requires_grad_(),
            rollout_log_probs=tensor(self.log_mu),
            advantages=tensor(self.advantages),
            mask=torch.tensor(self.mask, dtype=torch.bool),
            lengths=self.lengths,
            proximal_log_probs=None if self.log_proximal is None else tensor(self.log_proximal),
            lags=None if self.lags is None else tensor(self.lags),
            entropies=None if self.entropies is None else tensor(self.entropies),
        )


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
    entropies = torch.rand(n, generator=generator, dtype=torch.float64).tolist()
    return Tokens(log_pi, log_mu, advantages, mask, lengths, log_proximal, lags, entropies)


@dataclass
class Numbers:
    """What is known of the active tokens of a micro-batch, by their position, where everything is detached."""

    tokens: Tokens
    d: dict[int, float]
    """log r of the method."""
    e: dict[int, float]
    """log(pi_proximal / mu); log(pi / mu) where the denominator of the method is mu."""
    response: dict[int, list[int]]
    """The active tokens of the token's response."""

    def mean(self, values: dict[int, float], t: int) -> float:
        return self.sum(values, t) / len(self.response[t])

    def sum(self, values: dict[int, float], t: int) -> float:
        return math.fsum(values[u] for u in self.response[t])

    @property
    def advantages(self) -> dict[int, float]:
        return {t: self.tokens.advantages[t] for t in self.d}

    def pi(self, t: int) -> float:
        return math.exp(self.tokens.log_pi[t])

    def mu(self, t: int) -> float:
        return math.exp(self.tokens.log_mu[t])


def held(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def bernoulli_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


# ------------------------------------------------------------------------------------------------ A-3PO, M2PO


def a3po_log_probs(tokens: Tokens) -> list[float]:
    """log mu + alpha (log pi - log mu), alpha = (lag - 1) / lag inside [0, 1], 0 at lag 0."""
    assert tokens.lags is not None
    alphas = [held((lag - 1) / lag, 0.0, 1.0) if lag else 0.0 for lag in tokens.lags]
    return [mu + a * (pi - mu) for pi, mu, a in zip(tokens.log_pi, tokens.log_mu, alphas, strict=True)]


def outward(numbers: Numbers, t: int) -> bool:
    return numbers.tokens.advantages[t] * numbers.d[t] > 0


def m2po_square(one: Stabilizer, numbers: Numbers, t: int) -> float:
    """d^2, by lag over max(1, lag)^p."""
    growth = max(1.0, numbers.tokens.lags[t]) ** one.power
    return numbers.d[t] ** 2 / growth


def m2po_dropped(one: Stabilizer, numbers: Numbers) -> set[int]:
    """The outward tokens behind the longest prefix, by ascending d^2, whose mean d^2 is within the budget. Tokens of
    equal d^2 are on one side."""
    budget = one.threshold
    ranked = sorted((t for t in numbers.d if outward(numbers, t)), key=lambda t: m2po_square(one, numbers, t))
    squares = [m2po_square(one, numbers, t) for t in ranked]
    ends = [
        n
        for n in range(len(ranked) + 1)
        if math.fsum(squares[:n]) <= budget * n and (n in (0, len(ranked)) or squares[n - 1] < squares[n])
    ]
    return set(ranked[max(ends) :])


# ------------------------------------------------------------------------------------------------ radius policies


def radii(method: Method, numbers: Numbers, t: int, threshold: float | None) -> tuple[float, float]:
    """The radii of the clip interval, where the method has one. threshold: BAPO's, where it was taken elsewhere."""
    one, clip = method.radius_policy, method.clip
    if clip is None or one is None:
        return (math.nan, math.nan) if clip is None else (clip.eps_low, clip.eps_high)
    match one.name:
        case "lag-power":
            lags = [numbers.tokens.lags[u] for u in (numbers.response[t] if method.ratio == "sequence" else [t])]
            growth = max(1.0, math.fsum(lags) / len(lags)) ** one.power
            return clip.eps_low * growth, clip.eps_high * growth
        case "bapo":
            low, high = bapo_ends(one, numbers, threshold)
            return 1 - low, high - 1
    raise AssertionError(f"no equation of {one.name}")


def bapo_ends(one: Stabilizer, numbers: Numbers, steps: float | None) -> tuple[float, float]:
    """The lower end is raised, then the upper one, until the share is reached; or so many steps."""

    def goes_on() -> bool:
        if steps is not None:
            return taken < steps
        terms = [(math.exp(numbers.d[t]), a) for t, a in numbers.advantages.items()]
        good = math.fsum(min(r, high) * a for r, a in terms if a > 0)
        bad = math.fsum(max(r, low) * -a for r, a in terms if a < 0)
        return good < one.share * (good + bad)

    low, high, taken = one.lower_start, one.upper_start, 0
    while goes_on() and low < one.lower_max - 1e-9:
        low, taken = min(low + one.step, one.lower_max), taken + 1
    while goes_on() and high < one.upper_max - 1e-9:
        high, taken = min(high + one.step, one.upper_max), taken + 1
    return low, high


# ------------------------------------------------------------------------------------------------ gates and weights


def factor(one: Stabilizer, method: Method, numbers: Numbers, t: int, threshold: float | None) -> float:
    """What a gate or a weight multiplies a token's S by. threshold: M2PO's, where it was taken elsewhere."""
    e, response, advantage = numbers.e, numbers.response[t], numbers.tokens.advantages[t]
    pi, mu, k = numbers.pi(t), numbers.mu(t), math.exp(e[t])
    match one.name:
        case "dppo":
            within = abs(pi - mu) <= one.delta if one.divergence == "tv" else bernoulli_kl(mu, pi) <= one.delta_kl
            return float(advantage * (pi / mu - 1) <= 0 or within)
        case "icepop":
            return (k if one.form == "weight" else 1.0) * (one.low <= k <= one.high)
        case "kpop":
            return float(bernoulli_kl(k * mu, mu) <= one.phi and bernoulli_kl(mu, k * mu) <= one.phi)
        case "seqclip":
            rho = log_ratios(method, numbers.tokens, numbers.tokens.log_mu, sequence=True)
            return float(one.low <= math.exp(rho[t]) <= one.high)
        case "mis-geo":
            return float(one.low <= math.exp(numbers.mean(e, t)) <= one.high)
        case "opsm":
            moved_away = {u: numbers.tokens.log_mu[u] - numbers.tokens.log_pi[u] for u in response}
            return float(not (advantage < 0 and numbers.mean(moved_away, t) > one.delta))
        case "trm-max":
            return float(max(held(e[u], -20, 20) ** 2 / 2 for u in response) <= one.delta)
        case "trm-mean":
            k3 = {u: math.exp(x) - 1 - x for u in response for x in [held(e[u], -20, 20)]}
            return float(numbers.mean(k3, t) <= one.delta)
        case "veto":
            broken = [u for u in response if not one.low <= math.exp(e[u]) <= (one.high or math.inf)]
            if one.form == "suffix":
                return float(advantage >= 0 or not any(u < t for u in broken))
            return float(not broken)
        case "estr":
            d = numbers.tokens.log_pi[t] - numbers.tokens.log_mu[t]
            return float(d * d / (numbers.tokens.entropies[t] + one.floor) <= one.tau)
        case "m2po":
            if threshold is None:
                return float(t not in m2po_dropped(one, numbers))
            return float(not outward(numbers, t) or m2po_square(one, numbers, t) <= threshold)
        case "tis":
            return min(k, one.cap)
        case "decoupled":
            return k if k <= one.cap else (one.cap if one.form == "clamp" else 0.0)
        case "seq-tis":
            product = math.exp(held(numbers.sum(e, t), -20, 20))
            return product if product <= one.cap else (one.cap if one.form == "clamp" else 0.0)
        case "seq-mask-tis":
            return k if one.low <= math.exp(numbers.mean(e, t)) <= one.high else 0.0
    raise AssertionError(f"no equation of {one.name}")


# ------------------------------------------------------------------------------------------------ score forms


def score_weight(one: Stabilizer, numbers: Numbers, t: int) -> float:
    """w of S = w A log pi; of IPO, the indicator on r A."""
    r, advantage, response = math.exp(numbers.d[t]), numbers.tokens.advantages[t], numbers.response[t]
    match one.name:
        case "cispo":
            return held(r, 1 - one.eps_low, 1 + one.eps_high)
        case "gipo":
            return r * math.exp(-0.5 * (numbers.d[t] / one.sigma) ** 2)
        case "rollout-is":
            return r if 1 - one.eps_low < r < 1 + one.eps_high else 0.0
        case "aspo":
            if advantage > 0:
                return min(1 / r, one.cap) if r <= 1 + one.eps_high else 0.0
            return min(r, one.cap) if r >= 1 - one.eps_low else 0.0
        case "flash":
            inside = (1e-6, 1 - 1e-6)
            divergence = {u: bernoulli_kl(held(numbers.mu(u), *inside), held(numbers.pi(u), *inside)) for u in response}
            return r if max(numbers.mean(divergence, t), 0.0) <= one.delta else 0.0
        case "topr":
            return 1.0 if advantage > 0 else held(r, 0.0, one.cap)
        case "vespo":
            log_w = held(numbers.sum(numbers.d, t), math.log(1e-8), 20)
            bad = numbers.mean(numbers.advantages, t) < 0
            k, rate = (one.k_neg, one.lambda_neg) if bad else (one.k_pos, one.lambda_pos)
            return math.exp(rate + k * log_w - rate * math.exp(log_w))
        case "ipo":
            return float(abs(numbers.pi(t) - numbers.mu(t)) <= one.eps)
    return 1.0


# ------------------------------------------------------------------------------------------------ in place of the clip


def gmpo_term(one: Stabilizer, d: float, advantage: float) -> float:
    """c of a token: d, held on its outward side."""
    s = (advantage > 0) - (advantage < 0)
    return s * min(s * d, s * held(d, -one.eps_low, one.eps_high))


def sapo(one: Stabilizer, r: float, advantage: float) -> float:
    tau = one.tau_pos if advantage > 0 else one.tau_neg
    return advantage * 4 / tau / (1 + math.exp(-tau * (r - 1)))


# ------------------------------------------------------------------------------------------------ a method


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
        return a3po_log_probs(tokens)
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
        low, high, gated = interval(method, numbers.d[t], stale[t], tail, radii(method, numbers, t, q))
        product = math.prod(factor(one, method, numbers, t, q) for one in (*method.gates, *method.weights))
        decision = decisions[t] = Decision(low, high, product, gated, log_denominator[t])
        if method.instead is not None:
            decision.weight = score_weight(method.instead, numbers, t)
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
    if isinstance(one, Score):
        return advantage * decision.weight * tokens.log_pi[t]
    assert one is not None
    match one.name:
        case "spo":
            return r * advantage - abs(advantage) / (2 * one.eps) * (r - 1) ** 2
        case "drpo":
            return r * advantage - abs(advantage) / (2 * one.delta) * math.exp(tokens.log_mu[t]) * (r - 1) ** 2
        case "gmpo":
            mean = math.fsum(gmpo_term(one, d[u], tokens.advantages[u]) for u in span) / len(span)
            return math.fsum(tokens.advantages[u] for u in span) / len(span) * math.exp(mean)
        case "cpgd":
            highest, lowest = (
                decision.log_denominator + math.log(1 + one.eps),
                decision.log_denominator + math.log(1 - one.eps),
            )
            return advantage * (min(tokens.log_pi[t], highest) if advantage > 0 else max(tokens.log_pi[t], lowest))
        case "dro":
            return advantage * tokens.log_pi[t] - one.beta * d[t] ** 2 / 2
        case "sapo":
            return sapo(one, r, advantage)
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
