"""Narrow routes replay as slime's own, and routes that are a token off are caught: on slime's functions, and on a
small model of its patched Megatron."""

from __future__ import annotations

import base64
import importlib.util
import os
import tempfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import slime_moe
import torch
import torch.multiprocessing as mp
from slime_host import import_slime
from slime_moe import without_pinned_memory

from sat_slime.plugin.inside import routing_check, shared_routes
from sat_slime.plugin.inside.routed_experts import narrow
from sat_slime.plugin.inside.routing_check import Agreement

E, K = 32, 4


def choices(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, E, generator=torch.Generator().manual_seed(seed)).topk(K, 1).indices


def judge(own, replayed, **options) -> dict[str, float]:
    agreement = Agreement()
    agreement.add(own, replayed, E)
    return agreement.verdict(3, **{"must_have_replayed": True, **options})


def test_routes_of_their_own_tokens_agree():
    assert judge(choices(500), choices(500)) == {"routing/agreement": 1.0}


def test_the_order_of_a_tokens_experts_does_not_matter():
    assert judge(choices(500), choices(500).flip(1)) == {"routing/agreement": 1.0}


def test_flips_lower_the_agreement():
    replayed = choices(1000).clone()
    replayed[::2, 0] = (replayed[::2, 0] + 1) % E
    found = judge(choices(1000), replayed)["routing/agreement"]
    assert 1 - found == pytest.approx(0.5 / K, abs=0.03)


@pytest.mark.parametrize("shift", [1, -1])
def test_routes_that_are_a_token_off_are_refused(shift):
    with pytest.raises(RuntimeError, match=r"^rollout 3: the replayed experts are off by one token: .*\n?$"):
        judge(choices(500), choices(500).roll(shift, 0))


def test_routes_of_another_model_are_told(caplog):
    found = judge(choices(500), choices(500, seed=1))
    assert found["routing/agreement"] == pytest.approx(K / E, abs=0.05)
    assert "no more than by chance" in caplog.text


def test_a_text_of_one_token_is_told_and_goes_on(caplog):
    same = choices(1).expand(500, K)
    assert judge(same, same) == {"routing/agreement": 1.0}
    assert "repeat one token" in caplog.text


def test_rows_of_padding_do_not_count():
    own = torch.cat([choices(500), choices(500, seed=5)])
    padding = (torch.arange(500 * K) % E).reshape(500, K)
    assert judge(own, torch.cat([choices(500), padding])) == {"routing/agreement": 1.0}


def test_too_few_tokens_say_nothing():
    assert judge(choices(20), choices(20).roll(1, 0)) == {}
    assert judge(choices(2), choices(2), must_have_replayed=False) == {}


def test_a_replay_that_did_not_happen_is_refused():
    assert Agreement().verdict(3, must_have_replayed=False) == {}
    with pytest.raises(RuntimeError, match="no router replayed anything"):
        Agreement().verdict(3, must_have_replayed=True)


def test_the_first_microbatch_of_each_router_is_compared_and_nothing_else(monkeypatch):
    """The comparison is made in the function that slime's patch wraps around Megatron's top-k, at each call."""
    own, replayed = choices(300), choices(300, seed=1)
    calls = []

    def slime(old_compute_topk):
        def compute_topk(scores, topk, num_groups=None, group_topk=None):
            return scores.gather(1, replayed), replayed

        return compute_topk

    def megatron(scores, topk, num_groups=None, group_topk=None):
        calls.append(os.environ["ROUTING_REPLAY_STAGE"])
        return scores, own

    module = SimpleNamespace(ROUTING_REPLAY=object())
    agreement = Agreement()
    compute_topk = routing_check._watched(module, lambda: agreement, slime, megatron)
    monkeypatch.setenv("ENABLE_ROUTING_REPLAY", "1")
    first, second = module.ROUTING_REPLAY, object()
    for stage, module.ROUTING_REPLAY in [
        ("fallthrough", first),
        ("replay_forward", first),
        ("replay_forward", second),
        ("replay_forward", first),
        ("replay_backward", first),
        ("record", first),
    ]:
        monkeypatch.setenv("ROUTING_REPLAY_STAGE", stage)
        probs, top_indices = compute_topk(torch.rand(300, E), K)
        assert top_indices is replayed and probs.shape == (300, K)
    assert calls == ["replay_forward"] * 2
    assert agreement.counts()[-1] == 2 * 298 * K
    monkeypatch.setenv("ENABLE_ROUTING_REPLAY", "0")
    compute_topk(torch.rand(300, E), K)
    assert len(calls) == 2


