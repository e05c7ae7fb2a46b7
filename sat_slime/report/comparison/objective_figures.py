"""Figures without data, from the objective's own functions: update geometry in the (ratio, advantage) plane (the
paper's Figure geometry), and what a token weighs by its ratio, method by method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby

import altair as alt
import numpy as np
import torch

from sat_slime.objective import Clip, Method, TokenBatch, method_names, named_method, policy_surrogate
from sat_slime.report.drawing import (
    Drawing,
    Plot,
    Table,
    chosen,
    column_of,
    facets,
    in_colour,
    joined,
    layered,
    lines,
    rows,
    rule,
    tip,
)
from sat_slime.report.judged import TOKEN_PROBABILITY, TOKEN_RATIO, judged_by
from sat_slime.report.looks import BLACK, BLUE, GREY, ORANGE, VERMILION, Look

MU = 0.01
"""Probability of the sampled token under the engine, which DPPO's bound needs: delta / mu = 0.1."""
QUANTILE = 0.05
"""q of the SAT panel, nats."""
RATIOS, ADVANTAGES = np.linspace(0.6, 1.4, 161), np.linspace(-1, 1, 40)  # no advantage of exactly 0
KEPT, STOPPED, NEWLY = 0, 1, 2
FIXED_FACTOR = 0.6
"""Contraction factor of the paper's SAT panel."""


def by_method(name: str, quantile: float | None = None) -> np.ndarray:
    """Return (advantages, ratios) the derivative of a named method's surrogate with respect to the ratio, by autograd
    through policy_surrogate. quantile: SAT's q, which a run takes from the batch."""
    r, a = _plane()
    mu = torch.full_like(r, MU).log()
    log_probs = (mu + r.log()).requires_grad_()
    batch = TokenBatch(log_probs, mu, a, torch.ones_like(r, dtype=torch.bool), [1] * len(r))
    return _slopes(policy_surrogate(named_method(name), batch, threshold=quantile).values, log_probs)


def with_fixed_factor() -> np.ndarray:
    """Return the same derivative of SAT's surrogate with FIXED_FACTOR on the side of sign(d), as the paper draws it."""
    r, a = _plane()
    d = r.log().requires_grad_()
    clip = Clip()  # contracted on both sides, of which the one that d names alone can bind
    low, high = 1 - FIXED_FACTOR * clip.eps_low, 1 + FIXED_FACTOR * clip.eps_high
    return _slopes(torch.minimum(d.exp() * a, d.exp().clamp(low, high) * a), d)


def _plane() -> tuple[torch.Tensor, torch.Tensor]:
    r, a = (torch.tensor(values, dtype=torch.float64) for values in np.meshgrid(RATIOS, ADVANTAGES))
    return r.flatten(), a.flatten()


def _slopes(values: torch.Tensor, log_ratio: torch.Tensor) -> np.ndarray:
    (slope,) = torch.autograd.grad(values.sum(), log_ratio)
    return (slope / _plane()[0]).reshape(len(ADVANTAGES), len(RATIOS)).numpy()  # dS/dr = dS/dlog r / r


def regions(slopes: np.ndarray) -> np.ndarray:
    """Return KEPT where the update acts, STOPPED where PPO stops it too, NEWLY where only this does."""
    return np.where(slopes == 0, np.where(by_method("ppo") == 0, STOPPED, NEWLY), KEPT)


PANELS = (
    ("PPO", lambda: by_method("ppo"), "PPO: outward updates stop at 1 ± 0.2"),
    ("DPPO", lambda: by_method("dppo"), f"DPPO-TV, μ = {MU}: they stop at 1 ± δ/μ"),
    ("SAT, c = 0.6", with_fixed_factor, f"SAT, factor {FIXED_FACTOR} as in the paper: 1 ± 0.12"),
    ("SAT", lambda: by_method("sat-grpo", QUANTILE), f"SAT, q = {QUANTILE}: 0.2 / (1 + (d/q)²) beyond q"),
)
"""(name, slopes, title)."""


LOOKS = (
    Look("kept", "transparent", "", "bar", filled=True),
    Look("stopped, as by PPO", GREY, "", "bar", filled=True),
    Look("stopped newly", ORANGE, "", "bar", filled=True),
)
"""Of KEPT, STOPPED and NEWLY."""
SIDES = rows(x=[1.3, 0.7, 0.7, 1.3], y=[0.5, -0.5, 0.5, -0.5], text=["outward", "outward", "pull-back", "pull-back"])


def draw_geometry() -> Drawing | None:
    """Draw for PPO, DPPO and SAT where the gradient of a sampled token acts, is stopped, and is stopped newly."""
    r, a = np.meshgrid(RATIOS, ADVANTAGES)
    panels = [partial(_panel, *panel) for panel in PANELS]
    return column_of(panels, height=160, zoom=False, table={"ratio": r.ravel(), "advantage": a.ravel()})


