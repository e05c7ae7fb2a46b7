"""The mismatch of a run taken apart: the page RUN/diagnosis/, from the token dumps of its diagnosed steps.

How a tail is attributed to parts that can cancel each other: a token's part counts in the direction of its d, as
sign(d) x part, so that the parts of each token sum to |d| and shares of any set of tokens to 1; a part that pulls
against d counts below 0. Beside it, how many tokens of the tail each part decides: without it alone, the token's |d|
would not be beyond the quantile. Several parts can decide a token, or none.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from sat_slime.objective import mismatch_parts
from sat_slime.report import charts
from sat_slime.report.dumps import StepBatch, files_in, find_dumps, steps
from sat_slime.report.page import NBSP, Page, Section, Strong, Table, count_of, headline, percent, write_page
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import Run, load_run, section


def write_diagnosis(path: str | Path) -> Page:
    """Take the mismatch of a run apart and write RUN/diagnosis/: index.html, figures/, tables/. Raises RunFolderError
    for what is no run folder, and for one in which nothing was measured, with how to measure it."""
    run = load_run(path)
    tokens = load_tokens(files_in(run.folder.dumps))
    if tokens is None:
        raise RunFolderError(_nothing_measured(run))
    return write_page(
        run.folder.path / "diagnosis" / "index.html",
        [share_figure(tokens), parts_table(tokens), lag_table(tokens)],
        title=f"{run.name}: the mismatch taken apart",
        subtitle=headline(run.config),
        answer=findings(tokens),
        warnings=warnings(tokens, section(run.config, "pipeline").get("lag")),
        command=f"sat-slime diagnose {shlex.quote(str(path))}",
    )


def _nothing_measured(run: Run) -> str:
    path, shown = run.folder.path, shlex.quote(str(run.folder.path))
    if not np.size(run.data.metrics.get("step", ())):
        return f"{path} has logged no optimizer step yet: there is no mismatch to take apart"
    if run.config.get("runtime") == "slime":
        return (
            f"{path} is a run of slime: routing, precision and the rest need its tokens scored again with the weights "
            "at hand, which only the lab runtime does. What looks unhealthy: sat-slime diagnose "
            f"{shown}/{run.folder.metrics.name}; with --set method.denominator=checkpoint its report has policy and "
            f"implementation part: sat-slime report {shown}"
        )
    return (
        f"{path} has no diagnosed steps: run again with --set diagnose.every_n_steps=5 (every 5th optimizer step); "
        f"policy and implementation part are in its report: sat-slime report {shown}"
    )


PARTS = {
    "policy_weights": ("policy: weights", charts.BLUE),
    "policy_routes": ("policy: routes", charts.SKY),
    "policy": ("policy", charts.BLUE),
    "implementation": ("implementation", charts.VERMILION),
    "routing": ("routing", charts.VERMILION),
    "precision": ("precision", charts.ORANGE),
    "rest": ("rest", charts.GREY),
}
"""The names and colours of the parts of objective.mismatch_parts on the page."""
LABELS = {part: label for part, (label, _) in PARTS.items()}
ROUTINGS = ["log_probs_own_routing", "log_probs_replayed"]
"""Log-probs with the trainer's own routing and with the engine's replayed (R3), of the weights in training; missing for
a dense model or without re-scoring."""
TAILS = {"q90": 0.9, "q99": 0.99}
"""Quantiles of |d| that mark where a tail begins."""


@dataclass
class Tokens:
    """The active tokens of diagnosed steps, a row each."""

    frame: pd.DataFrame
    """d, log pi - log mu in nats; lag; as far as all dumps have them d by the routes of ROUTINGS."""
    parts: pd.DataFrame
    """Parts of d, which sum to it."""
    replayed: bool
    """The method trains with R3."""
    steps: int = 1
    """Diagnosed steps."""
    damaged: list[str] = field(default_factory=list)
    """Dumps that could not be read, and tokens of them that cannot be, a line each."""

    @property
    def d(self) -> np.ndarray:
        """(N,) d of each token, nats."""
        return self.frame["d"].to_numpy()


def load_tokens(paths: Sequence[Path]) -> Tokens | None:
    """Read the tokens of those dumps that tell the most parts of d; None when none tells any. Damaged files
    and tokens that are left out are named. Raises RunFolderError where there are dumps and none can be read."""
    dumps, skipped = find_dumps(paths)
    every = [_tokens_of(step) for step in steps(dumps, skipped)]
    damaged = [str(one) for one in skipped]
    if damaged and not every:
        raise RunFolderError(f"no dump can be read: {'; '.join(damaged[:3])}")
    most = max((list(one.parts) for one in every), key=len, default=[])
    best = [one for one in every if list(one.parts) == most]
    if not most:
        return None
    frame = pd.concat([one.frame for one in best], join="inner", ignore_index=True)
    parts = pd.concat([one.parts for one in best], ignore_index=True)
    return Tokens(frame, parts, best[0].replayed, len(best), damaged)


def _tokens_of(step: StepBatch) -> Tokens:
    scores = {"log_probs": step.log_probs, "rollout_log_probs": step.rollout_log_probs, **step.more}
    parts = mismatch_parts(scores, replayed=step.replayed)
    log_mu = step.rollout_log_probs.double()
    columns = {"d": step.log_probs - log_mu, "lag": step.more.get("lags", torch.full_like(log_mu, torch.nan)).double()}
    columns |= {name: step.more[name] - log_mu for name in ROUTINGS if name in step.more}
    frame, of_parts = (
        pd.DataFrame({name: values[step.mask].numpy() for name, values in each.items()}, range(int(step.mask.sum())))
        for each in (columns, parts)
    )
    return Tokens(frame, of_parts, step.replayed)


def attribute(parts: pd.DataFrame, beyond: float | None = None, d: np.ndarray | None = None) -> pd.DataFrame:
    """Attribute d to its parts.

    Args:
        beyond: nats; only the tokens with |d| above it, strictly. Default: all.
        d: (N,) what they are parts of. Default: their sum.

    Returns:
        For each part size, the mean of |part| in nats; share, of the sum of |d|, in the direction of d; and decides,
        the share of the tokens beyond that would not be there without it, NaN without `beyond`.
    """
    whole = parts.sum(axis=1) if d is None else pd.Series(d, parts.index)
    if beyond is not None:
        tail = whole.abs() > beyond
        parts, whole = parts[tail], whole[tail]
    return pd.DataFrame(
        {
            "size": parts.abs().mean(),
            "share": parts.mul(np.sign(whole), axis=0).sum() / (whole.abs().sum() or np.nan),
            "decides": np.nan if beyond is None else (parts.rsub(whole, axis=0).abs() <= beyond).mean(),
        }
    )


def terms(parts: pd.DataFrame) -> pd.DataFrame:
    """Return the two terms of Eq. split."""
    policy = [name for name in parts if name.startswith("policy")]
    policy_part = parts[policy].sum(axis=1)
    return pd.DataFrame({"policy part": policy_part, "implementation part": parts.drop(columns=policy).sum(axis=1)})


def quantile(values: np.ndarray, level: float) -> float:
    """Return the smallest of the values with at least that share of them at or below it (Eq. quantile)."""
    return float(np.quantile(values, level, method="inverted_cdf")) if len(values) else np.nan


def tail_bounds(d: np.ndarray) -> dict[str, float]:
    """Return the |d|, nats, at which each tail begins."""
    return {name: quantile(np.abs(d), level) for name, level in TAILS.items()}


def findings(tokens: Tokens) -> Iterator[str]:
    """Say what the tables show, a sentence each."""
    bounds, both = tail_bounds(tokens.d), terms(tokens.parts)
    shares = {name: attribute(both, beyond=beyond)["share"] for name, beyond in {"": None, **bounds}.items()}
    lags = np.unique(tokens.frame["lag"])
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
    if {*ROUTINGS} <= {*tokens.frame}:
        own, along = tokens.frame[ROUTINGS].abs().to_numpy().T
        verb = "takes" if tokens.replayed else "would take"
        yield (
            f"Routing replay (R3) {verb} mean |d| from {own.mean():.4f} to {along.mean():.4f} nats, its 99 % quantile "
            f"from {quantile(own, 0.99):.3f} to {quantile(along, 0.99):.3f} and its largest from {own.max():.2f} to "
            f"{along.max():.2f}."
        )


def warnings(tokens: Tokens, lag: int | None) -> Iterator[str]:
    """Say what should make a reader doubt the tables."""
    yield from tokens.damaged
    tail = int((np.abs(tokens.d) > tail_bounds(tokens.d)["q99"]).sum())
    if tail < 50:
        yield f"Only {tail} tokens lie beyond the 99 % quantile, so its shares are chance: diagnose more steps."
    met = np.unique(tokens.frame["lag"])
    if lag and len(met) < min(lag, tokens.steps):
        yield (
            f"Only the lags {', '.join(f'{lag:g}' for lag in met)} were diagnosed, and pipeline.lag is {lag}: choose a "
            "diagnose.every_n_steps without a common factor with it."
        )


def parts_table(tokens: Tokens) -> Table:
    """Tell how much of the mean and of the tails each part carries, and each term of several parts."""
    bounds, both = tail_bounds(tokens.d), terms(tokens.parts)
    policy = sum(name.startswith("policy") for name in tokens.parts)
    several = [name for name, count in zip(both, (policy, tokens.parts.shape[1] - policy), strict=True) if count > 1]
    columns = tokens.parts.rename(columns=LABELS).join(both[several])
    rows = attribute(columns, d=tokens.d)[["size", "share"]].set_axis(["mean", "of mean"], axis=1)
    tails = {level: attribute(columns, beyond=bounds[f"q{level}"], d=tokens.d) for level in ("90", "99")}
    for what, shown in {"share": "of tail", "decides": "decides"}.items():
        rows = rows.assign(**{f"{shown} {level}{NBSP}%": tail[what] for level, tail in tails.items()})
    return Table(
        "parts",
        "What the mismatch is made of",
        f"d = log π − log μ of {len(tokens.d):,} tokens of {count_of(tokens.steps, 'step')}; mean |d| is "
        f"{np.abs(tokens.d).mean():.4f} nats, tails start at {bounds['q90']:.4f} (90 %) and {bounds['q99']:.4f} "
        "(99 %). Mean: of |part|, nats. Of mean, of a tail: the part's share of |d| in the direction of d; shares sum "
        "to 100 %, and a part that pulls against d counts below 0. Decides: the tokens of the tail that would not be "
        "in it without this part alone; several parts can decide a token, or none.",
        frame=rows.rename_axis("part").reset_index(),
        forms={
            "part": lambda row: Strong(row["part"]) if row["part"] in both else row["part"],
            "mean": ".5f",
            **dict.fromkeys(rows.columns[1:], "%"),
        },
    )


def lag_table(tokens: Tokens) -> Table:
    """Tell mean, tail and parts by lag."""
    beyond = tail_bounds(tokens.d)["q99"]
    rows = []
    for lag in np.unique(tokens.frame["lag"]):
        inside = tokens.frame["lag"].to_numpy() == lag
        size = np.abs(tokens.d[inside])
        row = {"lag": f"{lag:g}", "tokens": len(size), "mean |d|": size.mean(), "99 %": quantile(size, 0.99)}
        shares = attribute(tokens.parts[inside])["share"].rename(LABELS)
        rows.append(row | {"in tail": (size > beyond).mean(), **shares})
    formats = dict.fromkeys(("in tail", *(LABELS[name] for name in tokens.parts)), "%")
    return Table(
        "lag",
        "By lag",
        f"Lag in optimizer updates; mean and 99 % quantile of |d| in nats; in tail: tokens beyond {beyond:.4f}, the "
        "99 % quantile of all; then each part's share of |d|.",
        frame=pd.DataFrame(rows),
        forms={"lag": "", "tokens": ",", "mean |d|": ".4f", "99 %": ".4f", **formats},
    )


def share_figure(tokens: Tokens) -> Section:
    """Return the chart of the parts' shares of the mean and of the tails."""
    bounds = tail_bounds(tokens.d)
    levels = {"all tokens": None, "beyond 90 %": bounds["q90"], "beyond 99 %": bounds["q99"]}
    rows = [
        {"group": group, "line": LABELS[part], "y": 100 * share}
        for group, beyond in levels.items()
        for part, share in attribute(tokens.parts, beyond=beyond, d=tokens.d)["share"].items()
    ]
    looks = {label: (colour, charts.DASHES[0]) for label, colour in PARTS.values()}
    chart = charts.bars("shares", pd.DataFrame(rows), "d = log π − log μ", "share of |d|, %", of=looks)
    note = "Each part's share of |d|, in the direction of d: over all tokens, and beyond the 90 % and 99 % quantile."
    return Section("shares", "Who carries the mismatch", note, [chart])
