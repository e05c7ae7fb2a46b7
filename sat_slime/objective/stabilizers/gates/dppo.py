"""DPPO: a gate on the divergence of the sampled token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style, Variant
from .kpop import bernoulli_kl


@dataclass(frozen=True)
class DPPO(Gate):
    """DPPO's gate (Eq. app-dppo-mask). `method: dppo-kl` is short for base dppo with divergence kl."""

    divergence: Literal["tv", "kl"] = "tv"
    """The quantity by which an outward update is judged: |pi - mu| on the sampled token (the paper's runs), or the
    Bernoulli KL(mu || pi) of it."""
    delta: PositiveFloat = 1e-3
    """Divergence tv: largest |pi - mu| on the sampled token (a probability) at which an outward update is kept."""
    delta_kl: PositiveFloat = 0.05
    """Divergence kl: largest KL, in nats. The paper has none; this one is that of public DPPO code."""

    name = "dppo"
    row = Row(
        "DPPO",
        unit="token",
        discriminator="D_TV = |π − μ|",
        constraint="D_TV ≤ δ",
        weight="{0, 1}",
        direction="asymmetric",
        formula="S M,  M = 1{sign(A (r − 1)) ≤ 0  ∨  μ |r − 1| ≤ δ},  r = π / μ",
        source="Eqs. app-bintv, app-dppo-mask",
    )
    variants = (
        Variant(
            "kl",
            {"divergence": "kl"},
            Row(
                "DPPO (binary KL)",
                unit="token",
                discriminator="Bernoulli KL(μ‖π)",
                constraint="KL ≤ δ",
                weight="{0, 1}",
                direction="asymmetric",
                formula=(
                    "S M,  M = 1{sign(A (r − 1)) ≤ 0  ∨  μ log(μ/π) + (1 − μ) log((1 − μ)/(1 − π)) ≤ δ},  r = π / μ"
                ),
                source=(
                    "Eq. app-dppo-mask with the Bernoulli KL of Eq. app-kpop in place of D_TV, the variant of DPPO's "
                    "own paper; δ is that of public code (verl, SkyRL)"
                ),
            ),
            marker="<",
        ),
    )
    style = Style("green", "-.", "^")

    @property
    def unread(self) -> tuple[str, ...]:
        return ("delta",) if self.divergence == "kl" else ("delta_kl",)

    def factor(self, batch: BatchView) -> torch.Tensor:
        """1 where the update is not outward or the token's divergence is within its bound, with r = pi / mu of the
        token (Eq. app-dppo-mask): mu |r - 1| at most delta, or KL(Bernoulli(mu) || Bernoulli(pi)) at most delta_kl."""
        d = batch.log_pi - batch.log_mu
        outward = batch.advantages.sign() * d.sign() > 0
        if self.divergence == "tv":
            within = batch.mu * d.expm1().abs() <= self.delta
        else:
            within = bernoulli_kl(batch.log_mu, batch.log_pi) <= self.delta_kl
        return (~outward | within).to(d.dtype)
