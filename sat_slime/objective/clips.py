"""Bases that clip, and what sets the radii of the clip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Lt

from .stabilizer import SETTINGS, Judge, NonNegative, Positive, Radii, Scope, Stabilizer, Surrogate
from .terms import bounded_exp

if TYPE_CHECKING:  # so that settings are read before torch is imported
    import torch.distributed as dist
    from torch import Tensor

    from .tokens import Tokens


@dataclass(frozen=True)
class Clip:
    """PPO's interval [1 - eps_low, 1 + eps_high] (Eq. ppo-objective)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = SETTINGS

    eps_low: Positive = 0.2
    """Lower radius: ratios below 1 - eps_low are clipped when the advantage is negative."""
    eps_high: Positive = 0.2
    """Upper radius: ratios above 1 + eps_high are clipped when the advantage is positive."""
    dual: Positive | None = None
    """Dual clip: with a negative advantage the surrogate is at least dual * A; above 1. Unset: off, as in the paper."""


@dataclass(frozen=True)
class PPO(Stabilizer):
    """PPO: S = min(r A, clip(r, 1 - eps_low, 1 + eps_high) A). Eqs. ppo-objective, app-ppo-mask."""

    name = "ppo"


@dataclass(frozen=True)
class GRPO(PPO):
    """GRPO: PPO's surrogate; the two differ in the advantages, which are not part of it."""

    name = "grpo"


@dataclass(frozen=True)
class GSPO(Stabilizer):
    """GSPO: S = min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A), rho = exp(mean over the response of log r).
    Eqs. gspo-ratio, app-gspo, app-gspo-loss."""

    name, ratio = "gspo", "sequence"


@dataclass(frozen=True)
class GMPO(Surrogate):
    """GMPO: S = mean(A) exp(mean over the response of c), c = min(d, eps_high) where A > 0, max(d, -eps_low) where
    A < 0. arXiv 2507.20673; the radii are those of verl's recipe: a ratio of 0.67 to 1.49."""

    eps_low: Positive = 0.4
    """Below, |d| counts no more than this where the advantage is negative: it is in the logarithm."""
    eps_high: Positive = 0.4
    """Above, d counts no more than this where the advantage is positive."""
    name = "gmpo"

    def values(self, t: Tokens) -> Tensor:
        d, A = t.bounded_d, t.A
        t.measured["gmpo/held"] = ((A > 0) & (d > self.eps_high)) | ((A < 0) & (d < -self.eps_low))
        up, down = d.clamp(max=self.eps_high), d.clamp(min=-self.eps_low)
        c = t.mean(up.where(A > 0, down).masked_fill(A == 0, 0.0))
        return t.mean(A) * bounded_exp(c)


@dataclass(frozen=True)
class CPGD(Surrogate):
    """CPGD: S = A min(log pi, log pi_den + log(1 + eps)) where A > 0, A max(log pi, log pi_den + log(1 - eps))
    elsewhere, pi_den the denominator. arXiv 2505.12504, without the penalty, as LightRFT has it."""

    eps: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Radius of PPO's interval for the ratio."""
    name = "cpgd"

    def values(self, t: Tokens) -> Tensor:
        d, A, highest, lowest = t.bounded_d, t.A, math.log1p(self.eps), math.log1p(-self.eps)
        t.measured["cpgd/held"] = ((A > 0) & (d > highest)) | ((A < 0) & (d < lowest))
        log_denominator = (t.score - d).detach()
        return A * (log_denominator + d.clamp(max=highest).where(A > 0, d.clamp(min=lowest)))


