"""Rollout routing replay (R3, Eq. r3) through Megatron's own RouterReplay, and the comparison of two engines' routes.

RouterReplay replaces the top-k choice of each router by the given experts and gathers the current scores at them, so
the softmax is over the replayed experts' current logits and gradients reach the router. Its list of routers is global
to the process; only the policy's model is built with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from torch import Tensor

from sat_slime.embedded.trainer.parallel import gathered


def _own_rows(tokens: int) -> slice:
    """Return the rows that this rank's routers see: with sequence parallelism only its part of the row."""
    ranks, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    return slice(tokens // ranks * rank, tokens // ranks * (rank + 1))


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
    own = routed_experts[_own_rows(len(routed_experts))]
    RouterReplay.set_replay_data(list(own.unbind(1)))
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    try:
        yield
    finally:
        RouterReplay.clear_global_router_replay_action()
        RouterReplay.clear_global_indices()


@contextmanager
def record(recorded: list[Tensor]) -> Iterator[None]:
    """Forward passes inside route freely; afterwards the list holds each layer's (own tokens, top-k) choice."""
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
        recorded, routed_experts, rows: as in `count_flips`.

    Returns:
        (R, layers) uint8: 1 where the set of experts differs; equal on all tensor-parallel ranks.
    """
    own_choice = torch.stack(recorded, dim=1).sort(-1).values
    replayed = routed_experts[_own_rows(len(routed_experts))].sort(-1).values
    flips = (own_choice != replayed).any(-1).to(torch.uint8)
    return torch.cat(gathered(flips, parallel_state.get_tensor_model_parallel_group()))[rows]


def count_flips(recorded: list[Tensor], routed_experts: Tensor | None, rows: Tensor) -> tuple[int, int]:
    """Counts the response tokens that the trainer and the rollout engine route differently.

    Args:
        recorded: from `record`, this rank's rows.
        routed_experts: (N, layers, top-k) of the rollout engine.
        rows: (R,) places in the row that predict response tokens.

    Returns:
        Tokens among this rank's rows whose set of experts differs in some layer, and tokens compared. Sum both over
        ranks.
    """
    assert routed_experts is not None, "the engine of a MoE model reports its routes"
    own = _own_rows(len(routed_experts))
    mine = rows[(rows >= own.start) & (rows < own.stop)] - own.start
    own_choice = torch.stack(recorded, dim=1)[mine].sort(-1).values
    replayed = routed_experts[own][mine].sort(-1).values
    return int((own_choice != replayed).flatten(1).any(1).sum()), len(mine)