@pytest.fixture
def slime_unchanged(monkeypatch):
    """Restores what the hooks replace in slime."""
    actor, cp_utils, routing_replay = import_slime(
        "slime.backends.megatron_utils.actor", "slime.backends.megatron_utils.cp_utils", "slime.utils.routing_replay"
    )
    for owner, name in [
        (cp_utils, "_pad_routed_experts"),
        (actor, "prepare_routed_experts_for_routing_replay"),
        (routing_replay.RoutingReplay, "pop_forward"),
        (routing_replay.RoutingReplay, "pop_backward"),
        (routing_replay.RoutingReplay, "record"),
        (routing_replay, "get_routing_replay_compute_topk"),
    ]:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(routing_replay.RoutingReplay, "all_routing_replays", [])
    without_pinned_memory(monkeypatch.setattr)


def arrive(sample_routes: torch.Tensor, args: Namespace):
    """A response as slime decodes it from SGLang's JSON."""
    from slime.utils.types import Sample

    sample = Sample(tokens=[0] * 4)
    encoded = base64.b64encode(sample_routes.numpy().astype("<i4").tobytes()).decode()
    sample.append_response_tokens(
        args,
        tokens=[0] * (len(sample_routes) - 3),
        log_probs=[0.0] * (len(sample_routes) - 3),
        meta_info={"routed_experts": encoded, "finish_reason": {"type": "stop"}, "weight_version": "0"},
    )
    return sample


LAYOUTS = [
    {},
    {"sequence_parallel": True, "tp": 4, "tp_rank": 1},
    {"cp": 2, "cp_rank": 1},
    {"allgather_cp": True, "cp": 2, "cp_rank": 0},
]


@pytest.mark.needs_slime
@pytest.mark.parametrize("experts", [60, 128, 256, 384])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "sequence parallel", "zigzag", "all-gather"])
def test_narrow_and_shared_routes_replay_to_the_bit_as_slimes_own(monkeypatch, slime_unchanged, experts, layout):
    from slime.backends.megatron_utils import actor, cp_utils
    from slime.utils.routing_replay import RoutingReplay

    mpu = {
        "get_tensor_model_parallel_world_size": layout.get("tp", 1),
        "get_tensor_model_parallel_rank": layout.get("tp_rank", 0),
        "get_context_parallel_world_size": layout.get("cp", 1),
        "get_context_parallel_rank": layout.get("cp_rank", 0),
    }
    for name, value in mpu.items():
        monkeypatch.setattr(cp_utils.mpu, name, lambda value=value: value)
    args = Namespace(num_layers=3, moe_router_topk=4, num_experts=experts)
    generator = torch.Generator().manual_seed(0)
    scores = [torch.rand(n - 1, 3, experts, generator=generator) for n in (37, 5, 90)]
    samples = [arrive(one.topk(4, -1).indices, args) for one in scores]
    wide = [sample.rollout_routed_experts for sample in samples]
    assert {routes.dtype for routes in wide} == {torch.int32}
    tokens = [torch.tensor(sample.tokens) for sample in samples]

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
            replay = RoutingReplay()
            replay.record(prepared[:, layer])
            kept += sum(getattr(indices, "nbytes", 0) for indices in replay.top_indices_list)
            popped += [replay.pop_forward(), replay.pop_backward()]
        return popped, kept

    slimes_own, wide_bytes = replayed(wide)
    routing_check.accept_narrow_routes()
    routing_check.accept_narrow_routes()
    ours, narrow_bytes = replayed([narrow(routes, experts) for routes in wide])
    assert {indices.dtype for indices in ours} == {torch.int32}
    assert all(torch.equal(one, other) for one, other in zip(ours, slimes_own, strict=True))
    assert wide_bytes == narrow_bytes * (4 if experts <= 256 else 2)
    assert all(torch.equal(one, other) for one, other in zip(replayed(wide)[0], slimes_own, strict=True))

    shared_routes.replay_from_store()
    ours, bytes_beside_the_store = replayed([narrow(routes, experts) for routes in wide])
    assert bytes_beside_the_store == 0
    assert {indices.dtype for indices in ours} == {torch.int32}
    assert all(torch.equal(one, other) for one, other in zip(ours, slimes_own, strict=True))
    assert replayed(wide)[1] == wide_bytes, "wide routes stay slime's matter"


