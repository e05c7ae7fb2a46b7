"""GRPO: PPO's surrogate. The two differ in the advantage estimator, which is not part of it."""

from __future__ import annotations

from dataclasses import dataclass

from ...stabilizer import Style
from .ppo import PPO


@dataclass(frozen=True)
class GRPO(PPO):
    """The surrogate of PPO, and its row of the table, under the name that the paper uses."""

    name = "grpo"
    style = Style("black", "-", "o")

    @property
    def part(self) -> str:
        return PPO.name
