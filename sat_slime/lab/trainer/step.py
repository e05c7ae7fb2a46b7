"""The passes of an optimizer step: what they measure of each token, the metrics and columns that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sat_slime.lab.trainer import parallel
from sat_slime.lab.trainer.packing import MicroBatch
from sat_slime.lab.trainer.scoring import Columns, Scores
from sat_slime.objective import MetricAccumulator, mismatch_histogram, mismatch_metrics


@dataclass
class Passes:
    """The measurements of a step's forward and backward passes on its tokens, micro-batch after micro-batch."""

    microbatches: list[MicroBatch]
    counts_flips: bool
    """Whether the trainer routes freely, so that its routes are compared with the engine's."""
    losses: MetricAccumulator = field(default_factory=MetricAccumulator)
    loss: Tensor = field(default_factory=lambda: torch.zeros((), device=parallel.device()))
    """0-dim: the sum of the losses."""
    log_probs: list[Tensor] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)
    flips: list[Tensor] = field(default_factory=list)
    """(R,) bool of each micro-batch: tokens that are routed differently in some layer."""

    def take(self, scores: Scores) -> None:
        """Takes the tokens of the next micro-batch."""
        assert scores.entropy is not None, "asked for"
        self.log_probs.append(scores.log_probs.detach())
        self.entropy.append(scores.entropy.detach())

    @property
    def rollout_log_probs(self) -> Tensor:
        """(N,) log mu."""
        return torch.cat([micro.rollout_log_probs for micro in self.microbatches])

    @property
    def mask(self) -> Tensor:
        """(N,) bool: the tokens that are trained."""
        return torch.cat([micro.mask for micro in self.microbatches])

    def metrics(self, checkpoint: Tensor | None) -> dict[str, float]:
        """Return the metrics of the loss and of the mismatch.

        Args:
            checkpoint: (N,) log pi_l, where it is known: what splits the mismatch.
        """
        log_probs = torch.cat(self.log_probs)
        mismatch = mismatch_metrics(log_probs, self.rollout_log_probs, self.mask, checkpoint_log_probs=checkpoint)
        metrics = {**self.losses.reduce(), **mismatch}
        if self.counts_flips:
            flips = torch.cat(self.flips)
            metrics["routing/flip_rate"] = float(flips.sum().float() / max(len(flips), 1))
        return metrics

    def histogram(self) -> dict:
        """Return the histogram of |d|, where d = log pi - log mu."""
        distances = (torch.cat(self.log_probs) - self.rollout_log_probs).abs()
        return mismatch_histogram(distances[self.mask])

    def columns(self, checkpoint: Tensor | None) -> Columns:
        """Return all columns of the tokens, (N, ...) each."""
        columns = {"log_probs": torch.cat(self.log_probs), "entropy": torch.cat(self.entropy)}
        if checkpoint is not None:
            columns["checkpoint_log_probs"] = checkpoint
        if (proximal := known_proximal(self.microbatches)) is not None:
            columns["proximal_log_probs"] = proximal
        return columns


def known_proximal(microbatches: list[MicroBatch]) -> Tensor | None:
    """Return (N,) log-probs of the denominator, where the micro-batches have them."""
    known = [micro.proximal_log_probs for micro in microbatches if micro.proximal_log_probs is not None]
    return torch.cat(known) if known else None