def _panel(name: str, slopes: Callable[[], np.ndarray], title: str, table: Table, shown: alt.Parameter) -> Plot:
    values = slopes()
    kind = regions(values)
    table[f"{name}: dS/dr"] = values.ravel()
    table[f"{name}: 0 kept, 1 stopped, 2 newly"] = kind.ravel().astype(float)
    area = alt.Chart(rectangles(kind)).transform_filter(shown)
    area = area.encode(
        alt.X("x:Q", title="ratio r = π / μ of the sampled token", scale=alt.Scale(zero=False, nice=False)),
        alt.Y("y:Q", title="advantage", scale=alt.Scale(nice=False)),
        in_colour(LOOKS),
        x2="x2:Q",
        y2="y2:Q",
        tooltip=[tip("line:N", "the gradient is"), tip("x:Q", "ratio from"), tip("x2:Q", "to")],
    )
    text = alt.Chart(SIDES).mark_text().encode(x="x:Q", y="y:Q", text="text:N")
    layers = [area.mark_rect(opacity=0.6), rule("x", 1), rule("y", 0), text]
    return Plot(layered(*layers, title=title), LOOKS)


def rectangles(kind: np.ndarray) -> alt.InlineData:
    """Return the (advantages, ratios) regions as rectangles: neighbours of one kind are one, and so are neighbouring
    rows that are alike."""
    r, a = (
        np.concatenate([values[:1], (values[1:] + values[:-1]) / 2, values[-1:]]) for values in (RATIOS, ADVANTAGES)
    )
    rectangles = []
    for _, same in groupby(range(len(kind)), key=lambda row: kind[row].tobytes()):
        band = list(same)
        for region, run in groupby(range(kind.shape[1]), key=lambda column: int(kind[band[0], column])):
            cells = list(run)
            place = {"x": r[cells[0]], "x2": r[cells[-1] + 1], "y": a[band[0]], "y2": a[band[-1] + 1]}
            rectangles.append(rows(**place, line=LOOKS[region].name))
    return joined(rectangles)


# --------------------------------------------------------------------------------------------- weights of tokens


WEIGHT_MU = 0.15
"""Probability of the sampled token under the engine, for those that judge by more than the ratio."""
WEIGHT_RATIOS = np.geomspace(0.2, 6, 241)
COLUMNS = 3


def methods_by_token() -> list[str]:
    """Return the named methods, each formula once, whose weight of a token is a function of pi and mu on it and of
    the sign of its advantage. The others look at the response, the state, the batch or the token's lag."""
    by_formula: dict[object, str] = {}
    for name in method_names():
        method = named_method(name)
        of_the_token = judged_by(method) in (TOKEN_RATIO, TOKEN_PROBABILITY) and "lags" not in method.needs
        if of_the_token and not method.top_p_replay:
            by_formula.setdefault(method.formula, name)
    return list(by_formula.values())


def token_weights(method: Method, sign: int) -> np.ndarray:
    """Return (ratios,) v = g / A of a token alone in its response, its advantage and its reward `sign`."""
    log_mu = torch.full((len(WEIGHT_RATIOS),), WEIGHT_MU, dtype=torch.float64).log()
    log_probs = (log_mu + torch.from_numpy(WEIGHT_RATIOS).log()).requires_grad_()
    advantages = torch.full_like(log_mu, sign)
    mask, lengths = torch.ones_like(log_mu, dtype=torch.bool), [1] * len(log_mu)
    batch = TokenBatch(log_probs, log_mu, advantages, mask, lengths, rewards=advantages)
    (slopes,) = torch.autograd.grad(policy_surrogate(method, batch).values.sum(), log_probs)
    return (slopes * sign).numpy()


WEIGHT_LOOKS = (Look("ratio r", BLACK, ":"), Look("A > 0", BLUE), Look("A < 0", VERMILION, "--"))
_EVERY = 3
"""Of so many ratios one is drawn; the table has all."""


def draw_token_weights() -> Drawing:
    """Draw a panel for each method: v over the ratio, for both signs of the advantage."""
    table: Table = {"ratio": WEIGHT_RATIOS}
    parts = []
    for name in methods_by_token():
        parts.append(rows(x=WEIGHT_RATIOS[::_EVERY], y=WEIGHT_RATIOS[::_EVERY], line="ratio r", panel=name))
        for sign, text in ((1, "A > 0"), (-1, "A < 0")):
            values = table[f"{name}: v, {text}"] = token_weights(named_method(name), sign)
            parts.append(rows(x=WEIGHT_RATIOS[::_EVERY], y=values[::_EVERY], line=text, panel=name))
    ratio = alt.X("x:Q", title=f"r = π / μ, μ = {WEIGHT_MU}", scale=alt.Scale(type="log", nice=False))
    ratio = ratio.axis(values=[0.2, 0.5, 1, 2, 5])
    v = alt.Y("y:Q", title="v = g / A", scale=alt.Scale(domain=[-1.2, 5.6], nice=False))
    base = alt.Chart().encode(ratio, v).transform_filter(chosen())
    tips = [tip("panel:N", "method"), tip("line:N", "line"), tip("x:Q", "ratio"), tip("y:Q", "v")]
    return facets(layered(*lines(base, WEIGHT_LOOKS, tips), height=90), joined(parts), COLUMNS, table, WEIGHT_LOOKS)
