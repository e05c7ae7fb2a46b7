"""The passes of an optimizer step: what they measure of each token, the metrics and columns that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.embedded.trainer import parallel
from sat_slime.embedded.trainer.packing import MicroBatch
from sat_slime.embedded.trainer.scoring import Columns, Scores
from sat_slime.objective import MetricAccumulator, mismatch_histogram, mismatch_metrics


@dataclass
class Passes:
    """The measurements of a step's forward and backward passes on this rank's tokens, micro-batch after micro-batch."""

    microbatches: list[MicroBatch]
    counts_flips: bool
    """Whether the trainer routes freely, so that its routes are compared with the engine's."""
    losses: MetricAccumulator = field(default_factory=MetricAccumulator)
    loss: Tensor = field(default_factory=lambda: torch.zeros((), device=parallel.device()))
    """0-dim: the sum of the losses."""
    log_probs: list[Tensor] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)
    flips: Tensor = field(default_factory=lambda: torch.zeros(2))
    """Tokens that are routed differently in some layer, and tokens compared."""

    def take(self, scores: Scores) -> None:
        """Takes the tokens of the next micro-batch."""
        assert scores.entropy is not None, "asked for"
        self.log_probs.append(scores.log_probs.detach())
        self.entropy.append(scores.entropy.detach())

    @property
    def rollout_log_probs(self) -> Tensor:
        """(N,) log mu of this rank's tokens."""
        return torch.cat([micro.rollout_log_probs for micro in self.microbatches])

    @property
    def mask(self) -> Tensor:
        """(N,) bool: the tokens that are trained."""
        return torch.cat([micro.mask for micro in self.microbatches])

    def metrics(self, checkpoint: Tensor | None, group: dist.ProcessGroup) -> dict[str, float]:
        """Return the metrics of the loss and of the mismatch, reduced over the ranks of `group`.

        Args:
            checkpoint: (N,) log pi_l of this rank's tokens, where it is known: what splits the mismatch.
        """
        log_probs = torch.cat(self.log_probs)
        metrics = {
            **self.losses.reduce(group),
            **mismatch_metrics(
                log_probs,
                self.rollout_log_probs,
                self.mask,
                checkpoint_log_probs=checkpoint,
                group=group,
            ),
        }
        if self.counts_flips:
            dist.all_reduce(flips := self.flips.to(parallel.device()))
            metrics["routing/flip_rate"] = float(flips[0] / flips[1].clamp(min=1))
        return metrics

    def histogram(self, group: dist.ProcessGroup) -> dict:
        """Return the histogram of |d| over the tokens of all ranks, where d = log pi - log mu."""
        distances = (torch.cat(self.log_probs) - self.rollout_log_probs).abs()
        return mismatch_histogram(distances[self.mask], group=group)

    def columns(self, checkpoint: Tensor | None) -> Columns:
        """Returns all columns of this rank's tokens, (N, ...) each."""
        columns = {"log_probs": torch.cat(self.log_probs), "entropy": torch.cat(self.entropy)}
        if checkpoint is not None:
            columns["checkpoint_log_probs"] = checkpoint
        if (proximal := known_proximal(self.microbatches)) is not None:
            columns["proximal_log_probs"] = proximal
        return columns


def known_proximal(microbatches: list[MicroBatch]) -> Tensor | None:
    """Return (N,) log-probs of the denominator of this rank's tokens, where the micro-batches have them."""
    known = [micro.proximal_log_probs for micro in microbatches if micro.proximal_log_probs is not None]
    return torch.cat(known) if known else None


def gather_columns(
    columns: Columns, microbatches: list[MicroBatch], order: list[str], group: dist.ProcessGroup
) -> dict[str, np.ndarray] | None:
    """Return the columns of all ranks' tokens in batch order.

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
    responses = {request_id: columns for part in parts for request_id, columns in part.items()}
    return {name: np.concatenate([responses[request_id][name] for request_id in order]) for name in columns}
