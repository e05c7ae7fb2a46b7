"""The page of a diagnosis, RUN/diagnosis/, from the token dumps of a run or from its metrics alone: sentences, tables,
figures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from sat_slime.report.attribution import (
    LABELS,
    PROXIES,
    Groups,
    Parts,
    Tokens,
    Values,
    attribute,
    bound,
    by_entropy,
    by_lag,
    by_position,
    by_probability,
    by_time,
    d_by_routing,
    implementation,
    load_tokens,
    overlap,
    policy,
    proxies,
    quantile,
    rank_correlation,
    tail_bounds,
    whole,
)
from sat_slime.report.averages import finite_mean
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
from sat_slime.report.number_text import NBSP, percent
from sat_slime.report.page import Figure, Heading, Page, Sheet, Strong, headline, warning_box
from sat_slime.rollout.token_dump import dump_paths
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import Run, load_run, section
from sat_slime.runs.rows import Columns, has

FOLDER = "diagnosis"
XI = 1.0
"""The largest reward of the lab runtime's tasks."""


@dataclass
class Diagnosis:
    """The findings, for a page or a terminal."""

    page: Path
    findings: list[str]
    warnings: list[str]
    sheets: list[Sheet]


def write_diagnosis(path: str | Path) -> Diagnosis:
    """Take the mismatch of a run apart and write RUN/diagnosis/: index.html, figures/, tables/.

    Raises:
        RunFolderError: no run folder, or one in which nothing was measured; says how to measure it.
    """
    run = load_run(path)
    tokens = load_tokens(dump_paths(run.folder.path))
    if tokens is not None:
        sentences = list(findings(tokens))
        doubts = list(warnings(tokens, section(run.config, "pipeline").get("lag")))
        sheets, drawn = tables(tokens), figures(tokens)
    elif has(run.data.metrics, "mismatch/implementation"):
        sentences, doubts = list(split_findings(run.data.metrics)), [_without_dumps(run)]
        sheets, drawn = [split_table(run.data.metrics)], [split_figure(run.data.metrics)]
    else:
        raise RunFolderError(_nothing_measured(run))
    page = Page(run.folder.path / FOLDER)
    for figure in drawn[:1]:
        page.figure(figure)
    for sheet in sheets:
        page.sheet(sheet)
    for figure in drawn[1:]:
        page.figure(figure)
    page.again(f"sat-slime diagnose {shlex.quote(str(path))}")
    written = page.write(
        "index.html",
        title=f"{run.name}: the mismatch taken apart",
        subtitle=headline(run.config),
        summary=sentences,
        warnings=warning_box(doubts),
    )
    return Diagnosis(written, sentences, doubts, sheets)


def _without_dumps(run: Run) -> str:
    """Say why the page has the split alone."""
    if run.config.get("runtime") == "slime":
        return (
            "A run of slime has the policy and the implementation part, from the log-probs under the generating "
            "weights. Routing, precision and the rest, and the total variation, need the tokens scored again with the "
            "weights at hand, which only the lab runtime does."
        )
    return (
        "The run was not diagnosed, so this is only the split into policy and implementation part. For routing, "
        "precision and the rest, run it again with --set diagnose.every_n_steps=5."
    )


def _nothing_measured(run: Run) -> str:
    path = run.folder.path
    if not np.size(run.data.metrics.get("step", ())):
        return f"{path} has logged no optimizer step yet: there is no mismatch to take apart"
    if run.config.get("runtime") == "slime":
        return (
            f"{path} has no log-probs under the generating weights, so the mismatch cannot be split: run with "
            "--set method.denominator=checkpoint"
        )
    return (
        f"{path} has no diagnosed steps and no split of the mismatch: run again with --set diagnose.every_n_steps=5 "
        "(every 5th optimizer step)"
    )


# --------------------------------------------------------------------------------------------------------- in words


