"""The policy loss that slime calls, with `--loss-type custom_loss --custom-loss-function-path` and its dotted path.

It follows the order of slime's own policy_loss_function, with the surrogate taken from sat_slime.objective. Log-probs,
context parallelism, the sequence mean, the KL and all reductions are slime's functions, so that with SAT off and
denominator `trainer` the loss and its gradient are slime's to the bit.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import mpu
from slime.backends.megatron_utils import loss as slime_loss
from slime.backends.megatron_utils.cp_utils import all_gather_with_cp, slice_log_prob_with_cp
from slime.utils.misc import load_function
from slime.utils.ppo_utils import compute_approx_kl, compute_gspo_kl
from torch import Tensor

from sat_slime.objective import Method, TokenBatch, policy_surrogate
from sat_slime.objective.tokens import denominator_log_probs
from sat_slime.plugin.settings import plugin_method, reads_engine
from sat_slime.plugin.step import current, join_step_metrics
from sat_slime.plugin.versions import told

Batch = dict[str, Any]
"""slime's micro-batch, or its batch: lists with a tensor or a number for each response. The log-probs are of the tokens
that this context-parallel rank holds."""


def policy_loss(
    args: Namespace, batch: Batch, logits: Tensor, sum_of_sample_mean: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of one micro-batch, and the metrics that slime's own loss has.

    All other metrics go to the state of the trainer, which reduces each as its kind demands.

    Args:
        logits: (1, T, vocabulary / tensor-parallel ranks) fp32.
        sum_of_sample_mean: slime's reduction of (N,) values over this rank's response tokens to a scalar.

    Raises:
        ConfigError: the settings have faults; raised at the first call.
        ValueError: the batch lacks what the method needs.
        FloatingPointError: a number of an active token is not finite; names how many, and the first.
        RuntimeError: so do the facts of its responses, or the threshold of the step.
    """
    method = plugin_method(args)
    join_step_metrics()
    state = current()
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
    if capture := getattr(slime_loss, "_maybe_capture_log_probs", None):  # only slime after v0.3.1 has it
        capture(batch, log_probs)

    tokens, d = token_batch(method, batch, log_probs, state.steps_on_batch)
    if "entropies" in method.needs:
        tokens = replace(tokens, entropies=torch.cat(scored["entropy"]).detach())
    now = tokens.log_probs
    surrogate = policy_surrogate(method, tokens, group=context_group(), threshold=state.threshold_for(method), d=d)

    reduce_policy = _policy_reducer(args, batch) or sum_of_sample_mean
    pg_loss = reduce_policy(-surrogate.values)
    entropy_loss = sum_of_sample_mean(torch.cat(scored["entropy"]))
    loss = pg_loss - args.entropy_coef * entropy_loss
    metrics = {
        "loss": loss,
        "pg_loss": pg_loss,
        "entropy_loss": entropy_loss,
        "pg_clipfrac": sum_of_sample_mean(surrogate.clipped.float()),
        "ppo_kl": sum_of_sample_mean(-d.detach().where(tokens.mask, 0.0)),
    }
    if args.use_kl_loss:
        columns = now, tokens.rollout_log_probs, tokens.proximal_log_probs, tokens.lags
        denominator = denominator_log_probs(method.denominator, *columns)
        importance = torch.exp(now - denominator) if args.use_unbiased_kl else None
        kl = compute_approx_kl(
            now, torch.cat(batch["ref_log_probs"]), kl_loss_type=args.kl_loss_type, importance_ratio=importance
        )
        metrics["kl_loss"] = sum_of_sample_mean(kl)
        loss = loss + args.kl_loss_coef * metrics["kl_loss"]
        metrics["loss"] = loss
    rollout, proximal = batch.get("rollout_log_probs"), batch.get("log_probs")
    if rollout:
        scored_before = torch.cat(proximal) if proximal and not args.use_rollout_logprobs else now
        difference = (scored_before - tokens.rollout_log_probs).where(tokens.mask, 0.0)
        metrics["train_rollout_logprob_abs_diff"] = sum_of_sample_mean(difference.abs())
    if now.numel() == 0:
        loss = loss + 0 * logits.sum()  # the backward pass of this rank still has collectives to take part in
    state.record(batch, method, tokens, surrogate, has_rollout=bool(rollout))
    return loss, {name: value.detach().clone() for name, value in metrics.items()}


