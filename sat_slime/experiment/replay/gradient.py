"""The gradient weight of a token: g = d(sum of S) / d log pi of the token, what a method puts in the place of A.

The policy gradient is the sum of w g grad log pi over tokens, w the weights of the reduction. g comes of
policy_surrogate by autograd through the method's own log-ratio d, which is one number per token and cheap; what lies
between d and log pi is the identity, or the mean over the response (Eq. gspo-ratio), whose transpose is itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sat_slime.experiment.replay.batch import StepBatch
from sat_slime.objective import SAT, Method, TokenBatch, policy_surrogate, tail_quantile
from sat_slime.objective.ratio import log_ratio, sequence_mean

KEPT, REWEIGHTED, MASKED, CLIPPED = range(4)
FATES = ("kept", "re-weighted", "masked", "clipped")
"""What becomes of a token: its own term of the surrogate has the slope r A of the method's own ratio; another slope;
is dropped by a gate; is held by the clip interval. Clipped comes before masked."""


@dataclass(frozen=True, eq=False)
class TokenGradient:
    """One method on some tokens of a step."""

    weights: Tensor
    """(N,) g; 0 on inactive tokens."""
    fates: Tensor
    """(N,) int64 of FATES; means nothing where A is 0 or the token inactive."""
    metrics: list[tuple[int, dict[str, Tensor]]]
    """(active tokens, metrics of policy_surrogate) of each micro-batch, or of all at once where none is needed."""


@dataclass(frozen=True)
class Span:
    """Consecutive micro-batches of a step that are computed together."""

    responses: slice
    tokens: slice
    microbatches: tuple[slice, ...]
    """Their tokens, counted from the span's first."""
    microbatch_lengths: tuple[Tensor, ...]
    """Their responses' tokens."""


def spans(batch: StepBatch, at_least: int) -> list[Span]:
    """The micro-batches of a step in spans of at least so many tokens, all but the last."""
    assert batch.microbatches is not None
    found: list[Span] = []
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
            found.append(Span(slice(start[1], response), slice(start[0], token), tuple(parts), tuple(lengths)))
            start, parts, lengths = (token, response), [], []
    return found


class StepView:
    """What the methods share of a step: each log-ratio and each quantile is taken once."""

    def __init__(self, batch: StepBatch):
        self.batch = batch
        self._ratios: dict[tuple[str, str], Tensor] = {}
        self._quantiles: dict[tuple[str, str, float], Tensor] = {}

    def prepare(self, methods: Sequence[Method]) -> None:
        """Take all that `methods` read, before threads read it."""
        for method in methods:
            self.log_ratio(method)
            if isinstance(method.trust_region, SAT):
                self.step_quantile(method)

    def log_ratio(self, method: Method) -> Tensor:
        """(N,) d of the method over the whole step; 0 on inactive tokens."""
        key = method.ratio, method.denominator
        if key not in self._ratios:
            self._ratios[key] = log_ratio(method, self.tokens(method))
        return self._ratios[key]

    def step_quantile(self, method: Method) -> Tensor:
        """q of SAT under scope `step`."""
        assert isinstance(method.trust_region, SAT)
        key = method.ratio, method.denominator, method.trust_region.alpha
        if key not in self._quantiles:
            stale = self.log_ratio(method).abs()
            padding = len(stale) - int(self.batch.mask.sum())
            self._quantiles[key] = tail_quantile(stale, method.trust_region.alpha, padding=padding)
        return self._quantiles[key]

    def tokens(self, method: Method, tokens: slice = slice(None), lengths: Tensor | None = None) -> TokenBatch:
        """Tokens of the step as the objective takes them, with the denominator that the method reads."""
        step = self.batch
        below = step.checkpoint_log_probs if method.denominator == "checkpoint" else step.proximal_log_probs
        return TokenBatch(
            log_probs=step.log_probs[tokens],
            rollout_log_probs=step.rollout_log_probs[tokens],
            advantages=step.advantages[tokens],
            mask=step.mask[tokens],
            lengths=step.lengths if lengths is None else lengths,
            proximal_log_probs=None if below is None or method.denominator == "rollout" else below[tokens],
        )


def token_gradient(method: Method, view: StepView, span: Span) -> TokenGradient:
    """g and fate of the span's tokens. SAT's quantile is that of its scope."""
    region = method.trust_region
    d = view.log_ratio(method)[span.tokens].requires_grad_()
    values: list[Tensor] = []
    clipped: list[Tensor] = []
    metrics: list[tuple[int, dict[str, Tensor]]] = []
    alone = isinstance(region, SAT) and region.scope == "microbatch"
    quantile = view.step_quantile(method) if isinstance(region, SAT) and not alone else None
    for part, lengths in _parts(view, span, alone):
        inside = slice(span.tokens.start + part.start, span.tokens.start + part.stop)
        tokens = view.tokens(method, inside, lengths)
        surrogate = policy_surrogate(method, tokens, quantile=quantile, d=d[part])
        values.append(surrogate.values)
        clipped.append(surrogate.clipped)
        metrics.append((tokens.n_active, surrogate.metrics))
    value = torch.cat(values) if len(values) > 1 else values[0]
    (slopes,) = torch.autograd.grad(value.sum(), d)
    tokens = view.tokens(method, span.tokens, view.batch.lengths[span.responses])
    weights = slopes if method.ratio == "token" else sequence_mean(slopes, tokens)
    whole = torch.cat(clipped) if len(clipped) > 1 else clipped[0]
    return TokenGradient(weights, _fates(value.detach(), slopes, whole, d.detach(), tokens.advantages), metrics)


def _parts(view: StepView, span: Span, alone: bool) -> Sequence[tuple[slice, Tensor]]:
    if alone:
        return list(zip(span.microbatches, span.microbatch_lengths, strict=True))
    return [(slice(0, span.tokens.stop - span.tokens.start), view.batch.lengths[span.responses])]


def _fates(values: Tensor, slopes: Tensor, clipped: Tensor, d: Tensor, advantages: Tensor) -> Tensor:
    flat = slopes == 0
    fates = torch.full_like(values, REWEIGHTED, dtype=torch.int64)
    fates.masked_fill_(slopes == d.exp() * advantages, KEPT)
    fates.masked_fill_(flat & (values == 0), MASKED)
    return fates.masked_fill_(flat & (values != 0) | clipped, CLIPPED)
