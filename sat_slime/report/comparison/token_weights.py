"""What a token weighs by its ratio, method by method, from the objective's own functions."""

from __future__ import annotations

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from sat_slime.objective import Method, TokenBatch, method_names, named_method, policy_surrogate
from sat_slime.report.drawing import BLACK, BLUE, STYLE, VERMILION, WIDTH, Drawing, Table
from sat_slime.report.judged import TOKEN_PROBABILITY, TOKEN_RATIO, judged_by

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


def draw_token_weights() -> Drawing:
    """A panel for each method: v over the ratio, for both signs of the advantage."""
    names = drawn()
    rows = -(-len(names) // COLUMNS)
    table: Table = {"ratio": RATIOS}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 1.35 * rows + 0.8), layout="constrained")
        panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
        for axes in panels.ravel()[len(names) :]:
            axes.set_axis_off()
        for axes, name in zip(panels.ravel(), names, strict=False):
            axes.plot(RATIOS, RATIOS, color=BLACK, linestyle=":", linewidth=1, label="ratio r")
            for sign, colour, dash, text in ((1, BLUE, "-", "A > 0"), (-1, VERMILION, "--", "A < 0")):
                values = weights(named_method(name), sign)
                axes.plot(RATIOS, values, color=colour, linestyle=dash, label=text)
                table[f"{name}: v, {text}"] = values
            axes.set_title(name)
        axes = panels[0, 0]  # all panels share its axes
        axes.set_xscale("log")
        axes.set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
        axes.minorticks_off()
        axes.set_ylim(-1.2, 5.6)
        figure.supxlabel(f"ratio r = π / μ of the sampled token, μ = {MU}", fontsize=10)
        figure.supylabel("v = g / A", fontsize=10)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3)
        return Drawing(figure, table)
