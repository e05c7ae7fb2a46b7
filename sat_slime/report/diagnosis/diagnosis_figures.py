"""The figures of a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt
import numpy as np

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
from sat_slime.report.diagnosis.diagnosis_tables import FLIPS, XI
from sat_slime.report.drawing import (
    Drawing,
    Plot,
    Table,
    column_of,
    in_colour,
    joined,
    layered,
    lines,
    log_axis,
    rows,
    rule,
    steps_axis,
    tip,
)
from sat_slime.report.looks import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, Look
from sat_slime.report.page import Figure

COLOUR_OF = {
    "policy_weights": BLUE,
    "policy": BLUE,
    "policy_routes": SKY,
    "routing": VERMILION,
    "implementation": VERMILION,
    "precision": ORANGE,
    "rest": GREY,
}
"""The colour of each part."""
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
    """List all figures, which are drawn when asked for."""
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


def bar(name: str, colour: str) -> Look:
    """Return the look of a part of bars."""
    return Look(name, colour, "", "bar", filled=True)


def _stacked(
    groups: Sequence[str],
    layers: Mapping[str, np.ndarray],
    title: str,
    unit: str,
    shown: alt.Parameter,
    *,
    horizontal: bool = False,
) -> Plot:
    """Draw the (groups,) contributions of parts as bars on top of each other, those below 0 downwards."""
    looks = [bar(LABELS[part], COLOUR_OF[part]) for part in layers]
    named = zip(looks, layers.values(), strict=True)
    parts = [rows(group=groups, y=values, line=look.name, place=i) for i, (look, values) in enumerate(named)]
    group: dict[str, Any] = {"title": None, "sort": list(groups)}
    value: dict[str, Any] = {"title": unit, "stack": "zero"}
    if horizontal:
        places: list[Any] = [alt.Y("group:N", **group, scale=alt.Scale(padding=0.25)), alt.X("y:Q", **value)]
    else:
        angle = -35 if max(map(len, groups)) > 5 else 0
        places = [alt.X("group:N", **group, axis=alt.Axis(labelAngle=angle, labelOverlap=False)), alt.Y("y:Q", **value)]
    tips = [tip("group:N", "tokens"), tip("line:N", "part"), tip("y:Q", unit)]
    bars = alt.Chart(joined(parts)).transform_filter(shown).mark_bar()
    bars = bars.encode(*places, in_colour(looks), alt.Order("place:Q"), tooltip=tips)
    return Plot(layered(bars, rule("x" if horizontal else "y", 0), title=title), looks)


def draw_shares(tokens: Tokens) -> Drawing | None:
    """Draw the parts' shares of the mean and of the tails."""
    panels = [partial(_share_panel, "d = log π − log μ", dict(tokens.parts))]
    own = implementation(tokens.parts)
    if len(own) > 1:
        panels.append(partial(_share_panel, "implementation part, log π_l − log μ", own))
    return column_of(panels, height=100, zoom=False)


def _share_panel(title: str, parts: dict[str, np.ndarray], table: Table, shown: alt.Parameter) -> Plot:
    bounds = {"all tokens": None, **tail_bounds(whole(parts))}
    names = {"all tokens": "all tokens", "q90": "beyond 90 %", "q99": "beyond 99 %"}
    shares = {name: attribute(parts, beyond=beyond) for name, beyond in bounds.items()}
    layers = {part: np.array([100 * shares[name][part].share for name in shares]) for part in parts}
    for part, values in layers.items():
        for name, value in zip(shares, values, strict=True):
            table[f"{title}: {LABELS[part]}, {names[name]}, %"] = np.array([value])
    return _stacked([names[name] for name in shares], layers, title, "share of |d|, %", shown, horizontal=True)


def draw_groups(tokens: Tokens, parts: Parts, tail: bool = False) -> Drawing | None:
    """Draw what the parts contribute to the mean of groups of tokens, or to how many of them lie in the tail."""
    if len(parts) < 2:
        return None
    return column_of([partial(_group_panel, tokens, parts, tail, kind) for kind in KINDS], height=130, zoom=False)


def _group_panel(
    tokens: Tokens, parts: Parts, tail: bool, kind: str, table: Table, shown: alt.Parameter
) -> Plot | None:
    label, group = KINDS[kind]
    groups = group(tokens)
    if len(groups) < 2:
        return None
    d = whole(parts)
    size, beyond = np.abs(d), tail_bounds(d)["q99"]
    # the shares of the parts of a token in the tail sum to 1
    per_token = np.sign(d) * (100 * (size > beyond) / np.maximum(size, 1e-300) if tail else 1.0)
    layers = {
        name: np.array([(per_token * part)[inside].mean() for inside in groups.values()])
        for name, part in parts.items()
    }
    unit = "% in tail" if tail else "nats"
    for index, (name, inside) in enumerate(groups.items()):
        table[f"{kind} {name}: tokens"] = np.array([inside.sum()], dtype=float)
        for part, values in layers.items():
            table[f"{kind} {name}: {LABELS[part]}, {unit}"] = values[index : index + 1]
    return _stacked(list(groups), layers, label, "% of tokens" if tail else "nats", shown)


