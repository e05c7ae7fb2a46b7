"""Means over seeds with intervals, and differences paired by seed. Every test is named; every seed is fixed.

With the three to five seeds that a grid has, no interval is sharp. A paired bootstrap of three differences cannot reach
beyond the smallest and the largest of them, and leaves out 0 by luck in one of four; Student's t allows for so few
seeds, and assumes that the differences are normal. So a difference counts as told from noise only where neither of
them holds 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from sat_slime.report.frames import Collection
from sat_slime.report.methods import label_of, method_called, pairs_without

LEVEL = 0.95
RESAMPLES = 20_000
BOOTSTRAP_SEED = 20_260_718
TEST = (
    f"paired by seed: {LEVEL:.0%} percentile bootstrap of the mean difference ({RESAMPLES:,} resamples of the seeds, "
    f"random seed {BOOTSTRAP_SEED}) and two-sided paired t-test, of which alike differences have p = 1; Holm's "
    "correction over the comparisons of one group and quantity, against the best of a column over all pairs of methods"
)
QUANTITIES = ("best", "late", "d_pi")
"""What is compared: best and late accuracy as shares, d_pi in nats."""
Estimate = dict[str, float]
"""`mean`, `low` and `high`, the ends of the 95 % interval, NaN with fewer than two seeds, and `n`."""


def mean_interval(values: Iterable[float]) -> Estimate:
    """Return the mean over seeds and Student's 95 % interval; NaN, of a seed that lacks the quantity, is left out."""
    known = np.array([value for value in values if math.isfinite(value)], dtype=float)
    n = len(known)
    mean = float(known.mean()) if n else math.nan
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1) * stats.sem(known)) if n > 1 else math.nan
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": n}


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> dict[str, Any]:
    """Return a - b over the seeds that both have, each {seed: value}: mean, low and high of the bootstrap interval, p
    of the paired t-test, two-sided, and n, the pairs; NaN with fewer than two."""
    d = np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys()) if math.isfinite(a[seed] - b[seed])])
    if len(d) < 2:
        mean = float(d[0]) if len(d) else math.nan
        return {"mean": mean, "low": math.nan, "high": math.nan, "p": math.nan, "n": len(d)}
    random = np.random.default_rng(BOOTSTRAP_SEED)
    means = d[random.integers(len(d), size=(RESAMPLES, len(d)))].mean(axis=1)  # scipy warns where all d are alike
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    # Alike, as shares of few answers are by chance, they have no spread to be tested by.
    alike = np.ptp(d) <= 1e-9 * np.abs(d).max()
    p = 1.0 if alike else float(stats.ttest_1samp(d, 0.0).pvalue)
    return {"mean": float(d.mean()), "low": float(low), "high": float(high), "p": p, "n": len(d)}


def holm(p: pd.Series, of: int = 0) -> pd.Series:
    """Return the p values after Holm's correction for looking at all of them together, and at as many others as `of`
    has more; NaN where there is none."""
    ascending = p.dropna().sort_values(kind="stable")
    factors = max(of, len(ascending)) - np.arange(len(ascending))
    return (ascending * factors).clip(upper=1).cummax().reindex(p.index)


def verdict(row: Mapping[str, Any]) -> str:
    """Return what a difference is, nothing where no pair has it. beyond noise: not 0, also after the correction; lead:
    not 0 only where nothing else was tested; else within noise."""
    if row["n"] < 2:
        return "one seed" if row["n"] else ""
    alpha = 1 - LEVEL
    if not (row["low"] > 0 or row["high"] < 0) or not row["p"] < alpha:
        return "within noise"
    return "beyond noise" if row["p Holm"] < alpha else "lead"


def judged(differences: Sequence[Mapping[str, Any]], index: Sequence[Any] | None = None, of: int = 0) -> pd.DataFrame:
    """Return the differences of `paired`, a row each, with `p Holm`, corrected as in `holm`, and `verdict`."""
    frame = pd.DataFrame(list(differences), index, ["mean", "low", "high", "p", "n"])
    frame["p Holm"] = holm(frame["p"], of)
    return frame.assign(verdict=[verdict(row) for row in frame.to_dict("records")])


def scores_of(collection: Collection, method: str, lag: int | None, quantity: str) -> dict[int, float]:
    """Return {seed: a quantity} of the whole runs of a method at a lag. Runs that lack it and those of unknown seed,
    which cannot be paired, are left out."""
    values = {run.seed: run.numbers[quantity] for run in collection.of(method, lag) if run.seed is not None}
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def level_of(collection: Collection, method: str, lag: int | None, quantity: str) -> Estimate:
    """Return a quantity over the seeds of a method at a lag."""
    return mean_interval(run.numbers[quantity] for run in collection.of(method, lag))


