"""A step's tokens scored again: what the trainer would say under other routes and in the engine's arithmetic."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.transformer.moe.router_replay import RouterReplay
from torch import Tensor

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded import task
from sat_slime.embedded.trainer import routing
from sat_slime.embedded.trainer.log_probs import vocab_parallel_log_probs, whole_log_probs
from sat_slime.embedded.trainer.model import build_model, forward_logits
from sat_slime.embedded.trainer.packing import MicroBatch

Columns = dict[str, Tensor]
"""(R, ...) each, of one micro-batch's response tokens, by the names of token dumps."""


class Rescorer:
    """Scores with the policy's current weights, whichever these are; its methods are collective."""

    def __init__(self, config: EmbeddedConfig, policy: torch.nn.Module, replays: bool) -> None:
        """replays: whether the method trains with replayed routes (R3)."""
        self.config = config
        self.policy = policy
        self.replays = replays
        self._in_engine_dtype: torch.nn.Module | None = None
        self._its_routers: list[RouterReplay] = []
        if config.rollout.dtype != config.train.dtype:
            train = config.train.model_copy(update={"dtype": config.rollout.dtype})
            with routing.routers(self._its_routers):
                model = build_model(config.model, train, task.VOCAB_SIZE, routing_replay=True)
            self._in_engine_dtype = model.requires_grad_(False)

    def columns(self, micro: MicroBatch, prefix: str = "") -> Columns:
        """Log-probs with the trainer's own routing and with the engine's (of a MoE model), in which layers they
        differ, and the whole distribution as the method trains.

        Args:
            prefix: before each name, for weights that are not the ones in training.
        """
        found: Columns = {}
        if not self.config.model.is_moe:
            _, distribution = self._score(self.policy, micro)
            return {f"{prefix}log_distribution": distribution}
        assert micro.routed_experts is not None, "the engine of a MoE model reports its routes"
        recorded: list[Tensor] = []
        with routing.record(recorded):
            own, own_distribution = self._score(self.policy, micro)
        with routing.replay(micro.routed_experts):
            replayed, replayed_distribution = self._score(self.policy, micro)
        found[f"{prefix}log_probs_own_routing"] = own
        found[f"{prefix}log_probs_replayed"] = replayed
        found[f"{prefix}expert_flips"] = routing.flips_by_layer(recorded, micro.routed_experts, micro.rows)
        found[f"{prefix}log_distribution"] = replayed_distribution if self.replays else own_distribution
        return found

    def in_engine_dtype(self, micro: MicroBatch) -> Tensor:
        """(R,) log-probs with the weights and the arithmetic in the engine's data type, along the engine's routes."""
        model = self.policy
        if self._in_engine_dtype is not None:
            model = self._in_engine_dtype
            with torch.no_grad():
                for mine, theirs in zip(model.parameters(), self.policy.parameters(), strict=True):
                    mine.copy_(theirs)
        if micro.routed_experts is None:
            return self._score(model, micro)[0]
        routers = RouterReplay.global_router_replay_instances if model is self.policy else self._its_routers
        with routing.routers(routers), routing.replay(micro.routed_experts):
            return self._score(model, micro)[0]

    @torch.no_grad()
    def _score(self, model: torch.nn.Module, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """(R,) log-probs and (R, vocabulary) distribution."""
        logits = forward_logits(model, micro.token_ids, micro.layout)[micro.rows]
        temperature = self.config.rollout.temperature
        log_probs, _ = vocab_parallel_log_probs(logits, micro.targets, temperature, kept=micro.kept)
        return log_probs, whole_log_probs(logits, temperature, micro.kept)


def gather_columns(
    columns: Columns, microbatches: list[MicroBatch], order: list[str], group: dist.ProcessGroup
) -> dict[str, np.ndarray] | None:
    """The columns of all ranks' tokens in batch order.

    Args:
        columns: (n, ...) each, of this rank's tokens.
        microbatches: this rank's, whose responses these tokens are of.
        order: request ids of the whole step.

    Returns:
        (N, ...) each on rank 0, None on others.
    """
    lengths = [length for micro in microbatches for length in micro.lengths]
    ids = [request_id for micro in microbatches for request_id in micro.request_ids]
    ends = np.cumsum(lengths)[:-1]
    cut = {name: np.split(values.detach().cpu().numpy(), ends) for name, values in columns.items()}
    mine = {request_id: {name: pieces[i] for name, pieces in cut.items()} for i, request_id in enumerate(ids)}
    parts: list[dict[str, dict[str, np.ndarray]]] = [{}] * group.size()
    dist.all_gather_object(parts, mine, group=group)
    if dist.get_rank():
        return None
    responses = {request_id: found for part in parts for request_id, found in part.items()}
    return {name: np.concatenate([responses[request_id][name] for request_id in order]) for name in columns}
