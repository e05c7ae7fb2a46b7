"""Samples and arguments as slime's rollout process hands them to the hooks."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import slime_step
import torch


def make_args(**other: Any) -> Namespace:
    settings = {
        "sat_slime": {"method": {"r3": True}},
        "custom_rollout_log_function_path": None,
        "use_rollout_routing_replay": True,
        "num_layers": 3,
        "moe_router_topk": 4,
        "num_experts": 32,
        "moe_layer_freq": 1,
        "use_rollout_logprobs": True,
        "n_samples_per_prompt": 4,
        "global_batch_size": 32,
    }
    return slime_step.make_args(**(settings | other))


def make_sample(sample_class, index: int = 0, response: int = 10, version: str = "3", **other: Any):
    """A response to prompt `index // 4`, which has 10 tokens, with good routes."""
    group = index // 4
    routes = torch.cat([make_routes(11, seed=group), make_routes(response, seed=1000 + index)])
    fields = {
        "index": index,
        "group_index": group,
        "rollout_id": index,
        "tokens": [group] * 10 + [50 + index] * response,
        "response_length": response,
        "reward": float(index % 2),
        "status": sample_class.Status.COMPLETED,
        "rollout_routed_experts": routes,
        "rollout_log_probs": [-0.5] * response,
        "weight_versions": [version],
    }
    return sample_class(**(fields | other))


ROUTED = Namespace(num_layers=3, moe_router_topk=4, num_experts=32)


def make_routes(n_tokens: int, args: Namespace = ROUTED, seed: int = 0) -> torch.Tensor:
    """(tokens - 1, layers, top-k) int32 routes without a fault."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n_tokens - 1, args.num_layers, args.num_experts, generator=generator)
    return scores.topk(args.moe_router_topk, -1).indices.int()
