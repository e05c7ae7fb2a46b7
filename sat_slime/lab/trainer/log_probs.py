"""Log-probabilities and entropy from logits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Wanted = Literal["none", "value", "gradient"]
"""What is wanted of a quantity beside the log-probs: nothing, its value, or its value with a gradient."""


def token_log_probs(
    logits: Tensor, targets: Tensor, temperature: float, *, entropy: Wanted = "none", kept: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return log pi(target) under softmax(logits / temperature), in fp32.

    The rollout engine samples from logits divided by the temperature, so the trainer's policy is that one too.

    Args:
        logits: (N, vocabulary).
        targets: (N,) token ids.
        temperature: of the rollout, > 0.
        entropy: also return the entropy of the full distribution, in nats, without or with a gradient; with `kept` too,
            as in slime.
        kept: (N, vocabulary) bool, the tokens that the engine sampled from, where the softmax is to be over those alone
            (Eq. app-top-p-replay).

    Returns:
        (N,) log-probabilities and (N,) entropies or None.
    """
    if kept is not None:
        nats = None if entropy == "none" else token_log_probs(logits, targets, temperature, entropy=entropy)[1]
        logits = torch.where(kept, logits.float(), -torch.inf)
        return token_log_probs(logits, targets, temperature)[0], nats
    logits = logits.float() / temperature
    shifted = logits - logits.detach().amax(-1, keepdim=True)
    exp = shifted.exp()
    total = exp.sum(-1)
    log_total = total.log()
    picked = shifted.gather(-1, targets[:, None])[:, 0]
    if entropy == "none":
        return picked - log_total, None
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        nats = log_total - (exp * shifted).sum(-1) / total
    return picked - log_total, nats


def whole_log_probs(logits: Tensor, temperature: float, kept: Tensor | None = None) -> Tensor:
    """Return (N, vocabulary) fp32 log pi of every token under softmax(logits / temperature); -inf outside `kept`, which
    is as in token_log_probs."""
    logits = logits.float() / temperature
    return (logits if kept is None else torch.where(kept, logits, -torch.inf)).log_softmax(-1)
