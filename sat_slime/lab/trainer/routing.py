"""Rollout routing replay (R3, Eq. r3) through Megatron's own RouterReplay, and the comparison of two engines' routes.

RouterReplay replaces the top-k choice of each router by the given experts and gathers the current scores at them, so
the softmax is over the replayed experts' current logits and gradients reach the router. Its list of routers is global
to the process; only the policy's model is built with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from torch import Tensor


@contextmanager
def routers(registered: list[RouterReplay]) -> Iterator[None]:
    """Inside, this list is Megatron's list of routers: a model that is built registers its own with it, and `replay`
    and `record` act on them alone."""
    others = RouterReplay.global_router_replay_instances
    RouterReplay.global_router_replay_instances = registered
    try:
        yield
    finally:
        RouterReplay.global_router_replay_instances = others


@contextmanager
def replay(routed_experts: Tensor | None) -> Iterator[None]:
    """Forward passes inside use these experts.

    Args:
        routed_experts: (N, layers, top-k) int64, for every token of the row.

    Raises:
        ValueError: there are none, as from a dense model.
    """
    if routed_experts is None:
        raise ValueError("no routed experts to replay: R3 needs a MoE model and an engine that reports its routes")
    RouterReplay.set_replay_data(list(routed_experts.unbind(1)))
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    try:
        yield
    finally:
        RouterReplay.clear_global_router_replay_action()
        RouterReplay.clear_global_indices()


@contextmanager
def record(recorded: list[Tensor]) -> Iterator[None]:
    """Forward passes inside route freely; afterwards the list holds each layer's (N, top-k) choice."""
    RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
    try:
        yield
        recorded.extend(RouterReplay.get_recorded_data())
    finally:
        RouterReplay.clear_global_router_replay_action()
        RouterReplay.clear_global_indices()


def flips_by_layer(recorded: list[Tensor], routed_experts: Tensor, rows: Tensor) -> Tensor:
    """Marks the response tokens and layers that the two engines route differently.

    Args:
        recorded: from `record`.
        routed_experts: (N, layers, top-k) of the rollout engine.
        rows: (R,) places in the row that predict response tokens.

    Returns:
        (R, layers) uint8: 1 where the set of experts differs.
    """
    own_choice = torch.stack(recorded, dim=1)[rows].sort(-1).values
    return (own_choice != routed_experts[rows].sort(-1).values).any(-1).to(torch.uint8)
