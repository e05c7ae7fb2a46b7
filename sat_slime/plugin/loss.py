"""The policy loss that slime calls, with `--loss-type custom_loss --custom-loss-function-path` and its dotted path.

It follows the order of slime's own policy_loss_function, with the surrogate taken from sat_slime.objective. Log-probs,
context parallelism, the sequence mean, the KL and all reductions are slime's functions, so that with SAT off and
denominator `trainer` the loss and its gradient are slime's to the bit.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace

import torch
from slime.backends.megatron_utils import loss as slime_loss
from slime.utils.misc import load_function
from slime.utils.ppo_utils import compute_approx_kl
from torch import Tensor

from sat_slime.objective import policy_surrogate
from sat_slime.objective.tokens import denominator_log_probs
from sat_slime.plugin.batch import Batch, context_group, token_batch
from sat_slime.plugin.settings import plugin_method
from sat_slime.plugin.step import current, join_step_metrics


def policy_loss(
    args: Namespace, batch: Batch, logits: Tensor, sum_of_sample_mean: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of one micro-batch, and the metrics that slime's own loss has. All others go to the trainer's
    state, which reduces each as its kind demands.

    Args:
        logits: (1, T, vocabulary / tensor-parallel ranks) fp32.
        sum_of_sample_mean: slime's reduction of (N,) values over this rank's response tokens to a scalar.

    Raises:
        ConfigError: the settings have faults; raised at the first call.
        ValueError: the batch lacks what the method needs.
        FloatingPointError: a number of an active token is not finite; names how many, and the first.
        RuntimeError: no threshold was taken for the step.
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

    reduce_policy = sum_of_sample_mean
    if path := getattr(args, "custom_pg_loss_reducer_function_path", None):
        masks = batch["loss_masks"]
        reduce_policy = load_function(path)(total_lengths, response_lengths, masks, args.calculate_per_token_loss)
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
        # An inactive token may hold anything; slime would multiply it by 0, NaN included.
        denominator = denominator_log_probs(method.denominator, *columns).where(tokens.mask, now)
        importance = torch.exp(now - denominator) if args.use_unbiased_kl else None
        kl = compute_approx_kl(
            now, torch.cat(batch["ref_log_probs"]), kl_loss_type=args.kl_loss_type, importance_ratio=importance
        )
        metrics["kl_loss"] = sum_of_sample_mean(kl)
        metrics["loss"] = loss = loss + args.kl_loss_coef * metrics["kl_loss"]
    rollout, proximal = batch.get("rollout_log_probs"), batch.get("log_probs")
    if rollout:
        scored_before = torch.cat(proximal) if proximal and not args.use_rollout_logprobs else now
        difference = (scored_before - tokens.rollout_log_probs).where(tokens.mask, 0.0)
        metrics["train_rollout_logprob_abs_diff"] = sum_of_sample_mean(difference.abs())
    if now.numel() == 0:
        loss = loss + 0 * logits.sum()  # the backward pass of this rank still has collectives to take part in
    state.record(batch, method, tokens, surrogate, has_rollout=bool(rollout))
    return loss, {name: value.detach().clone() for name, value in metrics.items()}
