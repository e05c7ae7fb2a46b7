"""The log-ratio of a method, computed from slime's micro-batch in slime's own order of sums."""

from __future__ import annotations

from typing import Any

import torch
from slime.backends.megatron_utils.cp_utils import all_gather_with_cp, slice_log_prob_with_cp
from slime.utils.ppo_utils import compute_gspo_kl
from torch import Tensor

from sat_slime.objective import Method

Batch = dict[str, Any]
"""slime's micro-batch: lists with a tensor or a number for each response. The log-probs are of the tokens that this
context-parallel rank holds."""


def local_masks(batch: Batch) -> list[Tensor]:
    """For each response, (tokens,) bool: which of the tokens that this context-parallel rank holds are active."""
    return [
        slice_log_prob_with_cp(mask, total, response).bool()
        for mask, total, response in zip(
            batch["loss_masks"], batch["total_lengths"], batch["response_lengths"], strict=True
        )
    ]


def denominator_log_probs(
    method: Method, log_probs: list[Tensor], rollout: list[Tensor] | None, proximal: list[Tensor] | None
) -> list[Tensor]:
    """Log-probs of the denominator, for each response.

    Args:
        log_probs: log pi of the training forward, for each response.
        rollout: log mu.
        proximal: slime's `log_probs`: of the trainer's weights at the start of the step, or of the generating weights
            under denominator `checkpoint`. Without them denominator `trainer` is the training forward, detached.

    Raises:
        ValueError: the batch lacks the log-probs that the method divides by, or weights with.
    """
    weighs_by_engine = method.denominator == "rollout" or bool(method.weights or method.gates)
    if weighs_by_engine and not rollout:
        raise ValueError(
            f"{method.name} needs rollout_log_probs, and the batch has none: the rollout function must return log-probs"
        )
    if method.denominator == "rollout":
        assert rollout is not None
        return rollout
    if method.denominator == "checkpoint" and not proximal:
        raise ValueError(
            f"{method.name}: denominator checkpoint, but the batch has no log_probs of the generating weights: add "
            "--keep-old-actor and leave out --use-rollout-logprobs"
        )
    return proximal or [values.detach() for values in log_probs]


def log_ratio(
    method: Method, batch: Batch, log_probs: list[Tensor], denominators: list[Tensor], masks: list[Tensor]
) -> Tensor:
    """(N,) d of each token, in slime's order of sums: its own log-ratio (Eq. ratio-def), or that of its response (Eq.
    gspo-ratio), whose tokens may be spread over the context-parallel ranks."""
    if method.ratio == "token":
        return torch.cat(log_probs) - torch.cat(denominators)

    def whole(values: list[Tensor]) -> list[Tensor]:
        # An inactive token may hold anything; slime would multiply it by 0, NaN included.
        return [
            all_gather_with_cp(torch.where(mask, value, 0.0), total, response)
            for value, mask, total, response in zip(
                values, masks, batch["total_lengths"], batch["response_lengths"], strict=True
            )
        ]

    return -compute_gspo_kl(
        full_log_probs=whole(log_probs),
        full_old_log_probs=whole(denominators),
        local_log_probs=log_probs,
        loss_masks=batch["loss_masks"],
    )
