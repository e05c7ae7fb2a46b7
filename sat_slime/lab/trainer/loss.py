"""policy_loss: surrogate, KL and entropy, scaled so that a sum over micro-batches is the batch loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsFloat

import torch

from sat_slime.objective import Method, Result, TokenBatch, policy_surrogate

_LOW_VARIANCE_KL_MAX = 10.0
"""Bound of the estimate per token, as in slime."""


@dataclass(frozen=True, eq=False)
class PolicyLoss:
    """The loss of a micro-batch, as policy_loss returns it."""

    total: torch.Tensor
    """0-dim, to be minimized, with gradient: this micro-batch's share of the batch loss."""
    metrics: dict[str, SupportsFloat]
    """The surrogate's metrics and loss/{total,policy,kl,entropy}: kl and entropy without their coefficients, where
    their inputs are given."""
    surrogate: Result


def policy_loss(
    method: Method,
    batch: TokenBatch,
    token_weights: torch.Tensor,
    *,
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
    ref_log_probs: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    group: torch.distributed.ProcessGroup | None = None,
    threshold: torch.Tensor | float | None = None,
) -> PolicyLoss:
    """sum_t w_t (-S_t + kl_coef k3_t - entropy_coef H_t) over the tokens of one micro-batch.

    Args:
        method: the objective.
        batch: one micro-batch of N tokens.
        token_weights: (N,) w, 0 on inactive tokens: response_mean_weights or token_mean_weights; rounded to the dtype
            that the batch is computed with.
        kl_coef: coefficient of the low-variance KL to the reference model.
        entropy_coef: coefficient of the entropy bonus.
        ref_log_probs: (N,) log-probs of the reference model.
        entropy: (N,) entropy of the policy at each token; needs grad only where entropy_coef is not 0.
        group, threshold: as in policy_surrogate.

    Raises:
        ValueError: a coefficient is not 0 and its input is missing; or as policy_surrogate.
    """
    for name, coefficient, tensor in (
        ("ref_log_probs", kl_coef, ref_log_probs),
        ("entropy", entropy_coef, entropy),
    ):
        if coefficient != 0 and tensor is None:
            coefficient_name = "kl_coef" if name == "ref_log_probs" else "entropy_coef"
            raise ValueError(
                f"{coefficient_name} is {coefficient} and needs {name}: pass it, or set the coefficient to 0"
            )
    surrogate = policy_surrogate(method, batch, group=group, threshold=threshold)
    dtype, mask = surrogate.values.dtype, batch.mask
    weights = token_weights.to(dtype)
    policy = -(weights * surrogate.values).sum()
    total = policy
    metrics: dict[str, SupportsFloat] = {"loss/policy": policy.detach()}
    if ref_log_probs is not None:
        kl = (weights * low_variance_kl(batch.log_probs.to(dtype), ref_log_probs).where(mask, 0.0)).sum()
        metrics["loss/kl"] = kl.detach()
        total = total + kl_coef * kl if kl_coef else total
    if entropy is not None:
        mean_entropy = (weights * entropy.to(dtype).where(mask, 0.0)).sum()
        metrics["loss/entropy"] = mean_entropy.detach()
        total = total - entropy_coef * mean_entropy if entropy_coef else total
    return PolicyLoss(total, {"loss/total": total.detach(), **metrics, **surrogate.metrics}, surrogate)


def low_variance_kl(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """Return the (N,) estimate of KL(pi || ref) per token: e^x - 1 - x with x = log ref - log pi, at most 10 (slime's
    low_var_kl).

    Zero gradient where it is cut at 10.
    """
    # e^20 is far above the cut: bounding x there keeps infinities out of the gradient and changes no value.
    x = (ref_log_probs.to(log_probs.dtype) - log_probs).clamp(max=2 * _LOW_VARIANCE_KL_MAX)
    return (x.exp() - 1 - x).clamp(min=-_LOW_VARIANCE_KL_MAX, max=_LOW_VARIANCE_KL_MAX)


def token_mean_weights(mask: torch.Tensor, n_tokens: int) -> torch.Tensor:
    """Return (N,) float64 1 / n_tokens on active tokens, n_tokens those of the whole batch: mean over tokens."""
    return mask.double() / max(n_tokens, 1)
