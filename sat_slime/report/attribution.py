"""The mismatch of a run taken apart, from the token dumps of its diagnosed steps.

How a tail is attributed to parts that can cancel each other: a token's part counts in the direction of its d, as
sign(d) x part, so that the parts of each token sum to |d| and shares of any set of tokens to 1; a part that pulls
against d counts below 0. Beside it, how many tokens of the tail each part decides: without it alone, the token's |d|
would not be beyond the quantile. Several parts can decide a token, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from sat_slime.objective import mismatch_parts
from sat_slime.rollout.token_dump import DumpError, TokenDump, read_dump
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
Columns = dict[str, np.ndarray]


@dataclass
class Tokens:
    """The active tokens of diagnosed steps, in a row."""

    d: Values
    """log pi - log mu, nats."""
    lag: Values
    position: Values
    """Place in the response, from 0."""
    log_mu: Values
    """The engine's log-prob of the token."""
    entropy: Values
    parts: dict[str, Values]
    """Parts of d, which sum to it."""
    more: Columns
    """(N, ...) further columns that every dump has."""
    responses: Columns
    """(R,) each: lag; reward; gain, the response's term of the surrogate L' without its reward: sum of r - 1; and of
    the total variation, sampled_tv and, where measured, tv."""
    replayed: bool
    """The method trains with R3."""
    steps: int = 1
    """Diagnosed steps."""
    others: int = 0
    """Dumps of the run that were left out, since they tell fewer parts, or none."""
    damaged: list[str] = field(default_factory=list)
    """Dumps that could not be read, a line each."""


def load_tokens(paths: Iterable[Path]) -> Tokens | None:
    """Read the tokens of those dumps that tell the most parts of d; None when none tells any. Damaged files
    and tokens that are left out are named. Raises RunFolderError where there are dumps and none can be read."""
    every, damaged, first = list[Tokens](), list[str](), dict[int, Path]()
    for path in paths:
        try:
            dump = read_dump(path)
        except DumpError as error:
            damaged.append(str(error))
            continue
        damaged += [f"{path}: iteration {dump.iteration}, update {dump.step}: {text}" for text in dump.left_out]
        if not dump.mask.any():
            damaged.append(f"{path}: it has no active token")
        elif (same := first.setdefault(dump.step, path)) != path:
            damaged.append(f"{path}: it is update {dump.step} again, which {same.name} holds")
        else:
            every.append(_tokens_of(dump))
    if damaged and not every:
        raise RunFolderError(f"no dump can be read: {'; '.join(damaged[:3])}")
    most = max((one.parts for one in every), key=len, default={})
    best = [one for one in every if one.parts.keys() == most.keys()]
    if not most:
        return None
    arrays = {
        name: np.concatenate([getattr(one, name) for one in best])
        for name in ("d", "lag", "position", "log_mu", "entropy")
    }
    columns = {name: _joined([getattr(one, name) for one in best]) for name in ("parts", "more", "responses")}
    counts = {"steps": len(best), "others": len(every) - len(best)}
    return replace(best[0], **arrays, **columns, **counts, damaged=damaged)  # type: ignore[arg-type]


def _joined(several: Sequence[Columns]) -> Columns:
    """Return the columns that all of them have, one after the other."""
    shared = [name for name in several[0] if all(name in columns for columns in several)]
    return {name: np.concatenate([columns[name] for columns in several]) for name in shared}


def _tokens_of(dump: TokenDump) -> Tokens:
    replayed = dump.metadata.get("routing_replay") == "true"
    scores = {"log_probs": dump.log_probs, "rollout_log_probs": dump.rollout_log_probs}
    scores |= {name: values for name, values in dump.more.items() if "log_probs" in name}
    parts = mismatch_parts({name: torch.from_numpy(values) for name, values in scores.items()}, replayed=replayed)
    active, log_mu = dump.mask, dump.rollout_log_probs.astype(np.float64)
    d = dump.log_probs - log_mu
    starts = np.repeat(np.cumsum(dump.lengths) - dump.lengths, dump.lengths)
    lag = (dump.updates - dump.versions).astype(np.float64)
    r = np.exp(d)
    per_token = {"gain": r - 1, "sampled_tv": np.abs(r - 1) / 2}
    if "tv" in dump.more:
        per_token["tv"] = dump.more["tv"].astype(np.float64)
    responses = {name: _sum_by_response(values * active, dump.lengths) for name, values in per_token.items()}
    with np.errstate(invalid="ignore"):
        responses["lag"] = _sum_by_response(lag * active, dump.lengths) / _sum_by_response(active, dump.lengths)
    responses["reward"] = dump.rewards.astype(np.float64)
    return Tokens(
        d=d[active],
        lag=lag[active],
        position=(np.arange(len(d)) - starts)[active].astype(np.float64),
        log_mu=log_mu[active],
        entropy=dump.entropy.astype(np.float64)[active],
        parts={name: values.numpy()[active] for name, values in parts.items()},
        more={name: values[active] for name, values in dump.more.items()},
        responses=responses,
        replayed=replayed,
    )


