"""Log-probabilities and entropy from vocabulary-parallel logits, without gathering them."""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor

Wanted = Literal["none", "value", "gradient"]
"""What is wanted of a quantity beside the log-probs: nothing, its value, or its value with a gradient."""


def vocab_parallel_log_probs(
    logits: Tensor, targets: Tensor, temperature: float, *, entropy: Wanted = "none", kept: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return log pi(target) under softmax(logits / temperature), in fp32.

    The rollout engine samples from logits divided by the temperature, so the trainer's policy is that one too.

    Args:
        logits: (N, vocabulary / tensor-parallel size), this rank's part.
        targets: (N,) token ids.
        temperature: of the rollout, > 0.
        entropy: also return the entropy of the full distribution, in nats, without or with a gradient; with `kept` too,
            as in slime.
        kept: (N, vocabulary) bool, the tokens that the engine sampled from, where the softmax is to be over those alone
            (Eq. app-top-p-replay).

    Returns:
        (N,) log-probabilities and (N,) entropies or None, equal on all tensor-parallel ranks. Gradients flow to this
        rank's part of the logits.
    """
    if kept is not None:
        nats = None if entropy == "none" else vocab_parallel_log_probs(logits, targets, temperature, entropy=entropy)[1]
        logits = torch.where(_own_columns(kept, logits), logits.float(), -torch.inf)
        return vocab_parallel_log_probs(logits, targets, temperature)[0], nats
    group = parallel_state.get_tensor_model_parallel_group()
    logits = logits.float() / temperature
    peak = logits.detach().amax(-1, keepdim=True)
    if group.size() > 1:
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
    shifted = logits - peak
    exp = shifted.exp()
    total = reduce_from_tensor_model_parallel_region(exp.sum(-1))

    first = group.rank() * logits.shape[-1]
    local = targets - first
    mine = (local >= 0) & (local < logits.shape[-1])
    picked = shifted.gather(-1, local.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
    picked = reduce_from_tensor_model_parallel_region(torch.where(mine, picked, 0.0))
    log_total = total.log()

    if entropy == "none":
        return picked - log_total, None
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        nats = log_total - reduce_from_tensor_model_parallel_region((exp * shifted).sum(-1)) / total
    return picked - log_total, nats


def whole_log_probs(logits: Tensor, temperature: float, kept: Tensor | None = None) -> Tensor:
    """Return log pi of every token under softmax(logits / temperature), gathered: for a small vocabulary alone.

    Args:
        logits: (N, vocabulary / tensor-parallel size), this rank's part.
        kept: as in vocab_parallel_log_probs.

    Returns:
        (N, vocabulary) fp32, equal on all tensor-parallel ranks; -inf outside `kept`. Gradients flow to this rank's
        part of the logits.
    """
    logits = gather_from_tensor_model_parallel_region(logits.float() / temperature)
    return (logits if kept is None else torch.where(kept, logits, -torch.inf)).log_softmax(-1)


def _own_columns(kept: Tensor, logits: Tensor) -> Tensor:
    """This rank's part of a mask over the vocabulary."""
    width = logits.shape[-1]
    return kept.narrow(-1, parallel_state.get_tensor_model_parallel_rank() * width, width)
