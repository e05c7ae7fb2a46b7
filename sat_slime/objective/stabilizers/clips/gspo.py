"""GSPO: PPO's clip on the sequence ratio, the geometric mean over a response: `sequence_mean` in objective/ratio.py."""

from __future__ import annotations

from dataclasses import dataclass

from ...stabilizer import Clipping, Row, Style


@dataclass(frozen=True)
class GSPO(Clipping):
    """min(rho A, clip(rho) A); rho = exp of `ratio.sequence_mean` of d."""

    name = "gspo"
    ratio = "sequence"
    row = Row(
        "GSPO",
        unit="sequence",
        discriminator="|ρ − 1|",
        constraint="sequence clip",
        weight="{0, 1}",
        direction="asymmetric",
        formula="S = min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A),  ρ = exp(mean over the response of log r)",
        source="Eqs. gspo-ratio, app-gspo, app-gspo-loss",
    )
    style = Style("black", "-", "s")
