"""What a token weighs by its ratio, method by method, from the objective's own functions."""

from __future__ import annotations

import altair as alt
import numpy as np
import torch

from sat_slime.objective import Method, TokenBatch, method_names, named_method, policy_surrogate
from sat_slime.report.drawing import Drawing, Table, chosen, facets, joined, layered, lines, rows, tip
from sat_slime.report.judged import TOKEN_PROBABILITY, TOKEN_RATIO, judged_by
from sat_slime.report.looks import BLACK, BLUE, VERMILION, Look

MU = 0.15
"""Probability of the sampled token under the engine, for those that judge by more than the ratio."""
RATIOS = np.geomspace(0.2, 6, 241)
COLUMNS = 3


def drawn() -> list[str]:
    """The named methods, each formula once, whose weight of a token is a function of pi and mu on it and of the sign of
    its advantage. The others look at the response, the state, the batch or the token's lag."""
    found: dict[object, str] = {}
    for name in method_names():
        method = named_method(name)
        of_the_token = judged_by(method) in (TOKEN_RATIO, TOKEN_PROBABILITY) and "lags" not in method.needs
        if of_the_token and not method.top_p_replay:
            found.setdefault(method.formula, name)
    return list(found.values())


def weights(method: Method, sign: int) -> np.ndarray:
    """(ratios,) v = g / A of a token alone in its response, its advantage and its reward `sign`."""
    log_mu = torch.full((len(RATIOS),), MU, dtype=torch.float64).log()
    log_probs = (log_mu + torch.from_numpy(RATIOS).log()).requires_grad_()
    advantages = torch.full_like(log_mu, sign)
    batch = TokenBatch(
        log_probs,
        log_mu,
        advantages,
        torch.ones(len(RATIOS), dtype=torch.bool),
        [1] * len(RATIOS),
        rewards=advantages,
    )
    (slopes,) = torch.autograd.grad(policy_surrogate(method, batch).values.sum(), log_probs)
    return (slopes * sign).numpy()


LOOKS = (Look("ratio r", BLACK, ":"), Look("A > 0", BLUE), Look("A < 0", VERMILION, "--"))
_EVERY = 3
"""Of so many ratios one is drawn; the table has all."""


def draw_token_weights() -> Drawing:
    """A panel for each method: v over the ratio, for both signs of the advantage."""
    table: Table = {"ratio": RATIOS}
    parts = []
    for name in drawn():
        parts.append(rows(x=RATIOS[::_EVERY], y=RATIOS[::_EVERY], line="ratio r", panel=name))
        for sign, text in ((1, "A > 0"), (-1, "A < 0")):
            values = table[f"{name}: v, {text}"] = weights(named_method(name), sign)
            parts.append(rows(x=RATIOS[::_EVERY], y=values[::_EVERY], line=text, panel=name))
    ratio = alt.X("x:Q", title=f"r = π / μ, μ = {MU}", scale=alt.Scale(type="log", nice=False))
    ratio = ratio.axis(values=[0.2, 0.5, 1, 2, 5])
    v = alt.Y("y:Q", title="v = g / A", scale=alt.Scale(domain=[-1.2, 5.6], nice=False))
    base = alt.Chart().encode(ratio, v).transform_filter(chosen())
    tips = [tip("panel:N", "method"), tip("line:N", "line"), tip("x:Q", "ratio"), tip("y:Q", "v")]
    return facets(layered(*lines(base, LOOKS, tips), height=90), joined(parts), COLUMNS, table, LOOKS)
