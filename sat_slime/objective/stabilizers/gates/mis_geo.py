"""MIS-Geo: keeps the responses whose geometric mean ratio to the engine is close to 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...batch_view import BatchView
from ...stabilizer import Gate, PositiveFloat, Row, Style, around_one


@dataclass(frozen=True)
class MISGeo(Gate):
    """A gate on the response, by the length-normalized ratio to mu. Others call it Geo-RS, Geo-Mask or seq_mean_k1."""

    low: PositiveFloat = 0.99
    """Least ratio at which a response is kept."""
    high: PositiveFloat = 1.01
    """Largest ratio at which a response is kept. SkyRL's; verl's presets have 0.999 and 1.001."""

    name = "mis-geo"
    key = "mis_geo"
    place = "suffix"
    label = "MIS-Geo"
    help = "Gate on the geometric mean of the ratio to the engine, per response."
    switch_help = "Drop the responses whose geometric mean ratio is out of range."
    row = Row(
        "MIS-Geo",
        unit="sequence",
        discriminator="ρ_k = exp(mean log(π_proximal / μ))",
        constraint="low ≤ ρ_k ≤ high",
        weight="{0, 1}",
        direction="symmetric",
        formula="S M,  M = 1{low ≤ exp(mean over the response of log(π_proximal / μ)) ≤ high}",
        source="verl's seq_mean_k1, SkyRL's and slime's geometric masks; the range is SkyRL's",
    )
    style = Style("sky", (0, (1, 1)))

    def __post_init__(self) -> None:
        around_one(self.low, self.high)

    def factor(self, batch: BatchView) -> torch.Tensor:
        """1 where the response's mean log(pi_proximal / mu) is in [log low, log high], else 0."""
        rho = batch.sequence_mean(batch.engine_log_ratio).exp()
        return ((rho >= self.low) & (rho <= self.high)).to(rho.dtype)
