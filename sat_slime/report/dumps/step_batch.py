"""One optimizer step as a dump holds it, and how its responses fall into micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

TOKENS_PER_MICROBATCH = 32_768
"""Bound on the tokens of a micro-batch where nothing else is known: the paper's."""


Column = Literal["checkpoint_log_probs", "lags", "rewards"]
"""A column that some methods read and only some dumps hold: log pi_l, and what TokenBatch calls a Need."""


class DumpFault(ValueError):
    """A file that cannot be read as a dump. The message says what is wrong and what helps, without the file's name."""


@dataclass(frozen=True, eq=False)
class StepBatch:
    """One optimizer step: R responses, their N tokens in a row, micro-batch after micro-batch.

    Raises:
        DumpFault: columns of different lengths, or no numbers where a token is active.
    """

    name: str
    log_probs: Tensor
    """(N,) float32 log pi, the trainer's at the start of the step."""
    rollout_log_probs: Tensor
    """(N,) float32 log mu."""
    advantages: Tensor
    """(N,) float32."""
    mask: Tensor
    """(N,) bool, active tokens."""
    lengths: Tensor
    """(R,) int64 tokens of each response."""
    microbatches: list[int] | None = None
    """Responses of each micro-batch, sum R; None where the dump does not say."""
    order: Tensor | None = None
    """(R,) int64: the responses in the order in which they were sampled, prompt after prompt; None: as they stand."""
    checkpoint_log_probs: Tensor | None = None
    """(N,) log pi_l, the trainer's under the generating weights."""
    proximal_log_probs: Tensor | None = None
    """(N,) the trainer's before the first optimizer step on this rollout, where that is not log_probs."""
    lags: Tensor | None = None
    """(N,) float32: optimizer updates between the weights that generated each token and those in training."""
    rewards: Tensor | None = None
    """(N,) float32: reward of the token's response, before any baseline."""
    token_ids: Tensor | None = None
    """(N,) integers, where they were asked for and the dump has them."""
    truncated: Tensor | None = None
    """(R,) bool: responses that were cut at the length limit; None where the dump does not tell."""

    left_out: tuple[str, ...] = ()
    """Sentences about what the dump lacks, and about tokens that `mask` leaves out."""

    def __post_init__(self) -> None:
        tokens = int(self.lengths.sum())
        for name in ("log_probs", "rollout_log_probs", "advantages", "mask", *OPTIONAL):
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != (tokens,):
                raise DumpFault(f"{name} has {values.numel()} values for the {tokens} tokens of its responses")
            if name != "mask" and (bad := int((~torch.isfinite(values) & self.mask).sum())):
                raise DumpFault(f"{name} is no finite number on {bad} active tokens")

    @property
    def lag(self) -> float | None:
        """Mean of `lags` over the active tokens; None where they are not known, or no token is active."""
        return None if self.lags is None or not self.mask.any() else float(self.lags[self.mask].mean())

    @property
    def columns(self) -> frozenset[Column]:
        """The columns that it holds of those that only some dumps have."""
        held: dict[Column, Tensor | None] = {
            "checkpoint_log_probs": self.checkpoint_log_probs,
            "lags": self.lags,
            "rewards": self.rewards,
        }
        return frozenset(name for name, values in held.items() if values is not None)

    def arranged(self, wanted: int | None, tokens: int) -> StepBatch:
        """Return this step with micro-batches: of up to `wanted` response tokens, else the dump's, else of up to
        `tokens`."""
        if wanted is None and self.microbatches is not None:
            return self
        return replace(self, microbatches=cut(self.lengths, wanted or tokens))


OPTIONAL = ("checkpoint_log_probs", "proximal_log_probs", "lags", "rewards")
"""Columns of (N,) that only some dumps hold."""


def cut(lengths: Tensor, tokens: int) -> list[int]:
    """Return how many consecutive responses each micro-batch has: as many as fit `tokens` tokens; a longer response
    stands alone. lengths: (R,) tokens."""
    sizes: list[int] = []
    room = 0
    for length in lengths.tolist():
        if sizes and length <= room:
            sizes[-1] += 1
            room -= length
        else:
            sizes.append(1)
            room = tokens - length
    return sizes


def in_a_row(responses: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (N,) the values of the responses one after the other."""
    return torch.cat([values.reshape(-1).to(dtype) for values in responses]) if responses else torch.zeros(0).to(dtype)