def _policy_reducer(args: Namespace, batch: Batch) -> Callable[[Tensor], Tensor] | None:
    path = getattr(args, "custom_pg_loss_reducer_function_path", None)
    if path is None:
        return None
    return load_function(path)(
        batch["total_lengths"], batch["response_lengths"], batch["loss_masks"], args.calculate_per_token_loss
    )


# ------------------------------------------------------------------------------- a batch as the objective reads it


def token_batch(method: Method, batch: Batch, log_probs: list[Tensor], steps: int = 0) -> tuple[TokenBatch, Tensor]:
    """Return the tokens of this rank, and (N,) d of each with its gradient: what policy_surrogate and threshold_scores
    take.

    Args:
        batch: a micro-batch in the loss, or all of this rank's responses before the training.
        log_probs: for each response, log pi under the weights in training.
        steps: optimizer steps that were made on the batch before.

    Raises:
        ValueError: the batch lacks the log-probs that the method divides by, or weights with.
        RuntimeError: the lags or the rewards that the method needs were not told.
    """
    masks, now = _local(batch["loss_masks"], batch), torch.cat(log_probs)
    rollout, proximal = _needed_log_probs(method, batch)
    tokens = TokenBatch(
        log_probs=now,
        # Where the batch has no mu, the method does not read it: log pi only fills the column.
        rollout_log_probs=torch.cat(rollout or log_probs).detach(),
        advantages=torch.cat(batch["advantages"]),
        mask=torch.cat(masks).bool(),
        lengths=[len(mask) for mask in masks],
        proximal_log_probs=torch.cat(proximal) if proximal else None,
        **_facts(method, batch, steps, now),
    )
    return tokens, _log_ratio(method, batch, tokens)


def context_group() -> dist.ProcessGroup | None:
    """Return the context-parallel ranks that hold parts of the same responses; None where a rank holds them whole."""
    return mpu.get_context_parallel_group() if mpu.get_context_parallel_world_size() > 1 else None


def _needed_log_probs(method: Method, batch: Batch) -> tuple[list[Tensor] | None, list[Tensor] | None]:
    """Return log mu, and slime's `log_probs` where they are the method's denominator: of the trainer's weights at the
    start of the step, or of the generating weights under denominator `checkpoint`. Without them denominator `trainer`
    is the training forward, detached."""
    rollout = batch.get("rollout_log_probs")
    if reads_engine(method) and not rollout:
        raise ValueError(
            f"{method.name} needs rollout_log_probs, and the batch has none: the rollout function must return log-probs"
        )
    if method.denominator not in ("checkpoint", "trainer"):
        return rollout, None
    proximal = batch.get("log_probs")
    if method.denominator == "checkpoint" and not proximal:
        raise ValueError(
            f"{method.name}: denominator checkpoint, but the batch has no log_probs of the generating weights, "
            "which only sat_slime.plugin.driver has slime make"
        )
    return rollout, proximal


def _facts(method: Method, batch: Batch, steps: int, like: Tensor) -> dict[str, Tensor]:
    """Return the (N,) columns of lags and rewards that the method needs, in the dtype and on the device of `like`."""
    responses = batch.get("unconcat_tokens") or batch["tokens"]  # in a micro-batch `tokens` are packed
    columns = {}
    if "lags" in method.needs:
        columns["lags"] = [lags + steps for lags in told(responses, "lags")]
    if "rewards" in method.needs:
        rewards = zip(told(responses, "rewards"), batch["response_lengths"], strict=True)
        columns["rewards"] = [torch.full((length,), float(reward)) for reward, length in rewards]
    return {name: torch.cat(_local(parts, batch)).to(like) for name, parts in columns.items()}


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
        parts = zip(
            values.where(tokens.mask, 0.0).split(list(tokens.lengths)),
            batch["total_lengths"],
            batch["response_lengths"],
            strict=True,
        )
        return [all_gather_with_cp(local, total, response) for local, total, response in parts]

    return -compute_gspo_kl(
        full_log_probs=whole(tokens.log_probs),
        full_old_log_probs=whole(denominators),
        local_log_probs=list(tokens.log_probs.split(list(tokens.lengths))),
        loss_masks=batch["loss_masks"],
    )
