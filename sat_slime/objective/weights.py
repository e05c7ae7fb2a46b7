"""Weights: they multiply the surrogate of each token by k = pi_proximal / mu, without gradient, bounded in some way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .stabilizer import InRange, Positive, Weight

if TYPE_CHECKING:  # so that settings are read before torch is imported
    from torch import Tensor

    from .tokens import Tokens


@dataclass(frozen=True)
class TIS(Weight):
    """TIS: S w, w = min(k, cap). Eq. app-tis; the cap is that of public code."""

    cap: Positive = 2.0
    """Upper bound C of the weight."""

    name = "tis"

    def factor(self, t: Tokens) -> Tensor:
        w = t.k.clamp(max=self.cap)
        t.measured["tis/capped"] = w == self.cap
        return w


@dataclass(frozen=True)
class SeqTIS(Weight):
    """Seq-TIS: S w, w = min(W, cap), W the product of k over the response, whose logarithm is held inside plus and
    minus 20. verl's rollout_is sequence, slime's and SkyRL's sequence TIS. Long responses leave any range."""

    cap: Positive = 2.0
    """Upper bound of the weight. verl's; SkyRL has 5, TRL 3."""
    form: Literal["clamp", "mask"] = "clamp"
    """Above the cap: clamp: the weight is the cap; mask: it is 0, as by default in TRL."""

    name = "seq-tis"

    def factor(self, t: Tokens) -> Tensor:
        W = t.sum(t.log_k).clamp(-20.0, 20.0).exp()
        return W.clamp(max=self.cap) if self.form == "clamp" else W.where(self.cap >= W, 0.0)


@dataclass(frozen=True)
class SeqMaskTIS(InRange, Weight):
    """Seq-Mask-TIS: S w, w = k in responses whose exp(mean log k) is in [low, high], else 0. OpenRLHF's and NeMo-RL's
    public code; the range is that of MIS-Geo."""

    low: Positive = 0.99
    """Least geometric mean ratio at which a response is kept."""
    high: Positive = 1.01
    """Largest geometric mean ratio at which a response is kept; NeMo-RL's are 0.999 and 1.002."""

    name = "seq-mask-tis"

    def factor(self, t: Tokens) -> Tensor:
        return t.k.where(self.holds(t.mean(t.log_k).exp()), 0.0)


@dataclass(frozen=True)
class Decoupled(Weight):
    """Decoupled PPO: S w, w = k up to cap, else 0 (form mask) or cap (form clamp), the clip on pi / pi_proximal.
    arXiv 2505.24298 and AReaL's public code. The mask is IcePop's weight with low 0, the clamp is TIS."""

    cap: Positive = 5.0
    """Largest pi_proximal / mu. It was AReaL's default, which now filters nothing unless told."""
    form: Literal["mask", "clamp"] = "mask"
    """Above the cap: mask: the weight is 0; clamp: it is the cap."""

    name = "decoupled"

    def factor(self, t: Tokens) -> Tensor:
        return t.k.clamp(max=self.cap) if self.form == "clamp" else t.k.where(t.k <= self.cap, 0.0)
