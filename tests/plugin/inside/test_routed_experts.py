"""Routes are checked and narrowed as they arrive, and compared within the responses to a prompt."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from synthetic_routes import ARGS, make_routes

from sat_slime.plugin.inside.routed_experts import joined, narrow, routed_layers, stand_in, strangers
from sat_slime.rollout.validation import Expectations, RejectedResponse, check_numbers


def with_one(value: int, row: int = 5, layer: int = 1, place: int = 2) -> torch.Tensor:
    routes = make_routes(20)
    routes[row, layer, place] = value
    return routes


@pytest.mark.parametrize(
    ("experts", "dtype"), [(8, torch.uint8), (128, torch.uint8), (256, torch.uint8), (257, torch.int16)]
)
def test_narrow_routes_are_the_same_numbers_in_a_quarter_of_the_memory_or_half(experts, dtype):
    routes = torch.arange(experts, dtype=torch.int32).reshape(-1, 1, 1)
    small = narrow(routes, experts)
    assert small.dtype == dtype
    assert torch.equal(small.int(), routes)
    assert small.nbytes * (4 if dtype == torch.uint8 else 2) == routes.nbytes
    assert narrow(small, experts) is small


def test_narrow_routes_hold_no_memory_of_the_wide_ones():
    wide = make_routes(200)
    assert narrow(wide, 32).untyped_storage().nbytes() == wide.untyped_storage().nbytes() // 4


@pytest.mark.parametrize("value", [-1, 32, 300, 2**31 - 1])
def test_what_a_narrow_type_would_wrap_around_is_refused(value):
    with pytest.raises(ValueError, match=r"not in \[0, 32\)"):
        narrow(with_one(value), 32)


WHOLE = make_routes(20)
PIECES = {
    "tensor": WHOLE,
    "array": WHOLE.numpy(),
    "nested lists": WHOLE.tolist(),
    "list of rows": list(WHOLE),
    "chunks": [WHOLE[:7], WHOLE[7:8], WHOLE[8:]],
    "chunks of lists": [WHOLE[:7].tolist(), WHOLE[7:].tolist()],
    "arrays of another type": [WHOLE[:7].numpy().astype("u2"), WHOLE[7:].numpy().astype("u2")],
}


@pytest.mark.parametrize("routes", PIECES.values(), ids=PIECES)
def test_routes_in_pieces_are_joined(routes):
    assert torch.equal(joined(routes, 3, 4).int(), WHOLE)


@pytest.mark.parametrize(
    "routes",
    [
        [WHOLE[:7], WHOLE[7:, :2]],
        [WHOLE[:7], None],
        [WHOLE, [[1, 2], [3]]],
        [],
        WHOLE.flatten(),
        WHOLE[..., :3],
        WHOLE.float(),
        "AAAA",
        {"routes": WHOLE},
        torch.tensor(3),
    ],
)
def test_what_is_no_routes_is_refused(routes):
    with pytest.raises(RejectedResponse, match=r"^routed_experts_shape: [^\n]+$"):
        joined(routes, 3, 4)


def test_every_second_layer_may_have_a_router():
    assert routed_layers(Namespace(num_layers=5, moe_layer_freq=2)) == [0, 2, 4]


@pytest.mark.parametrize("experts", [6, 32, 256, 384])
def test_what_stands_in_for_bad_routes_has_no_fault(experts):
    args = Namespace(**{**vars(ARGS), "num_experts": experts})
    expected = Expectations(None, args.num_layers, experts, args.moe_router_topk)
    check_numbers([], [], stand_in(500, args).numpy(), 499, expected)
    assert len(stand_in(500, args).unique()) == experts


def make_group(prompts: list[int], versions: list[str] | None = None) -> list[SimpleNamespace]:
    """Responses of different lengths to one prompt of 30 tokens; the routes are of prompt text number `prompts[i]`."""
    group = []
    for i, text in enumerate(prompts):
        response = 10 + i
        routes = torch.cat([make_routes(31, seed=text), make_routes(response, seed=100 + i)])
        group.append(
            SimpleNamespace(
                index=i,
                tokens=list(range(30)) + [i] * response,
                response_length=response,
                rollout_routed_experts=narrow(routes, 32),
                remove_sample=False,
                weight_versions=[versions[i] if versions else "0"],
            )
        )
    return group


def found_in(group) -> list[int]:
    return [sample.index for sample in strangers(group, range(3))]


def test_a_prompt_is_routed_alike_in_all_its_responses():
    assert found_in(make_group([0] * 8)) == []


def test_routes_of_another_text_are_found():
    assert found_in(make_group([0, 0, 0, 1, 0, 0])) == [3]
    assert found_in(make_group([1, 0, 0, 0])) == [0]
    assert found_in(make_group([0, 1])) == [1]
    assert found_in(make_group([0, 1, 2])) == [0, 1, 2]


def test_flips_by_rounding_and_another_order_are_no_other_text():
    group = make_group([0, 0, 0])
    routes = group[1].rollout_routed_experts
    routes[:] = routes.flip(-1)
    flipped = group[2].rollout_routed_experts
    flipped[:30:4, 0] = make_routes(31, seed=9)[::4, 0].to(flipped.dtype)
    assert found_in(group) == []


def test_other_weights_and_other_prompts_are_not_compared():
    assert found_in(make_group([0, 0, 1, 1], ["0", "0", "8", "8"])) == []
    group = make_group([0, 1])
    group[1].tokens[0] = 7
    assert found_in(group) == []


def test_samples_that_are_left_out_do_not_judge():
    group = make_group([0, 1])
    group[1].remove_sample = True
    assert found_in(group) == []