def draw_tails(tokens: Tokens) -> Drawing | None:
    """Draw the survival of |d| by routing, and of the parts."""
    colours = ((BLACK, "-"), (GREEN, "--"), (PURPLE, "-"), (GREEN, (0, (1, 1.6))))
    kinds = d_by_routing(tokens)
    by_routing = {Look(name, *look): values for (name, values), look in zip(kinds.items(), colours, strict=False)}
    dashes = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)))
    parts = {
        Look(LABELS[name], COLOUR_OF[name], dash): values
        for (name, values), dash in zip(tokens.parts.items(), dashes, strict=False)
    }
    panels = [partial(_survival, "|log-prob − log μ| by weights and routing", by_routing)]
    panels.append(partial(_survival, "|part| of d", parts))
    return column_of(panels, height=240, one_key=False)


def _survival(title: str, values_of: Mapping[Look, np.ndarray], table: Table, shown: alt.Parameter) -> Plot | None:
    if not values_of:
        return None
    edges = 10.0 ** np.arange(np.log10(SMALLEST), 1.51, 0.05)
    parts = []
    for look, values in values_of.items():
        size = np.sort(np.abs(values))
        above = 1 - np.searchsorted(size, edges, side="right") / max(len(size), 1)
        table |= {f"{title}: x": edges, f"{title}: {look.name}, share above x": above}
        parts.append(rows(x=edges[above > 0], y=above[above > 0], line=look.name))
    base = alt.Chart().transform_filter(shown)
    base = base.encode(alt.X("x:Q", title="nats", **log_axis()), alt.Y("y:Q", title="share above", **log_axis()))
    tips = [tip("line:N", "of"), tip("x:Q", "nats"), tip("y:Q", "tokens above", ".3~%")]
    return Plot(layered(*lines(base, list(values_of), tips), data=joined(parts), title=title), list(values_of))


def draw_flips(tokens: Tokens) -> Drawing | None:
    """Draw the share of tokens with other experts, by layer and by lag."""
    if "expert_flips" not in tokens.more:
        return None
    return column_of([partial(_flips_panel, tokens, kind) for kind in ("layer", "lag")], height=150, zoom=False)


def _flips_panel(tokens: Tokens, kind: str, table: Table, shown: alt.Parameter) -> Plot:
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
    for label, values in rates.items():
        table |= {f"{kind} {name}: {label}, %": values[i : i + 1] for i, name in enumerate(names)}
    looks = [bar(label, colour) for label, colour in zip(rates, (VERMILION, SKY), strict=True)]
    data = joined([rows(group=names, y=values, line=label) for label, values in rates.items()])
    bars = alt.Chart(data).transform_filter(shown).mark_bar()
    bars = bars.encode(
        alt.X("group:N", title=kind, sort=names, axis=alt.Axis(labelAngle=0)),
        alt.Y("y:Q", title="% of tokens"),
        alt.XOffset("line:N", sort=[look.name for look in looks]),
        in_colour(looks),
        tooltip=[tip("group:N", kind), tip("line:N", "weights"), tip("y:Q", "% of tokens")],
    )
    title = "by layer" if kind == "layer" else "in any layer, by lag in updates"
    return Plot(layered(bars, title=title), looks)


def draw_bound(tokens: Tokens) -> Drawing | None:
    """Draw gain and penalty of Eq. tvbound by lag."""
    return column_of([partial(_bound_panel, tokens)], height=230, zoom=False)


def _bound_panel(tokens: Tokens, table: Table, shown: alt.Parameter) -> Plot | None:
    lags = tokens.responses["lag"]
    met = np.unique(lags[np.isfinite(lags)])
    if len(met) > 100:
        return None
    sides = [bound(tokens, lags == lag, XI) for lag in met]
    gain, error = np.array([side.gain for side in sides]), np.array([side.error for side in sides])
    penalty, sampled = (np.array([getattr(s, name) for s in sides]) for name in ("penalty", "sampled_penalty"))
    table |= {"lag": met, "gain": gain, "its error": error, "penalty": penalty, "sampled penalty": sampled}
    drawn = {Look("surrogate gain L'", BLUE, "-", "o", filled=True): gain}
    if np.isfinite(penalty).any():
        drawn[Look("penalty 4ξ ΣTV", VERMILION, "-", "s", filled=True)] = penalty
    drawn[Look("its sampled estimate", ORANGE, "--", "^")] = sampled
    looks = list(drawn)
    data = joined([rows(x=met, y=values, line=look.name) for look, values in drawn.items()])
    unit = "reward, per response"
    base = alt.Chart(data).encode(steps_axis("lag, updates"), alt.Y("y:Q", title=unit)).transform_filter(shown)
    ends = rows(x=met, low=gain - error, high=gain + error, line=looks[0].name)
    bars = alt.Chart(ends).transform_filter(shown).mark_rule(clip=True, strokeWidth=1.4, color=BLUE)
    bars = bars.encode(steps_axis("lag, updates"), alt.Y("low:Q", title=unit), y2="high:Q")
    tips = [tip("line:N", "side"), tip("x:Q", "lag"), tip("y:Q", unit)]
    return Plot(layered(rule("y", 0), bars, *lines(base, looks, tips), title="both sides by lag"), looks)


