"""TokenBatch: one micro-batch, the tokens of its responses in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch

Need = Literal["lags", "rewards", "heads"]
"""Fields of a batch that only some methods read: the lag of each token, its response's reward, the two heads."""


_COLUMNS = ("log_probs", "rollout_log_probs", "advantages", "proximal_log_probs", "lags", "rewards")
"""The columns of floats with a number for each token."""


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """One micro-batch of N tokens: response after response, prompts left out.

    Inactive tokens (mask False) may hold anything, NaN included: they add nothing to a value, a gradient or a metric.
    bf16 and fp16 log-probs are computed with in fp32; float64 stays float64.

    Raises:
        ValueError: a shape, a dtype or the sum of the lengths does not fit.
    """

    log_probs: torch.Tensor
    """(N,) log pi of the sampled tokens under the policy in training; requires grad."""
    rollout_log_probs: torch.Tensor
    """(N,) log mu: what the rollout engine sampled with."""
    advantages: torch.Tensor
    """(N,) advantage of each token."""
    mask: torch.Tensor
    """(N,) bool: the active tokens."""
    lengths: torch.Tensor | Sequence[int]
    """Tokens per response, in order; sum N. Zero is a response of which this rank holds nothing."""
    proximal_log_probs: torch.Tensor | None = None
    """(N,) the denominator where it is not mu: the trainer at the start of the step or under the generating weights."""
    lags: torch.Tensor | None = None
    """(N,) optimizer updates between the weights that generated each token and those in training."""
    rewards: torch.Tensor | None = None
    """(N,) reward of the token's response, before any baseline."""
    rollout_head: torch.Tensor | None = None
    """(N, k) log-probs of the k tokens that the rollout engine found likeliest in each state, or of all of the
    vocabulary; -inf where it would not sample."""
    policy_head: torch.Tensor | None = None
    """(N, k) log-probs of the same tokens under the policy in training, over the whole vocabulary; requires grad."""

    def __post_init__(self) -> None:
        if self.log_probs.dim() != 1:
            raise ValueError(
                f"log_probs has shape {tuple(self.log_probs.shape)}: pass the N tokens in a row, shape (N,)"
            )
        for name in (*_COLUMNS, "mask"):
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if tensor.shape != self.log_probs.shape:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)} where log_probs has {tuple(self.log_probs.shape)}: "
                    "all tensors of a TokenBatch hold the same N tokens"
                )
            if name == "mask" and tensor.dtype != torch.bool:
                raise ValueError(f"mask has dtype {tensor.dtype}: pass mask.bool()")
            if name != "mask" and not tensor.dtype.is_floating_point:
                raise ValueError(f"{name} has dtype {tensor.dtype}: pass a floating-point tensor")
        heads = [head for head in (self.rollout_head, self.policy_head) if head is not None]
        if heads and [head.shape for head in heads] != [(len(self.log_probs), heads[0].shape[-1])] * 2:
            raise ValueError(
                f"rollout_head and policy_head have shapes {' and '.join(str(tuple(head.shape)) for head in heads)}: "
                f"pass both, with a row for each of the {len(self.log_probs)} tokens and the same k columns"
            )
        if (
            total := int(sum(self.lengths) if not isinstance(self.lengths, torch.Tensor) else self.lengths.sum())
        ) != len(self.log_probs):
            raise ValueError(
                f"lengths add up to {total} for {len(self.log_probs)} tokens: one length per response, sum N"
            )

    def has(self, need: Need) -> bool:
        """Return whether it holds what some methods read."""
        return (self.rollout_head if need == "heads" else getattr(self, need)) is not None

    def needed(self, need: Need) -> torch.Tensor:
        """Return that column, or the engine's head. Raises ValueError where the batch has none."""
        column = self.rollout_head if need == "heads" else getattr(self, need)
        if column is None:
            fields = "rollout_head and policy_head" if need == "heads" else need
            raise ValueError(f"the batch has no {fields}: pass {fields} to TokenBatch")
        return column

    @cached_property
    def n_active(self) -> int:
        """Active tokens."""
        return int(self.mask.sum())

    @cached_property
    def lengths_tensor(self) -> torch.Tensor:
        """(responses,) int64 lengths on the tokens' device."""
        return torch.as_tensor(self.lengths, dtype=torch.int64, device=self.log_probs.device)

    @cached_property
    def active_lengths(self) -> torch.Tensor:
        """(responses,) float64: active tokens of each response."""
        if self.n_active == len(self.mask):
            return self.lengths_tensor.double()
        return segment_sums(self.mask, self.lengths_tensor)

    def active_or_zero(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values, (N,) or (N, k), 0 on inactive tokens, whatever stood there; no gradient reaches those."""
        if self.n_active == len(self.mask):
            return values
        mask = self.mask if values.dim() == 1 else self.mask[:, None]
        return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))

    def active_means(self, sums: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the 0-dim means over active tokens from the 0-dim sums over them; 0 where no token is active."""
        means = torch.stack([value.to(self.log_probs.dtype) for value in sums.values()]) / max(self.n_active, 1)
        return dict(zip(sums, means.unbind(), strict=True))

    def promoted(self) -> TokenBatch:
        """Return the batch in the dtype it is computed with: float64 where a log-prob is float64, else float32."""
        names = (*_COLUMNS, "rollout_head", "policy_head")
        tensors = {name: tensor for name in names if (tensor := getattr(self, name)) is not None}
        dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors.values()) else torch.float32
        if all(tensor.dtype == dtype for tensor in tensors.values()):
            return self
        return replace(self, **{name: tensor.to(dtype) for name, tensor in tensors.items()})


def segment_sums(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the (responses,) float64 sums of the (N,) values of each response, from (responses,) lengths that add up
    to N."""
    return torch.segment_reduce(values.double(), "sum", lengths=lengths, unsafe=True)


def per_token(values: torch.Tensor, lengths: torch.Tensor, n_tokens: int) -> torch.Tensor:
    """Return the (responses,) values, each repeated for the tokens of its response: (N,)."""
    return torch.repeat_interleave(values, lengths, output_size=n_tokens)
