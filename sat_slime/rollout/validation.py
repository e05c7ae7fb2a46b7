"""Nothing of a response is trusted unchecked: one function makes a Response of SGLang's JSON, or says why not."""

from __future__ import annotations

import base64
from dataclasses import dataclass
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

    vocab_size: int
    layers: int
    experts: int
    """Experts of a layer; 0: a dense model, whose responses must carry no routed experts."""
    top_k: int
    weight_version: int
    """Version of the weights that the engine was last told to load; a response of another one means that it did not."""


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
    output_ids = _output_ids(raw, request, expected.vocab_size)
    _check_finish(finish_reason, output_ids, request)
    log_probs = _log_probs(meta, output_ids)
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
        routed_experts=_routed_experts(meta, len(request.prompt_ids) + len(output_ids) - 1, expected),
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
    return expected.weight_version


def _finish_reason(meta: dict[str, Any], allowed: tuple[str, ...]) -> Any:
    kind = _get(meta, "finish_reason", dict).get("type")
    if kind not in allowed:
        raise RejectedResponse("finish_reason", f"{meta['finish_reason']!r:.200}")
    return kind


def _output_ids(raw: dict[str, Any], request: GenerationRequest, vocab_size: int) -> list[int]:
    output_ids = _get(raw, "output_ids", list)
    if not 1 <= len(output_ids) <= request.max_new_tokens:
        raise RejectedResponse("token_count", f"{len(output_ids)} tokens, allowed are 1 to {request.max_new_tokens}")
    for token in output_ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise RejectedResponse("vocab_range", f"token {token!r:.80} is not in [0, {vocab_size})")
    return output_ids


def _check_finish(reason: str, output_ids: list[int], request: GenerationRequest) -> None:
    """Reject a response with a stop token that is not its last token. At the length limit SGLang says `length`, stop
    token or not."""
    if any(token in request.stop_token_ids for token in output_ids[:-1]):
        raise RejectedResponse("stop_token", "a stop token inside the response")
    if reason == "stop" and output_ids[-1] not in request.stop_token_ids:
        raise RejectedResponse("stop_token", f"it stopped at token {output_ids[-1]}, which is no stop token")
    if reason == "length" and len(output_ids) != request.max_new_tokens:
        raise RejectedResponse("token_count", f"length limit at {len(output_ids)} of {request.max_new_tokens} tokens")


def _log_probs(meta: dict[str, Any], output_ids: list[int]) -> np.ndarray:
    """Return (T,) float32 from SGLang's list of [log-prob, token id, text]. A NaN arrives as null or as NaN."""
    entries = _get(meta, "output_token_logprobs", list)
    if len(entries) != len(output_ids):
        raise RejectedResponse("token_count", f"{len(entries)} log-probs of {len(output_ids)} tokens")
    if not all(isinstance(entry, list) and len(entry) >= 2 for entry in entries):
        raise RejectedResponse("malformed", "output_token_logprobs are not [log-prob, token id, ...] lists")
    if [entry[1] for entry in entries] != output_ids:
        raise RejectedResponse("token_mismatch", "the log-probs are of other tokens than output_ids")
    if not all(type(entry[0]) in (float, int) for entry in entries):
        raise RejectedResponse("log_prob_not_finite", "a log-prob is not a number")
    log_probs = np.array([entry[0] for entry in entries], dtype=np.float64)
    # float32's lowest value is what SGLang clamps a log-prob of -inf to: a token of probability 0 was not sampled.
    if not (np.isfinite(log_probs) & (log_probs > np.finfo(np.float32).min)).all():
        raise RejectedResponse("log_prob_not_finite", f"log-probs {log_probs.tolist()!r:.200}")
    if log_probs.max() > LOG_PROB_TOLERANCE:
        raise RejectedResponse("log_prob_positive", f"{log_probs.max()} is above 0")
    return log_probs.astype(np.float32)


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


def _routed_experts(meta: dict[str, Any], rows: int, expected: Expectations) -> np.ndarray | None:
    """Return (rows, layers, top-k) in the smallest unsigned type that holds the experts; None for a dense model."""
    encoded = meta.get("routed_experts")
    if expected.experts == 0:
        return None
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
    chosen = np.frombuffer(raw, EXPERT_DTYPE).reshape(rows, layers, top_k)
    if chosen.min() < 0 or chosen.max() >= expected.experts:
        raise RejectedResponse("expert_range", f"{chosen.min()} to {chosen.max()}, not in [0, {expected.experts})")
    ordered = np.sort(chosen, axis=-1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise RejectedResponse("duplicate_expert", "a token has the same expert twice in one layer")
    return chosen.astype(np.min_scalar_type(expected.experts - 1))