def findings(tokens: Tokens) -> Iterator[str]:
    """Say what the tables show, a sentence each."""
    bounds = tail_bounds(tokens.d)
    terms = {"policy": whole(policy(tokens.parts)), "implementation": whole(implementation(tokens.parts))}
    shares = {name: attribute(terms, beyond=beyond) for name, beyond in {"mean": None, **bounds}.items()}
    lags = np.unique(tokens.lag)
    span = f"lag {lags[0]:g}" if len(lags) == 1 else f"lag {lags[0]:g} to {lags[-1]:g}"
    yield (
        f"Of mean |d|, {np.abs(tokens.d).mean():.4f} nats, the policy part carries "
        f"{percent(shares['mean']['policy'].share)}, the implementation part the rest; of the tail beyond the 99 % "
        f"quantile ({bounds['q99']:.3f} nats) it carries {percent(shares['q99']['policy'].share)}. So "
        f"{tokens.steps} diagnosed steps say, {len(tokens.d):,} tokens of {span}."
    )
    if any(part.share > 1 for of_level in shares.values() for part in of_level.values()):
        yield "A share above 100 % means that the other part pulls the other way: together they are 100 %."
    kinds = d_by_routing(tokens)
    if kinds:
        own, along = (np.abs(kinds[f"in training, {kind}"]) for kind in ("own routing", "replayed"))
        verb = "takes" if tokens.replayed else "would take"
        yield (
            f"Routing replay (R3) {verb} mean |d| from {own.mean():.4f} to {along.mean():.4f} nats, its 99 % quantile "
            f"from {quantile(own, 0.99):.3f} to {quantile(along, 0.99):.3f} and its largest from {own.max():.2f} to "
            f"{along.max():.2f}."
        )
        own, along = (np.abs(kinds[f"that generated, {kind}"]) for kind in ("own routing", "replayed"))
        flips, lagged = (tokens.more[name].any(axis=1).mean() for name in FLIPS)
        yield (
            f"At equal weights {percent(flips)} of the tokens take other experts in some layer, with lag "
            f"{percent(lagged)}; at equal weights replay takes the mean from {own.mean():.5f} to {along.mean():.5f} "
            f"nats and the largest from {own.max():.2f} to {along.max():.2f}."
        )
    sides = bound(tokens, xi=XI)
    if np.isfinite(sides.penalty):
        verdict = "promises an improvement" if sides.gain > sides.penalty else "promises no improvement"
        yield (
            f"Eq. tvbound {verdict}: the surrogate gain is {sides.gain:+.4f} ± {sides.error:.4f} a response, the "
            f"penalty {sides.penalty:.3f} (from the sampled ratios {sides.sampled_penalty:.3f})."
        )
    if "tv" in tokens.more:
        tv, proxy = tokens.more["tv"].astype(np.float64), proxies(tokens)["|log r|"]
        yield (
            f"The mean total variation is {tv.mean():.4f}, mean |log r| {proxy.mean() / tv.mean():.2f} times that; of "
            f"the 10 % of the tokens with the largest |log r|, {percent(overlap(proxy, tv))} are at the 10 % of the "
            "states with the largest total variation."
        )


def warnings(tokens: Tokens, lag: int | None) -> Iterator[str]:
    """Say what should make a reader doubt the tables."""
    yield from tokens.damaged
    tail = int((np.abs(tokens.d) > tail_bounds(tokens.d)["q99"]).sum())
    if tail < 50:
        yield f"Only {tail} tokens lie beyond the 99 % quantile, so its shares are chance: diagnose more steps."
    met = np.unique(tokens.lag)
    if lag and len(met) < lag and tokens.steps > 2 * lag:
        yield (
            f"Only the lags {', '.join(f'{lag:g}' for lag in met)} were diagnosed, and pipeline.lag is {lag}: choose a "
            "diagnose.every_n_steps without a common factor with it."
        )


# ----------------------------------------------------------------------------------------------------------- tables


def tables(tokens: Tokens) -> list[Sheet]:
    """Make all tables that the tokens have numbers for."""
    makers = (parts_table, implementation_table, routing_table, lag_table, flips_table, bound_table, proxy_table)
    return [sheet for make in makers if (sheet := make(tokens)) is not None]


_PARTS_HEAD = ("part", "mean", "of mean", *(f"{what} {n}{NBSP}%" for what in ("of tail", "decides") for n in (90, 99)))
_PARTS_FORMS = ".5f % % % % %"


