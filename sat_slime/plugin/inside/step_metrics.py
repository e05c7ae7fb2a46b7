"""Metrics of one optimizer step, exact over its micro-batches and ranks.

slime sums what a loss returns and divides by the batch, which makes a mean of everything. So the loss returns what
slime's own loss returns, and all other metrics are kept here until slime reduces the step. Then each is reduced as its
kind demands (a minimum stays one; the tail of |d| is that of all tokens) and joins slime's metrics as `train/NAME`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.objective import Method, MetricAccumulator, Surrogate, TokenBatch, mismatch_metrics

_RECORDED = "sat_slime_recorded"
"""Mark of a micro-batch that is recorded already: with --recompute-loss-function its loss runs twice."""


class StepMetrics:
    """Metrics and token columns of the micro-batches of a step, on the host."""

    def __init__(self) -> None:
        self._metrics = MetricAccumulator()
        self._tokens: list[dict[str, Tensor]] = []

    def record(
        self, batch: dict[str, Any], method: Method, tokens: TokenBatch, surrogate: Surrogate, has_rollout: bool
    ) -> None:
        """Keeps the metrics of a micro-batch for the step, only once, however often its loss is computed."""
        if batch.get(_RECORDED):
            return
        batch[_RECORDED] = True
        metrics = dict(surrogate.metrics)
        if "sat/q" in metrics:  # the mean over micro-batches would hide how far they are apart
            metrics |= {"sat/q_min": metrics["sat/q"], "sat/q_max": metrics["sat/q"]}
        self._metrics.add(metrics, tokens.n_active)
        if has_rollout:
            columns = {"log_probs": tokens.log_probs, "rollout": tokens.rollout_log_probs}
            if method.denominator == "checkpoint" and tokens.proximal_log_probs is not None:
                columns["checkpoint"] = tokens.proximal_log_probs
            self._tokens.append({name: column.detach()[tokens.mask].cpu() for name, column in columns.items()})

    def reduce(self, group: dist.ProcessGroup | None) -> dict[str, float]:
        """Return the step's metrics, the same on all ranks of `group`, all of which must call; None: this process
        alone."""
        metrics = self._metrics.reduce(group)
        names = _all_names(set().union(*self._tokens), group)
        if {"log_probs", "rollout"} <= names:
            columns = {
                name: torch.cat([columns[name] for columns in self._tokens] or [torch.zeros(0)]) for name in names
            }
            metrics |= mismatch_metrics(
                columns["log_probs"],
                columns["rollout"],
                torch.ones(len(columns["log_probs"]), dtype=torch.bool),
                checkpoint_log_probs=columns.get("checkpoint"),
                group=group,
            )
        return metrics


def _all_names(names: set[str], group: dist.ProcessGroup | None) -> set[str]:
    """Return the names that any rank has: a rank without a response knows none."""
    if group is None:
        return names
    of_ranks: list[set[str]] = [set()] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, names, group=group)
    return set().union(*of_ranks)
