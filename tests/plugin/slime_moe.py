"""Runs a small MoE model on slime's patched Megatron, whose routers replay what an engine is said to have chosen."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch

from sat_slime.plugin.inside import routing_check
from sat_slime.plugin.inside.routed_experts import narrow


def without_pinned_memory(put: Any) -> None:
    """Makes slime's RoutingReplay work without CUDA. `put` is pytest's monkeypatch.setattr, or setattr."""
    from slime.utils import routing_replay

    class Torch:
        cuda = SimpleNamespace(current_device=lambda: "cpu")

        def __getattr__(self, name):
            return getattr(torch, name)

        def empty_like(self, tensor, **_):
            return torch.empty_like(tensor)

    put(routing_replay, "torch", Torch())
    accelerator = SimpleNamespace(current_device=lambda: "cpu")
    if hasattr(routing_replay, "accelerator"):  # only slime after v0.3.1 has it
        put(routing_replay, "accelerator", accelerator)


def run(_rank: int, folder: str) -> None:
    """Writes the verdict of the check on each kind of routes, and the logits, to folder/said.pt."""
    os.environ |= {"ENABLE_ROUTING_REPLAY": "1", "ROUTING_REPLAY_STAGE": "record"}
    from sat_slime.config.schema import LabConfig
    from sat_slime.lab import model as lab_model
    from sat_slime.lab.model import PackedLayout, build_model, forward_logits

    config = LabConfig.model_validate(
        {
            "model": {
                "hidden_size": 32,
                "attention_heads": 4,
                "kv_heads": 2,
                "head_dim": 8,
                "experts": 16,
                "experts_per_token": 4,
                "ffn_size": 32,
                "layers": 3,
            }
        }
    )
    lab_model.initialize()
    from slime.backends.megatron_utils import cp_utils
    from slime.utils import distributed_utils
    from slime.utils.routing_replay import RoutingReplay

    distributed_utils.init_gloo_group()
    without_pinned_memory(setattr)
    torch.manual_seed(0)
    model = build_model(config.model, config.train, 64)
    lengths = [120, 80]
    padding = -sum(lengths) % 64
    tokens = torch.cat([torch.randint(64, (sum(lengths),)), torch.zeros(padding, dtype=torch.long)])
    layout = PackedLayout.of([*lengths, padding])
    routers = RoutingReplay.all_routing_replays

    @torch.no_grad()
    def forward(stage: str) -> torch.Tensor:
        os.environ["ROUTING_REPLAY_STAGE"] = stage
        return forward_logits(model, tokens, layout)

    forward("record")
    engine = torch.stack([router.top_indices_list[0] for router in routers], 1).int()
    RoutingReplay.clear_all()
    samples = list(engine[: sum(lengths)].split(lengths))
    for parameter in model.parameters():  # as if some steps later
        parameter.data += 0.002 * torch.randn_like(parameter)

    def replay(routes: list[torch.Tensor]) -> dict:
        prepared = cp_utils.prepare_routed_experts_for_routing_replay(
            routes,
            list(tokens[: sum(lengths)].split(lengths)),
            num_experts=16,
            data_pad_size_multiplier=64,
            sequence_parallel=False,
            allgather_cp=False,
        )
        RoutingReplay.clear_all()
        for layer, router in enumerate(routers):
            router.record(prepared[:, layer])
        agreement.append(routing_check.Agreement())
        said = {"logits": forward("replay_forward")}
        try:
            said |= agreement[-1].verdict(0, must_have_replayed=True)
        except RuntimeError as error:
            said["error"] = str(error)
        return said

    own = [routes[:-1] for routes in samples]
    agreement: list[routing_check.Agreement] = []
    said = {"slime": replay(own)}  # no hook is installed yet
    routing_check.accept_narrow_routes()
    routing_check.watch(lambda: agreement[-1])
    said["own"] = replay(own)
    said["narrow"] = replay([narrow(routes, 16) for routes in own])
    said["next"] = replay([torch.cat([routes[1:], routes[:1]]) for routes in own])
    said["before"] = replay([torch.cat([routes[:1], routes[:-1]]) for routes in own])
    said["free"] = {"logits": forward("fallthrough")}
    agreement.append(routing_check.Agreement())
    forward("fallthrough")
    said["nothing"] = agreement[-1].verdict(0, must_have_replayed=False)
    torch.save(said, f"{folder}/said.pt")
