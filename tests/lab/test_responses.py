"""What is taken of SGLang's answers and what is not, and interrupted responses put together."""

import base64
import copy
import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest

from sat_slime.lab.responses import GenerationRequest, Response, joined, rest, validate
from sat_slime.rollout.validation import Expectations, RejectedResponse, check_numbers


def encoded(experts):
    """Routed experts as SGLang sends them."""
    return base64.b64encode(experts.astype("<i4").tobytes()).decode()


REQUEST = GenerationRequest("a", (1, 2, 3), max_new_tokens=6, temperature=1.0, seed=5, stop_token_ids=(15,))
EXPECTED = Expectations(vocab_size=16, layers=2, experts=8, top_k=2, weight_version=7)
# Made by hand: three prompt tokens, three output tokens, the last one a stop token.
EXPERTS = np.array([[[0, 1], [2, 3]], [[1, 0], [7, 6]], [[4, 5], [0, 7]], [[3, 1], [2, 0]], [[6, 7], [5, 4]]])
GOOD = {
    "output_ids": [4, 9, 15],
    "meta_info": {
        "id": "a#0",
        "finish_reason": {"type": "stop", "matched": 15},
        "prompt_tokens": 3,
        "weight_version": "7",
        "output_token_logprobs": [[-0.5, 4, None], [-1.25, 9, None], [-2.0, 15, None]],
        "routed_experts": encoded(EXPERTS),
    },
}


def changed(**changes):
    """GOOD with keys of meta_info, or output_ids, replaced."""
    raw = copy.deepcopy(GOOD)
    for key, value in changes.items():
        (raw if key == "output_ids" else raw["meta_info"])[key] = value
    return raw


def log_probs(*values):
    return [[value, token, None] for value, token in zip(values, GOOD["output_ids"], strict=True)]


def test_a_good_response_is_taken_over():
    result = validate(REQUEST, "a#0", GOOD, EXPECTED)
    assert (result.request_id, result.prompt_ids, result.output_ids) == ("a", (1, 2, 3), (4, 9, 15))
    assert result.log_probs.dtype == np.float32 and result.log_probs.tolist() == [-0.5, -1.25, -2.0]
    assert result.routed_experts.dtype == np.uint8 and np.array_equal(result.routed_experts, EXPERTS)
    assert (result.finish_reason, result.weight_version) == ("stop", 7)


BAD = [
    ("malformed", None),
    ("malformed", {"output_ids": [1]}),
    ("token_count", changed(output_ids="4, 9, 15")),
    ("malformed", changed(finish_reason="stop")),
    ("malformed", changed(output_token_logprobs=None)),
    ("malformed", changed(output_token_logprobs=[-0.5, -1.25, -2.0])),
    ("request_id", changed(id="b#0")),
    ("prompt_length", changed(prompt_tokens=4)),
    ("weight_version", changed(weight_version="6")),
    ("finish_reason", changed(finish_reason={"type": "error", "message": "x"})),
    ("token_count", changed(output_ids=[])),
    ("token_count", changed(output_ids=[1, 2, 3, 4, 5, 6, 15])),
    ("token_count", changed(output_token_logprobs=[[-0.5, 4, None], [-1.25, 9, None]])),
    ("token_count", changed(finish_reason={"type": "length", "length": 3})),
    ("vocab_range", changed(output_ids=[4, 16, 15])),
    ("vocab_range", changed(output_ids=[4, -1, 15])),
    ("vocab_range", changed(output_ids=[4, True, 15])),
    ("stop_token", changed(output_ids=[4, 9, 14])),
    ("stop_token", changed(output_ids=[4, 15, 15])),
    ("token_mismatch", changed(output_token_logprobs=[[-0.5, 4, None], [-1.25, 8, None], [-2.0, 15, None]])),
    ("log_prob_not_finite", changed(output_token_logprobs=log_probs(-0.5, float("nan"), -2.0))),
    ("log_prob_not_finite", changed(output_token_logprobs=log_probs(-0.5, None, -2.0))),
    ("log_prob_not_finite", changed(output_token_logprobs=log_probs(-0.5, -9999.0, -2.0))),
    ("log_prob_not_finite", changed(output_token_logprobs=log_probs(-0.5, float(np.finfo(np.float32).min), -2.0))),
    ("log_prob_positive", changed(output_token_logprobs=log_probs(-0.5, 1e-3, -2.0))),
    ("routed_experts_missing", changed(routed_experts=None)),
    ("routed_experts_shape", changed(routed_experts="?")),
    ("routed_experts_shape", changed(routed_experts=encoded(EXPERTS[:-1]))),
    ("routed_experts_shape", changed(routed_experts=encoded(EXPERTS[:, :1]))),
    ("expert_range", changed(routed_experts=encoded(np.where(EXPERTS == 7, 8, EXPERTS)))),
    ("duplicate_expert", changed(routed_experts=encoded(np.where(EXPERTS == 7, 6, EXPERTS)))),
]


