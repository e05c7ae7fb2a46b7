"""The gradient weight of a token: g = d(sum of S) / d log pi of the token, what a method puts in the place of A.

The policy gradient is the sum of w g grad log pi over tokens, w the weights of the reduction. g comes from
policy_surrogate by autograd through the method's own log-ratio d, which is one number per token and cheap. Between d
and log pi lies the identity, or the mean over the response (Eq. gspo-ratio), whose transpose is itself. Score centering
reads log pi of the sampled token a second time, in the head of its state, and that part counts too: g_a = A (w - s_a),
s_a the slope of C at the sampled token. What it does to the other tokens of the head is no part of g."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sat_slime.objective import (
    Judge,
    Method,
    Need,
    ProximalPolicy,
    TokenBatch,
    policy_surrogate,
    supply_proximal,
    threshold_scores,
)
from sat_slime.objective.ratio import bounded_ratio, log_ratio, sequence_mean
from sat_slime.report.dumps.step_batch import StepBatch

KEPT, REWEIGHTED, MASKED, CLIPPED = range(4)
FATES = ("kept", "re-weighted", "masked", "clipped")
"""The fates of a token. Kept: its own term of the surrogate has the slope r A of the method's own ratio.
Re-weighted: it has another slope, as that of a score form whose weight is not r, or of a penalty. Masked: a gate drops
the token, or a weight of 0. Clipped: the clip interval holds it; this comes before masked."""

SAME_TOKEN = 1e-3
"""Nats by which two forward passes may differ about one token."""

Metrics = tuple[int, dict[str, Tensor]]
"""(active tokens, the metrics of policy_surrogate over them)."""


@dataclass(frozen=True, eq=False)
class TokenGradient:
    """The gradient weights of one method on some tokens of a step."""

    weights: Tensor
    """(N,) g; 0 on inactive tokens."""
    fates: Tensor
    """(N,) int64 of FATES; without meaning where A is 0 or the token inactive."""
    metrics: list[Metrics]
    """The metrics of each micro-batch, or those of all tokens at once where micro-batches make no difference."""


@dataclass(frozen=True)
class Span:
    """Consecutive micro-batches of a step that are computed together."""

    responses: slice
    tokens: slice
    microbatches: tuple[slice, ...]
    """Tokens of each micro-batch, counted from the span's first token."""
    microbatch_lengths: tuple[Tensor, ...]
    """(responses,) tokens of each response, a tensor for each micro-batch."""


def spans(batch: StepBatch, at_least: int) -> list[Span]:
    """Return the micro-batches of a step in spans; each but the last has at least so many tokens."""
    assert batch.microbatches is not None
    joined: list[Span] = []
    token = response = 0
    start = (0, 0)
    parts: list[slice] = []
    lengths: list[Tensor] = []
    for index, size in enumerate(batch.microbatches):
        lengths.append(batch.lengths[response : response + size])
        n = int(lengths[-1].sum())
        parts.append(slice(token - start[0], token - start[0] + n))
        token, response = token + n, response + size
        if token - start[0] >= at_least or index == len(batch.microbatches) - 1:
            joined.append(Span(slice(start[1], response), slice(start[0], token), tuple(parts), tuple(lengths)))
            start, parts, lengths = (token, response), [], []
    return joined


