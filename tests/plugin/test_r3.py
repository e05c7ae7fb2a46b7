"""R3: routes are checked and narrowed on arrival, replay as slime's own to the bit, and end the run where they are a
token off."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fake_slime import import_slime, make_routes

from sat_slime.plugin import r3
from sat_slime.plugin.r3 import Agreement, narrow, stand_in
from sat_slime.rollout.validation import Expectations, check_numbers

E, K = 32, 4
ARGS = Namespace(num_layers=3, moe_router_topk=K, num_experts=E, moe_layer_freq=1)

# ----------------------------------------------------------------------------------------------------------- as arrived


@pytest.mark.parametrize(("experts", "dtype"), [(8, torch.uint8), (256, torch.uint8), (257, torch.int16)])
def test_narrow_routes_are_the_same_numbers_in_memory_of_their_own(experts, dtype):
    routes = torch.arange(experts * 12, dtype=torch.int32).reshape(-1, 3, 4) % experts
    small = narrow(routes, Namespace(num_layers=3, moe_router_topk=4, num_experts=experts))
    assert small.dtype == dtype and torch.equal(small.int(), routes)
    assert small.untyped_storage().nbytes() == routes.nbytes // (4 if dtype == torch.uint8 else 2)


WHOLE = make_routes(20)


@pytest.mark.parametrize("routes", [WHOLE, WHOLE.numpy(), WHOLE.tolist()])
def test_routes_are_read_whatever_holds_them(routes):
    assert torch.equal(narrow(routes, ARGS).int(), WHOLE)


@pytest.mark.parametrize("experts", [6, 256, 384])
def test_what_stands_in_for_bad_routes_has_no_fault(experts):
    routes = stand_in(20, Namespace(**{**vars(ARGS), "num_experts": experts}))
    check_numbers([0], [0.0], routes.numpy(), 19, Expectations(None, 3, experts, K))


def choices(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, E, generator=torch.Generator().manual_seed(seed)).topk(K, 1).indices


def agreement(own, replayed) -> float | None:
    one = Agreement()
    one.add(own, replayed, E)
    return one.metrics(None).get("routing/agreement")


def test_agreement_is_of_a_tokens_experts_in_any_order_and_without_padding():
    assert agreement(choices(500), choices(500)) == agreement(choices(500), choices(500).flip(1)) == 1
    assert agreement(choices(500), choices(500, seed=1)) == pytest.approx(K / E, abs=0.05)
    replayed = choices(1000).clone()
    replayed[::2, 0] = (replayed[::2, 0] + 1) % E
    assert 1 - agreement(choices(1000), replayed) == pytest.approx(0.5 / K, abs=0.03)
    padding = (torch.arange(500 * K) % E).reshape(500, K)
    assert agreement(torch.cat([choices(500), choices(500, seed=5)]), torch.cat([choices(500), padding])) == 1
    assert agreement(choices(500), padding) is None, "a sequence-parallel rank behind the last token"


@pytest.mark.parametrize("shift", [1, -1])
def test_routes_that_are_a_token_off_end_the_run(shift):
    with pytest.raises(RuntimeError, match=r"^the replayed experts are off by one token: [^\n]*$"):
        agreement(choices(500), choices(500).roll(shift, 0))


def test_a_text_of_one_token_and_too_few_tokens_say_nothing_of_a_shift():
    same = choices(1).expand(500, K)
    assert agreement(same, same) == 1
    assert agreement(choices(20), choices(20).roll(1, 0)) is None


@pytest.fixture
def slime_unchanged(monkeypatch):
    """Restores what the plugin replaces in slime, and has its RoutingReplay work without CUDA."""
    actor, routing_replay = import_slime("slime.backends.megatron_utils.actor", "slime.utils.routing_replay")
    for owner, name in [
        (actor, "prepare_routed_experts_for_routing_replay"),
        (routing_replay, "get_routing_replay_compute_topk"),
    ]:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(routing_replay.RoutingReplay, "all_routing_replays", [])

    class Torch:
        cuda = SimpleNamespace(current_device=lambda: "cpu")

        def __getattr__(self, name):
            return getattr(torch, name)

        def empty_like(self, tensor, **_):
            return torch.empty_like(tensor)

    monkeypatch.setattr(routing_replay, "torch", Torch())
    if hasattr(routing_replay, "accelerator"):  # only slime after v0.3.1 has it
        monkeypatch.setattr(routing_replay, "accelerator", SimpleNamespace(current_device=lambda: "cpu"))
    return routing_replay


@pytest.mark.needs_slime
@pytest.mark.parametrize("experts", [60, 256, 384])
@pytest.mark.parametrize(
    "layout",
    [{}, {"sequence_parallel": True, "tp": 4, "tp_rank": 1}, {"cp": 2, "cp_rank": 1}, {"allgather_cp": True, "cp": 2}],
    ids=["plain", "sequence parallel", "zigzag", "all-gather"],
)
def test_narrow_routes_replay_to_the_bit_as_slimes_own(monkeypatch, slime_unchanged, experts, layout):
    from slime.backends.megatron_utils import actor, cp_utils

    mpu = {
        "get_tensor_model_parallel_world_size": layout.get("tp", 1),
        "get_tensor_model_parallel_rank": layout.get("tp_rank", 0),
        "get_context_parallel_world_size": layout.get("cp", 1),
        "get_context_parallel_rank": layout.get("cp_rank", 0),
    }
    for name, value in mpu.items():
        monkeypatch.setattr(cp_utils.mpu, name, lambda value=value: value)
    args = Namespace(num_layers=3, moe_router_topk=4, num_experts=experts)
    wide = [make_routes(n, args, seed=n) for n in (37, 5, 90)]
    tokens = [torch.zeros(len(routes) + 1) for routes in wide]

    def replayed(routes):
        """The routes that routers get in the forward and the backward pass, and the bytes that are kept for them."""
        prepared = actor.prepare_routed_experts_for_routing_replay(
            routes,
            tokens,
            num_experts=experts,
            data_pad_size_multiplier=16,
            sequence_parallel=layout.get("sequence_parallel", False),
            allgather_cp=layout.get("allgather_cp", False),
        )
        popped, kept = [], 0
        for layer in range(3):
            replay = slime_unchanged.RoutingReplay()
            replay.record(prepared[:, layer])
            kept += sum(indices.nbytes for indices in replay.top_indices_list)
            popped += [replay.pop_forward(), replay.pop_backward()]
        return popped, kept

    slimes_own, wide_bytes = replayed(wide)
    r3.lay_out_narrow()
    small = [narrow(routes, args) for routes in wide]
    ours, kept = replayed(small)
    assert kept == wide_bytes * small[0].element_size() // 4
    assert {indices.dtype for indices in ours} == {torch.int32}
    assert all(torch.equal(one, other) for one, other in zip(ours, slimes_own, strict=True))