def against_best(collection: Collection, lag: int | None, quantity: str) -> pd.DataFrame:
    """Return the distance of each method to the best mean at this lag, as `judged` has it; Holm's correction is over
    all pairs of methods, since which pairs are looked at is known only after the fact. The best d_pi is the lowest, of
    any other quantity the highest, among the methods with two seeds, where any has: otherwise the luckiest single run
    would be the best; its verdict is `best`. Empty with fewer than two methods."""
    levels = {method: level_of(collection, method, lag, quantity) for method in collection.methods}
    known = pd.DataFrame({method: level for method, level in levels.items() if level["n"]}).T
    if len(known) < 2:
        return judged([])
    means = known["mean"][known["n"] >= min(2, known["n"].max())]
    best = means.idxmin() if quantity == "d_pi" else means.idxmax()
    top, others = scores_of(collection, best, lag, quantity), known.index.drop(best)
    differences = [paired(top, scores_of(collection, method, lag, quantity)) for method in others]
    frame = judged(differences, others, of=math.comb(len(known), 2))
    frame.loc[best, ["n", "verdict"]] = [0, "best"]
    return frame


Arm = tuple[str, int | None]
"""Method and lag."""
AGAINST_BASE, AGAINST_BASELINES = "SAT against its own base", "SAT-GSPO w/ R3 against the baselines"


def contrasts(collection: Collection) -> pd.DataFrame:
    """Return the paper's comparisons that the data hold, a row each: group, difference and lag, the paper's own
    difference, then for each of QUANTITIES its mean, low, high, p, p Holm and verdict, and the pairs. The correction
    is over each group and quantity by itself."""
    frames = []
    for group, wanted in _groups(collection).items():
        rows, tested = [], {quantity: list[dict[str, Any]]() for quantity in QUANTITIES}
        for text, lag, arms in wanted:
            found = {quantity: _difference(collection, arms, quantity) for quantity in QUANTITIES}
            if pairs := max(difference["n"] for difference in found.values()):
                paper = _paper_difference(collection, arms)
                rows.append({"group": group, "difference": text, "lag": lag, **paper, "pairs": pairs})
                for quantity, difference in found.items():
                    tested[quantity].append(difference)
        if rows:
            own = [judged(of).drop(columns="n").add_prefix(f"{quantity} ") for quantity, of in tested.items()]
            frames.append(pd.concat([pd.DataFrame(rows), *own], axis=1))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _groups(collection: Collection) -> dict[str, list[tuple[str, str, list[tuple[Arm, Arm]]]]]:
    """Return by group what is compared: its name, the lag, and the pairs of arms whose differences count together."""
    groups: dict[str, list[tuple[str, str, list[tuple[Arm, Arm]]]]] = {}
    for lag in collection.lags:
        where = "?" if lag is None else str(lag)
        names = collection.methods
        bases = [(sat, base) for sat, base in pairs_without("sat", names) if base in names]
        for group, pairs in {AGAINST_BASE: bases, **_named_pairs(names)}.items():
            wanted = groups.setdefault(group, [])
            wanted += [(f"{label_of(a)} − {label_of(b)}", where, [((a, lag), (b, lag))]) for a, b in pairs]
        if len(bases) > 1:
            every = [((sat, lag), (base, lag)) for sat, base in bases]
            groups[AGAINST_BASE].append((f"mean of the {len(bases)} pairs above", where, every))
    known = [lag for lag in collection.lags if lag is not None]
    if len(known) > 1:
        low, high = known[0], known[-1]
        groups[f"lag {high} against lag {low}"] = [
            (label_of(method), "", [((method, high), (method, low))]) for method in collection.methods
        ]
    return groups


def _difference(collection: Collection, pairs: Sequence[tuple[Arm, Arm]], quantity: str) -> dict[str, Any]:
    """Return the difference of two arms, or the mean difference of several pairs in every seed that has all of them:
    one number with less noise."""
    a, b = (
        pd.DataFrame([scores_of(collection, method, lag, quantity) for method, lag in side]).dropna(axis="columns")
        for side in zip(*pairs, strict=True)
    )
    return paired(a.mean().to_dict(), b.mean().to_dict())


def _paper_difference(collection: Collection, pairs: Sequence[tuple[Arm, Arm]]) -> dict[str, float]:
    cells = [(collection.paper_cell(*a), collection.paper_cell(*b)) for a, b in pairs]
    differences = [(a.score - b.score, a.d_pi - b.d_pi) if a and b else (math.nan, math.nan) for a, b in cells]
    return dict(zip(("paper AIME24", "paper d_pi"), np.mean(differences, axis=0), strict=True))


def _named_pairs(methods: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Return what else the paper compares, as (method, other method) by group."""
    best = [("sat-gspo-r3", other) for other in ("grpo", "gspo", "dppo")]
    known = [method for method in map(method_called, methods) if method and not method.has("sat")]
    gspo = [method.name for method in known if method.base_path == "gspo" != method.name]
    to_grpo = [("gspo", "grpo"), ("dppo", "grpo"), *((name, name.replace("gspo", "grpo")) for name in gspo)]
    groups = {
        AGAINST_BASELINES: best,
        "with R3 against without": pairs_without("r3", methods),
        "with TIS against without": pairs_without("tis", methods),
        "sequence ratio or DPPO against GRPO": to_grpo,
    }
    return {group: [pair for pair in pairs if {*pair} <= {*methods}] for group, pairs in groups.items()}
