"""The figures of a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from sat_slime.report.diagnosis.attribution import (
    LABELS,
    Groups,
    Parts,
    Tokens,
    attribute,
    bound,
    by_entropy,
    by_lag,
    by_position,
    by_probability,
    by_time,
    d_by_routing,
    implementation,
    proxies,
    tail_bounds,
    whole,
)
from sat_slime.report.diagnosis.tables import FLIPS, XI
from sat_slime.report.drawing import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, Drawing, Table, column_of
from sat_slime.report.page import Figure

LOOKS: dict[str, tuple[str, str]] = {
    "policy_weights": (BLUE, ""),
    "policy": (BLUE, ""),
    "policy_routes": (SKY, "///"),
    "routing": (VERMILION, "\\\\\\"),
    "implementation": (VERMILION, "\\\\\\"),
    "precision": (ORANGE, "..."),
    "rest": (GREY, ""),
}
"""Colour and hatch of each part."""
KINDS: dict[str, tuple[str, Callable[[Tokens], Groups]]] = {
    "lag": ("by lag in updates", by_lag),
    "position": ("by place in the response, from 1", by_position),
    "probability": ("by probability μ of the token", by_probability),
    "entropy": ("by entropy of π at the state, nats", by_entropy),
    "time": ("by optimizer step", by_time),
}
SMALLEST = 1e-4
"""Nats: tails are drawn from here on."""


def figures(tokens: Tokens) -> list[Figure]:
    """All figures, drawn when asked for."""
    return [
        Figure(
            "shares",
            "Who carries the mismatch",
            "Each part's share of |d|, in the direction of d: over all tokens, and over those beyond the 90 % and 99 % "
            "quantile. Below: the same of the implementation part alone, with its own tails.",
            partial(draw_shares, tokens),
        ),
        Figure(
            "mean_by",
            "Where the mismatch is",
            "Mean |d| of groups of tokens, stacked from the parts' contributions; what pulls against d lies below 0.",
            partial(draw_groups, tokens, tokens.parts),
        ),
        Figure(
            "tail_by",
            "Where the tail is",
            "Tokens of each group beyond the 99 % quantile of all, stacked from each part's share of them. "
            "A flat figure would stand at 1 %.",
            partial(draw_groups, tokens, tokens.parts, tail=True),
        ),
        Figure(
            "implementation_by",
            "Where the implementation part is",
            "Mean |log π_l − log μ| of the same groups, stacked from its parts.",
            partial(draw_groups, tokens, implementation(tokens.parts)),
        ),
        Figure(
            "tails",
            "The tails, with and without routing replay",
            "Share of the tokens above a value. The same tokens scored with the trainer's own routing and with the "
            "engine's experts, at the weights in training and at those that generated; below, the parts.",
            partial(draw_tails, tokens),
        ),
        Figure(
            "expert_flips",
            "Expert flips by layer and lag",
            "Tokens for which the trainer's own routing takes another set of experts than the engine took.",
            partial(draw_flips, tokens),
        ),
        Figure(
            "improvement_bound",
            "Both sides of the improvement bound",
            "Eq. tvbound by lag: the surrogate gain with its standard error, and the penalty from true total "
            "variations and from sampled ratios.",
            partial(draw_bound, tokens),
        ),
        Figure(
            "proxy",
            "The sampled proxy beside the total variation",
            "Each token's |log r| and the total variation of μ and π at its state. Below, means by the token's "
            "probability: |r − 1| / 2 agrees with the total variation over all tokens, not within a group; the "
            "others do not estimate it at all.",
            partial(draw_proxy, tokens),
        ),
    ]


def _stacked(axes: Axes, names: list[str], layers: Mapping[str, np.ndarray], horizontal: bool = False) -> None:
    """Draw (groups,) contributions as bars on top of each other, those below 0 downwards."""
    place = np.arange(len(names))
    above, below = np.zeros(len(names)), np.zeros(len(names))
    for part, values in layers.items():
        values = np.nan_to_num(values)
        base = np.where(values >= 0, above, below)
        colour, hatch = LOOKS[part]
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
        if horizontal:
            axes.barh(place, values, left=base, height=0.62, label=LABELS[part], **look)
        else:
            axes.bar(place, values, bottom=base, width=0.72, label=LABELS[part], **look)
        above, below = above + np.maximum(values, 0), below + np.minimum(values, 0)
    if horizontal:
        axes.set_yticks(place, names)
        axes.invert_yaxis()
        axes.axvline(0, color=BLACK, linewidth=0.8)
    else:
        axes.set_xticks(place, names, fontsize=8, rotation=20 if max(map(len, names)) > 7 else 0)
        axes.axhline(0, color=BLACK, linewidth=0.8)


def draw_shares(tokens: Tokens) -> Drawing | None:
    """Shares of the mean and of the tails."""
    panels = [partial(_share_panel, "d = log π − log μ", dict(tokens.parts))]
    own = implementation(tokens.parts)
    if len(own) > 1:
        panels.append(partial(_share_panel, "implementation part, log π_l − log μ", own))
    return column_of(panels, "share of |d|, %", height=1.9, integer_x=False)


def _share_panel(title: str, parts: dict[str, np.ndarray], axes: Axes, table: Table) -> bool:
    bounds = {"all tokens": None, **tail_bounds(whole(parts))}
    names = {"all tokens": "all tokens", "q90": "beyond 90 %", "q99": "beyond 99 %"}
    found = {name: attribute(parts, beyond=beyond) for name, beyond in bounds.items()}
    layers = {part: np.array([100 * found[name][part].share for name in found]) for part in parts}
    _stacked(axes, [names[name] for name in found], layers, horizontal=True)
    axes.set_title(title)
    for part, values in layers.items():
        for name, value in zip(found, values, strict=True):
            table[f"{title}: {LABELS[part]}, {names[name]}, %"] = np.array([value])
    return True


def draw_groups(tokens: Tokens, parts: Parts, tail: bool = False) -> Drawing | None:
    """Contributions of the parts to the mean of groups of tokens, or to how many of them lie in the tail."""
    if len(parts) < 2:
        return None
    return column_of(
        [partial(_group_panel, tokens, parts, tail, kind) for kind in KINDS], "", height=2.3, integer_x=False
    )


def _group_panel(tokens: Tokens, parts: Parts, tail: bool, kind: str, axes: Axes, table: Table) -> bool:
    label, group = KINDS[kind]
    groups = group(tokens)
    if len(groups) < 2:
        return False
    d = whole(parts)
    size, beyond = np.abs(d), tail_bounds(d)["q99"]
    # the shares of the parts of a token in the tail sum to 1
    per_token = np.sign(d) * (100 * (size > beyond) / np.maximum(size, 1e-300) if tail else 1.0)
    layers = {
        name: np.array([(per_token * part)[inside].mean() for inside in groups.values()])
        for name, part in parts.items()
    }
    _stacked(axes, list(groups), layers)
    axes.set_title(label)
    axes.set_ylabel("% of tokens" if tail else "nats")
    unit = "% in tail" if tail else "nats"
    for index, (name, inside) in enumerate(groups.items()):
        table[f"{kind} {name}: tokens"] = np.array([inside.sum()], dtype=float)
        for part, values in layers.items():
            table[f"{kind} {name}: {LABELS[part]}, {unit}"] = values[index : index + 1]
    return True


def draw_tails(tokens: Tokens) -> Drawing | None:
    """Survival of |d| by routing, and of the parts."""
    kinds = d_by_routing(tokens)
    looks = ((BLACK, "-"), (GREEN, "--"), (VERMILION, "-"), (BLUE, "--"))
    by_routing = {name: (values, *look) for (name, values), look in zip(kinds.items(), looks, strict=False)}
    dashes = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)))
    parts = {
        LABELS[name]: (values, "#777777" if LOOKS[name][0] == GREY else LOOKS[name][0], dash)
        for (name, values), dash in zip(tokens.parts.items(), dashes, strict=False)
    }
    panels = [partial(_survival, "|log-prob − log μ| by weights and routing", by_routing)]
    panels.append(partial(_survival, "|part| of d", parts))
    return column_of(panels, "nats", height=3.3, legend=False, integer_x=False)


def _survival(title: str, lines: Mapping[str, tuple[np.ndarray, str, Any]], axes: Axes, table: Table) -> bool:
    if not lines:
        return False
    edges = 10.0 ** np.arange(np.log10(SMALLEST), 1.51, 0.05)
    for name, (values, colour, dash) in lines.items():
        size = np.sort(np.abs(values))
        above = 1 - np.searchsorted(size, edges, side="right") / max(len(size), 1)
        table |= {f"{title}: x": edges, f"{title}: {name}, share above x": above}
        if above.any():
            axes.plot(edges[above > 0], above[above > 0], color=colour, linestyle=dash, label=name, linewidth=1.4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(title)
    axes.set_ylabel("share of tokens above")
    axes.legend(loc="lower left")
    return True


def draw_flips(tokens: Tokens) -> Drawing | None:
    """Tokens with other experts by layer and by lag."""
    if "expert_flips" not in tokens.more:
        return None
    return column_of(
        [partial(_flips_panel, tokens, kind) for kind in ("layer", "lag")], "", height=2.4, integer_x=False
    )


def _flips_panel(tokens: Tokens, kind: str, axes: Axes, table: Table) -> bool:
    groups = by_lag(tokens)
    if kind == "layer":
        names = [str(i) for i in range(tokens.more["expert_flips"].shape[1])]
        rates = {label: 100 * tokens.more[name].mean(axis=0) for name, label in FLIPS.items()}
    else:
        names = list(groups)
        rates = {}
        for name, label in FLIPS.items():
            anywhere = 100.0 * (tokens.more[name].max(axis=1) > 0)
            rates[label] = np.array([anywhere[inside].mean() for inside in groups.values()])
    looks = ((VERMILION, "\\\\\\"), (SKY, "///"))
    for offset, (colour, hatch), (label, values) in zip((-0.2, 0.2), looks, rates.items(), strict=True):
        axes.bar(
            np.arange(len(names)) + offset, values, 0.38, color=colour, hatch=hatch, edgecolor="white", label=label
        )
        table |= {f"{kind} {name}: {label}, %": values[i : i + 1] for i, name in enumerate(names)}
    axes.set_xticks(range(len(names)), names)
    axes.set_title("by layer" if kind == "layer" else "in any layer, by lag in updates")
    axes.set_ylabel("% of tokens")
    return True


def draw_bound(tokens: Tokens) -> Drawing | None:
    """Gain and penalty of Eq. tvbound by lag."""
    return column_of([partial(_bound_panel, tokens)], "lag, updates", height=3.0)


def _bound_panel(tokens: Tokens, axes: Axes, table: Table) -> bool:
    lags = tokens.responses["lag"]
    met = np.unique(lags[np.isfinite(lags)])
    if len(met) > 100:
        return False
    sides = [bound(tokens, lags == lag, XI) for lag in met]
    gain, error = np.array([side.gain for side in sides]), np.array([side.error for side in sides])
    penalty, sampled = (np.array([getattr(s, name) for s in sides]) for name in ("penalty", "sampled_penalty"))
    axes.errorbar(met, gain, yerr=error, color=BLUE, marker="o", ms=4, capsize=2, label="surrogate gain L'")
    if np.isfinite(penalty).any():
        axes.plot(met, penalty, color=VERMILION, marker="s", ms=4, label="penalty 4ξ ΣTV")
    axes.plot(met, sampled, color=ORANGE, linestyle="--", marker="^", ms=4, mfc="white", label="its sampled estimate")
    axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.set_ylabel("reward, per response")
    table |= {"lag": met, "gain": gain, "its error": error, "penalty": penalty, "sampled penalty": sampled}
    return True


def draw_proxy(tokens: Tokens) -> Drawing | None:
    """|log r| against the total variation, and all proxies by probability."""
    if "tv" not in tokens.more:
        return None
    return column_of(
        [partial(_cloud, tokens), partial(_proxies_panel, tokens)], "", height=3.6, legend=False, integer_x=False
    )


def _cloud(tokens: Tokens, axes: Axes, table: Table) -> bool:
    tv, proxy = tokens.more["tv"].astype(np.float64), np.abs(tokens.d)
    shown = (tv > SMALLEST / 10) & (proxy > SMALLEST / 10)
    if not shown.any():
        return False
    x, y = np.log10(proxy[shown]), np.log10(tv[shown])
    edges = np.arange(-5, 1.51, 0.1)
    counts, _, _ = np.histogram2d(x, y, [edges, edges[edges < 0.01]])
    mesh = axes.pcolormesh(
        10**edges, 10 ** edges[edges < 0.01], counts.T, norm=LogNorm(1), cmap="Blues", rasterized=True
    )
    axes.figure.colorbar(mesh, ax=axes, label="tokens", pad=0.01)
    place = np.digitize(x, edges) - 1
    known = [i for i in np.unique(place) if (place == i).sum() >= 20]
    middle = {level: np.array([np.quantile(y[place == i], level) for i in known]) for level in (0.05, 0.5, 0.95)}
    at = 10 ** (edges[known] + 0.05)
    for (level, values), dash in zip(middle.items(), (":", "-", ":"), strict=True):
        axes.plot(
            at,
            10**values,
            color=VERMILION,
            linestyle=dash,
            label={0.05: "5 and 95 %", 0.5: "median", 0.95: None}[level],
        )
        table[f"total variation at |log r|: {level:.0%}"] = 10**values
    table["|log r|"] = at
    axes.plot([1e-5, 1], [0.5e-5, 0.5], color=BLACK, linewidth=1, linestyle="--", label="|log r| / 2")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("total variation by |log r| of the sampled token, nats")
    axes.set_ylabel("total variation at its state")
    axes.legend(loc="lower right")
    axes.set_xlim(SMALLEST, max(2.0, 1.1 * proxy.max()))
    axes.set_ylim(SMALLEST / 2, 1)
    return True


def _proxies_panel(tokens: Tokens, axes: Axes, table: Table) -> bool:
    groups = by_probability(tokens)
    values = {"total variation": tokens.more["tv"].astype(np.float64), **proxies(tokens)}
    looks = ((BLACK, "-", "o"), (VERMILION, "--", "s"), (BLUE, ":", "^"), (GREEN, "-.", "D"))
    for (name, one), (colour, dash, marker) in zip(values.items(), looks, strict=True):
        means = np.array([one[inside].mean() for inside in groups.values()])
        axes.plot(range(len(groups)), means, color=colour, linestyle=dash, marker=marker, ms=4, mfc="white", label=name)
        table |= {f"probability {group}: {name}": means[i : i + 1] for i, group in enumerate(groups)}
    axes.set_xticks(range(len(groups)), list(groups), fontsize=8, rotation=20)
    axes.set_yscale("log")
    axes.set_title("means by probability μ of the token")
    axes.legend(loc="lower center")
    return True