@dataclass(frozen=True)
class LagPower(Radii):
    """Lag-power: the radii of `clip` times max(1, lag)^power, the lag of the token, or under the sequence ratio the
    mean lag of its response. Ours. From radius 1 on there is no lower end: a ratio is not below 0."""

    power: NonNegative = 0.5
    """Exponent of the lag. 0 is the fixed interval."""
    name, place, needs = "lag-power", "suffix", ("lags",)

    def radii(self, low: float, high: float, t: Tokens) -> tuple[Tensor, Tensor]:
        lags = t.mean(t.lags) if t.unit == "sequence" else t.lags
        growth = lags.clamp(min=1.0) ** self.power
        return low * growth, high * growth


@dataclass(frozen=True)
class BAPO(Radii, Judge):
    """BAPO: S = min(r A, clip(r, l, u) A); l rises and then u, by steps, until P >= share (P + N), P = sum min(r, u) A
    over A > 0, N = sum max(r, l) |A| over A < 0. arXiv 2510.18927 and its public code, which has the dual clip beside
    it, `clip.dual: 3`. It sets both ends; the radii of `clip` are not read."""

    share: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Least share of the tokens with positive advantage in the clipped objective (the paper's rho_0)."""
    lower_start: NonNegative = 0.6
    """Lower end of the ratio at first (a-)."""
    lower_max: Annotated[float, Ge(0), Lt(1)] = 0.9
    """The highest lower end (b-)."""
    upper_start: Positive = 1.2
    """Upper end of the ratio at first (a+)."""
    upper_max: Positive = 3.0
    """The highest upper end (b+). All four are the paper's."""
    step: Positive = 0.05
    """How far an end is raised at a time: its public code's."""
    scope: Scope = "step"
    """Tokens over which the share is taken: the whole optimizer step on all ranks, or one micro-batch."""
    name, place = "bapo", "suffix"

    def __post_init__(self) -> None:
        if not self.lower_start <= self.lower_max <= 1 <= self.upper_start <= self.upper_max:
            raise ValueError(
                f"lower_start {self.lower_start}, lower_max {self.lower_max}, upper_start {self.upper_start} and "
                f"upper_max {self.upper_max} do not ascend around 1, the ratio where the policies agree: set them so"
            )

    def scores(self, t: Tokens) -> Tensor:
        """(n, 2) ratios and advantages."""
        import torch

        return torch.stack([t.ratio.detach(), t.A], 1)

    def threshold_of(self, scores: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """How many steps the ends are raised: the fewest at which the share is reached, else all."""
        import torch

        r, A = scores.double().unbind(1)
        lows, highs = self._ends
        P = torch.stack([(r.clamp(max=high) * A.clamp(min=0)).sum() for high in highs])
        N = torch.stack([(r.clamp(min=low) * (-A).clamp(min=0)).sum() for low in lows])
        sums = torch.cat([P, N])
        if group is not None:
            torch.distributed.all_reduce(sums, group=group)
        P, N = sums.split([len(highs), len(lows)])
        # first along the lower ends at the lowest upper one, then along the upper ends at the highest lower one
        P, N = torch.cat([P[:1].expand(len(lows)), P[1:]]), torch.cat([N, N[-1:].expand(len(highs) - 1)])
        reached = self.share * (P + N) <= P
        reached[-1] = True
        return reached.to(torch.uint8).argmax().to(scores.dtype)

    def radii(self, low: float, high: float, t: Tokens) -> tuple[Tensor, Tensor]:
        import torch

        lows, highs = (torch.tensor(ends, dtype=torch.float64, device=t.A.device) for ends in self._ends)
        steps, last = t.threshold.long(), len(lows) - 1
        lower, upper = lows[steps.clamp(max=last)], highs[(steps - last).clamp(min=0)]
        return (1 - lower).to(t.dtype), (upper - 1).to(t.dtype)

    @property
    def _ends(self) -> tuple[list[float], list[float]]:
        def ends(start: float, end: float) -> list[float]:
            steps = math.ceil(round((end - start) / self.step, 9))
            return [min(start + self.step * k, end) for k in range(steps)] + [end]

        return ends(self.lower_start, self.lower_max), ends(self.upper_start, self.upper_max)
