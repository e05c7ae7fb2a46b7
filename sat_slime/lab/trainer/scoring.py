"""Log-probs of responses: under the policy's current weights, under those that generated each token, and, of a
diagnosed step, under other routes and in the engine's arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from megatron.core.transformer.moe.router_replay import RouterReplay
from torch import Tensor

from sat_slime.config.schema import LabConfig
from sat_slime.lab.trainer import parallel, routing
from sat_slime.lab.trainer.log_probs import Wanted, token_log_probs, whole_log_probs
from sat_slime.lab.trainer.model import build_model, forward_logits
from sat_slime.lab.trainer.packing import MicroBatch
from sat_slime.lab.trainer.policy import PolicyState
from sat_slime.objective import Method
from sat_slime.rollout.types import TOOL

Columns = dict[str, Tensor]
"""Measurements of each token: one tensor (tokens, ...) for each name of a token dump."""


class Scores(NamedTuple):
    """The result of a forward pass over the R response tokens of a micro-batch."""

    log_probs: Tensor
    """(R,) log pi."""
    entropy: Tensor | None
    """(R,) nats, where wanted."""
    head: Tensor | None
    """(R, vocabulary) log pi of every token, where wanted; -inf outside the nucleus under top-p mask replay."""


class Scorer:
    """Scores micro-batches, routing as the method does."""

    def __init__(self, policy: PolicyState, method: Method, temperature: float) -> None:
        """temperature: of the rollout, which the trainer's policy has too."""
        self.policy = policy
        self._replays = method.routing_replay
        self._temperature = temperature

    def score(
        self,
        model: torch.nn.Module,
        micro: MicroBatch,
        *,
        replay: bool,
        entropy: Wanted = "none",
        head: bool = False,
    ) -> Scores:
        """Return log-probs of the response tokens, with a gradient, and what else is wanted; see `token_log_probs` and,
        for `head`, `whole_log_probs`.

        Args:
            replay: route as the rollout engine did (R3), else freely.
        """
        with routing.replay(micro.routed_experts) if replay else nullcontext():
            logits = forward_logits(model, micro.token_ids, micro.layout)[micro.rows]
        log_probs, nats = token_log_probs(logits, micro.output_ids, self._temperature, entropy=entropy, kept=micro.kept)
        whole = whole_log_probs(logits.detach(), self._temperature, micro.kept) if head else None
        return Scores(log_probs, nats, whole)

    @torch.no_grad()
    def policy_log_probs(self, microbatches: list[MicroBatch]) -> list[Tensor]:
        """Return (R,) log pi of each micro-batch under the policy's current weights."""
        return [self.score(self.policy.model, micro, replay=self._replays).log_probs for micro in microbatches]

    @torch.no_grad()
    def reference_log_probs(self, micro: MicroBatch) -> Tensor | None:
        """Return (R,) log-probs under the reference model, which routes freely; None where the loss has no KL."""
        if self.policy.reference is None:
            return None
        return self.score(self.policy.reference, micro, replay=False).log_probs

    def checkpoint_log_probs(self, microbatches: list[MicroBatch]) -> list[Tensor]:
        """Return (R,) log pi_l of each micro-batch: under the weights that generated each token (Eq. split). Raises as
        `under_generating_weights`."""

        def score() -> list[Columns]:
            return [{"pi_l": log_probs} for log_probs in self.policy_log_probs(microbatches)]

        return [columns["pi_l"] for columns in self.under_generating_weights(microbatches, score)]

    def under_generating_weights(
        self, microbatches: list[MicroBatch], score: Callable[[], list[Columns]]
    ) -> list[Columns]:
        """Scores the micro-batches, each token that is trained under the weights that generated it.

        Args:
            score: is called once for each version of the weights that generated, while the policy has those weights.

        Raises:
            RuntimeError: weights of a version are no longer held.
        """
        held = self.policy.generating
        versions = sorted({version for micro in microbatches for version in micro.versions.unique().tolist()} - {TOOL})
        if missing := [version for version in versions if version not in held]:
            raise RuntimeError(f"weights of version {missing} are not held, only {sorted(held)}")
        current = self.policy.copy()
        result: list[Columns] = [{} for _ in microbatches]
        for version in versions:
            self.policy.set(held[version])
            for micro, known, these in zip(microbatches, result, score(), strict=True):
                generated = micro.versions == version
                for name, values in these.items():
                    known.setdefault(name, torch.zeros_like(values))[generated] = values[generated]
        self.policy.set(current)
        return result

    @torch.no_grad()
    def divergence(self, microbatches: list[MicroBatch]) -> Tensor:
        """Return the total variation between mu and the policy's current weights at every state whose token is
        trained."""
        distances = [torch.zeros(0, device=parallel.device())]
        for micro in microbatches:
            assert micro.distribution is not None, "TRPO asks the engine for it"
            pi = self.score(self.policy.model, micro, replay=self._replays, head=True).head
            assert pi is not None, "asked for above"
            distances.append((micro.distribution[micro.mask].exp() - pi[micro.mask].exp()).abs().sum(-1) / 2)
        return torch.cat(distances)


