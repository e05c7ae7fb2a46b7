"""The tables of a diagnosis, and their findings in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sat_slime.report.averages import finite_mean
from sat_slime.report.diagnosis.attribution import (
    LABELS,
    PROXIES,
    Parts,
    Tokens,
    attribute,
    bound,
    by_lag,
    d_by_routing,
    implementation,
    overlap,
    policy,
    proxies,
    quantile,
    rank_correlation,
    tail_bounds,
    whole,
)
from sat_slime.report.number_text import NBSP, decimals, percent
from sat_slime.report.page import Heading, Sheet, Strong

XI = 1.0
"""The largest reward of the embedded runtime's tasks."""


def tables(tokens: Tokens) -> list[Sheet]:
    """Make all tables that the tokens have numbers for."""
    sheets = [
        parts_table(tokens),
        implementation_table(tokens),
        routing_table(tokens),
        lag_table(tokens),
        flips_table(tokens),
        bound_table(tokens),
        proxy_table(tokens),
    ]
    return [sheet for sheet in sheets if sheet is not None]


_PARTS_HEAD = ["part", "mean", "of mean"]
_PARTS_HEAD += [f"{what} {level}{NBSP}%" for what in ("of tail", "decides") for level in (90, 99)]


def parts_table(tokens: Tokens) -> Sheet:
    """Tell how much of the mean and of the tails each part carries."""
    rows, numbers = _part_rows(tokens.parts)
    groups = {"policy part": policy(tokens.parts), "implementation part": implementation(tokens.parts)}
    for label, parts in groups.items():
        if len(parts) > 1:
            both = {label: whole(parts), "other": tokens.d - whole(parts)}
            total_rows, total_numbers = _part_rows(both)
            rows.append([Strong(cell) for cell in total_rows[0]])
            numbers.append(total_numbers[0])
    bounds = tail_bounds(tokens.d)
    return Sheet(
        "parts",
        "What the mismatch is made of",
        f"d = log π − log μ of {len(tokens.d):,} tokens of {tokens.steps} steps; mean |d| is "
        f"{np.abs(tokens.d).mean():.4f} nats, {_bounds_text(bounds)}. Mean: of |part|, nats. Of mean, of a tail: the "
        "part's share of |d| in the direction of d; shares sum to 100 %, and a part that pulls against d counts below "
        "0. Decides: the tokens of the tail that would not be in it without this part alone; several parts can decide "
        "a token, or none.",
        _PARTS_HEAD,
        rows,
        numbers=[_PARTS_HEAD, *numbers],
    )


def implementation_table(tokens: Tokens) -> Sheet | None:
    """Take apart the implementation part, which has a tail of its own; None where there is one part alone."""
    parts = implementation(tokens.parts)
    if len(parts) < 2:
        return None
    rows, numbers = _part_rows(parts)
    own = whole(parts)
    return Sheet(
        "implementation",
        "The implementation part alone",
        f"log π_l − log μ: what the engines compute differently at equal weights. Mean {np.abs(own).mean():.4f} nats, "
        f"{_bounds_text(tail_bounds(own))}; read as the table above, with this part in the place of d.",
        _PARTS_HEAD,
        rows,
        numbers=[_PARTS_HEAD, *numbers],
    )


def _bounds_text(bounds: dict[str, float]) -> str:
    return f"tails start at {bounds['q90']:.4f} (90 %) and {bounds['q99']:.4f} (99 %)"


def _part_rows(parts: Parts) -> tuple[list[list[str]], list[list[Any]]]:
    """Return (texts, numbers) of each part."""
    bounds = tail_bounds(whole(parts))
    everywhere = attribute(parts)
    tails = {name: attribute(parts, beyond=beyond) for name, beyond in bounds.items()}
    rows, numbers = [], []
    for name, share in everywhere.items():
        shares = [share.share, *(tail[name].share for tail in tails.values())]
        decides = [tail[name].decides for tail in tails.values()]
        label = LABELS.get(name, name)
        rows.append([label, f"{share.size:.5f}", *map(percent, [*shares, *decides])])
        numbers.append([label, share.size, *shares, *decides])
    return rows, numbers


