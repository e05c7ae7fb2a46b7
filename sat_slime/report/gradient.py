"""What a method does to single tokens: their gradient weight and fate, and sums of both over a step.

The gradient weight of a token is g = d(sum of S) / d log pi of the token, what a method puts in the place of A. The
policy gradient is the sum of w g grad log pi over tokens, w the weights of the reduction. g comes from policy_surrogate
by autograd through the method's own log-ratio d, which is one number per token and cheap. Between d and log pi lies the
identity, or the mean over the response (Eq. gspo-ratio), whose transpose is itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sat_slime.objective import Method, TokenBatch, Tokens, log_ratio, named_method, policy_surrogate, threshold_scores
from sat_slime.objective.terms import bounded_exp
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.report.dumps import StepBatch

UNCLIPPED = Method(named_method("grpo").stabilizers, clip=None)
"""The importance-sampled gradient r A of every token, which the others are compared with."""
KEPT, REWEIGHTED, MASKED, CLIPPED = range(4)
FATES = ("kept", "re-weighted", "masked", "clipped")
"""The fates of a token. Kept: its own term of the surrogate has the slope r A of the method's own ratio.
Re-weighted: it has another slope, as that of a score form whose weight is not r, or of a penalty. Masked: a gate drops
the token, or a weight of 0. Clipped: the clip interval holds it; this comes before masked."""
GROUPS = ("A > 0, above", "A > 0, below", "A < 0, above", "A < 0, below")
"""Tokens by the sign of the advantage and the side on which the ratio lies that the method judges by."""


def tokens_of(step: StepBatch, method: Method) -> TokenBatch:
    """Return the tokens of a step as the objective takes them, with the denominator that the method reads."""
    proximal = {"checkpoint": step.checkpoint_log_probs, "trainer": step.proximal_log_probs}.get(method.denominator)
    return TokenBatch(
        log_probs=step.log_probs,
        rollout_log_probs=step.rollout_log_probs,
        advantages=step.advantages,
        mask=step.mask,
        lengths=step.lengths,
        proximal_log_probs=proximal,
        **{need: getattr(step, need) for need in method.needs},
    )


def step_thresholds(methods: Sequence[Method], step: StepBatch) -> list[Tensor | None]:
    """Return of each method its judge's threshold over the whole step, SAT's q or M2PO's; None where it has none, or
    takes it over each micro-batch."""
    keys = [(m.ratio, m.denominator, m.judge) if m.threshold_is_of_the_step else None for m in methods]
    found: dict[object, Tensor] = {}
    for key, method in zip(keys, methods, strict=True):
        if key and key not in found and method.judge:
            found[key] = method.judge.threshold_of(threshold_scores(method, tokens_of(step, method)))
    return [found.get(key) for key in keys]


def token_gradient(method: Method, span: StepBatch, threshold: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return of the span's tokens the (N,) gradient weights g, 0 on inactive ones; their (N,) fates, int64 of FATES,
    without meaning where A is 0 or the token inactive; and the (N,) d of the method. Without a `threshold` of the step
    its judge takes one over each micro-batch of the span."""
    tokens = tokens_of(span, method)
    d = log_ratio(method, tokens).requires_grad_()
    if method.judge is None or threshold is not None:
        results = [policy_surrogate(method, tokens, threshold=threshold, d=d)]
    else:
        parts = span.spans(1)
        ds = d.split([len(part.mask) for part in parts])
        results = [
            policy_surrogate(method, tokens_of(part, method), d=own) for part, own in zip(parts, ds, strict=True)
        ]
    values = torch.cat([result.values for result in results])
    (slopes,) = torch.autograd.grad(values, d, torch.ones_like(values))
    d = d.detach()
    weights = slopes
    if method.ratio == "sequence":
        t = Tokens(method, tokens, d=d)
        weights = t.back(t.mean(t.cut(slopes)))
    flat, none = slopes == 0, values.detach() == 0
    fates = torch.where(slopes == bounded_exp(d) * span.advantages, KEPT, REWEIGHTED)
    fates.masked_fill_(flat & none, MASKED)
    fates.masked_fill_((flat & ~none) | torch.cat([result.clipped for result in results]), CLIPPED)
    return weights, fates, d