class Rescorer:
    """Scores the tokens of a diagnosed step again, for what a diagnosis compares."""

    def __init__(self, config: LabConfig, scorer: Scorer, replays: bool) -> None:
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

    def of_step(self, microbatches: list[MicroBatch]) -> Columns:
        """Measures what a diagnosis compares, of the step's tokens and before the step.

        Columns of the weights that generated are named checkpoint_*, the others are of the current weights.

        Raises: as `Scorer.under_generating_weights`.
        """

        def as_generated() -> list[Columns]:
            return [
                {
                    **self._columns(micro, "checkpoint_"),
                    "checkpoint_log_probs_engine_dtype": self._in_the_engines_dtype(micro),
                }
                for micro in microbatches
            ]

        before = self.scorer.under_generating_weights(microbatches, as_generated)
        both = [{**self._columns(micro), **known} for micro, known in zip(microbatches, before, strict=True)]
        return {name: torch.cat([columns[name] for columns in both]) for name in both[0]}

    def _columns(self, micro: MicroBatch, prefix: str = "") -> Columns:
        """Return the whole distribution as the method trains; of a MoE model also log-probs with the trainer's own
        routing and with the engine's, and the layers in which these differ.

        Args:
            prefix: stands before each name; for weights that are not the ones in training.
        """
        if not self.config.model.is_moe:
            _, distribution = self._score(self.policy, micro)
            return {f"{prefix}log_distribution": distribution}
        assert micro.routed_experts is not None, "the engine of a MoE model reports its routes"
        recorded: list[Tensor] = []
        with routing.record(recorded):
            own, own_distribution = self._score(self.policy, micro)
        with routing.replay(micro.routed_experts):
            replayed, replayed_distribution = self._score(self.policy, micro)
        return {
            f"{prefix}log_probs_own_routing": own,
            f"{prefix}log_probs_replayed": replayed,
            f"{prefix}expert_flips": routing.flips_by_layer(recorded, micro.routed_experts, micro.rows),
            f"{prefix}log_distribution": replayed_distribution if self.replays else own_distribution,
        }

    def _in_the_engines_dtype(self, micro: MicroBatch) -> Tensor:
        """Return (R,) log-probs with the weights and the arithmetic in the engine's data type, along the engine's
        routes."""
        model = self.policy
        if self._in_engine_dtype is not None:
            model = self._in_engine_dtype
            with torch.no_grad():
                for copy, parameter in zip(model.parameters(), self.policy.parameters(), strict=True):
                    copy.copy_(parameter)
        if micro.routed_experts is None:
            return self._score(model, micro)[0]
        routers = RouterReplay.global_router_replay_instances if model is self.policy else self._its_routers
        with routing.routers(routers), routing.replay(micro.routed_experts):
            return self._score(model, micro)[0]

    @torch.no_grad()
    def _score(self, model: torch.nn.Module, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return (R,) log-probs and (R, vocabulary) distribution, along the routes that the caller has set."""
        log_probs, _, distribution = self.scorer.score(model, micro, replay=False, head=True)
        assert distribution is not None, "asked for"
        return log_probs, distribution
