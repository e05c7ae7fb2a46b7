"""Lag-power: the clip interval grows with the lag of the token, or of its response."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch import Need
from ...batch_view import BatchView
from ...stabilizer import NonNegativeFloat, RadiusPolicy, Row, Style


@dataclass(frozen=True)
class LagPower(RadiusPolicy):
    """The radii of `clip` are those at lag 0 and 1, and grow with a power of the lag from there. From radius 1 on there
    is no lower end: a ratio is not below 0."""

    power: NonNegativeFloat = 0.5
    """Exponent of the lag. 0 is the fixed interval."""

    name = "lag-power"
    key = "lag_power"
    label = "Lag-power"
    help = "Lag-power: the clip radii grow with a power of the lag."
    switch_help = "Scale the clip radii by a power of the lag."
    row = Row(
        "Lag-power",
        unit="token or sequence",
        discriminator="|r − 1| and the lag",
        constraint="−ε_low f ≤ r − 1 ≤ ε_high f, outward",
        weight="{0, 1}",
        direction="asymmetric",
        formula=(
            "S = min(r A, clip(r, 1 − ε_low f, 1 + ε_high f) A),  f = max(1, lag)^p,  the lag of the token, or under "
            "the sequence ratio the mean lag of the response; with SAT the radii are ε f c"
        ),
        source="ours",
        needs="rollout log-probs; the lag of each token",
        excludes="bases without a clip interval of PPO's kind; another radius policy",
    )
    style = Style("vermilion", (0, (7, 2)))

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("lags",)

    def radii(self, low: float, high: float, batch: BatchView) -> tuple[torch.Tensor, torch.Tensor]:
        """Both times max(1, lag)^power: of each token, so that each has the radius of its own age where lags differ
        within a batch; a response has one ratio, so there the lag is its mean."""
        lags = batch.sequence_mean(batch.lags) if batch.unit == "sequence" else batch.lags
        growth = lags.clamp(min=1.0) ** self.power
        return low * growth, high * growth
