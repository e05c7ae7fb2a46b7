"""KL budget: the clip interval follows the KL between engine and policy at the end of each lag cycle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...stabilizer import NonNegativeFloat, PositiveFloat, RadiusControl, Row, Style


@dataclass(frozen=True)
class KLBudget(RadiusControl):
    """The KL of the oldest batch of a lag cycle is held near a budget that grows with the lag."""

    budget: PositiveFloat = 0.0014
    """K3 estimate of KL(mu || pi) per token at lag 1, in nats."""
    power: NonNegativeFloat = 1.2
    """Exponent of the lag by which it grows."""
    least: PositiveFloat = 0.06
    """The radii fall no further than this times those of `clip`."""
    most: PositiveFloat = 12.0
    """They grow no further than this times those."""

    name = "kl-budget"
    key = "kl_budget"
    label = "KL-budget"
    help = "KL budget: the clip radii follow the KL between engine and policy."
    switch_help = "Control the clip radii by the KL to the engine."
    row = Row(
        "KL budget",
        unit="token or sequence",
        discriminator="|r − 1|; its radius by the divergence of the lag cycle before",
        constraint="clip interval",
        weight="{0, 1}",
        direction="asymmetric, adaptive",
        formula=(
            "radii ε f,  f *= clip((K* / K)^½, ½, 2) after each lag cycle,  K the K3 KL(μ‖π) of its last batch, of lag "
            "n,  K* = K₁ n^p;  f rests at lag 0"
        ),
        source="ours, after TRPO and PPO with an adaptive KL",
        needs="rollout log-probs and lags; a state in the checkpoint",
        excludes="bases without a clip interval of PPO's kind; another radius policy",
    )
    style = Style("vermilion", (0, (2, 2)))

    def start(self) -> dict[str, float]:
        return {"scale": 1.0, "lag": 0.0, "kl": 0.0, "steps": 0.0}

    def advance(self, state: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
        """Compare the last step's KL with its budget where this step's batch is not older than that one's, so that a
        broadcast lay between them; in mode streaming, whose lag stays, once in as many steps."""
        scale, lag, steps = state["scale"], state["lag"], state["steps"] + 1
        if 0 < lag <= steps - 1 and measured["lag/max"] <= lag:
            factor = math.sqrt(self.budget * lag**self.power / max(state["kl"], 1e-12))
            scale = min(max(scale * min(max(factor, 0.5), 2.0), self.least), self.most)
            steps = 1.0
        return {"scale": scale, "lag": measured["lag/max"], "kl": measured["mismatch/k3_kl"], "steps": steps}
