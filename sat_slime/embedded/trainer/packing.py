"""Responses are packed into the micro-batches of one data-parallel rank."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sat_slime.embedded.trainer.model import PackedLayout
from sat_slime.embedded.trainer.parallel import device
from sat_slime.objective import TokenBatch
from sat_slime.objective.terms import Need
from sat_slime.rollout.types import TOOL, Response


@dataclass(frozen=True)
class MicroBatch:
    """Responses in one packed row. N forwarded tokens (with padding), R response tokens.

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
    """(N, layers, top-k) int64 experts of the rollout engine; padding takes the first experts."""
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


def plan_microbatches(sizes: list[int], ranks: int, tokens_per_microbatch: int) -> list[list[list[int]]]:
    """Deals samples to ranks and micro-batches: plan[rank][micro-batch] is a list of sample indices.

    Samples are dealt to the ranks in turn. Each rank cuts its samples, in order, into the same number of micro-batches
    (Megatron's collectives need that) of nearly equal numbers of tokens; the number is the smallest that keeps every
    micro-batch within the bound. A rank with few samples may get an empty micro-batch.

    Args:
        sizes: forwarded tokens of each sample.
    """
    dealt = [list(range(rank, len(sizes), ranks)) for rank in range(ranks)]
    count = max(1, -(-max(sum(sizes[i] for i in mine) for mine in dealt) // tokens_per_microbatch))
    while True:
        plan = [_cut(mine, sizes, count) for mine in dealt]
        if all(sum(sizes[i] for i in part) <= tokens_per_microbatch for parts in plan for part in parts):
            return plan
        if count >= max(len(mine) for mine in dealt):
            # Uneven sizes can defeat equal cuts at any count; alone, each sample is as small as it gets.
            return [[*([i] for i in mine), *([] for _ in range(count - len(mine)))] for mine in dealt]
        count += 1


def _cut(samples: list[int], sizes: list[int], count: int) -> list[list[int]]:
    ends = np.cumsum([sizes[i] for i in samples]) if samples else np.zeros(0)
    total = ends[-1] if samples else 0
    # A sample belongs to the part in which its middle token falls.
    parts: list[list[int]] = [[] for _ in range(count)]
    for sample, end in zip(samples, ends, strict=True):
        middle = end - sizes[sample] / 2
        parts[min(int(middle * count / total), count - 1)].append(sample)
    return parts


def padded_tokens(sizes: list[int], plan: list[list[list[int]]], multiple_of: int) -> list[int]:
    """Return the tokens of the row of each micro-batch, equal on all ranks: experts on other ranks gather rows of one
    size."""
    widest = [max(sum(sizes[i] for i in parts[m]) for parts in plan) for m in range(len(plan[0]))]
    return [max(1, -(-tokens // multiple_of)) * multiple_of for tokens in widest]


_PADDING_LENGTH = 32
"""The longest padding sequence of a row without samples."""


def _padding_sequences(tokens: int, longest: int) -> list[int]:
    """Return the lengths of padding sequences, none longer than the real ones: attention's grid is as wide as the
    longest sequence."""
    return [longest] * (tokens // longest) + ([tokens % longest] if tokens % longest else [])


def forwarded_tokens(response: Response) -> int:
    """Return the number of tokens of a response that are inputs: all but its last."""
    return len(response.prompt_ids) + len(response.output_ids) - 1


def pack(
    batch: Sequence[Response],
    part: list[int],
    tokens: int,
    routing_shape: tuple[int, int] | None,
    top_p_replay: bool = False,
) -> MicroBatch:
    """Packs some responses of a batch into a row; what is left is padding that nothing reads.

    Args:
        part: indices of the responses.
        tokens: of the row.
        routing_shape: (layers, top-k) of a MoE model whose responses carry routed experts, else None.
        top_p_replay: whether the trainer's softmax goes over the tokens alone that the engine sampled from.
    """
    responses = [batch[i] for i in part]
    sequences = [[*r.prompt_ids, *r.output_ids[:-1]] for r in responses]
    lengths = [len(sequence) for sequence in sequences]
    padding = tokens - sum(lengths)
    if padding < 0:
        raise ValueError(f"{sum(lengths)} tokens do not fit a row of {tokens}")

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
    if (first := batch[0].distribution) is not None:
        whole = [r.distribution for r in responses if r.distribution is not None]
        distribution = tensor(np.concatenate([*whole, first[:0]]), torch.float32)
    routes = None
    if routing_shape is not None:
        layers, top_k = routing_shape
        filler = np.broadcast_to(np.arange(top_k), (padding, layers, top_k))
        routes = tensor(np.concatenate([*[r.routed_experts for r in responses], filler]), torch.int64)
    versions = tensor(np.concatenate([*[r.versions for r in responses], np.zeros(0, dtype=np.int64)]), torch.int64)
    return MicroBatch(
        token_ids=tensor([t for sequence in sequences for t in sequence] + [0] * padding, torch.int64),
        layout=PackedLayout.of(lengths + _padding_sequences(padding, longest=max(lengths, default=_PADDING_LENGTH))),
        rows=tensor(np.concatenate([*rows, np.zeros(0, dtype=np.int64)]), torch.int64),
        output_ids=tensor([t for r in responses for t in r.output_ids], torch.int64),
        rollout_log_probs=tensor(
            np.concatenate([*[r.log_probs for r in responses], np.zeros(0, dtype=np.float32)]), torch.float32
        ),
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
