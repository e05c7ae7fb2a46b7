"""Micro-batches as lists of plain floats, which the tests' equations read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sat_slime.objective import TokenBatch


@dataclass
class Tokens:
    """A micro-batch as lists of floats."""

    log_pi: list[float]
    log_mu: list[float]
    advantages: list[float]
    mask: list[bool]
    lengths: list[int]
    log_proximal: list[float] | None = None
    lags: list[float] | None = None
    entropies: list[float] | None = None

    @property
    def responses(self) -> list[list[int]]:
        """Positions of the active tokens of each response."""
        spans, start = [], 0
        for length in self.lengths:
            spans.append([t for t in range(start, start + length) if self.mask[t]])
            start += length
        return spans

    @property
    def active(self) -> list[int]:
        return [t for span in self.responses for t in span]

    def part(self, positions: list[int], lengths: list[int]) -> Tokens:
        """The tokens at these positions, as responses of those lengths."""
        columns = {
            name: column and [column[t] for t in positions] for name, column in vars(self).items() if name != "lengths"
        }
        return Tokens(**columns, lengths=lengths)

    def batch(self, dtype: torch.dtype = torch.float64) -> TokenBatch:
        def tensor(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype)

        return TokenBatch(
            log_probs=tensor(self.log_pi).requires_grad_(),
            rollout_log_probs=tensor(self.log_mu),
            advantages=tensor(self.advantages),
            mask=torch.tensor(self.mask, dtype=torch.bool),
            lengths=self.lengths,
            proximal_log_probs=None if self.log_proximal is None else tensor(self.log_proximal),
            lags=None if self.lags is None else tensor(self.lags),
            entropies=None if self.entropies is None else tensor(self.entropies),
        )


def random_tokens(seed: int, lengths: list[int], spread: float = 0.3, inactive: float = 0.2) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    n = sum(lengths)

    def normal(scale: float) -> list[float]:
        return (torch.randn(n, generator=generator, dtype=torch.float64) * scale).tolist()

    log_mu = [-abs(x) - 0.05 for x in normal(1.0)]
    log_pi = [min(m + d, -1e-3) for m, d in zip(log_mu, normal(spread), strict=True)]
    log_proximal = [min(m + d, -1e-3) for m, d in zip(log_mu, normal(spread), strict=True)]
    mask = (torch.rand(n, generator=generator) >= inactive).tolist()
    advantages = normal(1.0)
    lags = torch.randint(0, 6, (n,), generator=generator).double().tolist()
    entropies = torch.rand(n, generator=generator, dtype=torch.float64).tolist()
    return Tokens(log_pi, log_mu, advantages, mask, lengths, log_proximal, lags, entropies)