class StepView:
    """A step as all methods see it: each log-ratio and each quantile is computed once."""

    def __init__(self, batch: StepBatch):
        self.batch = batch
        self._ratios: dict[tuple[str, str], Tensor] = {}
        self._thresholds: dict[tuple[str, str, Judge], Tensor] = {}
        self._supplied: dict[ProximalPolicy, Tensor] = {}

    def prepare(self, methods: Sequence[Method]) -> None:
        """Compute all that `methods` read, before several threads read it."""
        for method in methods:
            self.log_ratio(method)
            if method.judge:
                self.step_threshold(method)

    def log_ratio(self, method: Method) -> Tensor:
        """Return (N,) d of the method over the whole step; 0 on inactive tokens."""
        key = method.ratio, method.denominator
        if key not in self._ratios:
            self._ratios[key] = log_ratio(method.ratio, method.denominator, self.tokens(method))
        return self._ratios[key]

    def step_threshold(self, method: Method) -> Tensor:
        """Return the threshold of the method's judge under scope `step`: SAT's q, M2PO's."""
        assert method.judge, "it judges by a threshold"
        key = method.ratio, method.denominator, method.judge
        if key not in self._thresholds:
            scores = threshold_scores(method, self.tokens(method), d=self.log_ratio(method))
            self._thresholds[key] = method.judge.threshold_of(scores)
        return self._thresholds[key]

    def tokens(self, method: Method, tokens: slice = slice(None), lengths: Tensor | None = None) -> TokenBatch:
        """Return tokens of the step as the objective takes them, with the denominator that the method reads."""
        step, proximal = self.batch, self.proximal(method)
        return TokenBatch(
            log_probs=step.log_probs[tokens],
            rollout_log_probs=step.rollout_log_probs[tokens],
            advantages=step.advantages[tokens],
            mask=step.mask[tokens],
            lengths=step.lengths if lengths is None else lengths,
            proximal_log_probs=None if proximal is None else proximal[tokens],
            **{name: column[tokens] for name, column in self._needed(method).items()},
        )

    def _needed(self, method: Method) -> dict[str, Tensor]:
        """Return what `method.needs`, by the fields of TokenBatch, which are called as those of the step."""
        fields = {"lags": ("lags",), "rewards": ("rewards",), "heads": ("rollout_head", "policy_head")}
        columns = {name: getattr(self.batch, name) for need in method.needs for name in fields[need]}
        return {name: column for name, column in columns.items() if column is not None}

    def proximal(self, method: Method) -> Tensor | None:
        """Return (N,) what the method reads as proximal_log_probs; None where that is log_probs itself, or not read."""
        if method.denominator == "rollout":
            return None
        if method.proximal_policy is not None:
            return self._supplied_for(method, method.proximal_policy)
        return self.batch.checkpoint_log_probs if method.denominator == "checkpoint" else self.batch.proximal_log_probs

    def _supplied_for(self, method: Method, policy: ProximalPolicy) -> Tensor | None:
        if policy not in self._supplied:
            step = self.batch
            columns = step.log_probs, step.rollout_log_probs, step.advantages, step.mask, step.lengths
            supplied = supply_proximal(method, TokenBatch(*columns, **self._needed(method))).proximal_log_probs
            assert supplied is not None, "it supplies them"
            self._supplied[policy] = supplied
        return self._supplied[policy]


class SpanView:
    """A span as all methods see it."""

    def __init__(self, view: StepView, span: Span):
        self.step, self.span = view, span
        self.lengths = view.batch.lengths[span.responses]
        self.mask = view.batch.mask[span.tokens]
        self.advantages = view.batch.advantages[span.tokens]
        self._tokens: dict[tuple[int, int, tuple[Need, ...]], TokenBatch] = {}
        self._slopes: dict[tuple[str, str], Tensor] = {}

    def log_ratio(self, method: Method) -> Tensor:
        """Return (n,) d of the method."""
        return self.step.log_ratio(method)[self.span.tokens]

    def slopes(self, method: Method) -> Tensor:
        """Return (n,) r A of the method's own ratio."""
        key = method.ratio, method.denominator
        if key not in self._slopes:
            self._slopes[key] = bounded_ratio(self.log_ratio(method)) * self.advantages
        return self._slopes[key]

    def parts(self, method: Method, each_microbatch: bool) -> list[tuple[slice, TokenBatch]]:
        """Return (place of its tokens in the span, the tokens) of each micro-batch, or of the whole span as one."""
        if not each_microbatch:
            return [(slice(0, len(self.mask)), self._batch(method, -1, slice(0, len(self.mask)), self.lengths))]
        pieces = zip(self.span.microbatches, self.span.microbatch_lengths, strict=True)
        return [(part, self._batch(method, i, part, lengths)) for i, (part, lengths) in enumerate(pieces)]

    def _batch(self, method: Method, index: int, part: slice, lengths: Tensor) -> TokenBatch:
        key = index, id(self.step.proximal(method)), method.needs
        if key not in self._tokens:
            start = self.span.tokens.start
            self._tokens[key] = self.step.tokens(method, slice(start + part.start, start + part.stop), lengths)
        return self._tokens[key]


