"""slime's micro-batch as the objective reads it: a TokenBatch, and its log-ratio in slime's own order of sums."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import mpu
from slime.backends.megatron_utils.cp_utils import all_gather_with_cp, slice_log_prob_with_cp
from slime.utils.ppo_utils import compute_gspo_kl
from torch import Tensor

from sat_slime.config.rules import reads_engine
from sat_slime.objective import Method, TokenBatch
from sat_slime.objective.tokens import denominator_log_probs
from sat_slime.plugin.versions import told_lags

Batch = dict[str, Any]
"""slime's micro-batch, or its batch: lists with a tensor or a number for each response. The log-probs are of the tokens
that this context-parallel rank holds."""


def token_batch(method: Method, batch: Batch, log_probs: list[Tensor], steps: int = 0) -> tuple[TokenBatch, Tensor]:
    """Return the tokens of this rank, and (N,) d of each with its gradient: what policy_surrogate and threshold_scores
    take. Raises ValueError where the method reads the engine's log-probs, and the batch lacks them.

    Args:
        batch: a micro-batch in the loss, or all of this rank's responses before the training.
        log_probs: for each response, log pi under the weights in training.
        steps: optimizer steps that were made on the batch before.
    """
    masks, now = _local(batch["loss_masks"], batch), torch.cat(log_probs)
    rollout = batch.get("rollout_log_probs")
    if reads_engine(method) and not rollout:
        raise ValueError(
            f"{method.name} needs rollout_log_probs, and the batch has none: the rollout function must return log-probs"
        )
    # slime's `log_probs`: of the trainer's weights as the batch begins, or of the generating weights under
    # denominator `checkpoint`. Without them denominator `trainer` is the training forward, detached.
    proximal = batch.get("log_probs") if method.denominator in ("checkpoint", "trainer") else None
    lags = None
    if "lags" in method.needs:
        told = told_lags(batch.get("unconcat_tokens") or batch["tokens"])  # in a micro-batch `tokens` are packed
        lags = torch.cat(_local([lag + steps for lag in told], batch)).to(now)
    tokens = TokenBatch(
        log_probs=now,
        # Where the batch has no mu, the method does not read it: log pi only fills the column.
        rollout_log_probs=torch.cat(rollout or log_probs).detach(),
        advantages=torch.cat(batch["advantages"]),
        mask=torch.cat(masks).bool(),
        lengths=[len(mask) for mask in masks],
        proximal_log_probs=torch.cat(proximal) if proximal else None,
        lags=lags,
    )
    return tokens, _log_ratio(method, batch, tokens)


def context_group() -> dist.ProcessGroup | None:
    """Return the context-parallel ranks that hold parts of the same responses; None where a rank holds them whole."""
    return mpu.get_context_parallel_group() if mpu.get_context_parallel_world_size() > 1 else None


def _local(values: list[Tensor], batch: Batch) -> list[Tensor]:
    """Return, of (response tokens,) values of each response, the part that this context-parallel rank holds."""
    lengths = zip(values, batch["total_lengths"], batch["response_lengths"], strict=True)
    return [slice_log_prob_with_cp(value, total, response) for value, total, response in lengths]


def _log_ratio(method: Method, batch: Batch, tokens: TokenBatch) -> Tensor:
    """Return the (N,) d of each token: its own log-ratio (Eq. ratio-def), or that of its response (Eq. gspo-ratio),
    whose tokens may be spread over the context-parallel ranks."""
    columns = tokens.log_probs, tokens.rollout_log_probs, tokens.proximal_log_probs, tokens.lags
    denominators = denominator_log_probs(method.denominator, *columns)
    if method.ratio == "token":
        return tokens.log_probs - denominators

    def whole(values: Tensor) -> list[Tensor]:
        # An inactive token may hold anything; slime would multiply it by 0, NaN included.
        parts = values.where(tokens.mask, 0.0).split(list(tokens.lengths))
        lengths = zip(parts, batch["total_lengths"], batch["response_lengths"], strict=True)
        return [all_gather_with_cp(part, total, response) for part, total, response in lengths]

    return -compute_gspo_kl(
        full_log_probs=whole(tokens.log_probs),
        full_old_log_probs=whole(denominators),
        local_log_probs=list(tokens.log_probs.split(list(tokens.lengths))),
        loss_masks=batch["loss_masks"],
    )
