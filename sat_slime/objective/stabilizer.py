"""The design space (Table designspace): a row for each stabilizer, kept beside the function that computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


@dataclass(frozen=True)
class Stabilizer:
    """A row of the table, and what a user has to know beside it. r is the ratio, rho that of the sequence, A the
    advantage, pi the policy in training, mu the rollout engine's, both on the sampled token."""

    name: str
    """As in the name of a method; of what is switched on beside a base, its suffix or prefix there."""
    title: str
    """As the paper writes it."""
    unit: str
    """What is judged together."""
    discriminator: str
    """What it is judged by."""
    constraint: str
    weight: str
    """Factor on the token's gradient."""
    direction: str
    """Whether an update that leads back towards mu is spared."""
    formula: str
    source: str
    """Labels of the equations in the paper, and where our defaults come from if not from there."""
    needs: str
    """From the runtime."""
    excludes: str
    """What it cannot be combined with, and why."""


STABILIZERS: dict[str, Stabilizer] = {}
"""By name; filled where the formulas are."""


def stabilizer(name: str, title: str, **columns: str) -> Callable[[Function], Function]:
    """Puts a row into the table: a decorator of the function that computes it. columns: the other fields."""
    row = Stabilizer(name, title, **columns)

    def register(function: Function) -> Function:
        STABILIZERS[name] = row
        return function

    return register


# No function here computes it: it is the router's, in the trainer's forward pass.
STABILIZERS["r3"] = Stabilizer(
    "r3",
    "R3",
    unit="forward pass",
    discriminator="routing mask",
    constraint="replay the rollout top-K experts",
    weight="—",
    direction="—",
    formula="g_e = I_e exp(z_e) / Σ_e' I_e' exp(z_e'),  I the experts that the engine chose, z the trainer's logits",
    source="Eq. r3",
    needs="an MoE model, and from the engine the experts of every forwarded token",
    excludes="dense models",
)
