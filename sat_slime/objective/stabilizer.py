"""What a stabilizer is: a frozen dataclass. Its fields are its settings, and its kind names the function it defines.

Its docstring begins with its name as the paper writes it and a colon; then come formula and source. What a stabilizer
measures it writes into `t.measured`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt

from .terms import Denominator, Need, Ratio

if TYPE_CHECKING:  # so that settings are read before torch is imported
    import torch.distributed as dist
    from torch import Tensor

    from .tokens import Tokens

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Scope = Literal["microbatch", "step"]
SETTINGS: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
"""How pydantic reads a dataclass of settings from a file."""


class Stabilizer:
    """One entry of the design space (Table designspace)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = SETTINGS
    name: ClassVar[str]
    """In a method's name, such as `sat-gspo-tis`; with _ for - in YAML and before its metrics."""
    place: ClassVar[Literal["base", "prefix", "suffix"]] = "base"
    """base: a method is built on it. prefix, suffix: where its name goes when it is switched on beside a base."""
    key: ClassVar[str] = ""
    """Its key in the YAML section `method`, where that is not its name."""
    ratio: ClassVar[Ratio] = "token"
    """The ratio of a method that is built on it."""
    has_interval: ClassVar[bool] = True
    """A method that is built on it has a clip interval, which SAT can contract."""
    idle_at_one: ClassVar[bool] = False
    """It does nothing where the ratio is identically 1."""
    only_over: ClassVar[tuple[Denominator, ...]] = ()
    """The denominators that it is defined over; empty: all."""

    # What follows may depend on settings: a subclass sets it, or has a property.
    @property
    def needs(self) -> tuple[Need, ...]:
        """Columns of TokenBatch that it reads besides log-probs and advantages."""
        return ()

    @property
    def weighs_by_mu(self) -> bool:
        """True where it weights a token by pi_proximal / mu, so that the ratio must not divide by mu too."""
        return False

    @property
    def unread(self) -> tuple[str, ...]:
        """Settings that it does not read, as the others are."""
        return ()

    @classmethod
    def prefix(cls) -> str:
        """What the names of its metrics begin with."""
        return cls.name.replace("-", "_")

    @classmethod
    def title(cls) -> str:
        """Its name as the paper writes it."""
        head, colon, _ = (cls.__doc__ or "").partition(":")
        return head if colon and "(" not in head else cls.name  # a dataclass without a docstring gets its signature


class Gate(Stabilizer):
    """Keeps or drops tokens. Its metric NAME/masked is the share of tokens that it drops."""

    def factor(self, t: Tokens) -> Tensor:
        """(n,) 0 or False where it drops, else 1 or a weight. Runs without gradient."""
        raise NotImplementedError


class InRange:
    """Has a range of a ratio, which holds 1, its value where the policies agree. Beside Gate or another kind."""

    low: float
    high: float | None

    def __post_init__(self) -> None:
        high = math.inf if self.high is None else self.high
        if not self.low <= 1 <= high:
            raise ValueError(
                f"the range of low {self.low} and high {high} does not hold 1, and would drop the tokens on which the "
                "policies agree: set low to 1 or less and high to 1 or more"
            )

    def holds(self, ratio: Tensor) -> Tensor:
        """(n,) bool: where the ratio is in the range."""
        above = ratio >= self.low
        return above if self.high is None else above & (ratio <= self.high)


class Weight(Stabilizer):
    """Weights tokens by pi_proximal / mu. Its metric NAME/weight is the mean weight."""

    weighs_by_mu = True

    def factor(self, t: Tokens) -> Tensor:
        """(n,) weights. Runs without gradient."""
        raise NotImplementedError


class Judge(Stabilizer):
    """Takes a threshold, `t.threshold`, over all tokens of its scope, on all ranks. Beside Gate or another kind."""

    scope: Scope | None = None
    """Tokens that it is taken over: a micro-batch, or the optimizer step on all ranks. None: as `Method.scope` says."""

    def scores(self, t: Tokens) -> Tensor:
        """(m,) or (m, k): what the threshold is taken of, of the tokens that count. A pass over a whole step leaves
        `t.entropies` out."""
        raise NotImplementedError

    def threshold_of(self, scores: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """0-dim threshold of this rank's scores and those of the other ranks of `group`, the same on all."""
        raise NotImplementedError


class Radii(Stabilizer):
    """Sets the radii of the clip interval, which SAT then contracts. Its metrics are radius/{low,high}."""

    def radii(self, low: float, high: float, t: Tokens) -> tuple[Tensor, Tensor]:
        """The radii below and above 1, each (n,) or 0-dim, from those of the section `clip`. Runs without gradient."""
        raise NotImplementedError


class Surrogate(Stabilizer):
    """Computes S in place of the clip."""

    has_interval = False

    def values(self, t: Tokens) -> Tensor:
        """(n,) S, with gradient through t.ratio, t.d or t.score."""
        raise NotImplementedError


class Score(Surrogate):
    """S = w A log pi, w without gradient: its gradient in log pi is w A, its value alone means nothing. Its metrics are
    NAME/weight, the mean of w, and NAME/masked, the share of tokens whose w is 0."""

    def weight(self, t: Tokens) -> Tensor:
        """(n,) w."""
        raise NotImplementedError

    def values(self, t: Tokens) -> Tensor:
        w = self.weight(t).detach()
        t.measured |= {f"{self.prefix()}/weight": w, f"{self.prefix()}/masked": w == 0}
        return w * t.A * t.score
