"""PPO's clip at min(0.8, 0.2 lag^0.6): a token radius that is told the lag."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sat_slime.objective import Surrogate


@dataclass(frozen=True)
class Capped(Surrogate):
    """Capped lag-power: PPO with the radius min(0.8, 0.2 max(1, lag)^0.6) of each token."""

    name = "capped"

    @property
    def needs(self):
        return ("lags",)

    def values(self, t):
        eps, r, A = (0.2 * t.lags.clamp(min=1.0) ** 0.6).clamp(max=0.8), t.ratio, t.A
        t.measured["capped/radius"] = eps
        return torch.minimum(r * A, torch.maximum(torch.minimum(r, 1 + eps), 1 - eps) * A)
