"""Update geometry in the (ratio, advantage) plane (the paper's Figure geometry), from the objective's own functions."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sat_slime.objective import Clip, TokenBatch, named_method, policy_surrogate
from sat_slime.objective.clip import clipped_surrogate
from sat_slime.objective.stabilizers.clips.sat import contracted_ends
from sat_slime.report.drawing import NARROW_WIDTH, STYLE, Drawing, Table

MU = 0.01
"""Probability of the sampled token under the engine, which DPPO's bound needs: delta / mu = 0.1."""
QUANTILE = 0.05
"""q of the SAT panel, nats."""
RATIOS, ADVANTAGES = np.linspace(0.6, 1.4, 161), np.linspace(-1, 1, 40)  # no advantage of exactly 0
KEPT, STOPPED, NEWLY = 0, 1, 2
FIXED_FACTOR = 0.6
"""Contraction factor of the paper's SAT panel."""


def by_method(name: str, quantile: float | None = None) -> np.ndarray:
    """(advantages, ratios) derivative of a named method's surrogate with respect to the ratio, by autograd through
    policy_surrogate. quantile: SAT's q, which a run takes from the batch."""
    r, a = _plane()
    mu = torch.full_like(r, MU).log()
    log_probs = (mu + r.log()).requires_grad_()
    batch = TokenBatch(log_probs, mu, a, torch.ones_like(r, dtype=torch.bool), [1] * len(r))
    return _slopes(policy_surrogate(named_method(name), batch, quantile=quantile).values, log_probs)


def with_fixed_factor() -> np.ndarray:
    """The same derivative of SAT's surrogate with FIXED_FACTOR on the side of sign(d), as the paper draws it."""
    r, a = _plane()
    d = r.log().requires_grad_()
    ends = contracted_ends(Clip(), torch.full_like(r, 1 - FIXED_FACTOR))
    return _slopes(clipped_surrogate(d, a, *ends).values, d)


def _plane() -> tuple[torch.Tensor, torch.Tensor]:
    r, a = (torch.tensor(values, dtype=torch.float64) for values in np.meshgrid(RATIOS, ADVANTAGES))
    return r.flatten(), a.flatten()


def _slopes(values: torch.Tensor, log_ratio: torch.Tensor) -> np.ndarray:
    (slope,) = torch.autograd.grad(values.sum(), log_ratio)
    return (slope / _plane()[0]).reshape(len(ADVANTAGES), len(RATIOS)).numpy()  # dS/dr = dS/dlog r / r


def regions(slopes: np.ndarray) -> np.ndarray:
    """KEPT where the update acts, STOPPED where PPO stops it too, NEWLY where only this does."""
    return np.where(slopes == 0, np.where(by_method("ppo") == 0, STOPPED, NEWLY), KEPT)


PANELS = (
    ("PPO", lambda: by_method("ppo"), "PPO: outward updates stop at 1 ± 0.2"),
    ("DPPO", lambda: by_method("dppo"), f"DPPO-TV on a token of μ = {MU}: they stop at 1 ± δ/μ"),
    ("SAT, c = 0.6", with_fixed_factor, f"SAT with factor {FIXED_FACTOR}, as in the paper: 1 ± 0.12"),
    (
        "SAT",
        lambda: by_method("sat-grpo", QUANTILE),
        f"SAT at q = {QUANTILE}: radius 0.2 / (1 + (d/q)²) beyond q",
    ),
)
"""(name, slopes, title)."""


def draw_geometry() -> Drawing:
    """PPO, DPPO and SAT: where the gradient of a sampled token acts, is stopped, and is stopped newly."""
    r, a = np.meshgrid(RATIOS, ADVANTAGES)
    table: Table = {"ratio": r.ravel(), "advantage": a.ravel()}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(NARROW_WIDTH, 2.2 * len(PANELS) + 0.6), layout="constrained")
        for axes, panel in zip(figure.subplots(len(PANELS), 1, sharex=True), PANELS, strict=True):
            _panel(axes, table, *panel)
        axes.set_xlabel("ratio r = π / μ of the sampled token")
        names = ("kept", "stopped, as by PPO", "stopped newly")
        patches = [
            Patch(facecolor=c, edgecolor="#555555", hatch=h, label=n)
            for c, h, n in zip(_FACES, _HATCHES, names, strict=True)
        ]
        figure.legend(handles=patches, loc="outside upper left", ncols=3)
        return Drawing(figure, table)


_FACES, _HATCHES = ("#ffffff", "#d0d0d0", "#f0c87a"), ("", "", "////")


def _panel(axes: Axes, table: Table, name: str, slopes: Callable[[], np.ndarray], title: str) -> None:
    values = slopes()
    kind = regions(values)
    table[f"{name}: dS/dr"] = values.ravel()
    table[f"{name}: 0 kept, 1 stopped, 2 newly"] = kind.ravel().astype(float)
    extent = (RATIOS[0], RATIOS[-1], ADVANTAGES[0], ADVANTAGES[-1])
    axes.imshow(kind, origin="lower", extent=extent, aspect="auto", cmap=ListedColormap(_FACES), vmin=0, vmax=2,
                interpolation="nearest")  # fmt: skip
    if (kind == NEWLY).any():
        masked = np.ma.masked_where(kind != NEWLY, np.ones(kind.shape))
        axes.contourf(RATIOS, ADVANTAGES, masked, levels=[0.5, 1.5], colors="none", hatches=["////"])
    axes.axvline(1, color="#000000", linewidth=0.8)
    axes.axhline(0, color="#000000", linewidth=0.8)
    for x, y, text in (
        (1.3, 0.5, "outward"),
        (0.7, -0.5, "outward"),
        (0.7, 0.5, "pull-back"),
        (1.3, -0.5, "pull-back"),
    ):
        axes.text(x, y, text, ha="center", va="center", fontsize=8)
    axes.grid(False)
    axes.set_title(title)
    axes.set_ylabel("advantage")