def parts_table(tokens: Tokens) -> Sheet:
    """Tell how much of the mean and of the tails each part carries."""
    numbers = _part_rows(tokens.parts)
    groups = {"policy part": policy(tokens.parts), "implementation part": implementation(tokens.parts)}
    for label, parts in groups.items():
        if len(parts) > 1:
            (total, *values), _ = _part_rows({label: whole(parts), "other": tokens.d - whole(parts)})
            numbers.append([Strong(total), *values])
    return Sheet.of(
        "parts",
        "What the mismatch is made of",
        f"d = log π − log μ of {len(tokens.d):,} tokens of {tokens.steps} steps; mean |d| is "
        f"{np.abs(tokens.d).mean():.4f} nats, {_tails_start(tokens.d)}. Mean: of |part|, nats. Of mean, of a tail: the "
        "part's share of |d| in the direction of d; shares sum to 100 %, and a part that pulls against d counts below "
        "0. Decides: the tokens of the tail that would not be in it without this part alone; several parts can decide "
        "a token, or none.",
        _PARTS_HEAD,
        numbers,
        _PARTS_FORMS,
    )


def implementation_table(tokens: Tokens) -> Sheet | None:
    """Take apart the implementation part, which has a tail of its own; None where there is one part alone."""
    parts = implementation(tokens.parts)
    if len(parts) < 2:
        return None
    own = whole(parts)
    return Sheet.of(
        "implementation",
        "The implementation part alone",
        f"log π_l − log μ: what the engines compute differently at equal weights. Mean {np.abs(own).mean():.4f} nats, "
        f"{_tails_start(own)}; read as the table above, with this part in the place of d.",
        _PARTS_HEAD,
        _part_rows(parts),
        _PARTS_FORMS,
    )


def _tails_start(d: Values) -> str:
    bounds = tail_bounds(d)
    return f"tails start at {bounds['q90']:.4f} (90 %) and {bounds['q99']:.4f} (99 %)"


def _part_rows(parts: Parts) -> list[list[Any]]:
    everywhere = attribute(parts)
    tails = [attribute(parts, beyond=beyond) for beyond in tail_bounds(whole(parts)).values()]
    return [
        [
            LABELS.get(name, name),
            share.size,
            share.share,
            *(tail[name].share for tail in tails),
            *(tail[name].decides for tail in tails),
        ]
        for name, share in everywhere.items()
    ]


def routing_table(tokens: Tokens) -> Sheet | None:
    """Compare the mismatch with the trainer's own routing and with the engine's replayed."""
    numbers = []
    for label, d in d_by_routing(tokens).items():
        size = np.abs(d)
        numbers.append(
            [label, float(size.mean()), *(quantile(size, level) for level in (0.9, 0.99, 0.999)), float(size.max())]
        )
    if not numbers:
        return None
    trained = "replayed" if tokens.replayed else "own routing"
    return Sheet.of(
        "routing",
        "With and without routing replay",
        "|log-prob − log μ| of the same tokens, nats, scored with the trainer's own routing and with the engine's "
        f"experts (R3). The run trained with {trained}; the weights that generated are those that the engine had, so "
        "what is left there is the engines' alone.",
        ("weights, routing", "mean", "90 %", "99 %", "99.9 %", "largest"),
        numbers,
        ".4f .4f .4f .4f .4f",
    )


def lag_table(tokens: Tokens) -> Sheet:
    """Tell mean, tail and parts by lag."""
    beyond = tail_bounds(tokens.d)["q99"]
    numbers = []
    for label, inside in by_lag(tokens).items():
        size = np.abs(tokens.d[inside])
        shares = [share.share for share in attribute(tokens.parts, inside).values()]
        values = [float(size.mean()), quantile(size, 0.99), float((size > beyond).mean())]
        numbers.append([label, len(size), *values, *shares])
    return Sheet.of(
        "lag",
        "By lag",
        f"Lag in optimizer updates; mean and 99 % quantile of |d| in nats; in tail: tokens beyond {beyond:.4f}, the "
        "99 % quantile of all; then each part's share of |d|.",
        ("lag", "tokens", "mean |d|", "99 %", "in tail", *(LABELS[name] for name in tokens.parts)),
        numbers,
        ", .4f .4f %" + " %" * len(tokens.parts),
    )


