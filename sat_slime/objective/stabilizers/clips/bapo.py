"""BAPO: the ends of the clip interval are raised until good answers make up their share of the objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt

from ...batch_view import BatchView
from ...stabilizer import Judge, NonNegativeFloat, PositiveFloat, RadiusPolicy, Row, Scope, Style


@dataclass(frozen=True)
class BAPO(RadiusPolicy, Judge):
    """Balanced policy optimization. It sets both ends of the interval; the radii of `clip` are not read. Its public
    code has the dual clip beside it, `clip.dual: 3`."""

    share: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Least share of the tokens with positive advantage in the clipped objective (the paper's rho_0)."""
    lower_start: NonNegativeFloat = 0.6
    """Lower end of the ratio at first (a-)."""
    lower_max: Annotated[float, Ge(0), Lt(1)] = 0.9
    """The highest lower end (b-)."""
    upper_start: PositiveFloat = 1.2
    """Upper end of the ratio at first (a+)."""
    upper_max: PositiveFloat = 3.0
    """The highest upper end (b+). All four are the paper's."""
    step: PositiveFloat = 0.05
    """How far an end is raised at a time: its public code's."""
    scope: Scope = "step"
    """Tokens over which the share is taken: the whole optimizer step on all ranks, or one micro-batch."""

    name = "bapo"
    help = "BAPO: the clip interval is raised until positive advantages make up a share of the objective."
    switch_help = "Raise the ends of the clip interval by the balance of the batch."
    row = Row(
        "BAPO",
        unit="batch",
        discriminator="share of A > 0 in the clipped objective",
        constraint="l ≤ r or r ≤ u, outward",
        weight="{0, 1}",
        direction="asymmetric, adaptive",
        formula=(
            "S = min(r A, clip(r, l, u) A);  l rises from a₋ to b₋ and then u from a₊ to b₊, by steps, until "
            "P ≥ ρ₀ (P + N),  P = Σ min(r, u) A over A > 0,  N = Σ max(r, l) |A| over A < 0"
        ),
        source="arXiv 2510.18927 and its public code, which raises l before u",
        excludes="SAT and M2PO, whose threshold is another one of the batch; bases without a clip interval",
    )
    style = Style("vermilion", (0, (4, 2, 1, 2)))

    def __post_init__(self) -> None:
        if not self.lower_start <= self.lower_max <= 1 <= self.upper_start <= self.upper_max:
            raise ValueError(
                f"lower_start {self.lower_start}, lower_max {self.lower_max}, upper_start {self.upper_start} and "
                f"upper_max {self.upper_max} do not ascend around 1, the ratio where the policies agree: set them so"
            )

    def scores(self, batch: BatchView) -> torch.Tensor:
        """Return the (n, 2) ratios and advantages of the active tokens."""
        return torch.stack([batch.ratio, batch.advantages], 1)[batch.mask]

    def threshold_of(self, scores: torch.Tensor, group: torch.distributed.ProcessGroup | None = None) -> torch.Tensor:
        """Return how many steps the ends are raised, as a number: the fewest at which the share is reached, else all.

        Raises:
            ValueError: a ratio is NaN. Across ranks all raise.
        """
        r, A = scores.detach().double().unbind(1)
        lows, highs = (torch.tensor(ends, dtype=torch.float64, device=r.device) for ends in (self._lows, self._highs))
        good, bad = A > 0, A < 0
        positive = (torch.minimum(r[good], highs[:, None]) * A[good]).sum(1)
        negative = (torch.maximum(r[bad], lows[:, None]) * -A[bad]).sum(1)
        sums = torch.cat([positive, negative, scores.isnan().sum().double()[None]])
        if group is not None:
            torch.distributed.all_reduce(sums, group=group)
        positive, negative, n_nan = sums.split([len(highs), len(lows), 1])
        if n_nan.item():
            raise ValueError(f"{int(n_nan)} ratios or advantages are NaN: look for NaN or infinite log-probs")
        # First along the lower ends at the lowest upper one, then along the upper ends at the highest lower one.
        p = torch.cat([positive[:1].expand(len(lows)), positive[1:]])
        n = torch.cat([negative, negative[-1:].expand(len(highs) - 1)])
        reached = p >= self.share * (p + n)
        reached[-1] = True
        return reached.to(torch.uint8).argmax().to(scores.dtype)

    def radii(self, low: float, high: float, batch: BatchView) -> tuple[torch.Tensor, torch.Tensor]:
        """1 - l and u - 1 after so many steps."""
        steps = int(batch.known_threshold)
        lower = self._lows[min(steps, len(self._lows) - 1)]
        upper = self._highs[max(0, steps - len(self._lows) + 1)]
        return batch.d.new_tensor(1 - lower), batch.d.new_tensor(upper - 1)

    @property
    def _lows(self) -> list[float]:
        return _ends(self.lower_start, self.lower_max, self.step)

    @property
    def _highs(self) -> list[float]:
        return _ends(self.upper_start, self.upper_max, self.step)


def _ends(start: float, end: float, step: float) -> list[float]:
    """Return start, start + step and so on, and the end."""
    steps = math.ceil(round((end - start) / step, 9))
    return [min(start + step * k, end) for k in range(steps)] + [end]
