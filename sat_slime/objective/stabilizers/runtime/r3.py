"""R3: rollout routing replay. No function here computes it: it is the router's, in the trainer's forward pass.

`rollout/validation.py` decodes the experts that an engine returns; `embedded/trainer/routing.py` replays them there;
slime replays its own, which `plugin/inside/routed_experts.py` narrows and `routing_check.py` checks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...stabilizer import Replay, Row


@dataclass(frozen=True)
class R3(Replay):
    """Rollout routing replay (Eq. r3)."""

    name = "r3"
    help = "Rollout routing replay: the trainer's forward uses the experts that the rollout engine chose (MoE only)."
    row = Row(
        "R3",
        unit="forward pass",
        discriminator="routing mask",
        constraint="replay the rollout top-K experts",
        weight="—",
        direction="—",
        formula=(
            "g_e = I_e exp(z_e) / Σ_e' I_e' exp(z_e'),  I the experts that the engine chose, z the trainer's logits"
        ),
        source="Eq. r3",
        needs="an MoE model, and from the engine the experts of every forwarded token",
        excludes="dense models",
    )
