"""R3: routes are checked and narrowed as they arrive, lie once on a node, replay as slime's own to the bit, and end the
run where they are a token off."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_slime import import_slime
from hook_samples import make_routes

from sat_slime.plugin import r3
from sat_slime.plugin.r3 import Agreement, narrow, stand_in
from sat_slime.rollout.validation import Expectations, RejectedResponse, check_numbers
from sat_slime.runs.ray_start import PATIENCE

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


@pytest.mark.parametrize(
    "routes", [WHOLE, WHOLE.numpy(), WHOLE.tolist(), [WHOLE[:7].numpy().astype("u2"), WHOLE[7:].numpy().astype("u2")]]
)
def test_routes_in_pieces_are_joined(routes):
    assert torch.equal(narrow(routes, ARGS).int(), WHOLE)


@pytest.mark.parametrize("routes", [[WHOLE[:7], None], [WHOLE, [[1, 2], [3]]], [], "AAAA"])
def test_what_is_no_routes_is_refused(routes):
    """Wrong shapes and numbers are among the samples of test_rollout_hooks.py."""
    with pytest.raises(RejectedResponse, match=r"^routed_experts_shape: [^\n]+$"):
        narrow(routes, ARGS)


@pytest.mark.parametrize("experts", [6, 256, 384])
def test_what_stands_in_for_bad_routes_has_no_fault(experts):
    routes = stand_in(20, Namespace(**{**vars(ARGS), "num_experts": experts}))
    check_numbers([0], [0.0], routes.numpy(), 19, Expectations(None, 3, experts, K))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_a_reply_is_read_in_the_type_that_the_engine_sent(dtype):
    """slime's own reader gets the others: a tensor, nothing, another key."""
    meta = {"routed_experts": base64.b64encode(WHOLE.to(dtype).numpy().tobytes()).decode(), "top_p": "AAAA"}
    passed = []
    read = r3._decode(lambda *given: passed.append(given), meta, "routed_experts")
    assert read.dtype == dtype and torch.equal(read.int(), WHOLE.flatten())
    for key in ("top_p", "nothing", ("a", "b")):
        r3._decode(lambda *given: passed.append(given), meta, key)
    assert [key for _, key in passed] == ["top_p", "nothing", ("a", "b")]


# ----------------------------------------------------------------------------------------------------------- the replay


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


@pytest.mark.parametrize("shift", [1, -1])
def test_routes_that_are_a_token_off_end_the_run(shift):
    with pytest.raises(RuntimeError, match=r"^the replayed experts are off by one token: [^\n]*$"):
        agreement(choices(500), choices(500).roll(shift, 0))


def test_a_text_of_one_token_and_too_few_tokens_say_nothing_of_a_shift_and_no_replay_ends_the_run():
    same = choices(1).expand(500, K)
    assert agreement(same, same) == 1
    assert agreement(choices(20), choices(20).roll(1, 0)) is None
    with pytest.raises(RuntimeError, match="no router replayed anything"):
        Agreement().metrics(None)


@pytest.fixture
def slime_unchanged(monkeypatch):
    """Restores what the plugin replaces in slime, and has its RoutingReplay work without CUDA."""
    actor, routing_replay = import_slime("slime.backends.megatron_utils.actor", "slime.utils.routing_replay")
    for owner, name in [
        (actor, "prepare_routed_experts_for_routing_replay"),
        (routing_replay.RoutingReplay, "record"),
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
def test_narrow_routes_replay_to_the_bit_as_slimes_own_and_are_copied_nowhere(
    monkeypatch, slime_unchanged, experts, layout
):
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
            kept += sum(getattr(indices, "nbytes", 0) for indices in replay.top_indices_list)
            popped += [replay.pop_forward(), replay.pop_backward()]
        return popped, kept

    slimes_own, wide_bytes = replayed(wide)
    r3.replay_from_store()
    ours, kept = replayed([narrow(routes, args) for routes in wide])
    assert kept == 0 and {indices.dtype for indices in ours} == {torch.int32}
    assert all(torch.equal(one, other) for one, other in zip(ours, slimes_own, strict=True))
    again, kept = replayed(wide)
    assert kept == wide_bytes, "wide routes stay slime's matter"
    assert all(torch.equal(one, other) for one, other in zip(again, slimes_own, strict=True))


# ------------------------------------------------------------------------------------------------- one copy on the node


@pytest.mark.parametrize(
    ("other", "by_reference"),
    [
        ({}, True),
        ({"sat_slime_driven": False}, False),
        ({"rollout_data_transport": "nixl"}, False),
        ({"custom_convert_samples_to_train_data_path": "mine.convert"}, False),
    ],
)
def test_where_our_trainer_may_not_take_them_routes_go_slimes_way(monkeypatch, other, by_reference):
    monkeypatch.setattr(r3, "is_newest", lambda: False)
    assert r3.travel_by_reference(Namespace(**{"sat_slime_driven": True} | other)) is by_reference


IN_RAY = """
import gc, pickle, tempfile
import ray, torch
from pathlib import Path
from sat_slime.plugin import r3

SIZE = 64 * 2**20

def own():
    # Memory of this process alone, in bytes: what is shared does not count.
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous")) * 1024

@ray.remote
class Rank:
    def warm_up(self): return torch.zeros(8).sum().item()
    def read(self, references):
        before = own()
        (routes,) = r3.received(ray.get(references[0])["rollout_routed_experts"])
        return int(routes[::1000].sum()), str(routes.dtype), own() - before

with tempfile.TemporaryDirectory() as folder:
    ray.init(address="local", num_cpus=3, include_dashboard=False, object_store_memory=3 * SIZE, _temp_dir=folder)
    ranks = [Rank.remote() for _ in range(2)]
    ray.get([rank.warm_up.remote() for rank in ranks])
    routes = torch.ones((SIZE // 384, 48, 8), dtype=torch.uint8)
    before = own()
    stored = r3.store(routes)
    assert torch.as_tensor(stored) is stored, "slime asks for a tensor on the way"
    assert type(stored[1:]) is torch.Tensor
    plain = pickle.loads(pickle.dumps(stored[:3]))
    assert type(pickle.loads(pickle.dumps(stored))) is torch.Tensor and torch.equal(plain, routes[:3])
    reference = ray.put({"rollout_routed_experts": [stored]})
    del stored, plain
    gc.collect()
    manager = own() - before
    said = ray.get([rank.read.remote([reference]) for rank in ranks])
    print("ray", ray.__version__, "manager", manager, "ranks", said)
    for total, dtype, grown in said:
        assert total == routes[::1000].numel() and dtype == "torch.uint8" and grown < SIZE / 4, said
    assert manager < SIZE / 4, manager
"""


@pytest.mark.engine
def test_processes_of_a_node_read_the_same_memory_on_this_version_of_ray(tmp_path, monkeypatch):
    """Neither the rollout process nor a rank has a copy of its own: all read the object store's memory."""
    for name, value in PATIENCE.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "in_ray.py"
    script.write_text(IN_RAY)
    root = Path(r3.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout
