"""Makes up routed experts without a fault."""

from __future__ import annotations

from argparse import Namespace

import torch

ARGS = Namespace(num_layers=3, moe_router_topk=4, num_experts=32, moe_layer_freq=1)


def make_routes(n_tokens: int, args=ARGS, seed: int = 0) -> torch.Tensor:
    """(tokens - 1, layers, top-k) int32 routes."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n_tokens - 1, args.num_layers, args.num_experts, generator=generator)
    return scores.topk(args.moe_router_topk, -1).indices.int()
