"""What a method does to single tokens: their gradient weight and fate, and sums of both over a step.

The gradient weight of a token is g = d(sum of S) / d log pi of the token, what a method puts in the place of A. The
policy gradient is the sum of w g grad log pi over tokens, w the weights of the reduction. g comes from policy_surrogate
by autograd through the method's own log-ratio d, which is one number per token and cheap. Between d and log pi lies the
identity, or the mean over the response (Eq. gspo-ratio), whose transpose is itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sat_slime.objective import Method, TokenBatch, Tokens, policy_surrogate, threshold_scores
from sat_slime.objective.terms import bounded_exp
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.report.dumps import StepBatch

KEPT, REWEIGHTED, MASKED, CLIPPED = range(4)
FATES = ("kept", "re-weighted", "masked", "clipped")
"""The fates of a token. Kept: its own term of the surrogate has the slope r A of its method's ratio, to a millionth.
Re-weighted: it has another slope, as that of a score form whose weight is not r, or of a penalty. Masked: a gate drops
the token, or a weight of 0. Clipped: the clip interval holds it; this comes before masked."""
GROUPS = ("A > 0, above", "A > 0, below", "A < 0, above", "A < 0, below")
"""Tokens by the sign of the advantage and the side on which the ratio lies that the method judges by."""
COUNTS = [f"{fate}, {group}" for group in GROUPS for fate in FATES]
"""Columns of the tokens by group and fate."""


def tokens_of(step: StepBatch, method: Method) -> TokenBatch:
    """Return the tokens of a step as the objective takes them, with the denominator that the method reads."""
    proximal = {"checkpoint": "checkpoint_log_probs", "trainer": "proximal_log_probs"}.get(method.denominator, "")
    needed: dict[str, Any] = {need: step.more.get(need) for need in method.needs}
    needed["proximal_log_probs"] = step.more.get(proximal)
    return TokenBatch(step.log_probs, step.rollout_log_probs, step.advantages, step.mask, step.lengths, **needed)


def step_thresholds(methods: Sequence[Method], step: StepBatch) -> list[Tensor | None]:
    """Return of each method its judge's threshold over the whole step, SAT's q or M2PO's; None where it has none, or
    takes it over each micro-batch."""
    keys = [(m.ratio, m.denominator, m.judge) if m.scope == "step" else None for m in methods]
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
    t = Tokens(method, tokens)
    d = t.back(t.d).detach().requires_grad_()
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
    weights = t.back(t.mean(t.cut(slopes))) if method.ratio == "sequence" else slopes
    flat, none = slopes == 0, values.detach() == 0
    fates = torch.where(slopes.isclose(bounded_exp(d) * span.advantages, 1e-6, 0.0), KEPT, REWEIGHTED)
    fates.masked_fill_(flat & none, MASKED)
    fates.masked_fill_((flat & ~none) | torch.cat([result.clipped for result in results]), CLIPPED)
    return weights, fates, d


def span_sums(
    methods: Sequence[Method], thresholds: Sequence[Tensor | None], span: StepBatch
) -> tuple[pd.DataFrame, np.ndarray]:
    """Sum up what every method does on a span of a step. thresholds: those of step_thresholds.

    Returns:
        A row for each of M methods, over the tokens with an advantage: `tokens`; COUNTS; and of v = g / A, the weight
        on A grad log pi, `sum |v|`, `sum v²` and `largest |v|`. Then (M + 1, M + 1) sums of (w g) (w h) over all
        active tokens, the last row and column those of the unclipped, importance-sampled r A over mu.
    """
    mask, advantages = span.mask, span.advantages
    weights = response_mean_weights(mask, span.lengths, 1)
    counted = mask & (advantages != 0)
    mismatch = span.log_probs - span.rollout_log_probs

    sums = []
    rows = torch.empty(len(methods) + 1, len(mask), dtype=torch.float64)
    for row, method, threshold in zip(rows[:-1], methods, thresholds, strict=True):
        g, fates, d = token_gradient(method, span, threshold)
        # Against the trainer the ratio is 1 at the first optimizer step; what is judged then is pi / mu.
        judged = mismatch if method.denominator == "trainer" else d
        cells = ((advantages < 0) * 2 + (judged < 0)) * len(FATES) + fates
        counts = torch.bincount(cells[counted], minlength=len(COUNTS)).tolist()
        v = (g / advantages).where(counted, 0.0).double()
        of_v = {"sum |v|": float(v.norm(1)), "sum v²": float(torch.dot(v, v))}
        of_v["largest |v|"] = float(v.norm(math.inf)) if len(v) else 0.0
        sums.append({"tokens": int(counted.sum()), **dict(zip(COUNTS, counts, strict=True)), **of_v})
        torch.mul(weights, g, out=row)
    unclipped = bounded_exp(mismatch) * advantages
    torch.mul(weights, torch.where(mask, unclipped, 0.0), out=rows[-1])
    return pd.DataFrame(sums), (rows @ rows.T).numpy()


def added(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of `span_sums` over the tokens of all parts."""
    by_method = pd.concat(parts).groupby(level=0)
    return by_method.sum().assign(**{"largest |v|": by_method["largest |v|"].max()})


def effective(sums: pd.DataFrame) -> pd.Series:
    """Return for each method the share of the n tokens with an advantage that carries the update, (sum |v|)² / (n sum
    v²), NaN where there is none."""
    return sums["sum |v|"] ** 2 / (sums["tokens"] * sums["sum v²"])


def cosines(products: np.ndarray) -> np.ndarray:
    """Return (M + 1, M + 1) cosines between the methods' w g; NaN beside a gradient that is zero throughout."""
    norms = np.sqrt(np.diag(products))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(products / np.outer(norms, norms), -1, 1)
