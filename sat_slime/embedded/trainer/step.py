"""One optimizer step: what goes into it, what its forward passes found, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.embedded.rollout_batch import TrainSample
from sat_slime.embedded.trainer import parallel
from sat_slime.embedded.trainer.columns import Columns
from sat_slime.embedded.trainer.packing import MicroBatch
from sat_slime.embedded.trainer.scoring import Scores
from sat_slime.objective import (
    Method,
    MetricAccumulator,
    TokenBatch,
    mismatch_histogram,
    mismatch_metrics,
    supply_proximal,
)
from sat_slime.objective.batch import segment_sums
from sat_slime.objective.ratio import proximal_log_probs


@dataclass(frozen=True)
class Step:
    """What an optimizer step trains on."""

    samples: list[TrainSample]
    """The responses of all ranks."""
    microbatches: list[MicroBatch]
    """This rank's part of them."""
    proximal: list[Tensor | None]
    """(R,) log-probs of the denominator for each micro-batch; None where the denominator is mu or the training forward
    itself."""

    @property
    def response_tokens(self) -> int:
        """Response tokens of all ranks."""
        return sum(len(sample.response.output_ids) for sample in self.samples)

    @property
    def rollout_log_probs(self) -> Tensor:
        """(N,) log mu of this rank's tokens."""
        return torch.cat([micro.rollout_log_probs for micro in self.microbatches])

    @property
    def known_proximal(self) -> Tensor | None:
        """(N,) log-probs of the denominator, where the step has them."""
        known = [values for values in self.proximal if values is not None]
        return torch.cat(known) if known else None


@dataclass
class Passes:
    """What the forward and backward passes of a step found of this rank's tokens, one micro-batch after the other."""

    counts_flips: bool
    """Whether the trainer routes freely, so that its routes are compared with the engine's."""
    losses: MetricAccumulator = field(default_factory=MetricAccumulator)
    log_probs: list[Tensor] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    """(R, vocabulary) log pi of every token, of a step that is recorded and whose engine told the same of mu."""
    flips: Tensor = field(default_factory=lambda: torch.zeros(2))
    """Tokens that are routed differently in some layer, and tokens compared."""

    def take(self, scores: Scores, recorded: bool) -> None:
        """The tokens of the next micro-batch. recorded: with their heads, where these were asked for."""
        assert scores.entropy is not None, "asked for"
        self.log_probs.append(scores.log_probs.detach())
        self.entropy.append(scores.entropy.detach())
        if recorded and scores.head is not None:
            self.heads.append(scores.head.detach())

    def metrics(self, step: Step, checkpoint: Tensor | None, group: dist.ProcessGroup) -> dict[str, float]:
        """The metrics of the loss and of the mismatch, reduced over the ranks of `group`.

        Args:
            checkpoint: (N,) log pi_l of this rank's tokens, where it is known: what splits the mismatch.
        """
        log_probs = torch.cat(self.log_probs)
        metrics = {
            **self.losses.reduce(group),
            **mismatch_metrics(
                log_probs,
                step.rollout_log_probs,
                torch.ones_like(log_probs, dtype=torch.bool),
                checkpoint_log_probs=checkpoint,
                group=group,
            ),
        }
        if self.counts_flips:
            dist.all_reduce(flips := self.flips.to(parallel.device()))
            metrics["routing/flip_rate"] = float(flips[0] / flips[1].clamp(min=1))
        return metrics

    def histogram(self, step: Step, group: dist.ProcessGroup) -> dict:
        """The histogram of |d| over the tokens of all ranks, where d = log pi - log mu."""
        return mismatch_histogram((torch.cat(self.log_probs) - step.rollout_log_probs).abs(), group=group)

    def columns(self, step: Step, checkpoint: Tensor | None) -> Columns:
        """What is known of each of this rank's tokens."""
        columns = {"log_probs": torch.cat(self.log_probs), "entropy": torch.cat(self.entropy)}
        if checkpoint is not None:
            columns["checkpoint_log_probs"] = checkpoint
        if (proximal := step.known_proximal) is not None:
            columns["proximal_log_probs"] = proximal
        if self.heads:
            columns["policy_head"] = torch.cat(self.heads)
        return columns


@torch.no_grad()
def response_log_weights(method: Method, batch: TokenBatch) -> Tensor:
    """(responses,) float64 log of prod pi_proximal / mu over the tokens of each response of a micro-batch; pi_proximal
    is the method's denominator, and pi where that is mu."""
    batch = supply_proximal(method, batch)
    log_weights = proximal_log_probs(method.denominator, batch) - batch.rollout_log_probs
    return segment_sums(batch.active_or_zero(log_weights), batch.lengths_tensor)