def routing_table(tokens: Tokens) -> Sheet | None:
    """Compare the mismatch with the trainer's own routing and with the engine's replayed."""
    kinds = d_by_routing(tokens)
    if not kinds:
        return None
    head = ["weights, routing", "mean", "90 %", "99 %", "99.9 %", "largest"]
    rows, numbers = [], []
    for label, d in kinds.items():
        size = np.abs(d)
        values = [float(size.mean()), *(quantile(size, level) for level in (0.9, 0.99, 0.999)), float(size.max())]
        rows.append([label, *(f"{value:.4f}" for value in values)])
        numbers.append([label, *values])
    trained = "replayed" if tokens.replayed else "own routing"
    return Sheet(
        "routing",
        "With and without routing replay",
        "|log-prob − log μ| of the same tokens, nats, scored with the trainer's own routing and with the engine's "
        f"experts (R3). The run trained with {trained}; the weights that generated are those that the engine had, so "
        "what is left there is the engines' alone.",
        head,
        rows,
        numbers=[head, *numbers],
    )


def lag_table(tokens: Tokens) -> Sheet:
    """Tell mean, tail and parts by lag."""
    beyond = tail_bounds(tokens.d)["q99"]
    names = [LABELS[name] for name in tokens.parts]
    head = ["lag", "tokens", "mean |d|", "99 %", "in tail", *names]
    rows, numbers = [], []
    for label, inside in by_lag(tokens).items():
        size = np.abs(tokens.d[inside])
        shares = [share.share for share in attribute(tokens.parts, inside).values()]
        in_tail = float((size > beyond).mean())
        values = [float(size.mean()), quantile(size, 0.99)]
        rows.append([label, f"{len(size):,}", *(f"{v:.4f}" for v in values), percent(in_tail), *map(percent, shares)])
        numbers.append([label, len(size), *values, in_tail, *shares])
    return Sheet(
        "lag",
        "By lag",
        f"Lag in optimizer updates; mean and 99 % quantile of |d| in nats; in tail: tokens beyond {beyond:.4f}, the "
        "99 % quantile of all; then each part's share of |d|.",
        head,
        rows,
        numbers=[head, *numbers],
    )


FLIPS = {"checkpoint_expert_flips": "at equal weights", "expert_flips": "with lag"}


def flips_table(tokens: Tokens) -> Sheet | None:
    """Tell how many tokens are sent to other experts, by layer, and their mismatch."""
    if "expert_flips" not in tokens.more:
        return None
    head = ["layer", "at equal weights", "with lag"]
    rates = [tokens.more[name].mean(axis=0) for name in FLIPS]
    rows: list[list[str]] = [[str(i), *(percent(rate[i]) for rate in rates)] for i in range(len(rates[0]))]
    numbers: list[list[Any]] = [[i, *(float(rate[i]) for rate in rates)] for i in range(len(rates[0]))]
    flipped = [tokens.more[name].any(axis=1) for name in FLIPS]
    rows.append([Strong("any layer"), *(Strong(percent(inside.mean())) for inside in flipped)])
    numbers.append(["any layer", *(float(inside.mean()) for inside in flipped)])
    kinds = d_by_routing(tokens)
    own = [np.abs(kinds["that generated, own routing"]), np.abs(kinds["in training, own routing"])]
    along = [np.abs(kinds["that generated, replayed"]), np.abs(kinds["in training, replayed"])]
    rows.append([Heading("their mean |log-prob − log μ|, nats")])
    for label, sizes in (("own routing", own), ("replayed", along)):
        values = [finite_mean(size[inside]) for size, inside in zip(sizes, flipped, strict=True)]
        rows.append([label, *(f"{value:.4f}" for value in values)])
        numbers.append([f"{label}, nats", *values])
    rest = [finite_mean(size[~inside]) for size, inside in zip(own, flipped, strict=True)]
    rows.append(["of all other tokens", *(f"{value:.4f}" for value in rest)])
    numbers.append(["of all other tokens, nats", *rest])
    return Sheet(
        "flips",
        "Expert flips",
        "Tokens for which the trainer's own routing takes another set of experts than the engine took: at the weights "
        "that generated, which is the engines' doing, and at those in training, which lag adds to.",
        head,
        rows,
        numbers=[head, *numbers],
    )


