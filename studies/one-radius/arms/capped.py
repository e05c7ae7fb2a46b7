"""PPO's clip at min(0.8, 0.2 lag^0.6): a token radius that is told the lag. For the frozen checkout of the study."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sat_slime.objective.metric import Metric

from sat_slime.objective.stabilizer import PolicyTerms, Replacement, Row, Style


@dataclass(frozen=True)
class Capped(Replacement):
    """S = min(r A, clip(r, 1 - eps, 1 + eps) A), eps = min(0.8, 0.2 max(1, lag)^0.6) of each token."""

    name = "capped"
    family = "clip"
    no_interval = "its interval grows with the lag"
    row = Row(
        "Capped lag-power",
        unit="token",
        discriminator="|r - 1| and the lag",
        constraint="|r - 1| <= min(0.8, 0.2 lag^0.6)",
        weight="{0, 1}",
        direction="asymmetric",
        formula="S = min(r A, clip(r, 1 - eps, 1 + eps) A)",
        source="this study",
        needs="lags",
        excludes="clips",
    )
    metrics = (Metric("capped/held", "share", "Tokens without a gradient."), Metric("capped/radius", "", "Radius."))
    style = Style("#228833", "-", "*")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("lags",)

    def radius(self, batch) -> torch.Tensor:
        return (0.2 * batch.lags.clamp(min=1.0) ** 0.6).clamp(max=0.8)

    def values(self, policy: PolicyTerms, batch) -> torch.Tensor:
        eps, r, A = self.radius(batch), policy.ratio, batch.advantages
        return torch.minimum(r * A, torch.maximum(torch.minimum(r, 1 + eps), 1 - eps) * A)

    def sums(self, batch) -> dict[str, torch.Tensor]:
        eps, r, A = self.radius(batch), batch.ratio, batch.advantages
        held = batch.mask & (((A > 0) & (r > 1 + eps)) | ((A < 0) & (r < 1 - eps)))
        return {"capped/held": held.sum(), "capped/radius": (eps * batch.mask).sum()}
