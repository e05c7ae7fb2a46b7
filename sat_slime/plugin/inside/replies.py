"""Replies of the engines as slime's rollout process reads them: a response's routes (R3) never pass the JSON parser,
and are a byte each from the engine on where it sends them so (rollout/sglang_routes.py).

slime parses a reply of 32k tokens as one JSON text, of which 64 MB are routes in base64, and decodes them to int32, on
the one thread that all requests share. Here the routes are cut out of the text first, and decoded once, to the type in
which they are kept. What slime makes of a reply is the same, but where it would end the run: a log-prob of NaN, which
is null in JSON, stays one, and routes that are damaged are left out. `rollout_hooks.on_sample` refuses such samples.
"""

from __future__ import annotations

import binascii
import json
import logging
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sat_slime.plugin.compat import wrap_once
from sat_slime.plugin.inside.routed_experts import NARROW, narrow_type

logger = logging.getLogger(__name__)

KEY = b'"routed_experts":"'
"""How an engine's JSON begins the routes. In the text of a response quotes are escaped, so that it is never found
there."""


def install() -> None:
    """Has slime's functions in this process read replies so; later calls do nothing."""
    from slime.utils import http_utils, types

    wrap_once(http_utils, "_post", _post_and_cut)
    wrap_once(types, "decode_int32_meta_array", _decode_or_pass)
    wrap_once(types.Sample, "_apply_meta_info", _decode_and_apply)
    wrap_once(types, "_to_float_list", _null_is_nan)


class CuttingClient:
    """An HTTP client whose replies lack the routes; those of the last reply are kept."""

    def __init__(self, client: Any) -> None:
        self._client, self._content = client, b""
        self._routes: memoryview | None = None

    async def post(self, *positional: Any, **keywords: Any) -> Any:
        response = await self._client.post(*positional, **keywords)
        self._content = await response.aread()
        rest, self._routes = cut(self._content)

        async def aread() -> bytes:
            return rest

        return SimpleNamespace(raise_for_status=response.raise_for_status, aread=aread, aclose=response.aclose)

    def completed(self, reply: Any) -> Any:
        """Return the parsed reply with its routes, as a view of their base64."""
        if self._routes is None:
            return reply
        meta = reply.get("meta_info") if isinstance(reply, dict) else None
        if not isinstance(meta, dict) or meta.get("routed_experts") != "":
            return json.loads(self._content)  # they are elsewhere in it
        meta["routed_experts"] = self._routes
        return reply


def cut(content: bytes) -> tuple[bytes, memoryview | None]:
    """Return an engine's JSON with an empty text in the place of the routes, and a view of their base64; the JSON as it
    is, and None, where it has not exactly one text of them."""
    begin = content.find(KEY) + len(KEY)
    end = content.find(b'"', begin)
    if begin < len(KEY) or end < 0 or content.find(KEY, end) >= 0:
        return content, None
    return content[:begin] + content[end:], memoryview(content)[begin:end]


async def _post_and_cut(post: Callable[..., Any], /, client: Any, *positional: Any, **keywords: Any) -> Any:
    cutting = CuttingClient(client)
    return cutting.completed(await post(cutting, *positional, **keywords))


def decode(encoded: str | memoryview, count: int, experts: int) -> Tensor:
    """Return routes out of base64, flat: int32, or the narrow type where the engine sent that.

    Args:
        count: experts that the response's tokens have in all layers. It tells the types apart: an engine sends `count`
            numbers of one size.

    Raises:
        ValueError: it is not base64, or not so many numbers of either type.
    """
    import pybase64

    try:
        raw = pybase64.b64decode_as_bytearray(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the engine's routed experts are not base64: {error}") from error
    for dtype in (torch.int32, narrow_type(experts)):
        if len(raw) == count * dtype.itemsize:
            return torch.frombuffer(raw, dtype=dtype) if raw else torch.zeros(0, dtype=dtype)
    raise ValueError(
        f"SGLang routed_experts element count does not match sample tokens: {len(raw)} bytes, expected {count} numbers"
    )


def _decode_and_apply(
    apply_meta_info: Callable[..., None], /, sample: Any, args: Any, meta_info: Mapping[str, Any], **more: Any
) -> None:
    encoded = meta_info.get("routed_experts")
    if isinstance(encoded, (str, memoryview)) and args is not None:
        start = int(meta_info.get("routed_experts_start_len", 0) or 0)
        rows = max(0, len(sample.tokens) - 1 - start)
        try:
            routes = decode(encoded, rows * args.num_layers * args.moe_router_topk, args.num_experts)
        except ValueError as error:
            logger.warning("sat_slime: the routes of sample %s are left out: %s", sample.index, error)
            routes = None
        meta_info = {**meta_info, "routed_experts": routes}
    apply_meta_info(sample, args, meta_info, **more)


def _null_is_nan(to_floats: Callable[..., Any], values: Any) -> Any:
    nulls = isinstance(values, list) and None in values
    return to_floats([math.nan if value is None else value for value in values] if nulls else values)


def _decode_or_pass(decode_array: Callable[..., Any], meta_info: Mapping[str, Any], keys: Any) -> Any:
    value = meta_info.get(keys) if isinstance(keys, str) else None
    return value if isinstance(value, Tensor) and value.dtype in NARROW else decode_array(meta_info, keys)
