"""A micro-batch: as a caller gives it (TokenBatch), and its active tokens as stabilizers read them (Tokens)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from .terms import LARGEST_LOG, Denominator, Need, Ratio, bounded_exp


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """N tokens, response after response, prompts left out.

    Inactive tokens (mask False) may hold anything, NaN included: they add nothing to a value, a gradient or a metric.
    bf16 and fp16 are computed with in fp32; float64 stays float64.

    Raises:
        ValueError: a shape, a dtype or the sum of the lengths does not fit.
    """

    log_probs: Tensor
    """(N,) log pi of the sampled tokens under the policy in training; requires grad."""
    rollout_log_probs: Tensor
    """(N,) log mu: what the rollout engine sampled with."""
    advantages: Tensor
    """(N,) advantage of each token."""
    mask: Tensor
    """(N,) bool: the active tokens."""
    lengths: Tensor | Sequence[int]
    """Tokens per response, in order; sum N. Zero is a response of which this rank holds nothing. A list spares the wait
    that a tensor on a GPU costs."""
    proximal_log_probs: Tensor | None = None
    """(N,) the denominator where it is not mu: the trainer as the batch begins or under the generating weights."""
    lags: Tensor | None = None
    """(N,) optimizer updates between the weights that generated each token and those in training."""
    entropies: Tensor | None = None
    """(N,) entropy of the policy in training where the token was sampled, in nats."""

    def __post_init__(self) -> None:
        if self.log_probs.dim() != 1:
            raise ValueError(f"log_probs has shape {tuple(self.log_probs.shape)}: pass the N tokens in a row, (N,)")
        n = len(self.log_probs)
        for name, column in {**self.columns(), "mask": self.mask}.items():
            if column.shape != (n,):
                raise ValueError(f"{name} has shape {tuple(column.shape)} where log_probs has {(n,)}: pass (N,)")
            if name == "mask" and column.dtype != torch.bool:
                raise ValueError(f"mask has dtype {column.dtype}: pass mask.bool()")
            if name != "mask" and not column.dtype.is_floating_point:
                raise ValueError(f"{name} has dtype {column.dtype}: pass a floating-point tensor")
        if (total := int(self.lengths.sum() if isinstance(self.lengths, torch.Tensor) else sum(self.lengths))) != n:
            raise ValueError(f"lengths add up to {total} for {n} tokens: one length per response, sum N")

    def columns(self) -> dict[str, Tensor]:
        """The (N,) numbers that it holds, by name."""
        return {name: c for name, c in vars(self).items() if c is not None and name not in ("mask", "lengths")}


def denominator_log_probs(
    denominator: Denominator, log_pi: Tensor, log_mu: Tensor, proximal: Tensor | None, lags: Tensor | None = None
) -> Tensor:
    """The log-probs that log pi is compared with, detached, of columns of equal shape.

    `trainer` without `proximal` is the training forward itself, detached: the ratio is 1, which is exact at one
    optimizer step per rollout and spares a forward pass. `a3po` is log-linear between mu and pi, so that d is
    (log pi - log mu) / lag from lag 1 on (arXiv 2512.06547).

    Raises:
        ValueError: `checkpoint` without `proximal`, `a3po` without `lags`.
    """
    if denominator == "rollout":
        return log_mu.detach()
    if denominator == "a3po":
        if lags is None:
            raise ValueError("the batch has no lags: pass lags to TokenBatch")
        a = ((lags - 1) / lags.clamp(min=1)).clamp(min=0)
        return (log_mu + a * (log_pi - log_mu).clamp(-LARGEST_LOG, LARGEST_LOG)).detach()
    if proximal is None and denominator == "checkpoint":
        raise ValueError(
            "denominator checkpoint needs proximal_log_probs, the trainer's log-probs under the weights that generated "
            "the batch"
        )
    return (log_pi if proximal is None else proximal).detach()


class Reading(Protocol):
    """What of a method says how its tokens are read."""

    @property
    def name(self) -> str: ...
    @property
    def ratio(self) -> Ratio: ...
    @property
    def denominator(self) -> Denominator: ...
    @property
    def needs(self) -> Collection[Need]: ...


class Tokens:
    """The n active tokens of a micro-batch as a method reads them, in float32, or float64 where a column is. (n,) each,
    and without gradient but for `d`, `ratio` and `score`. They may be the caller's own tensors: never write into one.

    pi is the policy in training, mu the engine's, pi_proximal the trainer's policy that is compared with mu: the
    denominator where that is not mu, else pi.
    """

    lags: Tensor
    """Optimizer updates since the weights that generated the token; of a method that `needs` them."""
    entropies: Tensor
    """Entropy where the token was sampled; of a method that `needs` them."""
    threshold: Tensor
    """0-dim: the threshold of the method's Judge, where it has one."""

    def __init__(
        self,
        method: Reading,
        batch: TokenBatch,
        group: dist.ProcessGroup | None = None,
        d: Tensor | None = None,
        *,
        without: Need | None = None,
    ) -> None:
        """group, d: as in policy_surrogate. without: what the method needs and the caller does not read. Raises
        ValueError where the batch lacks what the method reads."""
        self.unit, self.group, self._batch = method.ratio, group, batch
        self._places = batch.mask.nonzero()[:, 0]  # on a GPU the host waits here, and nowhere else
        self.n = len(self._places)
        """Active tokens."""
        self._all = self.n == len(batch.mask)
        wide = any(column.dtype == torch.float64 for column in batch.columns().values())
        self.dtype = torch.float64 if wide else torch.float32
        log_pi = self.cut(batch.log_probs)
        self.log_pi, self.log_mu = log_pi.detach(), self.cut(batch.rollout_log_probs).detach()
        self.A = self.cut(batch.advantages).detach()
        """A: the advantages."""
        read = [self.log_pi, self.log_mu, self.A]
        for need in (need for need in method.needs if need != without):
            if (column := getattr(batch, need)) is None:
                raise ValueError(f"{method.name} needs {need}, and the batch has none: pass {need} to TokenBatch")
            setattr(self, need, self.cut(column).detach())
            read.append(getattr(self, need))
        proximal = batch.proximal_log_probs
        if proximal is not None:
            proximal = None if method.denominator in ("rollout", "a3po") else self.cut(proximal)
        self.log_denominator = denominator_log_probs(
            method.denominator, self.log_pi, self.log_mu, proximal, getattr(self, "lags", None)
        )
        self.log_proximal = self.log_pi if method.denominator == "rollout" else self.log_denominator
        if d is not None:
            self.d = self.cut(d)
            """d = log r of the method: the token's, or its response's; with gradient."""
            read.append(self.d.detach())
        else:
            self.d = log_pi - self.log_denominator
            self.d = self.d if method.ratio == "token" else self.mean(self.d)
        self.ratio = bounded_exp(self.d)
        """r = e^d, saturated where it is huge; with gradient."""
        total = functools.reduce(torch.add, read if proximal is None else [*read, proximal.detach()])
        self.poison = (total - total).sum()
        """0-dim 0; NaN where a number of an active token is not finite."""
        self.A = self.A + self.poison  # so that nothing is computed of such a batch, the gradient least of all
        self.measured: dict[str, Tensor] = {}
        """What stabilizers measure: (n,) each, whose mean is the metric, or 0-dim."""

    def cut(self, column: Tensor) -> Tensor:
        """The (n,) active tokens of a column of N."""
        return (column if self._all else column.index_select(0, self._places)).to(self.dtype)

    def back(self, values: Tensor) -> Tensor:
        """The (n,) values in their places among the N tokens, 0 elsewhere."""
        return values if self._all else values.new_zeros(len(self._batch.mask)).index_copy_(0, self._places, values)

    @property
    def score(self) -> Tensor:
        """log pi, whose gradient comes through d, where its slope is 1."""
        d = self.bounded_d
        return self.log_pi.clamp(min=-LARGEST_LOG) + (d - d.detach())

    @property
    def bounded_d(self) -> Tensor:
        """d, with gradient, for where it is outside an exponential."""
        return self.d.clamp(-LARGEST_LOG, LARGEST_LOG)

    @cached_property
    def log_k(self) -> Tensor:
        """log k, k = pi_proximal / mu."""
        return self.log_proximal - self.log_mu

    @cached_property
    def k(self) -> Tensor:
        """k = pi_proximal / mu, saturated where it is huge."""
        return bounded_exp(self.log_k)

    # ------------------------------------------------------------------------------------------------------- responses

    @cached_property
    def lengths(self) -> Tensor:
        """(responses,) int64: active tokens of each response on this rank."""
        lengths = torch.as_tensor(self._batch.lengths, dtype=torch.int64, device=self.A.device)
        return lengths if self._all else segment_sums(self._batch.mask, lengths).long()

    @cached_property
    def whole_lengths(self) -> Tensor:
        """(responses,) int64: those over all ranks of `group`."""
        if self.group is None:
            return self.lengths
        dist.all_reduce(lengths := self.lengths.clone(), group=self.group)
        return lengths

    @cached_property
    def _owner(self) -> Tensor:
        """(n,) the response of each token, from 0."""
        return torch.repeat_interleave(self.lengths, output_size=self.n)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over each response, on whatever ranks, at each of its tokens.

        Sums are taken in float64, so that neither long responses nor the way in which a response is split over ranks
        shows in the result. The gradient is that of the sum of all ranks' losses.
        """
        return _ResponseMean.apply(values, self.lengths, self.whole_lengths, self._owner, self.group)

    @torch.no_grad()
    def sum(self, values: Tensor) -> Tensor:
        """The sum over each response, without gradient; as `mean`."""
        return _response_sums(values, self.lengths, self.group).index_select(0, self._owner).to(values.dtype)

    def behind(self, condition: Tensor) -> Tensor:
        """(n,) bool: true at the tokens behind the first of their response at which it is true. Raises ValueError where
        responses are split over ranks, of which none knows what stands before its part."""
        if self.group is not None:
            raise ValueError(
                "what stands behind a token is asked of responses that are split: set context parallelism to 1"
            )
        before = condition.long().cumsum(0) - condition.long()
        starts = (self.lengths.cumsum(0) - self.lengths).index_select(0, self._owner)
        return before > before.index_select(0, starts)

    def any(self, condition: Tensor) -> Tensor:
        """(n,) bool: true at all tokens of the responses in which it is true of one."""
        return self.sum(condition.double()) > 0


class _ResponseMean(torch.autograd.Function):
    """The mean over responses, at each token. It is its own transpose, so that its gradient is the same mean."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, *of: Any) -> Tensor:
        ctx.of = of
        lengths, whole_lengths, owner, group = of
        means = _response_sums(values, lengths, group) / whole_lengths
        return means.index_select(0, owner).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _ResponseMean.forward(ctx, gradient, *ctx.of), None, None, None, None


