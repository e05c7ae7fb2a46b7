"""Target clip: the clip interval follows the share of the tokens that it clips."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Lt

from ...metric import Metric, Panel
from ...stabilizer import PositiveFloat, RadiusControl, Row, Style


@dataclass(frozen=True)
class TargetClip(RadiusControl):
    """Proportional control of the clipped share, in the logarithm of the radii."""

    share: Annotated[float, Gt(0), Lt(1)] = 0.12
    """Share of the tokens that is to be clipped. The default is GSPO's; GRPO does best at less than half of it."""
    gain: PositiveFloat = 0.05
    """What the logarithm of the radii moves in a step, where the share is off by itself."""
    least: PositiveFloat = 0.06
    """The radii fall no further than this times those of `clip`."""
    most: PositiveFloat = 12.0
    """They grow no further than this times those."""

    name = "target-clip"
    key = "target_clip"
    label = "Target-clip"
    help = "Target clip: the clip radii follow the share of the tokens that they clip."
    switch_help = "Control the clip radii by the clipped share."
    row = Row(
        "Target clip",
        unit="token or sequence",
        discriminator="|r − 1| and the clipped share of the steps before",
        constraint="clip interval",
        weight="{0, 1}",
        direction="asymmetric, adaptive",
        formula=(
            "radii ε f,  log f += g clip((s − s₀) / s₀, −1, 1.5) after each step,  s the clipped share in the mean "
            "over about max(8, n) steps, n the largest lag;  f rests at lag 0"
        ),
        source="ours: proportional control",
        needs="rollout log-probs and lags; a state in the checkpoint",
        excludes="bases without a clip interval of PPO's kind; another radius policy",
    )
    style = Style("vermilion", (0, (1, 1)))
    metrics = (
        Metric(
            "target_clip/share",
            "share",
            "Clipped share of the tokens in the mean over about max(8, lag) steps, which is held against the target.",
            "step",
            panel=Panel("clipped share that is controlled", y_label="%"),
        ),
    )

    def start(self) -> dict[str, float]:
        """Begin at the target, so that the first steps do not count for all."""
        return {"scale": 1.0, "share": self.share, "lag": 0.0}

    def advance(self, state: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
        """Move the average, then the radii."""
        lag = max(state["lag"], measured["lag/max"])
        share = state["share"] + (measured["clip/fraction"] - state["share"]) / max(8.0, lag)
        off = min(max((share - self.share) / self.share, -1.0), 1.5)
        scale = min(max(state["scale"] * math.exp(self.gain * off), self.least), self.most)
        return {"scale": scale, "share": share, "lag": lag}

    def told(self, state: Mapping[str, float]) -> dict[str, float]:
        return {"target_clip/share": state["share"]}
