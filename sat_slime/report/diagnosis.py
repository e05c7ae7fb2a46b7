"""The page of a diagnosis, RUN/diagnosis/, from the token dumps of a run or from its metrics alone: sentences, tables,
figures."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sat_slime.report import attribution, charts
from sat_slime.report.attribution import LABELS, Tokens, attribute, quantile, tail_bounds, whole
from sat_slime.report.frames import finite_mean
from sat_slime.report.page import (
    NBSP,
    Form,
    Page,
    Section,
    Strong,
    Table,
    count_of,
    headline,
    percent,
    section_of,
    write_page,
)
from sat_slime.rollout.token_dump import dump_paths
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import Columns, Run, has, load_run, section

FOLDER = "diagnosis"
XI = 1.0
"""The largest reward of the lab runtime's tasks."""


def write_diagnosis(path: str | Path) -> Page:
    """Take the mismatch of a run apart and write RUN/diagnosis/: index.html, figures/, tables/.

    Raises:
        RunFolderError: no run folder, or one in which nothing was measured; says how to measure it.
    """
    run = load_run(path)
    tokens = attribution.load_tokens(dump_paths(run.folder.path))
    if tokens is not None:
        sentences = list(findings(tokens))
        doubts = list(warnings(tokens, section(run.config, "pipeline").get("lag")))
        made, drawn = tables(tokens), figures(tokens)
    elif has(run.data.metrics, "mismatch/implementation"):
        sentences, doubts = list(split_findings(run.data.metrics)), [_without_dumps(run)]
        made, drawn = [split_table(run.data.metrics)], [split_figure(run.data.metrics)]
    else:
        raise RunFolderError(_nothing_measured(run))
    return write_page(
        run.folder.path / FOLDER / "index.html",
        [*drawn[:1], *(part for table in made for part in section_of(table)), *drawn[1:]],
        title=f"{run.name}: the mismatch taken apart",
        subtitle=headline(run.config),
        answer=sentences,
        warnings=doubts,
        command=f"sat-slime diagnose {shlex.quote(str(path))}",
    )


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
    shares = {name: attribute(terms(tokens), beyond=beyond)["share"] for name, beyond in {"": None, **bounds}.items()}
    lags = np.unique(tokens.lag)
    span = f"lag {lags[0]:g}" if len(lags) == 1 else f"lag {lags[0]:g} to {lags[-1]:g}"
    yield (
        f"The policy part carries {percent(shares['']['policy part'])} of mean |d| and "
        f"{percent(shares['q99']['policy part'])} of its tail; the implementation part has the rest."
    )
    yield (
        f"Mean |d| is {np.abs(tokens.d).mean():.4f} nats, the tail begins at {bounds['q99']:.3f} (99 % quantile): "
        f"{count_of(tokens.steps, 'diagnosed step')}, {len(tokens.d):,} tokens of {span}."
    )
    if any((of_level > 1).any() for of_level in shares.values()):
        yield "A share above 100 % means that the other part pulls the other way: together they are 100 %."
    kinds = attribution.d_by_routing(tokens)
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
    sides = attribution.bound(tokens, xi=XI)
    if np.isfinite(sides.penalty):
        verdict = "promises an improvement" if sides.gain > sides.penalty else "promises no improvement"
        yield (
            f"Eq. tvbound {verdict}: the surrogate gain is {sides.gain:+.4f} ± {sides.error:.4f} a response, the "
            f"penalty {sides.penalty:.3f} (from the sampled ratios {sides.sampled_penalty:.3f})."
        )
    if "tv" in tokens.more:
        tv, proxy = tokens.more["tv"].astype(np.float64), attribution.proxies(tokens)["|log r|"]
        yield (
            f"The mean total variation is {tv.mean():.4f}, mean |log r| {proxy.mean() / tv.mean():.2f} times that; of "
            f"the 10 % of the tokens with the largest |log r|, {percent(attribution.overlap(proxy, tv))} are at the "
            "10 % of the states with the largest total variation."
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


def tables(tokens: Tokens) -> list[Table]:
    """Make all tables that the tokens have numbers for."""
    makers = (parts_table, implementation_table, routing_table, lag_table, flips_table, bound_table, proxy_table)
    return [table for make in makers if (table := make(tokens)) is not None]


def terms(tokens: Tokens) -> dict[str, np.ndarray]:
    """Return (N,) the two terms of Eq. split."""
    return {
        "policy part": whole(attribution.policy(tokens.parts)),
        "implementation part": whole(attribution.implementation(tokens.parts)),
    }


def part_rows(parts: attribution.Parts) -> pd.DataFrame:
    """Return for each part the mean of its size, its share of the mean and of the tails, and what it decides."""
    everywhere = attribute(parts)
    rows = pd.DataFrame({"mean": everywhere["size"], "of mean": everywhere["share"]})
    levels = zip(("90", "99"), tail_bounds(whole(parts)).values(), strict=True)
    tails = {f"{level}{NBSP}%": attribute(parts, beyond=beyond) for level, beyond in levels}
    rows = rows.assign(**{f"of tail {level}": tail["share"] for level, tail in tails.items()})
    rows = rows.assign(**{f"decides {level}": tail["decides"] for level, tail in tails.items()})
    return rows.rename(index=LABELS).rename_axis("part")


def parts_table(tokens: Tokens) -> Table:
    """Tell how much of the mean and of the tails each part carries."""
    rows = [part_rows(tokens.parts)]
    for label, term in terms(tokens).items():
        if sum(name.startswith("policy") == (label == "policy part") for name in tokens.parts) > 1:
            rows.append(part_rows({label: term, "other": tokens.d - term}).head(1))
    return _parts_table(
        "parts",
        "What the mismatch is made of",
        f"d = log π − log μ of {len(tokens.d):,} tokens of {count_of(tokens.steps, 'step')}; mean |d| is "
        f"{np.abs(tokens.d).mean():.4f} nats, {_tails_start(tokens.d)}. Mean: of |part|, nats. Of mean, of a tail: the "
        "part's share of |d| in the direction of d; shares sum to 100 %, and a part that pulls against d counts below "
        "0. Decides: the tokens of the tail that would not be in it without this part alone; several parts can decide "
        "a token, or none.",
        pd.concat(rows),
    )


def implementation_table(tokens: Tokens) -> Table | None:
    """Take apart the implementation part, which has a tail of its own; None where there is one part alone."""
    parts = attribution.implementation(tokens.parts)
    if len(parts) < 2:
        return None
    return _parts_table(
        "implementation",
        "The implementation part alone",
        "log π_l − log μ: what the engines compute differently at equal weights. Mean "
        f"{np.abs(whole(parts)).mean():.4f} nats, {_tails_start(whole(parts))}; read as the table above, with this "
        "part in the place of d.",
        part_rows(parts),
    )


def _parts_table(name: str, heading: str, note: str, rows: pd.DataFrame) -> Table:
    forms = {"part": strong("part", "policy part", "implementation part"), "mean": ".5f"}
    return Table(name, heading, note, rows.reset_index(), forms | dict.fromkeys(rows.columns[1:], "%"))


def strong(column: str, *texts: str) -> Form:
    """Return the form of a column in which some texts stand out."""
    return lambda row: Strong(row[column]) if row[column] in texts else row[column]


def _tails_start(d: np.ndarray) -> str:
    bounds = tail_bounds(d)
    return f"tails start at {bounds['q90']:.4f} (90 %) and {bounds['q99']:.4f} (99 %)"


def routing_table(tokens: Tokens) -> Table | None:
    """Compare the mismatch with the trainer's own routing and with the engine's replayed."""
    levels = {"90 %": 0.9, "99 %": 0.99, "99.9 %": 0.999}
    rows = [
        {"weights, routing": label, "mean": float(np.abs(d).mean())}
        | {name: quantile(np.abs(d), level) for name, level in levels.items()}
        | {"largest": float(np.abs(d).max())}
        for label, d in attribution.d_by_routing(tokens).items()
    ]
    if not rows:
        return None
    trained = "replayed" if tokens.replayed else "own routing"
    frame = pd.DataFrame(rows)
    return Table(
        "routing",
        "With and without routing replay",
        "|log-prob − log μ| of the same tokens, nats, scored with the trainer's own routing and with the engine's "
        f"experts (R3). The run trained with {trained}; the weights that generated are those that the engine had, so "
        "what is left there is the engines' alone.",
        frame,
        {"weights, routing": ""} | dict.fromkeys(frame.columns[1:], ".4f"),
    )


def lag_table(tokens: Tokens) -> Table:
    """Tell mean, tail and parts by lag."""
    beyond = tail_bounds(tokens.d)["q99"]
    rows = []
    for label, inside in attribution.by_lag(tokens).items():
        size = np.abs(tokens.d[inside])
        row = {"lag": label, "tokens": len(size), "mean |d|": size.mean(), "99 %": quantile(size, 0.99)}
        shares = attribute(tokens.parts, inside)["share"].rename(LABELS)
        rows.append(row | {"in tail": (size > beyond).mean(), **shares})
    formats = dict.fromkeys(("in tail", *(LABELS[name] for name in tokens.parts)), "%")
    return Table(
        "lag",
        "By lag",
        f"Lag in optimizer updates; mean and 99 % quantile of |d| in nats; in tail: tokens beyond {beyond:.4f}, the "
        "99 % quantile of all; then each part's share of |d|.",
        pd.DataFrame(rows),
        {"lag": "", "tokens": ",", "mean |d|": ".4f", "99 %": ".4f", **formats},
    )


FLIPS = {"checkpoint_expert_flips": "at equal weights", "expert_flips": "with lag"}


def flips_table(tokens: Tokens) -> Table | None:
    """Tell how many tokens are sent to other experts, by layer, and their mismatch."""
    if "expert_flips" not in tokens.more:
        return None
    flips = {label: tokens.more[name] for name, label in FLIPS.items()}
    anywhere = {label: values.any(axis=1) for label, values in flips.items()}
    layers = range(tokens.more["expert_flips"].shape[1])
    rows: list[dict[str, Any]] = [
        {"layer": str(i)} | {label: float(values[:, i].mean()) for label, values in flips.items()} for i in layers
    ]
    rows.append({"layer": "any layer"} | {label: float(inside.mean()) for label, inside in anywhere.items()})
    rows = [{"group": "share of the tokens"} | row for row in rows]
    kinds = attribution.d_by_routing(tokens)
    weights = dict(zip(anywhere, ("that generated", "in training"), strict=True))
    for routing in ("own routing", "replayed"):
        sizes = {label: np.abs(kinds[f"{of}, {routing}"])[anywhere[label]] for label, of in weights.items()}
        rows.append({"layer": f"{routing}, nats"} | {label: finite_mean(size) for label, size in sizes.items()})
    others = {label: np.abs(kinds[f"{of}, own routing"])[~anywhere[label]] for label, of in weights.items()}
    rows.append({"layer": "of all other tokens, nats"} | {label: finite_mean(size) for label, size in others.items()})
    frame = pd.DataFrame(rows).fillna({"group": "their mean |log-prob − log μ|"})

    def cell(label: str) -> Form:
        return lambda row: f"{row[label]:.4f}" if row["layer"].endswith("nats") else percent(row[label])

    return Table(
        "flips",
        "Expert flips",
        "Tokens for which the trainer's own routing takes another set of experts than the engine took: at the weights "
        "that generated, which is the engines' doing, and at those in training, which lag adds to.",
        frame,
        {"layer": strong("layer", "any layer"), **{label: cell(label) for label in FLIPS.values()}},
        group="group",
    )


def bound_table(tokens: Tokens) -> Table:
    """Tell both sides of Eq. tvbound by lag."""
    lags = tokens.responses["lag"]
    chosen = {f"{lag:g}": lags == lag for lag in np.unique(lags[np.isfinite(lags)])}
    if len(chosen) > 12:  # lags differ within a response, as under full asynchrony
        chosen = {}
    every = {**chosen, "all": np.ones(len(lags), bool)}
    rows = [(label, *attribution.bound(tokens, inside, XI)) for label, inside in every.items()]
    head = ("lag", "responses", "gain L'", "± error", "TV penalty", "its sampled estimate")
    return Table(
        "bound",
        "The improvement bound, sampled",
        "Eq. tvbound of the policy in training over the one that generated, per response: the surrogate gain L' (Eq. "
        "surrogate) with its standard error over responses, and the penalty, 4 ξ times the summed total variation, ξ = "
        f"{XI:g}. The estimate puts |r − 1| / 2 of the sampled tokens in the place of each total variation (Eq. tvid). "
        "The bound promises an improvement only where the gain is above the penalty.",
        pd.DataFrame(rows, columns=head),
        {"lag": strong("lag", "all"), **dict(zip(head[1:], (",", "+.4f", ".4f", ".4f", ".4f"), strict=True))},
    )


def proxy_table(tokens: Tokens) -> Table | None:
    """Compare what the sampled token tells with the total variation of its state."""
    if "tv" not in tokens.more:
        return None
    tv = tokens.more["tv"].astype(np.float64)
    rows: list[dict[str, Any]] = []
    for name, values in {"total variation": tv, **attribution.proxies(tokens)}.items():
        ratio = float(values.mean() / tv.mean()) if tv.mean() else np.nan
        row = {"of": name, "mean": values.mean(), "over TV": ratio, "99 %": quantile(values, 0.99)}
        row |= {"rank corr.": attribution.rank_correlation(values, tv)}
        row |= {f"top {100 * share:.0f} %": attribution.overlap(values, tv, share) for share in (0.1, 0.01)}
        rows.append(row)
    for label, column in {"TV, policy part": "tv_policy", "TV, implementation": "tv_implementation"}.items():
        if column in tokens.more:
            values = tokens.more[column].astype(np.float64)
            rows.append({"of": label, "mean": values.mean(), "99 %": quantile(values, 0.99)})
    explained = "; ".join(f"{name}: {text}" for name, text in attribution.PROXIES.items())
    return Table(
        "proxies",
        "The sampled proxy is not the divergence",
        "The true total variation (TV) of μ and π at each token's state, over the whole vocabulary, beside what the "
        f"sampled token alone tells. {explained}. Rank corr.: Spearman's, over tokens. Top: of the tokens that stand "
        "highest by the proxy, how many stand highest by the total variation. Its policy part is that of π_l and π, "
        "its implementation part that of μ and π_l.",
        pd.DataFrame(rows),
        {
            "of": strong("of", "total variation"),
            **{"mean": ".5f", "over TV": ".2f", "99 %": ".4f", "rank corr.": ".2f", "top 10 %": "%", "top 1 %": "%"},
        },
    )


# ---------------------------------------------------------------------------------------------------------- charts

COLOUR_OF = {
    "policy_weights": charts.BLUE,
    "policy": charts.BLUE,
    "policy_routes": charts.SKY,
    "routing": charts.VERMILION,
    "implementation": charts.VERMILION,
    "precision": charts.ORANGE,
    "rest": charts.GREY,
}
"""The colour of each part."""
PART_LOOKS: dict[str, charts.Look] = {LABELS[part]: (colour, charts.DASHES[0]) for part, colour in COLOUR_OF.items()}
KINDS = {
    "lag": ("by lag in updates", attribution.by_lag),
    "position": ("by place in the response, from 1", attribution.by_position),
    "probability": ("by probability μ of the token", attribution.by_probability),
    "entropy": ("by entropy of π at the state, nats", attribution.by_entropy),
}
SMALLEST = 1e-4
"""Nats: tails are drawn from here on."""


def figures(tokens: Tokens) -> list[Section]:
    """Return the sections of charts that there is data for."""
    shares = Section(
        "shares",
        "Who carries the mismatch",
        "Each part's share of |d|, in the direction of d: over all tokens, and over those beyond the 90 % and 99 % "
        "quantile.",
        [share_chart(tokens.parts)],
    )
    where = Section(
        "tail_by",
        "Where the tail is",
        "Tokens of each group beyond the 99 % quantile of all, stacked from each part's share of them. Were the tail "
        "everywhere alike, all bars would end at 1 %.",
        [chart for kind in KINDS for chart in tail_chart(tokens, kind)] if len(tokens.parts) > 1 else [],
    )
    tails = Section(
        "tails",
        "The tails, with and without routing replay",
        "Share of the tokens above a value. The same tokens scored with the trainer's own routing and with the "
        "engine's experts, at the weights in training and at those that generated.",
        survival_chart(tokens),
    )
    return [shares, where, tails]


def share_chart(parts: attribution.Parts) -> charts.Chart:
    """Draw the parts' shares of the mean and of the tails."""
    bounds = tail_bounds(whole(parts))
    levels = {"all tokens": None, "beyond 90 %": bounds["q90"], "beyond 99 %": bounds["q99"]}
    rows = [
        {"group": group, "line": LABELS[part], "y": 100 * share}
        for group, beyond in levels.items()
        for part, share in attribute(parts, beyond=beyond)["share"].items()
    ]
    return charts.bars("shares", pd.DataFrame(rows), "d = log π − log μ", "share of |d|, %", of=PART_LOOKS)


def tail_chart(tokens: Tokens, kind: str) -> list[charts.Chart]:
    """Draw how many tokens of each group lie in the tail, and what the parts contribute to that; none of one group."""
    label, group = KINDS[kind]
    groups = group(tokens)
    size, beyond = np.abs(tokens.d), tail_bounds(tokens.d)["q99"]
    # the shares of the parts of a token in the tail sum to 1
    per_token = np.sign(tokens.d) * (100 * (size > beyond) / np.maximum(size, 1e-300))
    rows = [
        {"group": name, "line": LABELS[part], "y": (per_token * values)[inside].mean(), "tokens": inside.sum()}
        for name, inside in groups.items()
        for part, values in tokens.parts.items()
    ]
    chart = charts.bars(f"tail_by_{kind}", pd.DataFrame(rows), label, "% of tokens", of=PART_LOOKS)
    return [chart] if len(groups) > 1 else []


def survival_chart(tokens: Tokens) -> list[charts.Chart]:
    """Draw the share of the tokens whose |log-prob − log μ| is above x, by weights and routing."""
    edges = 10.0 ** np.arange(np.log10(SMALLEST), 1.51, 0.05)
    parts = []
    for line, values in attribution.d_by_routing(tokens).items():
        above = 1 - np.searchsorted(np.sort(np.abs(values)), edges, side="right") / max(len(values), 1)
        parts.append(pd.DataFrame({"x": edges, "y": above, "line": line})[above > 0])
    if not parts:
        return []
    title = "|log-prob − log μ| by weights and routing"
    return [charts.lines("tails", pd.concat(parts), title, "nats", "share above", log=True, log_x=True, height=240)]


# ------------------------------------------------------------------ Eq. split by lag, from metrics.jsonl, without dumps

SIZES = {"mismatch/d_pi": "mean |d|", "mismatch/policy": "policy", "mismatch/implementation": "implementation"}
SHARES = {
    "mismatch/policy_of_mean": "policy of mean",
    "mismatch/policy_of_q90": "policy of tail 90 %",
    "mismatch/policy_of_q99": "policy of tail 99 %",
}


def split_by_lag(metrics: Columns) -> pd.DataFrame:
    """Return a row for each realized lag: lag, split steps, and the means of SIZES and SHARES over them."""
    split = np.isfinite(metrics["mismatch/implementation"])
    realized = np.round(metrics.get("lag/mean", np.zeros(len(split))))
    rows = [
        {"lag": f"{lag:g}", "steps": int(at.sum())}
        | {label: _mean(metrics, key, at) for key, label in (SIZES | SHARES).items()}
        for lag in np.unique(realized[split & np.isfinite(realized)])
        if (at := split & (realized == lag)).any()
    ]
    return pd.DataFrame(rows)


def _mean(metrics: Columns, key: str, steps: np.ndarray) -> float:
    """Return the mean over the steps where it is known; a share counts by the |d| that it is of, since nothing has no
    parts."""
    values = metrics.get(key, np.full(len(steps), np.nan))
    known = steps & np.isfinite(values)
    weights = metrics["mismatch/d_pi"][known] if key in SHARES else np.ones(known.sum())
    return float(np.average(values[known], weights=weights)) if weights.sum() > 0 else np.nan


def split_table(metrics: Columns) -> Table:
    """Tell the means over the split steps of each realized lag."""
    return Table(
        "parts",
        "Policy and implementation part by lag",
        "Means over the split steps (Eq. split), in nats: of |d|, of |log π − log π_l|, of |log π_l − log μ|. "
        "Then the policy part's share of |d| in the direction of d, over all tokens and beyond the quantiles of each "
        "step, steps weighted by their |d|; the implementation part has the rest.",
        split_by_lag(metrics),
        {"lag": "", "steps": "d"} | dict.fromkeys(SIZES.values(), ".5f") | dict.fromkeys(SHARES.values(), "%"),
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


def split_figure(metrics: Columns) -> Section:
    """Return the chart of both parts by lag."""
    by_lag = split_by_lag(metrics).astype({"lag": float})
    frame = by_lag.melt("lag", list(SIZES.values()), "line", "y").rename(columns={"lag": "x"})
    chart = charts.lines(
        "parts_by_lag", frame, "mean of |part|", "realized lag, updates", "nats", points=True, zero=True
    )
    return Section("parts_by_lag", "The split by lag", "Means over the split steps of each realized lag.", [chart])
