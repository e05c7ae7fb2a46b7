"""Log-probs of responses: under the policy's current weights, and under those that generated each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sat_slime.embedded.trainer import parallel, routing
from sat_slime.embedded.trainer.log_probs import Wanted, vocab_parallel_log_probs, whole_log_probs
from sat_slime.embedded.trainer.model import forward_logits
from sat_slime.embedded.trainer.packing import MicroBatch
from sat_slime.embedded.trainer.policy import PolicyState
from sat_slime.objective import Method, total_variation
from sat_slime.rollout.types import Response

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
    """Scores micro-batches, routing as the method does; its methods are collective."""

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
        head: Wanted = "none",
    ) -> Scores:
        """Log-probs of the response tokens, with a gradient, and what else is wanted; see `vocab_parallel_log_probs`
        and `whole_log_probs`.

        Args:
            replay: route as the rollout engine did (R3), else freely.
        """
        with routing.replay(micro.routed_experts) if replay else nullcontext():
            logits = forward_logits(model, micro.token_ids, micro.layout)[micro.rows]
        log_probs, nats = vocab_parallel_log_probs(
            logits, micro.output_ids, self._temperature, entropy=entropy, kept=micro.kept
        )
        if head == "none":
            return Scores(log_probs, nats, None)
        with torch.set_grad_enabled(head == "gradient" and torch.is_grad_enabled()):
            return Scores(log_probs, nats, whole_log_probs(logits, self._temperature, micro.kept))

    @torch.no_grad()
    def policy_log_probs(self, microbatches: list[MicroBatch]) -> list[Tensor]:
        """(R,) log pi of each micro-batch under the policy's current weights."""
        return [self.score(self.policy.model, micro, replay=self._replays).log_probs for micro in microbatches]

    @torch.no_grad()
    def reference_log_probs(self, micro: MicroBatch) -> Tensor | None:
        """(R,) log-probs under the reference model, which routes freely; None where the loss has no KL."""
        if self.policy.reference is None:
            return None
        return self.score(self.policy.reference, micro, replay=False).log_probs

    def checkpoint_log_probs(self, responses: Sequence[Response], microbatches: list[MicroBatch]) -> list[Tensor]:
        """(R,) log pi_l of each micro-batch: under the weights that generated each token (Eq. split).

        Args and raises: as `under_generating_weights`.
        """

        def score() -> list[Columns]:
            return [{"pi_l": log_probs} for log_probs in self.policy_log_probs(microbatches)]

        return [columns["pi_l"] for columns in self.under_generating_weights(responses, microbatches, score)]

    def under_generating_weights(
        self, responses: Sequence[Response], microbatches: list[MicroBatch], score: Callable[[], list[Columns]]
    ) -> list[Columns]:
        """Scores the micro-batches, each token under the weights that generated it.

        Args:
            responses: those of all ranks, since every rank must run the same forward passes.
            microbatches: this rank's part of them.
            score: is called once for each version of the weights that generated, while the policy has those weights.

        Raises:
            RuntimeError: weights of a version are no longer held; on all ranks alike.
        """
        held = self.policy.generating
        versions = sorted({int(version) for response in responses for version in np.unique(response.versions)})
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
        """(R,) total variation between mu and the policy's current weights at every state of this rank's responses."""
        distances = [torch.zeros(0, device=parallel.device())]
        for micro in microbatches:
            assert micro.distribution is not None, "under TRPO the engine was asked for it"
            pi = self.score(self.policy.model, micro, replay=self._replays, head="value").head
            assert pi is not None, "asked for above"
            distances.append(total_variation(micro.distribution, pi))
        return torch.cat(distances)