FLIPS = {"checkpoint_expert_flips": "at equal weights", "expert_flips": "with lag"}


def flips_table(tokens: Tokens) -> Sheet | None:
    """Tell how many tokens are sent to other experts, by layer, and their mismatch."""
    if "expert_flips" not in tokens.more:
        return None
    rates = [tokens.more[name].mean(axis=0).tolist() for name in FLIPS]
    flipped = [tokens.more[name].any(axis=1) for name in FLIPS]
    shares: list[list[Any]] = [[str(i), *of_layer] for i, of_layer in enumerate(zip(*rates, strict=True))]
    shares.append([Strong("any layer"), *(float(inside.mean()) for inside in flipped)])
    kinds = d_by_routing(tokens)
    sizes = {
        routing: [np.abs(kinds[f"{weights}, {routing}"]) for weights in ("that generated", "in training")]
        for routing in ("own routing", "replayed")
    }
    nats: list[list[Any]] = [
        [f"{routing}, nats", *(finite_mean(size[inside]) for size, inside in zip(both, flipped, strict=True))]
        for routing, both in sizes.items()
    ]
    others = zip(sizes["own routing"], flipped, strict=True)
    nats.append(["of all other tokens, nats", *(finite_mean(size[~inside]) for size, inside in others)])
    texts = [[label, *(f"{value:.4f}" for value in values)] for label, *values in nats]
    sheet = Sheet.of(
        "flips",
        "Expert flips",
        "Tokens for which the trainer's own routing takes another set of experts than the engine took: at the weights "
        "that generated, which is the engines' doing, and at those in training, which lag adds to.",
        ("layer", *FLIPS.values()),
        [*shares, [Heading("their mean |log-prob − log μ|")], *texts],
        "% %",
    )
    sheet.numbers = [sheet.head, *shares, *nats]
    return sheet


def bound_table(tokens: Tokens) -> Sheet:
    """Tell both sides of Eq. tvbound by lag."""
    lags = tokens.responses["lag"]
    chosen: Groups = {f"{lag:g}": lags == lag for lag in np.unique(lags[np.isfinite(lags)])}
    if len(chosen) > 12:  # lags differ within a response, as under full asynchrony
        chosen = {}
    numbers = []
    for label, inside in {**chosen, Strong("all"): np.ones(len(lags), bool)}.items():
        sides = bound(tokens, inside, XI)
        numbers.append([label, sides.responses, sides.gain, sides.error, sides.penalty, sides.sampled_penalty])
    return Sheet.of(
        "bound",
        "The improvement bound, sampled",
        "Eq. tvbound of the policy in training over the one that generated, per response: the surrogate gain L' (Eq. "
        "surrogate) with its standard error over responses, and the penalty, 4 ξ times the summed total variation, ξ = "
        f"{XI:g}. The estimate puts |r − 1| / 2 of the sampled tokens in the place of each total variation (Eq. tvid). "
        "The bound promises an improvement only where the gain is above the penalty.",
        ("lag", "responses", "gain L'", "± error", "TV penalty", "its sampled estimate"),
        numbers,
        ", +.4f .4f .4f .4f",
    )


