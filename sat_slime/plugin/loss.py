"""The policy loss that slime calls, with `--loss-type custom_loss --custom-loss-function-path` and its dotted path.

The order of slime's own policy_loss_function, with the surrogate taken from sat_slime.objective. Log-probs, context
parallelism, the sequence mean, the KL and all reductions are slime's functions, so that with SAT off and denominator
`trainer` the loss and its gradient are slime's to the bit.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import mpu
from slime.backends.megatron_utils import loss as slime_loss
from slime.backends.megatron_utils.cp_utils import all_gather_with_cp, slice_log_prob_with_cp
from slime.utils.misc import load_function
from slime.utils.ppo_utils import compute_approx_kl, compute_gspo_kl
from torch import Tensor

from sat_slime.objective import Method, TokenBatch, policy_surrogate
from sat_slime.plugin.inside import step_metrics, step_quantile
from sat_slime.plugin.inside.settings import plugin_method

Batch = dict[str, Any]
"""slime's micro-batch: lists of a tensor or number for each response; log-probs are this context-parallel rank's."""


def policy_loss(
    args: Namespace, batch: Batch, logits: Tensor, sum_of_sample_mean: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of one micro-batch, and the metrics that slime's own loss has.

    All others go to step_metrics, which reduces each as its kind demands.

    Args:
        logits: (1, T, vocabulary / tensor-parallel ranks) fp32.
        sum_of_sample_mean: slime's reduction of (N,) values over this rank's response tokens to a scalar.

    Raises:
        ConfigError: the settings mean nothing, at the first call.
        ValueError: the batch lacks what the method needs.
    """
    method = plugin_method(args)
    step_metrics.install()
    total_lengths, response_lengths = batch["total_lengths"], batch["response_lengths"]
    _, scored = slime_loss.get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=total_lengths,
        response_lengths=response_lengths,
        with_entropy=True,
        **slime_loss.get_rollout_top_p_logprob_kwargs(args, batch),
    )
    log_probs: list[Tensor] = scored["log_probs"]
    if capture := getattr(slime_loss, "_maybe_capture_log_probs", None):  # newer than v0.3.1
        capture(batch, log_probs)

    masks = local_masks(batch)
    rollout, proximal = batch.get("rollout_log_probs"), batch.get("log_probs")
    below = denominator(method, log_probs, rollout, proximal)
    now = torch.cat(log_probs)
    tokens = TokenBatch(
        log_probs=now,
        # mu is not read where neither the method nor the engine has it.
        rollout_log_probs=torch.cat(rollout or below),
        advantages=torch.cat(batch["advantages"]),
        mask=torch.cat(masks),
        lengths=[len(mask) for mask in masks],
        proximal_log_probs=torch.cat(proximal) if proximal and method.denominator != "rollout" else None,
    )
    d = log_ratio(method, batch, log_probs, below, masks)
    surrogate = policy_surrogate(
        method,
        tokens,
        group=mpu.get_context_parallel_group() if mpu.get_context_parallel_world_size() > 1 else None,
        quantile=step_quantile.current(method),
        d=d,
    )

    reduce_policy = _policy_reducer(args, batch) or sum_of_sample_mean
    pg_loss = reduce_policy(-surrogate.values)
    entropy_loss = sum_of_sample_mean(torch.cat(scored["entropy"]))
    loss = pg_loss - args.entropy_coef * entropy_loss
    metrics = {
        "loss": loss,
        "pg_loss": pg_loss,
        "entropy_loss": entropy_loss,
        "pg_clipfrac": sum_of_sample_mean(surrogate.clipped.float()),
        "ppo_kl": sum_of_sample_mean(-tokens.active_or_zero(d.detach())),
    }
    if args.use_kl_loss:
        importance = torch.exp(now - torch.cat(below)) if args.use_unbiased_kl else None
        kl = compute_approx_kl(
            now, torch.cat(batch["ref_log_probs"]), kl_loss_type=args.kl_loss_type, importance_ratio=importance
        )
        metrics["kl_loss"] = sum_of_sample_mean(kl)
        loss = loss + args.kl_loss_coef * metrics["kl_loss"]
        metrics["loss"] = loss
    if rollout:
        scored_before = torch.cat(proximal) if proximal and not args.use_rollout_logprobs else now
        difference = tokens.active_or_zero(scored_before - tokens.rollout_log_probs)
        metrics["train_rollout_logprob_abs_diff"] = sum_of_sample_mean(difference.abs())
    if now.numel() == 0:
        loss = loss + 0 * logits.sum()  # the backward pass of this rank still has collectives to take part in
    step_metrics.record(batch, method, tokens, surrogate, has_rollout=bool(rollout))
    return loss, {name: value.detach().clone() for name, value in metrics.items()}


def local_masks(batch: Batch) -> list[Tensor]:
    """(tokens,) bool of each response: the active ones among those that this context-parallel rank holds."""
    return [
        slice_log_prob_with_cp(mask, total, response).bool()
        for mask, total, response in zip(
            batch["loss_masks"], batch["total_lengths"], batch["response_lengths"], strict=True
        )
    ]


def denominator(
    method: Method, log_probs: list[Tensor], rollout: list[Tensor] | None, proximal: list[Tensor] | None
) -> list[Tensor]:
    """Log-probs of the denominator, for each response.

    slime's `log_probs` are the trainer's at the start of the step, or with --keep-old-actor those of the generating
    weights. Without them `trainer` is the training forward itself.

    Raises:
        ValueError: the batch has not what the method divides by, or weights with.
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
    method: Method, batch: Batch, log_probs: list[Tensor], below: list[Tensor], masks: list[Tensor]
) -> Tensor:
    """(N,) d of each token, by slime's order of sums: its own (Eq. ratio-def), or that of its response (Eq. gspo-ratio)
    over all of its tokens on whatever context-parallel rank."""
    if method.ratio == "token":
        return torch.cat(log_probs) - torch.cat(below)

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
        full_old_log_probs=whole(below),
        local_log_probs=log_probs,
        loss_masks=batch["loss_masks"],
    )


def _policy_reducer(args: Namespace, batch: Batch) -> Callable[[Tensor], Tensor] | None:
    path = getattr(args, "custom_pg_loss_reducer_function_path", None)
    if path is None:
        return None
    return load_function(path)(
        batch["total_lengths"], batch["response_lengths"], batch["loss_masks"], args.calculate_per_token_loss
    )
