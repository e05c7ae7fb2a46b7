"""Small batches by their probabilities, and what a gate, a weight or a score makes of them."""

from __future__ import annotations

import torch

from sat_slime.objective import BatchView, Stabilizer, TokenBatch
from sat_slime.objective.ratio import Denominator, log_ratio


def make_batch(
    pi: list[float],
    mu: list[float],
    advantages: list[float],
    lengths: list[int],
    proximal: list[float] | None = None,
    **columns: list[float],
) -> TokenBatch:
    """All tokens are active. columns: lags, rewards."""

    def log(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64).log()

    more = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
    mask = torch.ones(len(pi), dtype=torch.bool)
    log_proximal = None if proximal is None else log(proximal)
    return TokenBatch(log(pi), log(mu), torch.tensor(advantages).double(), mask, lengths, log_proximal, **more)


def view_of(one: Stabilizer, batch: TokenBatch, denominator: Denominator = "rollout") -> BatchView:
    return BatchView(batch, denominator, log_ratio(one.ratio, denominator, batch), batch.advantages, unit=one.ratio)


def factors(one: Stabilizer, batch: TokenBatch, denominator: Denominator = "rollout") -> torch.Tensor:
    """What a gate or a weight multiplies each token by; w of a score form."""
    view = view_of(one, batch, denominator)
    return one.weight(view) if hasattr(one, "weight") else one.factor(view)