@pytest.mark.parametrize(("reason", "raw"), BAD)
def test_a_bad_response_is_rejected_with_its_reason(reason, raw):
    with pytest.raises(RejectedResponse) as rejected:
        validate(REQUEST, "a#0", raw, EXPECTED)
    assert rejected.value.reason == reason


def test_routed_experts_are_read_as_they_were_sent():
    every = np.tile(np.arange(300), (5, 3, 1))
    experts = np.random.default_rng(0).permuted(every, axis=-1)[..., :4]
    sizes = dataclasses.replace(EXPECTED, layers=3, top_k=4, experts=300)
    assert np.array_equal(
        validate(REQUEST, "a#0", changed(routed_experts=encoded(experts)), sizes).routed_experts, experts
    )


@pytest.mark.parametrize(("routed", "fails"), [(None, True), ((0, 1), True), ((1,), False)])
def test_what_routes_hold_of_a_layer_without_a_router_means_nothing(routed, fails):
    routes = EXPERTS.copy()
    routes[:, 0] = 0
    expected = dataclasses.replace(EXPECTED, routed=routed)
    with pytest.raises(RejectedResponse, match="duplicate_expert") if fails else nullcontext():
        check_numbers([4, 9, 15], [-0.5, -1.25, -2.0], routes, 5, expected)


WHOLE_REQUEST = GenerationRequest("a", (1, 2, 3), max_new_tokens=9, temperature=1.0, seed=5, stop_token_ids=())


def part(request, tokens: int, version: int, aborted: bool = True):
    """What an engine says of `request` after so many tokens of the version's weights."""
    rng = np.random.default_rng(len(request.prompt_ids))
    return Response(
        request_id="a",
        prompt_ids=request.prompt_ids,
        output_ids=tuple(rng.integers(16, size=tokens).tolist()),
        log_probs=-rng.random(tokens, np.float32),
        routed_experts=rng.integers(8, size=(len(request.prompt_ids) + tokens - 1, 2, 2)).astype(np.uint8),
        finish_reason="abort" if aborted else "length",
        versions=np.full(tokens, version),
    )


def nothing(request, version: int):
    """An answer to a request that was aborted while it waited, as SGLang gives it."""
    meta = {"id": "a#0", "finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}
    meta |= {"weight_version": str(version), "output_token_logprobs": [], "completion_tokens": 0}
    expected = Expectations(vocab_size=16, layers=2, experts=8, top_k=2, weight_version=version)
    return validate(request, "a#0", {"text": "", "output_ids": [], "meta_info": meta}, expected)


def test_parts_become_one_response_that_knows_the_version_of_each_token():
    parts = [nothing(WHOLE_REQUEST, 0), part(WHOLE_REQUEST, 4, 0)]
    assert joined(WHOLE_REQUEST, parts).finish_reason == "abort"
    after = rest(WHOLE_REQUEST, parts)
    assert after.prompt_ids == WHOLE_REQUEST.prompt_ids + parts[1].output_ids
    assert (after.max_new_tokens, after.seed, after.request_id) == (5, 5, "a")
    parts += [part(rest(WHOLE_REQUEST, parts), 3, 2), nothing(rest(WHOLE_REQUEST, parts), 3)]
    parts.append(part(rest(WHOLE_REQUEST, parts), 2, 7, aborted=False))
    whole = joined(WHOLE_REQUEST, parts)
    assert whole.versions.tolist() == [0] * 4 + [2] * 3 + [7] * 2 and whole.weight_version == 7
    assert (whole.request_id, whole.prompt_ids, whole.finish_reason) == ("a", (1, 2, 3), "length")
    assert whole.output_ids == sum((p.output_ids for p in parts), ())
    np.testing.assert_array_equal(whole.log_probs, np.concatenate([p.log_probs for p in parts]))
    # Each row has the experts of the pass that drew its next token; rows forwarded anew keep their first.
    assert whole.routed_experts.shape == (3 + 9 - 1, 2, 2) and whole.routed_experts.dtype == np.uint8
    np.testing.assert_array_equal(whole.routed_experts[:6], parts[1].routed_experts)
    np.testing.assert_array_equal(whole.routed_experts[6:9], parts[2].routed_experts[-3:])
    np.testing.assert_array_equal(whole.routed_experts[9:], parts[4].routed_experts[-2:])


def test_an_interruption_at_the_last_token_leaves_nothing_to_ask_for():
    assert joined(WHOLE_REQUEST, [part(WHOLE_REQUEST, 9, 0)]).finish_reason == "length"
    stopped = part(WHOLE_REQUEST, 4, 0)
    ends = dataclasses.replace(WHOLE_REQUEST, stop_token_ids=(stopped.output_ids[-1],))
    assert joined(ends, [stopped]).finish_reason == "stop"