def proxy_table(tokens: Tokens) -> Sheet | None:
    """Compare what the sampled token tells with the total variation of its state."""
    if "tv" not in tokens.more:
        return None
    tv = tokens.more["tv"].astype(np.float64)
    numbers: list[list[Any]] = []
    for name, values in {Strong("total variation"): tv, **proxies(tokens)}.items():
        ratio = float(values.mean() / tv.mean()) if tv.mean() else np.nan
        tops = [overlap(values, tv, 0.1), overlap(values, tv, 0.01)]
        numbers.append([name, float(values.mean()), ratio, quantile(values, 0.99), rank_correlation(values, tv), *tops])
    for label, column in {"TV, policy part": "tv_policy", "TV, implementation": "tv_implementation"}.items():
        if column in tokens.more:
            values = tokens.more[column].astype(np.float64)
            numbers.append([label, float(values.mean()), "", quantile(values, 0.99), "", "", ""])
    explained = "; ".join(f"{name}: {text}" for name, text in PROXIES.items())
    return Sheet.of(
        "proxies",
        "The sampled proxy is not the divergence",
        "The true total variation (TV) of μ and π at each token's state, over the whole vocabulary, beside what the "
        f"sampled token alone tells. {explained}. Rank corr.: Spearman's, over tokens. Top: of the tokens that stand "
        "highest by the proxy, how many stand highest by the total variation. Its policy part is that of π_l and π, "
        "its implementation part that of μ and π_l.",
        ("", "mean", "over TV", "99 %", "rank corr.", "top 10 %", "top 1 %"),
        numbers,
        ".5f .2f .4f .2f % %",
    )


# ---------------------------------------------------------------------------------------------------------- figures

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
            "tail_by",
            "Where the tail is",
            "Tokens of each group beyond the 99 % quantile of all, stacked from each part's share of them. "
            "A flat figure would stand at 1 %.",
            partial(draw_tail_by, tokens),
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
    ]


def _bar(name: str, colour: str) -> Look:
    return Look(name, colour, "", "bar", filled=True)


def draw_shares(tokens: Tokens) -> Drawing | None:
    """Draw the parts' shares of the mean and of the tails."""
    panels = [partial(_share_panel, "d = log π − log μ", dict(tokens.parts))]
    own = implementation(tokens.parts)
    if len(own) > 1:
        panels.append(partial(_share_panel, "implementation part, log π_l − log μ", own))
    return column_of(panels, height=100, zoom=False)


def _share_panel(title: str, parts: dict[str, np.ndarray], table: Table, shown: alt.Parameter) -> Plot:
    bounds = tail_bounds(whole(parts))
    levels = {"all tokens": None, "beyond 90 %": bounds["q90"], "beyond 99 %": bounds["q99"]}
    shares = {name: attribute(parts, beyond=beyond) for name, beyond in levels.items()}
    layers = {part: np.array([100 * shares[name][part].share for name in shares]) for part in parts}
    for part, values in layers.items():
        for name, value in zip(shares, values, strict=True):
            table[f"{title}: {LABELS[part]}, {name}, %"] = np.array([value])
    return _stacked(list(levels), layers, title, "share of |d|, %", shown, horizontal=True)


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
    looks = [_bar(LABELS[part], COLOUR_OF[part]) for part in layers]
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


def draw_tail_by(tokens: Tokens) -> Drawing | None:
    """Draw how many tokens of each group lie in the tail, and what the parts contribute to that."""
    if len(tokens.parts) < 2:
        return None
    return column_of([partial(_tail_panel, tokens, kind) for kind in KINDS], height=130, zoom=False)


def _tail_panel(tokens: Tokens, kind: str, table: Table, shown: alt.Parameter) -> Plot | None:
    label, group = KINDS[kind]
    groups = group(tokens)
    if len(groups) < 2:
        return None
    size, beyond = np.abs(tokens.d), tail_bounds(tokens.d)["q99"]
    # the shares of the parts of a token in the tail sum to 1
    per_token = np.sign(tokens.d) * (100 * (size > beyond) / np.maximum(size, 1e-300))
    layers = {
        name: np.array([(per_token * part)[inside].mean() for inside in groups.values()])
        for name, part in tokens.parts.items()
    }
    for index, (name, inside) in enumerate(groups.items()):
        table[f"{kind} {name}: tokens"] = np.array([inside.sum()], dtype=float)
        for part, values in layers.items():
            table[f"{kind} {name}: {LABELS[part]}, % in tail"] = values[index : index + 1]
    return _stacked(list(groups), layers, label, "% of tokens", shown)


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
    looks = [_bar(label, colour) for label, colour in zip(rates, (VERMILION, SKY), strict=True)]
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


# ------------------------------------------------------------------ Eq. split by lag, from metrics.jsonl, without dumps

