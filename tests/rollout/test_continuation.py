"""An interrupted response, asked for in parts and put together."""

import dataclasses

import numpy as np
import pytest
from fake_sglang import response

from sat_slime.rollout.continuation import by_tool, joined, rest
from sat_slime.rollout.types import TOOL, GenerationRequest
from sat_slime.rollout.validation import Expectations, RejectedResponse, validate

REQUEST = GenerationRequest("a", (1, 2, 3), max_new_tokens=9, temperature=1.0, seed=5, stop_token_ids=())


def part(request, tokens: int, version: int, aborted: bool = True):
    """What an engine says of `request` after so many tokens of the version's weights."""
    raw = response("a#0", list(request.prompt_ids), dataclasses.asdict(_sampling(request, tokens)), str(version))
    if aborted:
        raw["meta_info"]["finish_reason"] = {"type": "abort", "message": "Aborted"}
    expected = Expectations(vocab_size=16, layers=2, experts=8, top_k=2, weight_version=version)
    return validate(request, "a#0", raw, expected, interruptible=True)


@dataclasses.dataclass
class _Sampling:
    sampling_seed: int
    max_new_tokens: int
    stop_token_ids: list[int]


def _sampling(request, tokens: int) -> _Sampling:
    return _Sampling(request.seed + len(request.prompt_ids), tokens, [])


