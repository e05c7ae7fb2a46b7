"""A response that was interrupted goes on where it ended, under whatever weights the engine then holds.

The next request has the tokens so far at the end of its prompt, so that the engine forwards them anew. So no key or
value of older weights is read from the cache, and each token's probability is that of one version of the weights, given
all tokens before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from sat_slime.rollout.types import GenerationRequest, Response


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
    routed = [
        part.routed_experts[len(part.prompt_ids) - 1 if i else 0 :]
        for i, part in enumerate(parts)
        if part.routed_experts is not None
    ]
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
