"""Top-p mask replay: the trainer's softmax over the tokens that the rollout engine could sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...stabilizer import Replay, Row, Style


@dataclass(frozen=True)
class TopP(Replay):
    """Top-p mask replay (Eq. app-top-p-replay)."""

    name = "topp"
    label = "top-p"
    key = "top_p_replay"
    help = (
        "The trainer's softmax is over the tokens that the rollout engine sampled from (Eq. app-top-p-replay); needs "
        "rollout.top_p below 1."
    )
    row = Row(
        "top-p mask replay",
        unit="forward pass",
        discriminator="sampling mask",
        constraint="replay the rollout nucleus",
        weight="—",
        direction="—",
        formula="π(a|s) = softmax(logits with −∞ outside the nucleus of the rollout)(a)",
        source="Eq. app-top-p-replay",
        needs="rollout.top_p below 1, and from the engine the tokens that it kept at every position",
        excludes="rollout.top_p 1: nothing is cut off",
    )
    style = Style("green", (0, (8, 2)))


def on_support(logits: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Return the (..., V) logits, -inf outside the nucleus (Eq. app-top-p-replay). No gradient reaches those.

    Args:
        logits: (..., V), divided by the sampling temperature already; V may be a rank's part of the vocabulary.
        kept: (..., V) bool, the tokens that the engine sampled from; over the whole vocabulary at least one in a row.
    """
    return torch.where(kept, logits, -torch.inf)


def log_probs_on_support(logits: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Return the (..., V) log-probs normalized over the nucleus, -inf outside it. Arguments as in on_support, V
    whole."""
    return on_support(logits, kept).log_softmax(-1)