def nothing(request, version: int):
    """An answer to a request that was aborted while it waited, as SGLang gives it."""
    meta = {"id": "a#0", "finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}
    meta |= {"weight_version": str(version), "output_token_logprobs": [], "completion_tokens": 0}
    expected = Expectations(vocab_size=16, layers=2, experts=8, top_k=2, weight_version=version)
    return validate(request, "a#0", {"text": "", "output_ids": [], "meta_info": meta}, expected, interruptible=True)


def test_the_rest_has_the_tokens_so_far_in_its_prompt():
    first = part(REQUEST, 4, 0)
    assert rest(REQUEST, []) == REQUEST
    after = rest(REQUEST, [nothing(REQUEST, 0), first])
    assert after.prompt_ids == REQUEST.prompt_ids + first.output_ids
    assert (after.max_new_tokens, after.seed, after.request_id) == (5, 5, "a")


def test_distributions_are_joined_too():
    halves = [part(REQUEST, 4, 0), nothing(REQUEST, 0), part(rest(REQUEST, [part(REQUEST, 4, 0)]), 5, 1, aborted=False)]
    tables = [np.full((len(half.output_ids), 16), i, np.float32) for i, half in enumerate(halves)]
    told = [
        dataclasses.replace(half, distribution=table if half.output_ids else None)
        for half, table in zip(halves, tables, strict=True)
    ]
    assert joined(REQUEST, told).distribution[:, 0].tolist() == [0] * 4 + [2] * 5
    assert joined(REQUEST, halves).distribution is None


def test_parts_become_one_response_that_knows_the_version_of_each_token():
    parts = [nothing(REQUEST, 0), part(REQUEST, 4, 0)]
    assert joined(REQUEST, parts).finish_reason == "abort"
    parts += [part(rest(REQUEST, parts), 3, 2), nothing(rest(REQUEST, parts), 3)]
    parts.append(part(rest(REQUEST, parts), 2, 7, aborted=False))
    whole = joined(REQUEST, parts)
    assert whole.versions.tolist() == [0] * 4 + [2] * 3 + [7] * 2 and whole.weight_version == 7
    assert (whole.request_id, whole.prompt_ids, whole.finish_reason) == ("a", (1, 2, 3), "length")
    assert whole.output_ids == sum((p.output_ids for p in parts), ())
    np.testing.assert_array_equal(whole.log_probs, np.concatenate([p.log_probs for p in parts]))
    # Each row has the experts of the pass that drew its next token; rows forwarded anew keep their first.
    assert whole.routed_experts.shape == (3 + 9 - 1, 2, 2) and whole.routed_experts.dtype == np.uint8
    np.testing.assert_array_equal(whole.routed_experts[:6], parts[1].routed_experts)
    np.testing.assert_array_equal(whole.routed_experts[6:9], parts[2].routed_experts[-3:])
    np.testing.assert_array_equal(whole.routed_experts[9:], parts[4].routed_experts[-2:])


def test_a_dense_models_parts_have_no_experts():
    parts = [dataclasses.replace(part(REQUEST, 4, 0), routed_experts=None)]
    parts.append(dataclasses.replace(part(rest(REQUEST, parts), 5, 1, aborted=False), routed_experts=None))
    assert joined(REQUEST, parts).routed_experts is None


def test_an_interruption_at_the_last_token_leaves_nothing_to_ask_for():
    assert joined(REQUEST, [part(REQUEST, 9, 0)]).finish_reason == "length"
    stopped = part(REQUEST, 4, 0)
    ends = dataclasses.replace(REQUEST, stop_token_ids=(stopped.output_ids[-1],))
    assert joined(ends, [stopped]).finish_reason == "stop"


def test_who_was_not_interrupted_takes_no_part():
    raw = response("a#0", [1, 2, 3], dataclasses.asdict(_sampling(REQUEST, 4)), "0")
    raw["meta_info"]["finish_reason"] = {"type": "abort", "message": "Aborted"}
    expected = Expectations(vocab_size=16, layers=2, experts=8, top_k=2, weight_version=0)
    with pytest.raises(RejectedResponse, match="finish_reason"):
        validate(REQUEST, "a#0", raw, expected)
    with pytest.raises(RejectedResponse, match="weight_version"):
        validate(REQUEST, "a#0", raw, dataclasses.replace(expected, weight_version=1), interruptible=True)


def test_a_tools_tokens_are_a_part_that_no_weights_generated():
    """Two turns of weights 3 and 4, the second cut off within: its rest is of weights 5."""
    first = part(REQUEST, 2, 3)
    tool = by_tool(REQUEST, joined(REQUEST, [first]), (7, 8))
    assert tool.prompt_ids == rest(REQUEST, [first]).prompt_ids
    assert joined(REQUEST, [first, tool]).finish_reason == "abort", "the model goes on"
    ends = dataclasses.replace(REQUEST, stop_token_ids=(8,))
    assert joined(ends, [first, tool]).finish_reason == "abort", "whatever the tool wrote"
    second = part(rest(REQUEST, [first, tool]), 2, 4)
    assert second.prompt_ids == REQUEST.prompt_ids + first.output_ids + (7, 8)
    third = part(rest(REQUEST, [first, tool, second]), 3, 5, aborted=False)
    whole = joined(REQUEST, [first, tool, second, third])
    assert whole.output_ids == (*first.output_ids, 7, 8, *second.output_ids, *third.output_ids)
    assert whole.versions.tolist() == [3] * 2 + [TOOL] * 2 + [4] * 2 + [5] * 3 and whole.weight_version == 5
    assert whole.log_probs[2:4].tolist() == [0, 0] and (np.delete(whole.log_probs, [2, 3]) < 0).all()
    # The rows of the tool's tokens, and the one that drew its first, are those of the pass that read them.
    assert len(whole.routed_experts) == 3 + 9 - 1
    np.testing.assert_array_equal(whole.routed_experts[:4], first.routed_experts)
    np.testing.assert_array_equal(whole.routed_experts[4:8], second.routed_experts[4:])
    np.testing.assert_array_equal(whole.routed_experts[8:], third.routed_experts[8:])


def test_a_tools_distribution_is_finite():
    request = dataclasses.replace(REQUEST, distribution_size=16)
    tool = by_tool(request, joined(request, [part(REQUEST, 2, 3)]), (7, 8))
    np.testing.assert_allclose(np.exp(tool.distribution).sum(1), 1, rtol=1e-6)