def bound_table(tokens: Tokens) -> Sheet:
    """Tell both sides of Eq. tvbound by lag."""
    head = ["lag", "responses", "gain L'", "± error", "TV penalty", "its sampled estimate"]
    lags = tokens.responses["lag"]
    chosen = {f"{lag:g}": lags == lag for lag in np.unique(lags[np.isfinite(lags)])}
    if len(chosen) > 12:  # lags differ within a response, as under full asynchrony
        chosen = {}
    rows: list[list[str]] = []
    numbers: list[list[Any]] = []
    for label, inside in {**chosen, "all": np.ones(len(lags), bool)}.items():
        sides = bound(tokens, inside, XI)
        values = [sides.gain, sides.error, sides.penalty, sides.sampled_penalty]
        row = [label, f"{sides.responses:,}", f"{sides.gain:+.4f}", *(decimals(value, 4) for value in values[1:])]
        rows.append([Strong(cell) for cell in row] if label == "all" else row)
        numbers.append([label, sides.responses, *values])
    return Sheet(
        "bound",
        "The improvement bound, sampled",
        "Eq. tvbound of the policy in training over the one that generated, per response: the surrogate gain L' (Eq. "
        "surrogate) with its standard error over responses, and the penalty, 4 ξ times the summed total variation, ξ = "
        f"{XI:g}. The estimate puts |r − 1| / 2 of the sampled tokens in the place of each total variation (Eq. tvid). "
        "The bound promises an improvement only where the gain is above the penalty.",
        head,
        rows,
        numbers=[head, *numbers],
    )


def proxy_table(tokens: Tokens) -> Sheet | None:
    """Compare what the sampled token tells with the total variation of its state."""
    if "tv" not in tokens.more:
        return None
    tv = tokens.more["tv"].astype(np.float64)
    head = ["", "mean", "over TV", "99 %", "rank corr.", "top 10 %", "top 1 %"]
    numbers: list[list[Any]] = []
    for name, values in {"total variation": tv, **proxies(tokens)}.items():
        ratio = float(values.mean() / tv.mean()) if tv.mean() else np.nan
        tops = [overlap(values, tv, 0.1), overlap(values, tv, 0.01)]
        numbers.append([name, float(values.mean()), ratio, quantile(values, 0.99), rank_correlation(values, tv), *tops])
    rows = [[row[0], *map(decimals, row[1:5], (5, 2, 4, 2)), *map(percent, row[5:])] for row in numbers]
    rows[0] = [Strong(cell) for cell in rows[0]]
    for label, column in {"TV, policy part": "tv_policy", "TV, implementation": "tv_implementation"}.items():
        if column in tokens.more:
            values = tokens.more[column].astype(np.float64)
            rows.append([label, f"{values.mean():.5f}", "", f"{quantile(values, 0.99):.4f}", "", "", ""])
            numbers.append([label, float(values.mean()), "", quantile(values, 0.99), "", "", ""])
    explained = "; ".join(f"{name}: {text}" for name, text in PROXIES.items())
    return Sheet(
        "proxies",
        "The sampled proxy is not the divergence",
        "The true total variation (TV) of μ and π at each token's state, over the whole vocabulary, beside what the "
        f"sampled token alone tells. {explained}. Rank corr.: Spearman's, over tokens. Top: of the tokens that stand "
        "highest by the proxy, how many stand highest by the total variation. Its policy part is that of π_l and π, "
        "its implementation part that of μ and π_l.",
        head,
        rows,
        numbers=[head, *numbers],
    )


# --------------------------------------------------------------------------------------------------------- in words


def findings(tokens: Tokens) -> Iterator[str]:
    """Say what the tables show, a sentence each."""
    bounds = tail_bounds(tokens.d)
    shares = {name: attribute(_two_terms(tokens), beyond=beyond) for name, beyond in {"mean": None, **bounds}.items()}
    lags = np.unique(tokens.lag)
    span = f"lag {lags[0]:g}" if len(lags) == 1 else f"lag {lags[0]:g} to {lags[-1]:g}"
    yield (
        f"{tokens.steps} diagnosed steps, {len(tokens.d):,} tokens, {span}. Of mean |d|, {np.abs(tokens.d).mean():.4f} "
        f"nats, the policy part carries {percent(shares['mean']['policy'].share)}, the implementation part the rest; "
        f"of the tail beyond the 99 % quantile ({bounds['q99']:.3f} nats) it carries "
        f"{percent(shares['q99']['policy'].share)}."
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
        flips = tokens.more["checkpoint_expert_flips"].any(axis=1).mean()
        lagged = tokens.more["expert_flips"].any(axis=1).mean()
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


def _two_terms(tokens: Tokens) -> dict[str, np.ndarray]:
    return {"policy": whole(policy(tokens.parts)), "implementation": whole(implementation(tokens.parts))}
