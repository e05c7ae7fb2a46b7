"""Replies are read as slime reads them, routes aside, which are narrow where the engine sent them so."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from argparse import Namespace

import httpx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic_routes import ARGS, make_routes

from sat_slime.plugin.inside import replies
from sat_slime.plugin.inside.replies import decode


def encoded(routes: torch.Tensor) -> str:
    return base64.b64encode(routes.numpy().tobytes()).decode()


class Client:
    """An HTTP client that gets `content`."""

    def __init__(self, content: bytes):
        self.content = content

    async def post(self, url, **_):
        return httpx.Response(200, content=self.content, request=httpx.Request("POST", url))


def parsed(content: bytes):
    """What slime's _post makes of a reply, cut."""

    async def post(client, url):
        response = await client.post(url)
        response.raise_for_status()
        return json.loads(await response.aread())

    return asyncio.run(replies._post_and_cut(post, Client(content), "http://engine"))


@given(st.text(), st.binary(max_size=40))
def test_a_reply_is_parsed_as_json_does_whatever_its_text(text, routes):
    meta = {"routed_experts": base64.b64encode(routes).decode(), "id": "x"}
    reply = {"text": text + '"routed_experts":"', "meta_info": meta}
    for content in (json.dumps(reply, separators=(",", ":")).encode(), json.dumps(reply).encode()):
        found = parsed(content)
        experts = found["meta_info"]["routed_experts"]
        found["meta_info"]["routed_experts"] = experts if isinstance(experts, str) else bytes(experts).decode()
        assert found == json.loads(content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"routed_experts":"QUI="}',
        b'[{"meta_info":{"routed_experts":"QUI="}},{"meta_info":{"routed_experts":"QUI="}}]',
        b'{"meta_info":{"deep":{"routed_experts":"QUI="}}}',
        b'{"meta_info":{"routed_experts":null}}',
        b'"text"',
    ],
)
def test_other_json_is_as_it_was(content):
    assert parsed(content) == json.loads(content)


@pytest.mark.parametrize("content", [b'{"meta_info":{"routed_experts":"QUI', b"Internal Server Error"])
def test_what_is_no_json_raises_as_before(content):
    with pytest.raises(json.JSONDecodeError):
        parsed(content)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_routes_are_decoded_in_the_type_in_which_they_came(dtype):
    routes = make_routes(12).to(dtype)
    for form in (encoded(routes), memoryview(encoded(routes).encode())):
        found = decode(form, routes.numel(), ARGS.num_experts)
        assert found.dtype == dtype and torch.equal(found, routes.flatten())


@pytest.mark.parametrize(
    ("form", "message"),
    [(encoded(make_routes(12))[:-8], "element count does not match"), ("AAA", "not base64"), ("A*==", "not base64")],
)
def test_damaged_routes_are_refused(form, message):
    with pytest.raises(ValueError, match=message):
        decode(form, make_routes(12).numel(), 32)


@pytest.mark.needs_slime
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_slimes_sample_takes_both_and_goes_on_with_a_turn(monkeypatch, dtype):
    from slime.utils import http_utils, types

    functions = [(types, "decode_int32_meta_array"), (types.Sample, "_apply_meta_info"), (types, "_to_float_list")]
    for owner, name in ((http_utils, "_post"), *functions):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    replies.install()
    replies.install()
    args = Namespace(**vars(ARGS))
    routes = make_routes(20).to(dtype)
    sample = types.Sample(tokens=[0] * 4)
    first = {"routed_experts": encoded(routes[:9]), "finish_reason": {"type": "stop"}, "weight_version": "3"}
    sample.append_response_tokens(args, tokens=[0] * 6, log_probs=[0.0] * 6, meta_info=first)
    assert sample.weight_versions == ["3"] and sample.rollout_routed_experts.dtype == dtype
    more = {"routed_experts": encoded(routes[7:]), "routed_experts_start_len": 7}
    sample.append_response_tokens(args, tokens=[0] * 10, log_probs=[0.0] * 10, meta_info=more)
    assert torch.equal(sample.rollout_routed_experts, routes)
    damaged = {"routed_experts": encoded(routes)}
    sample.append_response_tokens(args, tokens=[0], log_probs=[None], meta_info=damaged)
    assert torch.equal(sample.rollout_routed_experts, routes), "one row too few: the sample is refused"
    assert sample.rollout_log_probs[:-1] == [0.0] * 16 and math.isnan(sample.rollout_log_probs[-1])