def _sum_by_response(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return (R,) sums of (N,) values over each response; 0 for a response without tokens."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.cumsum(lengths)
    return total[ends] - total[ends - lengths]


# ------------------------------------------------------------------------------------------------ attribution

Parts = Mapping[str, Values]


def attribute(parts: Parts, chosen: np.ndarray | None = None, beyond: float | None = None) -> pd.DataFrame:
    """Attribute the whole that the parts sum to, d or one of its two terms, to each of them.

    Args:
        chosen: (N,) bool, the tokens to look at. Default: all.
        beyond: nats; only the chosen tokens with |d| above it, strictly.

    Returns:
        For each part size, the mean of |part| in nats; share, of the sum of |d|, in the direction of d; and decides,
        the share of the tokens beyond that would not be there without it, NaN without `beyond`.
    """
    frame, d = pd.DataFrame(parts), pd.Series(whole(parts))
    inside = np.ones(len(d), bool) if chosen is None else chosen
    if beyond is not None:
        inside = inside & (d.abs() > beyond)
    frame, d = frame[inside], d[inside]
    return pd.DataFrame(
        {
            "size": frame.abs().mean(),
            "share": frame.mul(np.sign(d), axis=0).sum() / (d.abs().sum() or np.nan),
            "decides": np.nan if beyond is None else (frame.rsub(d, axis=0).abs() <= beyond).mean(),
        }
    )


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


# --------------------------------------------------------------------------------------------------- groups of tokens

Groups = dict[str, np.ndarray]
"""(N,) bool by the group's name; none is empty."""


def by_lag(tokens: Tokens) -> Groups:
    """Group tokens by optimizer updates since they were generated."""
    return {f"{lag:g}": tokens.lag == lag for lag in np.unique(tokens.lag)}


def by_position(tokens: Tokens) -> Groups:
    """Group tokens by place in the response, about equally many each, named by their places from 1."""
    levels = np.linspace(0, 1, POSITION_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(tokens.position, levels, method="inverted_cdf")) if len(tokens.d) else np.zeros(0)
    bins = np.searchsorted(edges, tokens.position, side="right")
    groups = {}
    for number in np.unique(bins):
        places = tokens.position[bins == number] + 1
        low, high = places.min(), places.max()
        groups[f"{low:g}" if low == high else f"{low:g}–{high:g}"] = bins == number
    return groups


def by_probability(tokens: Tokens) -> Groups:
    """Group tokens by mu."""
    return _between(np.exp(tokens.log_mu), PROBABILITY_EDGES)


def by_entropy(tokens: Tokens) -> Groups:
    """Group tokens by the entropy of pi at their state."""
    return _between(tokens.entropy, ENTROPY_EDGES)


def _between(values: np.ndarray, edges: Sequence[float]) -> Groups:
    """Group tokens by where their value lies, in [low, high) each; the first and the last group also hold what lies
    outside."""
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    names = [f"≥ {low:g}" if np.isinf(high) else f"{low:g}–{high:g}" for low, high in pairwise(edges)]
    return {names[number]: bins == number for number in np.unique(bins)}


ROUTINGS = {
    "in training, own routing": "log_probs_own_routing",
    "in training, replayed": "log_probs_replayed",
    "that generated, own routing": "checkpoint_log_probs_own_routing",
    "that generated, replayed": "checkpoint_log_probs_replayed",
}


def d_by_routing(tokens: Tokens) -> dict[str, Values]:
    """Return d with the trainer's own routing and with the engine's replayed (R3), at the weights in training and at
    those that generated; nothing for a dense model or without re-scoring."""
    there = {label: tokens.more[name] for label, name in ROUTINGS.items() if name in tokens.more}
    return {label: log_probs - tokens.log_mu for label, log_probs in there.items()}


# -------------------------------------------------------------------------------------------- bound and divergence


class Bound(NamedTuple):
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


def bound(tokens: Tokens, chosen: np.ndarray | slice = slice(None), xi: float = 1.0) -> Bound:
    """Return both sides of Eq. tvbound on the chosen responses, (R,) bool; default: all. xi: the largest |reward| that
    there can be."""
    facts = pd.DataFrame(tokens.responses)[chosen]
    gains = facts["reward"] * facts["gain"]
    tv, sampled = (4 * xi * facts[name].mean() if name in facts else np.nan for name in ("tv", "sampled_tv"))
    return Bound(len(gains), float(gains.mean()), float(gains.sem()), float(tv), float(sampled))


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
    return float(pd.Series(a).rank().corr(pd.Series(b).rank()))


def overlap(a: np.ndarray, b: np.ndarray, share: float = 0.1) -> float:
    """Return the share of the tokens in the top of a that are in the top of b too. share: how much of the tokens a top
    is."""
    top_a, top_b = a > quantile(a, 1 - share), b > quantile(b, 1 - share)
    return float((top_a & top_b).sum() / top_a.sum()) if top_a.any() else np.nan
