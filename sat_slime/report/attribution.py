"""The mismatch of a run taken apart, from the token dumps of its diagnosed steps.

How a tail is attributed to parts that can cancel each other: a token's part counts in the direction of its d, as
sign(d) x part, so that the parts of each token sum to |d| and shares of any set of tokens to 1; a part that pulls
against d counts below 0. Beside it, how many tokens of the tail each part decides: without it alone, the token's |d|
would not be beyond the quantile. Several parts can decide a token, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sat_slime.objective import mismatch_parts
from sat_slime.rollout.token_dump import DumpError, TokenDump, read_dump
from sat_slime.rollout.types import TOOL
from sat_slime.runs.folder import RunFolderError

LABELS = {
    "policy_weights": "policy: weights",
    "policy_routes": "policy: routes",
    "policy": "policy",
    "implementation": "implementation",
    "routing": "routing",
    "precision": "precision",
    "rest": "rest",
}
"""The names of the parts of objective.mismatch_parts on the page."""
TAILS = {"q90": 0.9, "q99": 0.99}
"""Quantiles of |d| that mark where a tail begins."""
PROBABILITY_EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9, 0.99, 1.0)
ENTROPY_EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, np.inf)
"""Limits of the groups by entropy, nats."""
POSITION_BINS = 8

Values = np.ndarray
"""(N,) float64, one for each token, unless said otherwise."""


@dataclass
class Tokens:
    """The active tokens of diagnosed steps, in a row."""

    d: Values
    """log pi - log mu, nats."""
    parts: dict[str, Values]
    """Parts of d, which sum to it."""
    lag: Values
    position: Values
    """Place in the response, from 0."""
    log_mu: Values
    """The engine's log-prob of the token."""
    entropy: Values
    step: Values
    more: dict[str, np.ndarray]
    """(N, ...) further columns that every dump has."""
    responses: dict[str, np.ndarray]
    """(R,) each: lag; reward; gain, the response's term of the surrogate L' without its reward: sum of r - 1; and of
    the total variation, sampled_tv and, where measured, tv."""
    replayed: bool
    """The method trains with R3."""
    steps: int = 0
    """Diagnosed steps."""
    others: int = 0
    """Dumps of the run that were left out, since they tell fewer parts, or none."""
    damaged: list[str] = field(default_factory=list)
    """Dumps that could not be read, a line each."""


def load_tokens(paths: Iterable[Path]) -> Tokens | None:
    """Read the tokens of those dumps that tell the most parts of d; None when none tells any. Damaged files
    and tokens that are left out are named. Raises RunFolderError where there are dumps and none can be read."""
    best: list[Tokens] = []
    known, damaged = 0, list[str]()
    first: dict[int, Path] = {}
    for path in paths:
        try:
            dump = read_dump(path)
        except DumpError as error:
            damaged.append(str(error))
            continue
        damaged += [f"{path}: iteration {dump.iteration}, update {dump.step}: {text}" for text in dump.left_out]
        if not dump.mask.any() or first.setdefault(dump.step, path) != path:
            again = f"it is update {dump.step} again, which {first[dump.step].name} holds" if dump.mask.any() else ""
            damaged.append(f"{path}: {again or 'it has no active token'}")
            continue
        known += 1
        tokens = _tokens_of(dump)
        if best and len(tokens.parts) > len(best[0].parts):
            best = []
        if tokens.parts and (not best or tokens.parts.keys() == best[0].parts.keys()):
            best.append(tokens)
    if damaged and not known:
        raise RunFolderError(f"no dump can be read: {'; '.join(damaged[:3])}")
    if not best:
        return None
    tokens = _concatenated(best)
    tokens.others, tokens.damaged = known - len(best), damaged
    return tokens


def _tokens_of(dump: TokenDump) -> Tokens:
    replayed = dump.metadata.get("routing_replay") == "true"
    scores = {"log_probs": dump.log_probs, "rollout_log_probs": dump.rollout_log_probs}
    scores |= {name: values for name, values in dump.more.items() if "log_probs" in name}
    active = dump.mask
    parts = mismatch_parts({name: torch.from_numpy(values) for name, values in scores.items()}, replayed=replayed)
    d = dump.log_probs.astype(np.float64) - dump.rollout_log_probs
    starts = np.repeat(np.cumsum(dump.lengths) - dump.lengths, dump.lengths)
    lag = (dump.updates - dump.versions).astype(np.float64)
    r = np.exp(d)
    per_token = {"gain": r - 1, "sampled_tv": np.abs(r - 1) / 2}
    if "tv" in dump.more:
        per_token["tv"] = dump.more["tv"].astype(np.float64)
    responses = {name: _sum_by_response(values * active, dump.lengths) for name, values in per_token.items()}
    generated = dump.versions != TOOL
    with np.errstate(invalid="ignore"):
        responses["lag"] = _sum_by_response(lag * generated, dump.lengths) / _sum_by_response(generated, dump.lengths)
    responses["reward"] = dump.rewards.astype(np.float64)
    return Tokens(
        d=d[active],
        parts={name: values.numpy()[active] for name, values in parts.items()},
        lag=lag[active],
        position=(np.arange(len(d)) - starts)[active].astype(np.float64),
        log_mu=dump.rollout_log_probs.astype(np.float64)[active],
        entropy=dump.entropy.astype(np.float64)[active],
        step=np.full(int(active.sum()), float(dump.step)),
        more={name: values[active] for name, values in dump.more.items()},
        responses=responses,
        replayed=replayed,
        steps=1,
    )