SIZES = {"mismatch/d_pi": "mean |d|", "mismatch/policy": "policy", "mismatch/implementation": "implementation"}
SHARES = {
    "mismatch/policy_of_mean": "policy of mean",
    "mismatch/policy_of_q90": "policy of tail 90 %",
    "mismatch/policy_of_q99": "policy of tail 99 %",
}


def split_by_lag(metrics: Columns) -> list[list[float]]:
    """Return a row for each realized lag: lag, split steps, and the means of SIZES and SHARES over them."""
    split = np.isfinite(metrics["mismatch/implementation"])
    realized = np.round(metrics.get("lag/mean", np.zeros(len(split))))
    return [
        [float(lag), int(at.sum()), *(_mean(metrics, key, at) for key in (*SIZES, *SHARES))]
        for lag in np.unique(realized[split & np.isfinite(realized)])
        if (at := split & (realized == lag)).any()
    ]


def _mean(metrics: Columns, key: str, steps: np.ndarray) -> float:
    """Return the mean over the steps where it is known; a share counts by the |d| that it is of, since nothing has no
    parts."""
    values = metrics.get(key, np.full(len(steps), np.nan))
    known = steps & np.isfinite(values)
    weights = metrics["mismatch/d_pi"][known] if key in SHARES else np.ones(known.sum())
    return float(np.average(values[known], weights=weights)) if weights.sum() > 0 else np.nan


def split_table(metrics: Columns) -> Sheet:
    """Tell the means over the split steps of each realized lag."""
    return Sheet.of(
        "parts",
        "Policy and implementation part by lag",
        "Means over the split steps (Eq. split), in nats: of |d|, of |log π − log π_l|, of |log π_l − log μ|. "
        "Then the policy part's share of |d| in the direction of d, over all tokens and beyond the quantiles of each "
        "step, steps weighted by their |d|; the implementation part has the rest.",
        ("lag", "steps", *SIZES.values(), *SHARES.values()),
        [[f"{lag:g}", *values] for lag, *values in split_by_lag(metrics)],
        "d .5f .5f .5f % % %",
    )


def split_findings(metrics: Columns) -> Iterator[str]:
    """Say what the table shows, a sentence each."""
    split = np.isfinite(metrics["mismatch/implementation"])
    mean = {key: _mean(metrics, key, split) for key in SIZES}
    yield (
        f"Over {int(split.sum())} split steps mean |d| is {mean['mismatch/d_pi']:.4f} nats, the policy part "
        f"{mean['mismatch/policy']:.4f}, the implementation part {mean['mismatch/implementation']:.4f}."
    )
    shares = [_mean(metrics, key, split) for key in SHARES]
    if np.isfinite(shares).all():
        texts = [percent(share) for share in shares]
        yield (
            f"The policy part carries {texts[0]} of mean |d|, {texts[1]} of it beyond the 90 % quantile and {texts[2]} "
            "beyond the 99 % quantile (means over the steps, each by its |d|)."
        )


def split_figure(metrics: Columns) -> Figure:
    """Return the figure of both parts by lag."""
    return Figure(
        "parts_by_lag",
        "The split by lag",
        "Means over the split steps of each realized lag.",
        lambda: column_of([partial(_split_panel, metrics)]),
    )


def _split_panel(metrics: Columns, table: Table, shown: alt.Parameter) -> Plot | None:
    means = split_by_lag(metrics)
    if not means:
        return None
    lags, _, *columns = zip(*means, strict=True)
    styles = ((BLACK, "-", "o"), (BLUE, "--", "s"), (VERMILION, "-.", "^"))
    looks = [Look(label, *style) for label, style in zip(SIZES.values(), styles, strict=True)]
    table["lag"] = np.array(lags)
    table |= {look.name: np.array(values) for look, values in zip(looks, columns, strict=False)}
    data = joined([rows(x=lags, y=table[look.name], line=look.name) for look in looks])
    base = alt.Chart().encode(steps_axis("realized lag, updates"), alt.Y("y:Q", title="nats")).transform_filter(shown)
    tips = [tip("line:N", "mean"), tip("x:Q", "lag"), tip("y:Q", "nats")]
    return Plot(layered(*lines(base, looks, tips), data=data, title="mean of |part|"), looks)
