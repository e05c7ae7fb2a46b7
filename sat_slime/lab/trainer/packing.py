"""Responses are packed into micro-batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sat_slime.lab.trainer.model import PackedLayout
from sat_slime.lab.trainer.parallel import device
from sat_slime.objective import TokenBatch
from sat_slime.objective.terms import Need
from sat_slime.rollout.types import TOOL, Response


@dataclass(frozen=True)
class MicroBatch:
    """Responses in one packed row. N forwarded tokens, R response tokens.

    The last token of a response is a target only, so a response of P + T tokens puts P + T - 1 into the row: just the
    tokens that the rollout engine forwarded, and for which it reported experts.
    """

    token_ids: Tensor
    """(N,) forwarded tokens."""
    layout: PackedLayout
    rows: Tensor
    """(R,) place in the row whose logits predict each response token."""
    output_ids: Tensor
    """(R,) response tokens, the targets of the log-probs."""
    rollout_log_probs: Tensor
    """(R,) fp32 log mu."""
    advantages: Tensor
    """(R,) fp32."""
    rewards: Tensor
    """(R,) fp32, of each token's response."""
    request_ids: list[str]
    lengths: list[int]
    """Response tokens of each response; their sum is R."""
    versions: Tensor
    """(R,) weight version that generated each response token; TOOL for those of a tool."""
    mask: Tensor
    """(R,) bool: the response tokens that are trained: all that a model generated."""
    routed_experts: Tensor | None
    """(N, layers, top-k) int64 experts of the rollout engine."""
    distribution: Tensor | None = None
    """(R, vocabulary) fp32 log mu of every token, -inf outside the nucleus; None where it was not asked for."""
    kept: Tensor | None = None
    """(R, vocabulary) bool: the tokens over which the trainer's softmax goes, as the engine's did; None: all."""
    proximal_log_probs: Tensor | None = None
    """(R,) log-probs of the denominator; None where that is mu or the training forward itself."""

    def token_batch(self, needs: Collection[Need], updates: int, log_probs: Tensor) -> TokenBatch:
        """Return the objective's view of these response tokens.

        Args:
            needs: what the method reads besides log-probs and advantages.
            updates: optimizer updates of the weights in training.
            log_probs: (R,) of the policy, with its gradient.
        """
        return TokenBatch(
            log_probs=log_probs,
            rollout_log_probs=self.rollout_log_probs,
            advantages=self.advantages,
            mask=self.mask,
            lengths=self.lengths,
            proximal_log_probs=self.proximal_log_probs,
            lags=(updates - self.versions).where(self.mask, 0).to(log_probs.dtype) if "lags" in needs else None,
            rewards=self.rewards if "rewards" in needs else None,
        )


def plan_microbatches(sizes: list[int], tokens_per_microbatch: int) -> list[list[int]]:
    """Cuts samples, in order, into micro-batches of nearly equal numbers of tokens; each is a list of sample indices.

    Their number is the smallest that keeps every micro-batch within the bound.

    Args:
        sizes: forwarded tokens of each sample.
    """
    count = max(1, -(-sum(sizes) // tokens_per_microbatch))
    while True:
        parts = _cut(sizes, count)
        if all(sum(sizes[i] for i in part) <= tokens_per_microbatch for part in parts):
            return [part for part in parts if part]
        if count >= len(sizes):
            # Uneven sizes can defeat equal cuts at any count; alone, each sample is as small as it gets.
            return [[i] for i in range(len(sizes))]
        count += 1


def _cut(sizes: list[int], count: int) -> list[list[int]]:
    ends = np.cumsum(sizes)
    parts: list[list[int]] = [[] for _ in range(count)]
    for sample, end in enumerate(ends):
        middle = end - sizes[sample] / 2  # a sample belongs to the part in which its middle token falls
        parts[min(int(middle * count / ends[-1]), count - 1)].append(sample)
    return parts


def forwarded_tokens(response: Response) -> int:
    """Return the number of tokens of a response that are inputs: all but its last."""
    return len(response.prompt_ids) + len(response.output_ids) - 1


def pack(batch: Sequence[Response], part: list[int], routed: bool, top_p_replay: bool = False) -> MicroBatch:
    """Packs some responses of a batch into a row.

    Args:
        part: indices of the responses.
        routed: whether the responses carry routed experts, as those of a MoE model.
        top_p_replay: whether the trainer's softmax goes over the tokens alone that the engine sampled from.
    """
    responses = [batch[i] for i in part]
    sequences = [[*r.prompt_ids, *r.output_ids[:-1]] for r in responses]
    lengths = [len(sequence) for sequence in sequences]
    starts = np.cumsum([0, *lengths])
    rows = [
        np.arange(start + len(r.prompt_ids) - 1, start + length)
        for r, start, length in zip(responses, starts, lengths, strict=False)
    ]
    output_lengths = [len(r.output_ids) for r in responses]

    def tensor(values, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(device())

    def of_each_token(values: list[float]) -> Tensor:
        return tensor(np.repeat(np.asarray(values, dtype=np.float32), output_lengths), torch.float32)

    distribution = None
    whole = [r.distribution for r in responses if r.distribution is not None]
    if len(whole) == len(responses):
        distribution = tensor(np.concatenate(whole), torch.float32)
    routes = None
    if routed:
        routes = tensor(np.concatenate([r.routed_experts for r in responses]), torch.int64)
    versions = tensor(np.concatenate([r.versions for r in responses]), torch.int64)
    return MicroBatch(
        token_ids=tensor([t for sequence in sequences for t in sequence], torch.int64),
        layout=PackedLayout.of(lengths),
        rows=tensor(np.concatenate(rows), torch.int64),
        output_ids=tensor([t for r in responses for t in r.output_ids], torch.int64),
        rollout_log_probs=tensor(np.concatenate([r.log_probs for r in responses]), torch.float32),
        advantages=of_each_token([r.advantage for r in responses]),
        rewards=of_each_token([r.reward for r in responses]),
        request_ids=[r.request_id for r in responses],
        lengths=output_lengths,
        versions=versions,
        mask=versions != TOOL,
        routed_experts=routes,
        distribution=distribution,
        kept=distribution.isfinite() if distribution is not None and top_p_replay else None,
    )
