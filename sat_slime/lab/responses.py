"""Requests, and SGLang's responses to them, checked and put together: nothing of an answer is used unchecked.

A response that was interrupted goes on where it ended, under whatever weights the engine then holds: the next request
has the tokens so far at the end of its prompt, so that no key or value of older weights is read from a cache, and each
token's probability is that of one version of the weights, given all tokens before it.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sat_slime.rollout.validation import Expectations, RejectedResponse, check_numbers


@dataclass(frozen=True)
class GenerationRequest:
    """One response to be sampled."""

    request_id: str
    """An id that is unique within a run: a response is counted once, however often its request had to be sent."""
    prompt_ids: tuple[int, ...]
    """Prompt tokens."""
    max_new_tokens: int
    temperature: float
    """0 is greedy."""
    seed: int
    """Seed of this response's sampling, passed to the engine."""
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Response:
    """One validated response, or the part that an engine had when it was interrupted: T output tokens after P of the
    prompt."""

    request_id: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    """(T,) output tokens, the stop token included."""
    log_probs: np.ndarray
    """(T,) float32: log mu of each output token, under the engine's softmax at the sampling temperature."""
    routed_experts: np.ndarray | None
    """(P + T - 1, layers, top-k) unsigned: experts of each forwarded token; None from a dense model."""
    finish_reason: Literal["stop", "length", "abort"]
    """`abort`: this is a part, which may have no tokens at all."""
    versions: np.ndarray
    """(T,) int64: optimizer updates of the weights that generated each token, as the engine reported them."""
    reward: float = 0.0
    """The verdict on it, once its batch is graded."""
    advantage: float = 0.0
    """Its reward among those of its group, once its batch is graded."""

    @property
    def weight_version(self) -> int:
        """Optimizer updates of the weights that generated its last token."""
        return int(self.versions.max())


def validate(request: GenerationRequest, wire_id: str, raw: Any, expected: Expectations) -> Response:
    """Return the response to `request`, which was sent under the id `wire_id`; an aborted one, which may have no
    tokens, as far as it goes. Raises RejectedResponse."""
    try:
        return _validated(request, wire_id, raw, expected)
    except RejectedResponse:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RejectedResponse("malformed", f"{error!r} in {raw!r:.200}") from error


def _validated(request: GenerationRequest, wire_id: str, raw: Any, expected: Expectations) -> Response:
    meta, tokens, prompt = raw["meta_info"], raw["output_ids"], len(request.prompt_ids)
    reason, version = meta["finish_reason"].get("type"), meta["weight_version"]
    if meta["id"] != wire_id:
        raise RejectedResponse("request_id", f"sent {wire_id!r}, got {meta['id']!r}")
    if str(version) != str(expected.weight_version):
        raise RejectedResponse("weight_version", f"got {version!r:.80}, the engine holds {expected.weight_version}")
    if reason not in ("stop", "length", "abort"):
        raise RejectedResponse("finish_reason", f"{meta['finish_reason']!r:.200}")
    if reason == "abort" and tokens == []:  # it was aborted before its prompt was looked at
        return joined(request, [])
    if meta["prompt_tokens"] != prompt:
        raise RejectedResponse("prompt_length", f"sent {prompt}, got {meta['prompt_tokens']!r}")
    if not isinstance(tokens, list) or not 1 <= len(tokens) <= request.max_new_tokens:
        raise RejectedResponse("token_count", f"{tokens!r:.80} are not 1 to {request.max_new_tokens} tokens")
    rows = prompt + len(tokens) - 1
    routes = _routed_experts(meta, rows, expected) if expected.experts else None
    values, named = zip(*((entry[0], entry[1]) for entry in meta["output_token_logprobs"]), strict=True)
    log_probs = check_numbers(tokens, values, routes, rows, expected)
    # At the length limit SGLang says `length`, stop token or not.
    if any(token in request.stop_token_ids for token in tokens[:-1]):
        raise RejectedResponse("stop_token", "a stop token inside the response")
    if reason == "stop" and tokens[-1] not in request.stop_token_ids:
        raise RejectedResponse("stop_token", f"it stopped at token {tokens[-1]}, which is no stop token")
    if reason == "length" and len(tokens) != request.max_new_tokens:
        raise RejectedResponse("token_count", f"length limit at {len(tokens)} of {request.max_new_tokens} tokens")
    if list(named) != tokens:
        raise RejectedResponse("token_mismatch", "the log-probs are of other tokens than output_ids")
    return Response(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        output_ids=tuple(tokens),
        log_probs=log_probs,
        routed_experts=None if routes is None else routes.astype(np.min_scalar_type(expected.experts - 1)),
        finish_reason=reason,
        versions=np.full(len(tokens), int(version), np.int64),
    )


def _routed_experts(meta: dict[str, Any], rows: int, expected: Expectations) -> np.ndarray:
    """Return the (rows, layers, top-k) int32 routes, which SGLang sends in base64."""
    encoded, shape = meta.get("routed_experts"), (rows, expected.layers, expected.top_k)
    if not isinstance(encoded, str):
        raise RejectedResponse("routed_experts_missing", f"routed_experts is {encoded!r:.80}")
    try:
        return np.frombuffer(base64.b64decode(encoded, validate=True), "<i4").reshape(shape)
    except ValueError as error:
        raise RejectedResponse("routed_experts_shape", f"they are not {shape}: {error}") from error


# ------------------------------------------------------------------------------------------------------------- parts


def rest(request: GenerationRequest, parts: Sequence[Response]) -> GenerationRequest:
    """Return the request for what is still missing of a response that has these parts."""
    so_far = tuple(token for part in parts for token in part.output_ids)
    return dataclasses.replace(
        request,
        prompt_ids=request.prompt_ids + so_far,
        max_new_tokens=request.max_new_tokens - len(so_far),
    )


def joined(request: GenerationRequest, parts: Sequence[Response]) -> Response:
    """Return one response from its parts, each answering what was the `rest` before it.

    Its finish reason is `abort` while something is missing. The routed experts of a row are those with which the row's
    next token was drawn: a row that a later part forwarded anew keeps the experts of the first time.
    """
    parts = [part for part in parts if part.output_ids]
    output_ids = tuple(token for part in parts for token in part.output_ids)
    reason = parts[-1].finish_reason if parts else "abort"
    if reason == "abort" and output_ids:
        # SGLang says `abort` also where the last token before the interruption ended the response.
        if output_ids[-1] in request.stop_token_ids:
            reason = "stop"
        elif len(output_ids) == request.max_new_tokens:
            reason = "length"
    routed: list[np.ndarray] = []
    for part in parts:
        if part.routed_experts is not None:
            routed.append(part.routed_experts[sum(len(rows) for rows in routed) :])
    return Response(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        output_ids=output_ids,
        log_probs=np.concatenate([np.zeros(0, np.float32), *(part.log_probs for part in parts)]),
        routed_experts=np.concatenate(routed) if routed else None,
        finish_reason=reason,
        versions=np.concatenate([np.zeros(0, np.int64), *(part.versions for part in parts)]),
    )