def token_gradient(method: Method, view: SpanView) -> TokenGradient:
    """Return g and fate of the span's tokens. SAT takes its quantile over its own scope."""
    d = view.log_ratio(method).requires_grad_()
    values: list[Tensor] = []
    clipped: list[Tensor] = []
    metrics: list[Metrics] = []
    alone = method.judge is not None and not method.threshold_is_of_the_step
    quantile = view.step.step_threshold(method) if method.threshold_is_of_the_step else None
    moved = torch.zeros_like(d, requires_grad=True) if "heads" in method.needs else None
    for part, tokens in view.parts(method, alone):
        if moved is not None:
            tokens = replace(tokens, policy_head=_with_sampled_moved(tokens, moved[part]))
        surrogate = policy_surrogate(method, tokens, quantile=quantile, d=d[part])
        values.append(surrogate.values)
        clipped.append(surrogate.clipped)
        metrics.append((tokens.n_active, surrogate.metrics))
    value = torch.cat(values) if len(values) > 1 else values[0]
    leaves = [d] if moved is None else [d, moved]
    slopes, *of_head = torch.autograd.grad(value, leaves, torch.ones_like(value))
    [(_, whole)] = view.parts(method, each_microbatch=False)
    weights = slopes if method.ratio == "token" else sequence_mean(slopes, whole)
    if of_head:
        weights, slopes = weights + of_head[0], slopes + of_head[0]
    held = torch.cat(clipped) if len(clipped) > 1 else clipped[0]
    return TokenGradient(weights, _fates(value.detach(), slopes, held, view.slopes(method)), metrics)


def _with_sampled_moved(tokens: TokenBatch, moved: Tensor) -> Tensor:
    """Return (n, k) policy_head, with the gradient of its sampled token's entry in the (n,) zeros `moved`; none where
    the sampled token is not in the head.

    A dump does not hold whose log-probs the head has, and need not: a token with the same two as the sampled one has
    the same slope.
    """
    mu, pi = tokens.needed("heads"), tokens.policy_head
    assert pi is not None, "it stands beside the other head"
    distance = (mu - tokens.rollout_log_probs[:, None]).abs() + (pi - tokens.log_probs[:, None]).abs()
    least, place = distance.min(-1, keepdim=True)
    sampled = (torch.arange(mu.shape[1]) == place) & (least <= SAME_TOKEN)
    return pi + sampled * moved[:, None]


def gate_metrics(method: Method, view: SpanView, scope: str) -> list[Metrics]:
    """Return the metrics of a SAT method with its quantile over `scope`, whatever its own scope is."""
    quantile = view.step.step_threshold(method) if scope == "step" else None
    d = view.log_ratio(method)
    with torch.no_grad():
        return [
            (tokens.n_active, policy_surrogate(method, tokens, quantile=quantile, d=d[part]).metrics)
            for part, tokens in view.parts(method, each_microbatch=quantile is None)
        ]


def _fates(values: Tensor, slopes: Tensor, clipped: Tensor, free: Tensor) -> Tensor:
    flat, none = slopes == 0, values == 0
    fates = torch.where(slopes == free, KEPT, REWEIGHTED)
    fates.masked_fill_(flat & none, MASKED)
    return fates.masked_fill_(flat.logical_and_(none.logical_not_()).logical_or_(clipped), CLIPPED)
