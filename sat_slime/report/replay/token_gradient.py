"""The gradient weight of a token: g = d(sum of S) / d log pi of the token, what a method puts in the place of A.

The policy gradient is the sum of w g grad log pi over tokens, w the weights of the reduction. g comes from
policy_surrogate by autograd through the method's own log-ratio d, which is one number per token and cheap. Between d
and log pi lies the identity, or the mean over the response (Eq. gspo-ratio), whose transpose is itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sat_slime.objective import Judge, Method, TokenBatch, Tokens, log_ratio, policy_surrogate, threshold_scores
from sat_slime.objective.terms import Need, bounded_exp
from sat_slime.report.dumps.step_batch import StepBatch

KEPT, REWEIGHTED, MASKED, CLIPPED = range(4)
FATES = ("kept", "re-weighted", "masked", "clipped")
"""The fates of a token. Kept: its own term of the surrogate has the slope r A of the method's own ratio.
Re-weighted: it has another slope, as that of a score form whose weight is not r, or of a penalty. Masked: a gate drops
the token, or a weight of 0. Clipped: the clip interval holds it; this comes before masked."""

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
            self._ratios[key] = log_ratio(method, self.tokens(method))
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
            **{need: getattr(step, need)[tokens] for need in method.needs},
        )

    def proximal(self, method: Method) -> Tensor | None:
        """Return (N,) what the method reads as proximal_log_probs; None where that is log_probs itself, or not read."""
        if method.denominator == "checkpoint":
            return self.batch.checkpoint_log_probs
        return self.batch.proximal_log_probs if method.denominator == "trainer" else None


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
            self._slopes[key] = bounded_exp(self.log_ratio(method)) * self.advantages
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
    threshold = view.step.step_threshold(method) if method.threshold_is_of_the_step else None
    for part, tokens in view.parts(method, alone):
        surrogate = policy_surrogate(method, tokens, threshold=threshold, d=d[part])
        values.append(surrogate.values)
        clipped.append(surrogate.clipped)
        metrics.append((surrogate.n, surrogate.metrics))
    value = torch.cat(values) if len(values) > 1 else values[0]
    (slopes,) = torch.autograd.grad(value, d, torch.ones_like(value))
    weights = slopes
    if method.ratio == "sequence":
        [(_, whole)] = view.parts(method, each_microbatch=False)
        t = Tokens(method, whole, d=d.detach())
        weights = t.back(t.mean(t.cut(slopes)))
    held = torch.cat(clipped) if len(clipped) > 1 else clipped[0]
    return TokenGradient(weights, _fates(value.detach(), slopes, held, view.slopes(method)), metrics)


def gate_metrics(method: Method, view: SpanView, scope: str) -> list[Metrics]:
    """Return the metrics of a SAT method with its quantile over `scope`, whatever its own scope is."""
    threshold = view.step.step_threshold(method) if scope == "step" else None
    d = view.log_ratio(method)
    with torch.no_grad():
        results = [
            policy_surrogate(method, tokens, threshold=threshold, d=d[part])
            for part, tokens in view.parts(method, each_microbatch=threshold is None)
        ]
    return [(result.n, result.metrics) for result in results]


def _fates(values: Tensor, slopes: Tensor, clipped: Tensor, free: Tensor) -> Tensor:
    flat, none = slopes == 0, values == 0
    fates = torch.where(slopes == free, KEPT, REWEIGHTED)
    fates.masked_fill_(flat & none, MASKED)
    return fates.masked_fill_(flat.logical_and_(none.logical_not_()).logical_or_(clipped), CLIPPED)
