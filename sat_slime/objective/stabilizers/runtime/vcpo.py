"""VCPO: the learning rate of a step follows the effective sample size of its responses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from ...metric import Metric, Panel
from ...stabilizer import PositiveFloat, Row, StepScale, Style


@dataclass(frozen=True)
class VCPO(StepScale):
    """Variance-controlled learning rate, without the paper's baseline, which needs a backward pass per response."""

    base: PositiveFloat = 1.0
    """Share of effective responses from which on the learning rate is whole."""
    form: Literal["sqrt", "linear"] = "sqrt"
    """The way in which the learning rate falls with that share."""

    name = "vcpo"
    help = "VCPO: the learning rate of each step is scaled by the effective sample size of its responses."
    switch_help = "Scale the learning rate of each step."
    row = Row(
        "VCPO",
        unit="optimizer step",
        discriminator="ESS of Π π_proximal / μ",
        constraint="—",
        weight="learning rate × √(ESS / n)",
        direction="—",
        formula=(
            "learning rate × √min(1, ESS / (n base)),  ESS = (Σ W)² / Σ W²,  W the product over a response of "
            "π_proximal / μ,  n responses"
        ),
        source="arXiv 2602.17616 and its public code",
        needs="rollout log-probs; the optimizer, so embedded runs alone",
    )
    style = Style("green", (0, (5, 5)))
    metrics = (
        Metric(
            "vcpo/scale",
            "factor",
            "Factor on the learning rate.",
            "step",
            runtime="embedded",
            panel=Panel("factor on the learning rate"),
        ),
        Metric(
            "vcpo/ess",
            "share",
            "Effective responses over responses.",
            "step",
            runtime="embedded",
            panel=Panel("effective responses", y_label="%"),
        ),
    )

    def scale(self, log_weights: torch.Tensor, group: torch.distributed.ProcessGroup | None = None) -> dict[str, float]:
        """Return (min(1, ESS / (n base)))^(1/2), or without the root; 1 where there are no responses.

        The weights are divided by the largest one, which changes nothing and keeps long responses from overflow.
        """
        log_weights = log_weights.detach().double()
        largest = log_weights.amax() if len(log_weights) else log_weights.new_full((), -math.inf)
        if group is not None:
            torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
        weights = (log_weights - largest.clamp(min=torch.finfo(largest.dtype).min)).exp()
        sums = torch.stack([weights.sum(), weights.square().sum(), weights.new_tensor(float(len(weights)))])
        if group is not None:
            torch.distributed.all_reduce(sums, group=group)
        total, squares, n = sums.tolist()
        share = total**2 / squares / n if squares > 0 else 1.0
        effective = min(1.0, share / self.base)
        return {"vcpo/scale": math.sqrt(effective) if self.form == "sqrt" else effective, "vcpo/ess": share}
