"""A-3PO: a proximal policy between the engine's and the one in training, by the lag, without a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch import Need
from ...ratio import MAX_LOG
from ...stabilizer import ProximalPolicy, Row, Style


@dataclass(frozen=True)
class A3PO(ProximalPolicy):
    """The denominator of the ratio by log-linear interpolation."""

    name = "a3po"
    label = "A-3PO"
    denominator = "a3po"
    help = "A-3PO: the denominator lies between engine and policy by the lag of the token; usual with decoupled."
    row = Row(
        "A-3PO",
        unit="token",
        discriminator="the lag of the token",
        constraint="—",
        weight="—",
        direction="—",
        formula="denominator: log μ + a (log π − log μ), detached,  a = (lag − 1) / lag, 0 at lag 0",
        source="arXiv 2512.06547 and AReaL's public code (loglinear)",
        needs="rollout log-probs; the lag of each token",
        excludes="another denominator",
    )
    style = Style("green", (0, (7, 2, 1, 2)))

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("lags",)

    def log_probs(self, log_pi: torch.Tensor, log_mu: torch.Tensor, lags: torch.Tensor) -> torch.Tensor:
        """log mu + a (log pi - log mu), so that d is (log pi - log mu) / lag from lag 1 on."""
        a = ((lags - 1) / lags.clamp(min=1)).clamp(min=0)
        return log_mu + a * (log_pi - log_mu).clamp(-MAX_LOG, MAX_LOG)