def _sum_by_response(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return (R,) sums of (N,) values over each response; 0 for a response without tokens."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.cumsum(lengths)
    return total[ends] - total[ends - lengths]


def _concatenated(several: Sequence[Tokens]) -> Tokens:
    def joined(dicts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        shared = [name for name in dicts[0] if all(name in columns for columns in dicts)]
        return {name: np.concatenate([columns[name] for columns in dicts]) for name in shared}

    names = ("d", "lag", "position", "log_mu", "entropy", "step")
    columns: dict[str, Any] = joined([{name: getattr(tokens, name) for name in names} for tokens in several])
    return Tokens(
        **columns,
        parts=joined([tokens.parts for tokens in several]),
        more=joined([tokens.more for tokens in several]),
        responses=joined([tokens.responses for tokens in several]),
        replayed=several[0].replayed,
        steps=len(several),
    )


# ------------------------------------------------------------------------------------------------ attribution


Parts = Mapping[str, Values]


@dataclass(frozen=True)
class Share:
    """The weight of one part in the sum of all, over some tokens."""

    size: float
    """Mean of |part|, nats."""
    share: float
    """The part's share of the sum of |d|, in the direction of d."""
    decides: float
    """Share of the tokens beyond a quantile that would not be there without this part; NaN without a quantile."""


def attribute(parts: Parts, chosen: np.ndarray | None = None, beyond: float | None = None) -> dict[str, Share]:
    """Attribute the whole that the parts sum to, d or one of its two terms, to each of them.

    Args:
        chosen: (N,) bool, the tokens to look at. Default: all.
        beyond: nats; only the chosen tokens with |d| above it, strictly.
    """
    d = whole(parts)
    chosen = np.ones(len(d), bool) if chosen is None else chosen
    if beyond is not None:
        chosen = chosen & (np.abs(d) > beyond)
    d = d[chosen]
    total = np.abs(d).sum()
    shares = {}
    for name, values in parts.items():
        part = values[chosen]
        shares[name] = Share(
            size=float(np.abs(part).mean()) if len(d) else np.nan,
            share=float((np.sign(d) * part).sum() / total) if total else np.nan,
            decides=float((np.abs(d - part) <= beyond).mean()) if beyond is not None and len(d) else np.nan,
        )
    return shares


def whole(parts: Parts) -> Values:
    """Return (N,) the sum of the parts."""
    return np.sum(list(parts.values()), axis=0)


def implementation(parts: Parts) -> dict[str, Values]:
    """Return the parts of Eq. split's second term."""
    return {name: values for name, values in parts.items() if not name.startswith("policy")}


def policy(parts: Parts) -> dict[str, Values]:
    """Return the parts of Eq. split's first term."""
    return {name: values for name, values in parts.items() if name.startswith("policy")}


def quantile(values: np.ndarray, level: float) -> float:
    """Return the smallest of the values with at least that share of them at or below it (Eq. quantile)."""
    return float(np.quantile(values, level, method="inverted_cdf")) if len(values) else np.nan


def tail_bounds(d: Values) -> dict[str, float]:
    """Return the |d|, nats, at which each tail begins."""
    return {name: quantile(np.abs(d), level) for name, level in TAILS.items()}


Groups = dict[str, np.ndarray]
"""(N,) bool by the group's name; none is empty."""


def by_lag(tokens: Tokens) -> Groups:
    """Group tokens by optimizer updates since they were generated."""
    return {f"{lag:g}": tokens.lag == lag for lag in np.unique(tokens.lag)}


def by_position(tokens: Tokens) -> Groups:
    """Group tokens by place in the response, about equally many each."""
    levels = np.linspace(0, 1, POSITION_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(tokens.position, levels, method="inverted_cdf")) if len(tokens.d) else np.zeros(0)
    return _by_range(np.searchsorted(edges, tokens.position, side="right"), tokens.position + 1)


def by_probability(tokens: Tokens) -> Groups:
    """Group tokens by mu."""
    return _between(np.exp(tokens.log_mu), PROBABILITY_EDGES)


def by_entropy(tokens: Tokens) -> Groups:
    """Group tokens by the entropy of pi at their state."""
    return _between(tokens.entropy, ENTROPY_EDGES)


def _by_range(place: np.ndarray, values: np.ndarray) -> Groups:
    """Group tokens by `place`, and name each group by the range of its values."""
    groups = {}
    for index in np.unique(place):
        inside = place == index
        low, high = values[inside].min(), values[inside].max()
        groups[f"{low:g}" if low == high else f"{low:g}–{high:g}"] = inside
    return groups


def _between(values: np.ndarray, edges: Sequence[float]) -> Groups:
    """Group tokens by where their value lies, in [low, high) each; the first and the last group also hold what lies
    outside."""
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    groups = {}
    for index in np.unique(place):
        low, high = edges[index], edges[index + 1]
        groups[f"≥ {low:g}" if np.isinf(high) else f"{low:g}–{high:g}"] = place == index
    return groups


# ------------------------------------------------------------------------------------------------------- routes


def d_by_routing(tokens: Tokens) -> dict[str, Values]:
    """Return d with the trainer's own routing and with the engine's replayed (R3), at the weights in training and at
    those that generated; nothing for a dense model or without re-scoring."""
    names = {
        "in training, own routing": "log_probs_own_routing",
        "in training, replayed": "log_probs_replayed",
        "that generated, own routing": "checkpoint_log_probs_own_routing",
        "that generated, replayed": "checkpoint_log_probs_replayed",
    }
    return {
        label: tokens.more[name].astype(np.float64) - tokens.log_mu
        for label, name in names.items()
        if name in tokens.more
    }


# -------------------------------------------------------------------------------------------- bound and divergence


@dataclass(frozen=True)
class Bound:
    """Both sides of Eq. tvbound on some responses, with means over them for expectations."""

    responses: int
    gain: float
    """L', the surrogate gain (Eq. surrogate)."""
    error: float
    """Standard error of the gain over the responses."""
    penalty: float
    """4 xi times the mean sum of total variations; NaN where those were not measured."""
    sampled_penalty: float
    """The same with |r - 1| / 2 of the sampled token in place of each total variation, which by Eq. tvid is its
    expectation."""


def bound(tokens: Tokens, chosen: np.ndarray | None = None, xi: float = 1.0) -> Bound:
    """Return both sides of Eq. tvbound on the chosen responses, (R,) bool; default: all. xi: the largest |reward| that
    there can be."""
    facts = tokens.responses
    chosen = np.ones(len(facts["reward"]), bool) if chosen is None else chosen
    terms = facts["reward"][chosen] * facts["gain"][chosen]
    count = len(terms)
    return Bound(
        count,
        float(terms.mean()) if count else np.nan,
        float(terms.std(ddof=1) / np.sqrt(count)) if count > 1 else np.nan,
        float(4 * xi * facts["tv"][chosen].mean()) if "tv" in facts and count else np.nan,
        float(4 * xi * facts["sampled_tv"][chosen].mean()) if count else np.nan,
    )


PROXIES = {
    "|log r|": "what SAT's gate looks at",
    "|r − 1| / 2": "its mean over samples of mu is that of the total variation (Eq. tvid)",
    "|π − μ| / 2": (
        "the sampled token's own term of the total variation (Eq. tv-mass); DPPO and SAT's score tv look at twice this"
    ),
}


def proxies(tokens: Tokens) -> dict[str, Values]:
    """Return what the sampled token alone tells of the total variation, by the names of PROXIES."""
    deviation = np.abs(np.expm1(tokens.d))
    values = (np.abs(tokens.d), deviation / 2, np.exp(tokens.log_mu) * deviation / 2)
    return dict(zip(PROXIES, values, strict=True))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's rank correlation, with ties at their mean rank; NaN where one of the two never varies."""
    if len(a) < 2 or not np.ptp(a) or not np.ptp(b):
        return np.nan
    from scipy import stats  # its import takes long

    return float(stats.spearmanr(a, b).statistic)


def overlap(a: np.ndarray, b: np.ndarray, share: float = 0.1) -> float:
    """Return the share of the tokens in the top of a that are in the top of b too. share: how much of the tokens a top
    is."""
    top_a, top_b = a > quantile(a, 1 - share), b > quantile(b, 1 - share)
    return float((top_a & top_b).sum() / top_a.sum()) if top_a.any() else np.nan
