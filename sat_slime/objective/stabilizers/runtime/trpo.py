"""TRPO's constraint on an optimizer step: the divergence from mu at every state, and the step-size backtrack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt

from ...metric import Metric, Panel
from ...stabilizer import Row, StepConstraint, Style


@dataclass(frozen=True)
class TRPO(StepConstraint):
    """TRPO's constraint on the optimizer step (Table designspace); on the embedded runtime alone."""

    delta: Annotated[float, Gt(0), Lt(1)] = 0.07
    """Largest total variation between mu and pi over the whole vocabulary, unless the step does not raise it. The paper
    has none; this one is the KL of 0.01 of public TRPO code, through Pinsker's inequality."""
    over: Literal["state", "mean"] = "mean"
    """mean: in the mean over the batch's states, as in public TRPO code; state: at every one of them, as in the paper's
    table, which a single state on which the engines disagree can make impossible."""
    max_backtracks: Annotated[int, Ge(0)] = 10
    """Halvings of a step before it is given up and the weights stay as they were."""

    name = "trpo"
    row = Row(
        "TRPO",
        unit="state",
        discriminator="D_TV(μ‖π)[s]",
        constraint="D_TV[s] ≤ δ",
        weight="—",
        direction="asymmetric",
        formula=(
            "S = r A;  D_TV[s] = ½ Σ_a |μ(a|s) − π(a|s)|;  θ + β Δθ with the first β of 1, ½, ¼, … at which D_TV[s] "
            "≤ δ or has not grown, in the mean over states (over: mean) or at every state (over: state); β = 0 where "
            "none is"
        ),
        source=(
            "Table designspace, Eq. satr-divergences; δ is our choice: the KL of 0.01 that public TRPO code allows, "
            "through Pinsker's inequality; 10 halvings as there"
        ),
        needs="log μ of the whole vocabulary at every token, and a forward pass more for every β: the embedded runtime",
        excludes="SAT (there is no clip interval to contract); slime (its step cannot be taken back)",
    )
    style = Style("black", "-", "X")
    metrics = (
        Metric(
            "trpo/{tv_mean,tv_max,tv_mean_before,tv_max_before}",
            "total variation",
            "Between μ and π over all tokens of the vocabulary, at the batch's states, after the step; `_before`: "
            "before it.",
            "step",
            runtime="embedded",
            panel=Panel("total variation of μ and π", log=True),
        ),
        Metric(
            "trpo/step_scale",
            "share",
            "The part of the optimizer's step that was made.",
            "step",
            runtime="embedded",
            panel=Panel("part of the optimizer's step that was made", y_label="%"),
        ),
        Metric(
            "trpo/backtracks",
            "count",
            "Halvings until TRPO's constraint stood.",
            "step",
            runtime="embedded",
            panel=Panel("halvings of the optimizer's step"),
        ),
    )

    def stands(
        self, before: torch.Tensor, after: torch.Tensor, group: torch.distributed.ProcessGroup | None = None
    ) -> bool:
        """Return whether an optimizer step may stand: at every state (over `state`), or in the mean (over `mean`), the
        divergence is at most delta, or the step has not raised it. The last is what makes the constraint asymmetric: a
        state that staleness alone has put outside the region may come back, and does not forbid every other step."""
        if self.over == "state":
            outward = (after > self.delta) & (after > before)
            return not _total(outward.sum()[None].double(), group)[0]
        count = torch.tensor(float(len(after))).to(after.device)
        was, now, n = _total(torch.stack([before.double().sum(), after.double().sum(), count]), group)
        return now <= self.delta * n or now <= was


def total_variation(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Return (N,) 1/2 sum_a |p(a) - q(a)| from (N, V) log-probs of the whole vocabulary; -inf is a probability of 0."""
    return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2


def backtrack(
    constraint: StepConstraint, place: Callable[[float], None], stands: Callable[[], bool]
) -> tuple[float, int]:
    """Halves a step until it stands, and gives it up after constraint.max_backtracks halvings.

    Args:
        place: puts the weights at old + scale * (new - old).
        stands: whether the step as placed satisfies the constraint.

    Returns:
        The scale at which the weights are left, 0 if none stands, and the halvings it took.
    """
    scale = 1.0
    for halvings in range(constraint.max_backtracks + 1):
        place(scale)
        if stands():
            return scale, halvings
        scale /= 2
    place(0.0)
    return 0.0, constraint.max_backtracks


def divergence_metrics(
    before: torch.Tensor, after: torch.Tensor, group: torch.distributed.ProcessGroup | None = None
) -> dict[str, float]:
    """trpo/tv_mean and trpo/tv_max of the step that was made, and those of the weights before it; 0 without states.

    Args:
        before, after, group: as in TRPO.stands.
    """
    both = torch.stack([before, after]).double()
    largest = both.amax(1) if both.shape[1] else both.new_zeros(2)
    if group is not None:
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=group)
    n = torch.tensor([float(both.shape[1])], dtype=torch.float64, device=both.device)
    *sums, count = _total(torch.cat([both.sum(1), n]), group)
    return {
        "trpo/tv_mean_before": sums[0] / max(count, 1.0),
        "trpo/tv_mean": sums[1] / max(count, 1.0),
        "trpo/tv_max_before": float(largest[0]),
        "trpo/tv_max": float(largest[1]),
    }


def _total(values: torch.Tensor, group: torch.distributed.ProcessGroup | None) -> list[float]:
    if group is not None:
        torch.distributed.all_reduce(values, group=group)
    return values.tolist()
