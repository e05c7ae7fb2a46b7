"""Lags and rewards of the responses in training, which slime's micro-batch has no place for.

slime passes a fixed list of keys to the loss. The tensor with a response's tokens is among them, and is the same object
in the batch and in each of its micro-batches: so what the plugin knows of a response is kept under that tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_lags = WeakTensorKeyDictionary()
"""For the tokens of each response, (response tokens,) lags at the first optimizer step on its batch."""
_rewards = WeakTensorKeyDictionary()
"""For the tokens of each response, its reward."""
_steps = 0
"""Optimizer steps that the batch has had."""


def remember(tokens: Sequence[Tensor], lags: Sequence[Tensor] | None, rewards: Sequence[float] | None) -> None:
    """Takes the facts of a batch that begins to be trained on; those of the batch before are forgotten.

    Args:
        tokens: slime's tokens of each response, prompt included.
        lags: for each response, (response tokens,) optimizer steps from the generating weights to those in training.
        rewards: reward of each response.
    """
    global _steps
    _steps = 0
    for kept, values in ((_lags, lags), (_rewards, rewards)):
        kept.clear()
        kept.update(zip(tokens, values or [], strict=values is not None))


def count_step() -> None:
    """Counts an optimizer step: whatever follows it in the batch has a lag of one more."""
    global _steps
    _steps += 1


def lags_of(tokens: Sequence[Tensor]) -> list[Tensor]:
    """For each response, (response tokens,) lags at the optimizer step in progress. Raises RuntimeError where they were
    not told."""
    return [lags + _steps for lags in _known(_lags, tokens, "lags")]


def rewards_of(tokens: Sequence[Tensor]) -> list[float]:
    """The reward of each response. Raises RuntimeError where they were not told."""
    return _known(_rewards, tokens, "rewards")


def _known(kept: WeakTensorKeyDictionary, tokens: Sequence[Tensor], what: str) -> list[Any]:
    try:
        return [kept[one] for one in tokens]
    except KeyError:
        raise RuntimeError(
            f"the {what} of these responses were not told to the trainer: add --rollout-data-postprocess-path "
            "sat_slime.plugin.train_hooks.postprocess, or start sat_slime.plugin.driver"
        ) from None