def _response_sums(values: Tensor, lengths: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    sums = segment_sums(values, lengths)
    if group is not None:
        dist.all_reduce(sums, group=group)
    return sums


def segment_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """(responses,) float64 sums of the (N,) values of each response, from (responses,) lengths that add up to N."""
    return torch.segment_reduce(values.double(), "sum", lengths=lengths, unsafe=True)


def response_mean_weights(mask: Tensor, lengths: Tensor | Sequence[int], n_responses: int) -> Tensor:
    """(N,) float64 1 / (n_responses * active tokens of the response): mean over responses of their token means.

    Args:
        mask: (N,) bool.
        lengths: tokens per response of this micro-batch, sum N.
        n_responses: responses of the whole batch, over all micro-batches and data-parallel ranks.
    """
    lengths = torch.as_tensor(lengths, dtype=torch.int64, device=mask.device)
    weights = 1.0 / (n_responses * segment_sums(mask, lengths).clamp(min=1))
    return torch.repeat_interleave(weights, lengths, output_size=len(mask)) * mask


def broken_tokens(batch: TokenBatch) -> str:
    """Say how many active tokens have a number that is not finite, and which is the first; empty where none has.

    For when a result is NaN: it reads from the device.
    """
    columns = batch.columns()
    broken = torch.stack([~column.detach().isfinite() for column in columns.values()]) & batch.mask
    places = broken.any(0).nonzero()[:, 0].tolist()
    if not places:
        return ""
    first = places[0]
    name, column = list(columns.items())[broken[:, first].tolist().index(True)]
    ends = torch.as_tensor(batch.lengths).cumsum(0)
    response = int((ends <= first).sum())
    place = first - (int(ends[response - 1]) if response else 0)
    return (
        f"{len(places)} of {int(batch.mask.sum())} active tokens have a number that is not finite; the first is token "
        f"{place} of response {response} (position {first}), whose {name} is {float(column[first])}"
    )
