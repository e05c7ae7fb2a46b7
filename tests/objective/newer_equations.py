"""The equations of the stabilizers that are not the paper's, token by token in plain floats. They are written from the
published formulas and not from the package, which the tests hold against them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paper_tokens import Tokens

from sat_slime.objective import Method
from sat_slime.objective.stabilizer import Stabilizer


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


def factor(one: Stabilizer, numbers: Numbers, t: int, threshold: float | None) -> float:
    """What a gate or a weight multiplies a token's S by. threshold: M2PO's, where it was taken elsewhere."""
    e, response, advantage = numbers.e, numbers.response[t], numbers.tokens.advantages[t]
    k = math.exp(e[t])
    match one.name:
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
    r, advantage = math.exp(numbers.d[t]), numbers.tokens.advantages[t]
    match one.name:
        case "cispo":
            return held(r, 1 - one.eps_low, 1 + one.eps_high)
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


def sapo(one: Stabilizer, r: float, advantage: float) -> float:
    tau = one.tau_pos if advantage > 0 else one.tau_neg
    return advantage * 4 / tau / (1 + math.exp(-tau * (r - 1)))
