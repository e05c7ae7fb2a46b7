"""Stabilizer: an entry of the design space (Table designspace). One class for each, in stabilizers/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch.distributed as dist
from annotated_types import Gt
from torch import Tensor

from .batch_view import BatchView
from .metric import Metric
from .ratio import Ratio

PositiveFloat = Annotated[float, Gt(0)]
Place = Literal["base", "prefix", "suffix"]


@dataclass(frozen=True)
class Row:
    """A row of the table, and what a user has to know beside it. r is the ratio, rho that of the sequence, A the
    advantage, pi the policy in training, mu the rollout engine's, both on the sampled token."""

    title: str
    """The name as the paper writes it."""
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
    """What the runtime has to give it."""
    excludes: str
    """What it cannot be combined with, and why."""


@dataclass(frozen=True)
class Style:
    """How a figure draws it."""

    colour: str
    """A colour of report.drawing by its name, such as `blue`, or any that matplotlib knows."""
    dash: Any
    """The dash of lines in matplotlib's notation: `-`, `--`, or (0, (6, 1))."""
    marker: str = ""
    """The marker of a base; empty for what stands beside one, since the base's marker stays."""
    filled: bool = False
    """Whether the marker is filled."""


@dataclass(frozen=True)
class Variant:
    """Settings of a stabilizer that make it another row of the table."""

    name: str
    """What it adds to the stabilizer's name: `kl` makes NAME-kl."""
    settings: Mapping[str, Any]
    row: Row


class Stabilizer:
    """One entry of the design space. A subclass is a frozen dataclass: its fields are its settings.

    A field has a type with its bounds, a default and a docstring; the YAML section, its checks and its help follow.
    """

    name: ClassVar[str]
    """The name of the base, or the part of a method's name; its YAML section and its metrics bear it too."""
    place: ClassVar[Place] = "base"
    """base: a method is built on it. prefix, suffix: where its name goes when it is switched on beside a base."""
    label: ClassVar[str] = ""
    """In figures and tables. Unset: its name in capitals."""
    row: ClassVar[Row]
    """Its row of the table; where it has variants, that of the plain one."""
    variants: ClassVar[tuple[Variant, ...]] = ()
    """Its variants, if it has some."""
    style: ClassVar[Style | None] = None
    """How a base is drawn; of what stands beside one, the colour and dash that it gives it, if it does."""
    family: ClassVar[str] = ""
    """The kind of stabilizer, in a word."""
    ratio: ClassVar[Ratio] = "token"
    """The ratio of a method that is built on it."""
    key: ClassVar[str] = ""
    """Its key in the YAML section `method`. Unset: its name."""
    help: ClassVar[str] = ""
    """The help of that key, where it is not a base."""
    switch_help: ClassVar[str] = ""
    """The help of the setting `enabled` in its section, where it is not a base."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """What it measures."""
    no_op_at_ratio_one: ClassVar[str] = ""
    """Why it is pointless where the ratio is identically 1, in words; empty where it is not."""

    @property
    def variant(self) -> Variant | None:
        """The variant that its settings make. None: the plain one."""
        for variant in self.variants:
            if all(getattr(self, key) == value for key, value in variant.settings.items()):
                return variant
        return None

    @property
    def part(self) -> str:
        """The name of its row: its own, with its variant."""
        return f"{self.name}-{self.variant.name}" if self.variant else self.name

    @property
    def own_row(self) -> Row:
        """Its row of the table: that of its variant."""
        return self.variant.row if self.variant else self.row

    @property
    def in_words(self) -> str:
        """Its label, with its variant."""
        label = self.label or self.name.upper()
        return f"{label}-{self.variant.name.upper()}" if self.variant else label

    @property
    def engine_weight(self) -> str:
        """What of it weights a token by pi_proximal / mu, in words, so that the clip must not divide by mu too; empty
        where nothing does."""
        return ""

    @property
    def unread(self) -> tuple[str, ...]:
        """Settings that its variant does not read."""
        return ()


def around_one(low: float, high: float) -> None:
    """Raises ValueError unless the range of a ratio holds 1, its value where the policies agree."""
    if not low <= 1 <= high:
        raise ValueError(
            f"the range of low {low} and high {high} does not hold 1, and would drop the tokens on which "
            "the policies agree: set low at most and high at least to 1"
        )


class TrustRegion(Stabilizer):
    """Changes the clip interval."""

    family = "trust region"


class Clipping(Stabilizer):
    """PPO's interval with nothing beside it; it has no settings but the interval's."""

    family = "clip"


class Gate(Stabilizer):
    """Keeps or drops tokens, beside the clip. Its metric NAME/masked is the share of tokens that it drops."""

    family = "gate"

    def factor(self, batch: BatchView) -> Tensor:
        """(N,) 0 on the tokens that it drops, 1 (or their weight) on the others. Runs without gradient."""
        raise NotImplementedError


class Weight(Stabilizer):
    """Weights the surrogate of each token."""

    family = "weight"

    def factor(self, batch: BatchView) -> Tensor:
        """(N,) weights. Runs without gradient."""
        raise NotImplementedError

    def sums(self, weights: Tensor) -> dict[str, Tensor]:
        """0-dim sums over the tokens, 0 on inactive ones, whose means are its metrics."""
        return {f"{self.name}/weight": weights.sum()}


class Penalty(Stabilizer):
    """Stands in place of the clip."""

    family = "penalty"
    no_op_at_ratio_one = "the penalty has no gradient"

    def surrogate(self, ratio: Tensor, batch: BatchView) -> Tensor:
        """(N,) S, with its gradient through the (N,) ratio r."""
        raise NotImplementedError


class Replay(Stabilizer):
    """Changes the trainer's forward pass; no formula of the loss reads it."""

    family = "replay"
    place = "suffix"


class StepConstraint(Stabilizer):
    """Bounds the optimizer's step, in place of the clip: the trainer halves a step until it stands."""

    family = "constraint"
    max_backtracks: int
    """Halvings of a step before it is given up and the weights stay as they were."""

    def stands(self, before: Tensor, after: Tensor, group: dist.ProcessGroup | None = None) -> bool:
        """Whether an optimizer step may stand.

        Args:
            before, after: (N,) divergence from mu at this rank's states under the weights before and after the step.
            group: ranks that hold parts of the states, some perhaps none. All get the same answer.
        """
        raise NotImplementedError
