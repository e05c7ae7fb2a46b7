"""Annealing: the clip interval shrinks with the entropy of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...stabilizer import NonNegativeFloat, RadiusControl, Row, Style


@dataclass(frozen=True)
class Anneal(RadiusControl):
    """Wide while much is undecided, narrow at the end."""

    from_lag: NonNegativeFloat = 16.0
    """Largest lag of a batch from which on it acts."""

    name = "anneal"
    help = "Annealing: the clip radii shrink with the entropy of the policy."
    switch_help = "Scale the clip radii by the entropy."
    row = Row(
        "Annealing",
        unit="token or sequence",
        discriminator="|r − 1| and the entropy",
        constraint="clip interval",
        weight="{0, 1}",
        direction="asymmetric, adaptive",
        formula="radii ε H / H₀,  H the entropy of the step before, H₀ of the first one, once a batch had lag ≥ n₀",
        source="ours: annealing",
        needs="rollout log-probs and lags; a state in the checkpoint",
        excludes="bases without a clip interval of PPO's kind; another radius policy",
    )
    style = Style("vermilion", (0, (4, 1)))

    def start(self) -> dict[str, float]:
        return {"scale": 1.0, "lag": 0.0, "entropy": 0.0}

    def advance(self, state: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
        """Keep the first entropy, and scale by what is left of it."""
        first, lag = state["entropy"] or measured["loss/entropy"], max(state["lag"], measured["lag/max"])
        acts = lag >= self.from_lag and first > 0
        return {"scale": measured["loss/entropy"] / first if acts else 1.0, "lag": lag, "entropy": first}
