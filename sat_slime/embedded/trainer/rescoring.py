"""The tokens of a diagnosed step are scored again: under other routes and in the engine's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from megatron.core.transformer.moe.router_replay import RouterReplay
from torch import Tensor

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded.trainer import routing
from sat_slime.embedded.trainer.log_probs import vocab_parallel_log_probs, whole_log_probs
from sat_slime.embedded.trainer.model import build_model, forward_logits
from sat_slime.embedded.trainer.packing import MicroBatch
from sat_slime.embedded.trainer.scoring import Columns, Scorer
from sat_slime.rollout.types import Response


class Rescorer:
    """Scores again what a diagnosis compares; its methods are collective."""

    def __init__(self, config: EmbeddedConfig, scorer: Scorer, replays: bool) -> None:
        """replays: whether the method trains with replayed routes (R3)."""
        self.config = config
        self.scorer = scorer
        self.policy = scorer.policy.model
        self.replays = replays
        self._in_engine_dtype: torch.nn.Module | None = None
        self._its_routers: list[RouterReplay] = []
        if config.rollout.dtype != config.train.dtype:
            train = config.train.model_copy(update={"dtype": config.rollout.dtype})
            with routing.routers(self._its_routers):
                model = build_model(config.model, train, config.task.vocab_size, routing_replay=True)
            self._in_engine_dtype = model.requires_grad_(False)

    def of_step(self, responses: Sequence[Response], microbatches: list[MicroBatch]) -> Columns:
        """Measures what a diagnosis compares, of the step's tokens and before the step.

        Columns of the weights that generated are named checkpoint_*, the others are of the current weights.

        Args and raises: as `Scorer.under_generating_weights`.
        """

        def as_generated() -> list[Columns]:
            return [
                {
                    **self._columns(micro, "checkpoint_"),
                    "checkpoint_log_probs_engine_dtype": self._in_the_engines_dtype(micro),
                }
                for micro in microbatches
            ]

        before = self.scorer.under_generating_weights(responses, microbatches, as_generated)
        both = [{**self._columns(micro), **known} for micro, known in zip(microbatches, before, strict=True)]
        return {name: torch.cat([columns[name] for columns in both]) for name in both[0]}

    def _columns(self, micro: MicroBatch, prefix: str = "") -> Columns:
        """The whole distribution as the method trains; of a MoE model also log-probs with the trainer's own routing and
        with the engine's, and the layers in which these differ.

        Args:
            prefix: stands before each name; for weights that are not the ones in training.
        """
        columns: Columns = {}
        if not self.config.model.is_moe:
            _, distribution = self._score(self.policy, micro)
            return {f"{prefix}log_distribution": distribution}
        assert micro.routed_experts is not None, "the engine of a MoE model reports its routes"
        recorded: list[Tensor] = []
        with routing.record(recorded):
            own, own_distribution = self._score(self.policy, micro)
        with routing.replay(micro.routed_experts):
            replayed, replayed_distribution = self._score(self.policy, micro)
        columns[f"{prefix}log_probs_own_routing"] = own
        columns[f"{prefix}log_probs_replayed"] = replayed
        columns[f"{prefix}expert_flips"] = routing.flips_by_layer(recorded, micro.routed_experts, micro.rows)
        columns[f"{prefix}log_distribution"] = replayed_distribution if self.replays else own_distribution
        return columns

    def _in_the_engines_dtype(self, micro: MicroBatch) -> Tensor:
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
        log_probs, _ = vocab_parallel_log_probs(logits, micro.output_ids, temperature, kept=micro.kept)
        return log_probs, whole_log_probs(logits, temperature, micro.kept)
