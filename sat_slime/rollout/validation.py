"""Nothing of a response is trusted unchecked. `validate` makes a Response of SGLang's JSON, or says why not; what is a
number in it `check_numbers` judges, which slime's samples pass too."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from sat_slime.rollout.nucleus import nucleus, truncate
from sat_slime.rollout.types import GenerationRequest, Response

LOG_PROB_TOLERANCE = 1e-5  # log of an fp32 softmax: a certain token may come out a rounding above 0
DISTRIBUTION_TOLERANCE = 1e-3
EXPERT_DTYPE = np.dtype("<i4")
"""Routed experts as SGLang sends them, in base64."""


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
    if not set(map(type, tokens)) <= {int}:
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
    if not set(map(type, log_probs)) <= {float, int}:
        raise RejectedResponse("log_prob_not_finite", "a log-prob is not a number")
    values = np.array(log_probs, dtype=np.float64)
    active = np.ones(count, bool) if trained is None else np.asarray(trained, bool)
    # float32's lowest value is what SGLang clamps a log-prob of -inf to: a token of probability 0 was not sampled.
    fails = active & ~(np.isfinite(values) & (values > np.finfo(np.float32).min))
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


def validate(
    request: GenerationRequest, wire_id: str, raw: Any, expected: Expectations, *, interruptible: bool = False
) -> Response:
    """Return the response to `request`, which was sent under the id `wire_id`. Raises RejectedResponse.

    Args:
        interruptible: whether an aborted response, which may have no tokens, is taken as far as it goes.
    """
    meta = _get(raw, "meta_info", dict)
    if meta.get("id") != wire_id:
        raise RejectedResponse("request_id", f"sent {wire_id!r}, got {meta.get('id')!r}")
    version = _weight_version(meta, expected)
    finish_reason = _finish_reason(meta, ("stop", "length", "abort") if interruptible else ("stop", "length"))
    if finish_reason == "abort" and raw.get("output_ids") == []:  # it was aborted before its prompt was looked at
        nothing = np.zeros(0, np.float32)
        return Response(request.request_id, request.prompt_ids, (), nothing, None, "abort", nothing.astype(np.int64))
    if meta.get("prompt_tokens") != len(request.prompt_ids):
        raise RejectedResponse("prompt_length", f"sent {len(request.prompt_ids)}, got {meta.get('prompt_tokens')!r}")
    output_ids = _get(raw, "output_ids", list)
    if not 1 <= len(output_ids) <= request.max_new_tokens:
        raise RejectedResponse("token_count", f"{len(output_ids)} tokens, allowed are 1 to {request.max_new_tokens}")
    entries = _get(meta, "output_token_logprobs", list)
    if not all(isinstance(entry, list) and len(entry) >= 2 for entry in entries):
        raise RejectedResponse("malformed", "output_token_logprobs are not [log-prob, token id, ...] lists")
    rows = len(request.prompt_ids) + len(output_ids) - 1
    routes = _routed_experts(meta, rows, expected) if expected.experts else None
    log_probs = check_numbers(output_ids, [entry[0] for entry in entries], routes, rows, expected)
    _check_finish(finish_reason, output_ids, request)
    if [entry[1] for entry in entries] != output_ids:
        raise RejectedResponse("token_mismatch", "the log-probs are of other tokens than output_ids")
    distribution = _distribution(meta, request.distribution_size, output_ids)
    if request.top_p < 1:
        assert distribution is not None, "a request with top_p below 1 asks for the distribution"
        sampled = np.arange(len(output_ids)), output_ids
        if (distribution[sampled] != log_probs).any():
            raise RejectedResponse("token_mismatch", "a token's log-prob is not the one that the distribution gives it")
        kept = nucleus(distribution, request.top_p)
        kept[sampled] = True  # whatever rounding says at the nucleus's edge, the engine did sample it
        distribution = truncate(distribution, kept)
        log_probs = distribution[sampled]
    return Response(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        output_ids=tuple(output_ids),
        log_probs=log_probs,
        routed_experts=None if routes is None else routes.astype(np.min_scalar_type(expected.experts - 1)),
        finish_reason=finish_reason,
        versions=np.full(len(output_ids), version, np.int64),
        distribution=distribution,
    )


def _get(container: Any, key: str, kind: type) -> Any:
    value = container.get(key) if isinstance(container, dict) else None
    if not isinstance(value, kind):
        raise RejectedResponse("malformed", f"{key} is {value!r:.80}, not a {kind.__name__}")
    return value


def _weight_version(meta: dict[str, Any], expected: Expectations) -> int:
    version = meta.get("weight_version")
    if str(version) != str(expected.weight_version):
        raise RejectedResponse("weight_version", f"got {version!r:.80}, the engine holds {expected.weight_version}")
    return int(str(version))


def _finish_reason(meta: dict[str, Any], allowed: tuple[str, ...]) -> Any:
    kind = _get(meta, "finish_reason", dict).get("type")
    if kind not in allowed:
        raise RejectedResponse("finish_reason", f"{meta['finish_reason']!r:.200}")
    return kind


def _check_finish(reason: str, output_ids: list[int], request: GenerationRequest) -> None:
    """Reject a response with a stop token that is not its last token. At the length limit SGLang says `length`, stop
    token or not."""
    if any(token in request.stop_token_ids for token in output_ids[:-1]):
        raise RejectedResponse("stop_token", "a stop token inside the response")
    if reason == "stop" and output_ids[-1] not in request.stop_token_ids:
        raise RejectedResponse("stop_token", f"it stopped at token {output_ids[-1]}, which is no stop token")
    if reason == "length" and len(output_ids) != request.max_new_tokens:
        raise RejectedResponse("token_count", f"length limit at {len(output_ids)} of {request.max_new_tokens} tokens")


def _distribution(meta: dict[str, Any], size: int, output_ids: list[int]) -> np.ndarray | None:
    """Return (T, size) float32 from SGLang's lists of [log-prob, token id, text], the likeliest first; None when not
    asked."""
    if not size:
        return None
    positions = _get(meta, "output_top_logprobs", list)
    try:
        log_probs = np.array([[entry[0] for entry in entries] for entries in positions], dtype=np.float64)
        tokens = np.array([[entry[1] for entry in entries] for entries in positions])
    except (TypeError, ValueError, IndexError) as error:
        raise RejectedResponse("distribution", f"output_top_logprobs are not as asked for: {error}") from error
    whole = log_probs.shape == tokens.shape == (len(output_ids), size)
    if not whole or (np.sort(tokens, axis=1) != np.arange(size)).any():
        raise RejectedResponse(
            "distribution", f"shape {tokens.shape}, not each token of {size} at {len(output_ids)} positions"
        )
    ordered = np.take_along_axis(log_probs, np.argsort(tokens, axis=1), axis=1)
    if not (np.abs(np.exp(ordered).sum(1) - 1) <= DISTRIBUTION_TOLERANCE).all():  # NaN is not <= anything
        raise RejectedResponse("distribution", "the probabilities of a position do not sum to 1")
    return ordered.astype(np.float32)


def _routed_experts(meta: dict[str, Any], rows: int, expected: Expectations) -> np.ndarray:
    """Return the (rows, layers, top-k) int32 routes out of base64."""
    encoded = meta.get("routed_experts")
    if not isinstance(encoded, str):
        raise RejectedResponse("routed_experts_missing", f"routed_experts is {encoded!r:.80}")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise RejectedResponse("routed_experts_shape", f"routed experts are not base64: {error}") from error
    layers, top_k = expected.layers, expected.top_k
    size = rows * layers * top_k * EXPERT_DTYPE.itemsize
    if len(raw) != size:
        raise RejectedResponse(
            "routed_experts_shape",
            f"routed experts have {len(raw)} bytes; {rows} tokens x {layers} layers x top-{top_k} have {size}",
        )
    return np.frombuffer(raw, EXPERT_DTYPE).reshape(rows, layers, top_k)