# ----------------------------------------------------------------------------------------------------------------- sums


@dataclass
class Sums:
    """Sums of M methods over the same tokens; but for `tokens` and `products`, over those with an advantage. v = g / A
    is a method's weight on A grad log pi."""

    fates: np.ndarray
    """(M, groups, fates) tokens."""
    weight: np.ndarray
    """(M,) sum |v|."""
    weight_squared: np.ndarray
    weight_max: np.ndarray
    products: np.ndarray
    """(M + 1, M + 1) sums of (w g) (w h) over tokens; the last row and column are those of UNCLIPPED."""
    tokens: int
    """Active tokens."""

    def __add__(self, other: Sums) -> Sums:
        """Return the sums over the tokens of both."""
        names = ("fates", "weight", "weight_squared", "products", "tokens")
        added = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Sums(weight_max=np.maximum(self.weight_max, other.weight_max), **added)

    @property
    def counted(self) -> np.ndarray:
        """(M,) tokens with an advantage."""
        return np.asarray(self.fates.sum(axis=(1, 2)))

    def effective(self) -> np.ndarray:
        """Return (M,) the share of the tokens with an advantage that carries the update, (sum |v|)^2 / (n sum v^2), NaN
        where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.weight**2 / (self.counted * self.weight_squared))

    def cosines(self) -> np.ndarray:
        """Return (M + 1, M + 1) cosines between the methods' w g; NaN beside a gradient that is zero throughout."""
        norms = np.sqrt(np.diag(self.products))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(self.products / np.outer(norms, norms), -1, 1)


def span_sums(methods: Sequence[Method], thresholds: Sequence[Tensor | None], span: StepBatch) -> Sums:
    """Sum up what every method does on a span of a step. thresholds: those of step_thresholds."""
    mask, advantages = span.mask, span.advantages
    weights = response_mean_weights(mask, span.lengths, 1)
    counted = mask & (advantages != 0)
    mismatch = span.log_probs - span.rollout_log_probs
    inverse = torch.where(counted, 1.0 / torch.where(counted, advantages, 1.0), 0.0)
    negative = (advantages < 0).to(torch.int64)

    fates_of = np.zeros((len(methods), len(GROUPS), len(FATES)), np.int64)
    weight, weight_squared, weight_max = np.zeros((3, len(methods)))
    rows = torch.empty(len(methods) + 1, len(mask), dtype=torch.float64)
    for index, (method, threshold) in enumerate(zip(methods, thresholds, strict=True)):
        g, fates, d = token_gradient(method, span, threshold)
        # Against the trainer the ratio is 1 at the first optimizer step; what is judged then is pi / mu.
        judged = mismatch if method.denominator == "trainer" else d
        cells = (negative * 2 + (judged < 0)) * len(FATES) + fates
        counts = torch.bincount(cells[counted], minlength=len(GROUPS) * len(FATES))
        fates_of[index] = counts.reshape(len(GROUPS), len(FATES)).numpy()
        v = (g * inverse).double()
        weight[index], weight_squared[index] = float(v.norm(1)), float(torch.dot(v, v))
        weight_max[index] = float(v.norm(math.inf)) if len(v) else 0.0
        torch.mul(weights, g, out=rows[index])
    unclipped = bounded_exp(log_ratio(UNCLIPPED, tokens_of(span, UNCLIPPED))) * advantages
    torch.mul(weights, torch.where(mask, unclipped, 0.0), out=rows[-1])
    return Sums(fates_of, weight, weight_squared, weight_max, (rows @ rows.T).numpy(), int(mask.sum()))
