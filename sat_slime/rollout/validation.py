"""The numbers of a response, which nobody trusts unchecked: tokens, log-probs and routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

LEAST_LOG_PROB = -1000.0
"""Nats. A softmax in fp32 is 0 from -104 on, so that nothing that was sampled lies below; engines write -9999, or the
lowest value of a type, for what they do not know, and a flipped bit makes 34 digits."""
LOG_PROB_TOLERANCE = 1e-5  # log of an fp32 softmax: a certain token may come out a rounding above 0


class RejectedResponse(ValueError):
    """A response is not used. `reason` is one word of a fixed vocabulary, and is what is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class Expectations:
    """The sizes and limits that every response of a run must agree with."""

    vocab_size: int | None
    """None: not known, so that only negative tokens are refused."""
    layers: int
    experts: int
    """Experts of a layer; 0: routed experts are not read."""
    top_k: int
    weight_version: int | None = None
    """Version of the weights that the engine was last told to load; a response of another one means that it did not."""
    routed: tuple[int, ...] | None = None
    """The layers that have a router, from 0; None: all. What routes hold for the others means nothing."""


def check_numbers(
    tokens: Sequence[int],
    log_probs: Sequence[float] | None,
    routes: np.ndarray | None,
    rows: int,
    expected: Expectations,
    trained: Sequence[int] | None = None,
) -> np.ndarray:
    """Return the (T,) float32 log-probs of a response, 0 where a token is not trained. Raises RejectedResponse where
    one of its numbers cannot be trained on.

    Args:
        tokens: (T,) of the response.
        log_probs: (T,) log mu of each.
        routes: (rows, layers, top-k) integers: the experts of each token of prompt and response but the last, which the
            engine never feeds.
        rows: tokens of prompt and response, less one.
        trained: (T,) 0 where a token is not trained, such as a tool's; its log-prob may be any number.
    """
    if not all(kind is int or issubclass(kind, np.integer) for kind in {*map(type, tokens)}):
        raise RejectedResponse("vocab_range", "a token is not an integer")
    low, high = min(tokens, default=0), max(tokens, default=0)
    if low < 0 or (expected.vocab_size is not None and high >= expected.vocab_size):
        limit = "vocabulary" if expected.vocab_size is None else expected.vocab_size
        raise RejectedResponse("vocab_range", f"token {low if low < 0 else high} is not in [0, {limit})")
    checked = _checked_log_probs(log_probs, len(tokens), trained)
    if expected.experts:
        _check_routes(routes, rows, expected)
    return checked


def _checked_log_probs(log_probs: Sequence[float] | None, count: int, trained: Sequence[int] | None) -> np.ndarray:
    if log_probs is None:
        raise RejectedResponse("log_probs_missing", f"no log-probs of {count} tokens")
    if len(log_probs) != count:
        raise RejectedResponse("token_count", f"{len(log_probs)} log-probs of {count} tokens")
    if not all(kind in (float, int) or issubclass(kind, np.floating) for kind in {*map(type, log_probs)}):
        raise RejectedResponse("log_prob_not_finite", "a log-prob is not a number")
    values = np.array(log_probs, dtype=np.float64)
    active = np.ones(count, bool) if trained is None else np.asarray(trained, bool)
    fails = active & ~(np.isfinite(values) & (values > LEAST_LOG_PROB))
    if fails.any():
        first = int(fails.argmax())
        detail = f"{values[first]} at token {first} of {count}, and {int(fails.sum()) - 1} more"
        raise RejectedResponse("log_prob_not_finite", detail)
    if (active & (values > LOG_PROB_TOLERANCE)).any():
        raise RejectedResponse("log_prob_positive", f"{values[active].max()} is above 0")
    return np.where(active, values, 0).astype(np.float32)


def _check_routes(routes: np.ndarray | None, rows: int, expected: Expectations) -> None:
    if routes is None:
        raise RejectedResponse("routed_experts_missing", "the engine sent no routed experts")
    shape = (rows, expected.layers, expected.top_k)
    if routes.shape != shape:
        raise RejectedResponse(
            "routed_experts_shape", f"routed experts are {routes.shape}; {rows + 1} tokens have {shape}"
        )
    if routes.size and (routes.min() < 0 or routes.max() >= expected.experts):
        raise RejectedResponse("expert_range", f"{routes.min()} to {routes.max()}, not in [0, {expected.experts})")
    if expected.routed is not None and len(expected.routed) < expected.layers:
        routes = routes[:, list(expected.routed)]
    columns = np.ascontiguousarray(routes.reshape(-1, expected.top_k).T)  # so that a comparison reads memory in order
    if any((first == second).any() for first, second in combinations(columns, 2)):
        raise RejectedResponse("duplicate_expert", "a token has the same expert twice in one layer")
