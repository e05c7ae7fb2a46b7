"""A response that was interrupted goes on where it ended, under whatever weights the engine then holds.

The next request has the tokens so far at the end of its prompt, so that the engine forwards them anew. So no key or
value of older weights is read from the cache, and each token's probability is that of one version of the weights, given
all tokens before it. So it is with a tool: what it wrote is a part of the response that no engine generated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from sat_slime.rollout.types import TOOL, GenerationRequest, Response


def rest(request: GenerationRequest, parts: Sequence[Response]) -> GenerationRequest:
    """Return the request for what is still missing of a response that has these parts."""
    so_far = tuple(token for part in parts for token in part.output_ids)
    return dataclasses.replace(
        request,
        prompt_ids=request.prompt_ids + so_far,
        max_new_tokens=request.max_new_tokens - len(so_far),
    )


def by_tool(request: GenerationRequest, so_far: Response, tokens: Sequence[int]) -> Response:
    """Return the part of a response that a tool wrote, after the parts that are joined in `so_far`."""
    size = request.distribution_size
    return Response(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids + so_far.output_ids,
        output_ids=tuple(tokens),
        log_probs=np.zeros(len(tokens), np.float32),
        routed_experts=None,
        finish_reason="abort",
        versions=np.full(len(tokens), TOOL, np.int64),
        # Nothing reads it, but it stands beside those of the other tokens: uniform, so that no log-prob is infinite.
        distribution=np.full((len(tokens), size), -np.log(size), np.float32) if size else None,
    )


def joined(request: GenerationRequest, parts: Sequence[Response]) -> Response:
    """Return one response from its parts, each answering what was the `rest` before it.

    Its finish reason is `abort` while something is missing. The routed experts of a row are those with which the row's
    next token was drawn: a row that a later part forwarded anew keeps the experts of the first time.
    """
    parts = [part for part in parts if part.output_ids]
    output_ids = tuple(token for part in parts for token in part.output_ids)
    reason = parts[-1].finish_reason if parts else "abort"
    if reason == "abort" and output_ids and parts[-1].versions[-1] != TOOL:
        # SGLang says `abort` also where the last token before the interruption ended the response.
        if output_ids[-1] in request.stop_token_ids:
            reason = "stop"
        elif len(output_ids) == request.max_new_tokens:
            reason = "length"
    routed: list[np.ndarray] = []
    for part in parts:
        if part.routed_experts is not None:  # a tool's tokens are forwarded first with the part behind them
            routed.append(part.routed_experts[sum(len(rows) for rows in routed) :])
    distributions = [part.distribution for part in parts if part.distribution is not None]
    return Response(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        output_ids=output_ids,
        log_probs=np.concatenate([np.zeros(0, np.float32), *(part.log_probs for part in parts)]),
        routed_experts=np.concatenate(routed) if routed else None,
        finish_reason=reason,
        versions=np.concatenate([np.zeros(0, np.int64), *(part.versions for part in parts)]),
        distribution=np.concatenate(distributions) if distributions else None,
    )