def draw_proxy(tokens: Tokens) -> Drawing | None:
    """Draw |log r| against the total variation, and all proxies by probability."""
    if "tv" not in tokens.more:
        return None
    return column_of([partial(_cloud, tokens), partial(_proxies_panel, tokens)], height=280, one_key=False, zoom=False)


def _cloud(tokens: Tokens, table: Table, shown: alt.Parameter) -> Plot | None:
    tv, proxy = tokens.more["tv"].astype(np.float64), np.abs(tokens.d)
    kept = (tv > SMALLEST / 10) & (proxy > SMALLEST / 10)
    if not kept.any():
        return None
    x, y = np.log10(proxy[kept]), np.log10(tv[kept])
    edges = np.arange(-5, 1.51, 0.1)
    up = edges[edges < 0.01]
    counts, _, _ = np.histogram2d(x, y, [edges, up])
    column, row = np.nonzero(counts)
    bins = {"x": edges[column], "x2": edges[column + 1], "y": up[row], "y2": up[row + 1]}
    cells = rows(**{name: 10**values for name, values in bins.items()}, tokens=counts[column, row])
    place = np.digitize(x, edges) - 1
    known = [i for i in np.unique(place) if (place == i).sum() >= 20]
    at = 10 ** (edges[known] + 0.05)
    looks = (Look("median", VERMILION), Look("5 %", VERMILION, ":"), Look("95 %", VERMILION, "-."))
    half = Look("|log r| / 2", BLACK, "--")
    parts = [rows(x=[1e-5, 1], y=[0.5e-5, 0.5], line=half.name)]
    for level, look in ((0.05, looks[1]), (0.5, looks[0]), (0.95, looks[2])):
        values = np.array([10 ** np.quantile(y[place == i], level) for i in known])
        table[f"total variation at |log r|: {level:.0%}"] = values
        parts.append(rows(x=at, y=values, line=look.name))
    table["|log r|"] = at
    within: Any = {"nice": False, "clamp": False}
    across = alt.X("x:Q", title="|log r|, nats", **log_axis(domain=[SMALLEST, max(2.0, 1.1 * proxy.max())], **within))
    upward = alt.Y("y:Q", title="total variation at its state", **log_axis(domain=[SMALLEST / 2, 1], **within))
    cloud = (
        alt.Chart(cells)
        .mark_rect(color=BLUE, clip=True)
        .encode(
            across,
            upward,
            alt.Opacity("tokens:Q", scale=alt.Scale(type="log", range=[0.15, 1]), legend=None),
            x2="x2:Q",
            y2="y2:Q",
            tooltip=[tip("tokens:Q", "tokens", "d"), tip("x:Q", "|log r| from"), tip("y:Q", "total variation from")],
        )
    )
    base = alt.Chart().encode(across, upward).transform_filter(shown)
    tips = [tip("line:N", "line"), tip("x:Q", "|log r|, nats"), tip("y:Q", "total variation")]
    drawn = lines(base, [*looks, half], tips)
    layers = [cloud, layered(*drawn, data=joined(parts))]
    return Plot(layered(*layers, title="total variation by |log r|"), [*looks, half])


def _proxies_panel(tokens: Tokens, table: Table, shown: alt.Parameter) -> Plot:
    groups = by_probability(tokens)
    values = {"total variation": tokens.more["tv"].astype(np.float64), **proxies(tokens)}
    styles = ((BLACK, "-", "o"), (PURPLE, "--", "s"), (BLUE, ":", "^"), (GREEN, "-.", "D"))
    looks, parts = [], []
    for (name, proxy), style in zip(values.items(), styles, strict=True):
        means = np.array([proxy[inside].mean() for inside in groups.values()])
        table |= {f"probability {group}: {name}": means[i : i + 1] for i, group in enumerate(groups)}
        looks.append(Look(name, *style))
        parts.append(rows(group=list(groups), y=np.where(means > 0, means, np.nan), line=name))
    axis = alt.Axis(labelAngle=-35, labelOverlap=False)
    base = alt.Chart().transform_filter(shown)
    base = base.encode(
        alt.X("group:O", title=None, sort=list(groups), axis=axis), alt.Y("y:Q", title="mean", **log_axis())
    )
    tips = [tip("line:N", "mean of"), tip("group:N", "probability μ"), tip("y:Q", "mean")]
    title = "means by probability μ of the token"
    return Plot(layered(*lines(base, looks, tips), data=joined(parts), title=title), looks)