@pytest.mark.needs_slime
def test_slime_alone_pads_narrow_routes_wrongly(slime_unchanged):
    """If slime ever pads them rightly, the hook can go."""
    from slime.backends.megatron_utils import cp_utils

    def padding(dtype, experts):
        return cp_utils._pad_routed_experts(torch.zeros(1, 48, 8, dtype=dtype), 4, experts)

    with pytest.raises((ZeroDivisionError, RuntimeError)):
        padding(torch.uint8, 256)
    assert not torch.equal(padding(torch.uint8, 60).int(), padding(torch.int32, 60))


@pytest.mark.needs_slime
def test_a_turn_that_continues_a_narrow_response_is_widened_and_narrowed_again(slime_unchanged):
    args = Namespace(num_layers=3, moe_router_topk=4, num_experts=128)
    routes = torch.rand(19, 3, 128).topk(4, -1).indices.int()
    sample = arrive(routes[:9], args)
    sample.rollout_routed_experts = narrow(sample.rollout_routed_experts, 128)
    tail = base64.b64encode(routes[7:].numpy().astype("<i4").tobytes()).decode()
    sample.append_response_tokens(
        args,
        tokens=[0] * 10,
        log_probs=[0.0] * 10,
        meta_info={"routed_experts": tail, "routed_experts_start_len": 7},
    )
    again = narrow(sample.rollout_routed_experts, 128)
    assert again.dtype == torch.uint8
    assert torch.equal(again.int(), routes)


def _megatron_has_slimes_patch() -> bool:
    try:
        spec = importlib.util.find_spec("megatron.core.transformer.moe")
    except ImportError:
        return False
    places = spec.submodule_search_locations if spec else []
    return any("get_routing_replay_compute_topk" in Path(p, "moe_utils.py").read_text() for p in places or [])


@pytest.fixture(scope="module")
def on_megatron():
    """The verdicts of the check on a small MoE model on slime's patched Megatron, from a new process."""
    if not _megatron_has_slimes_patch():
        pytest.skip("needs slime's patched Megatron-LM on PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(slime_moe.run, (folder,), nprocs=1)
        return torch.load(f"{folder}/said.pt", weights_only=False)


@pytest.mark.needs_slime
def test_megatrons_routers_agree_with_routes_of_their_tokens(on_megatron):
    assert 0.8 < on_megatron["own"]["routing/agreement"] < 1
    assert on_megatron["narrow"]["routing/agreement"] == on_megatron["own"]["routing/agreement"]


@pytest.mark.needs_slime
def test_watching_and_narrowing_change_no_logit(on_megatron):
    for name in ("own", "narrow"):
        assert torch.equal(on_megatron[name]["logits"], on_megatron["slime"]["logits"])
    assert not torch.equal(on_megatron["free"]["logits"], on_megatron["slime"]["logits"]), "the replay has an effect"


@pytest.mark.needs_slime
@pytest.mark.parametrize("shift", ["next", "before"])
def test_megatrons_routers_tell_routes_that_are_a_token_off(on_megatron, shift):
    assert "off by one token" in on_megatron[shift]["error"]


@pytest.mark.needs_slime
def test_a_forward_pass_without_replay_says_nothing(on_megatron):
    assert on_megatron["nothing"] == {}
