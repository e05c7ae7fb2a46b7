"""The numbers of runs, their means over seeds with intervals, and differences paired by seed. Every test is named;
every seed is fixed.

With the three to five seeds that a grid has, no interval is sharp. A paired bootstrap of three differences cannot reach
beyond the smallest and the largest of them, and leaves out 0 by luck in one of four; Student's t allows for so few
seeds, and assumes that the differences are normal. So a difference counts as told from noise only where neither of
them holds 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, NamedTuple

import numpy as np

from sat_slime.report.averages import finite_mean
from sat_slime.report.compared_runs import Collection, ComparedRun
from sat_slime.report.method_names import label_of, method_called, pairs_without, task_suffix
from sat_slime.report.paper_numbers import PaperCell, paper_cell

LEVEL = 0.95
RESAMPLES = 20_000
BOOTSTRAP_SEED = 20_260_718
TEST = (
    f"paired by seed: {LEVEL:.0%} percentile bootstrap of the mean difference ({RESAMPLES:,} resamples of the seeds, "
    f"random seed {BOOTSTRAP_SEED}) and two-sided paired t-test; Holm's correction over the "
    "comparisons of one group and quantity"
)
Verdict = Literal["one seed", "within noise", "lead", "beyond noise"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    low: float
    """Lower end of the 95 % interval; NaN with fewer than two seeds."""
    high: float
    n: int
    """Seeds."""


@dataclass(frozen=True)
class Difference:
    """A minus B, paired by seed."""

    mean: float
    low: float
    """Lower end of the bootstrap interval; NaN with fewer than two pairs."""
    high: float
    p_value: float
    """p of the paired t-test, two-sided."""
    n: int
    """Pairs."""
    p_holm: float = math.nan
    """p_value after Holm's correction; NaN until corrected."""

    @property
    def verdict(self) -> Verdict:
        """beyond noise: not 0, also after the correction; lead: not 0 only where nothing else was tested; else within
        noise."""
        if self.n < 2:
            return "one seed"
        alpha = 1 - LEVEL
        if not (self.low > 0 or self.high < 0) or not self.p_value < alpha:
            return "within noise"
        return "beyond noise" if self.p_holm < alpha else "lead"


def mean_interval(values: Sequence[float]) -> Estimate:
    """Return the mean over seeds and Student's 95 % interval. NaN means that a seed lacks the quantity; it is left
    out."""
    known = np.array([value for value in values if math.isfinite(value)], dtype=float)
    n = len(known)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(known.mean())
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    from scipy.special import stdtrit  # as scipy.stats.t.ppf, which takes long to import

    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * _standard_error(known)
    return Estimate(mean, mean - half, mean + half, n)


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """Return a - b over the seeds that both have, each {seed: value}."""
    pairs = np.array([a[s] - b[s] for s in sorted(a.keys() & b.keys()) if math.isfinite(a[s] - b[s])], dtype=float)
    n = len(pairs)
    if n < 2:
        return Difference(float(pairs[0]) if n else math.nan, math.nan, math.nan, math.nan, n)
    random = np.random.default_rng(BOOTSTRAP_SEED)
    means = pairs[random.integers(n, size=(RESAMPLES, n))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    mean, error = float(pairs.mean()), _standard_error(pairs)
    # scipy.stats.ttest_rel warns of differences that are all alike, and knows no p of those that are all 0
    t = abs(mean) / error if error > 0 else (math.inf if mean else 0.0)
    from scipy.special import stdtr  # as scipy.stats.t.sf

    within = 1 - 2 * float(stdtr(n - 1, -t))  # P(|T| <= t); p from it is exact to 1e-16, as in tables that are kept
    return Difference(mean, float(low), float(high), 1 - within, n)


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Return the same differences with p_holm, their p_value corrected for looking at all of them together."""
    tested = [i for i, difference in enumerate(differences) if math.isfinite(difference.p_value)]
    corrected, highest = list(differences), 0.0
    for rank, i in enumerate(sorted(tested, key=lambda i: differences[i].p_value)):
        highest = max(highest, min(1.0, (len(tested) - rank) * differences[i].p_value))
        corrected[i] = replace(differences[i], p_holm=highest)
    return corrected


# --------------------------------------------------------------------------------------------------------------- levels

Scores = dict[int, float]
"""{seed: a quantity}."""


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of a run that are compared."""

    best: float
    """Best observed accuracy after training started, as a share."""
    best_step: float
    """Step of the weights that earned it; the first one where several did."""
    late: float
    """Mean accuracy over the evaluations of the last quarter: not picked, so not biased upwards."""
    final: float
    """Accuracy of the newest weights that were evaluated: of equal age at every lag, by fewer answers than late."""
    initial: float
    """Accuracy before the first step; NaN where it was not measured."""
    d_pi: float
    """Mean over the last quarter of the steps, in whole lag cycles, nats."""


def run_numbers(run: ComparedRun) -> RunNumbers:
    """Return the numbers of a run; NaN where the run lacks them."""
    steps, accuracy = score_curve(run)
    trained = steps > 0
    initial = float(accuracy[~trained][0]) if (~trained).any() else math.nan
    best, best_step, late, final = math.nan, math.nan, math.nan, math.nan
    if trained.any():
        top = int(np.argmax(accuracy[trained]))
        best, best_step = float(accuracy[trained][top]), float(steps[trained][top])
        late = float(accuracy[trained & (steps >= 0.75 * steps[-1])].mean())
        final = float(accuracy[steps == steps[-1]].mean())
    return RunNumbers(best, best_step, late, final, initial, late_mean(run, "mismatch/d_pi"))


def score_curve(run: ComparedRun) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps of the weights that were measured, accuracies) of all evaluations that have both."""
    evals = run.data.evals
    if "accuracy" not in evals:
        return np.zeros(0), np.zeros(0)
    steps = evals.get("step", np.arange(len(evals["accuracy"]), dtype=float))
    weights = evals.get("weights_step", steps)
    steps = np.where(np.isfinite(weights), weights, steps)
    known = np.isfinite(evals["accuracy"]) & np.isfinite(steps)
    order = np.argsort(steps[known], kind="stable")
    return steps[known][order], evals["accuracy"][known][order]


def late_mean(run: ComparedRun, key: str) -> float:
    """Return the mean of a metric over the last quarter of the steps, in whole lag cycles; NaN without the metric."""
    values = run.data.metrics.get(key)
    if values is None:
        return math.nan
    window = run.data.period * max(1, round(len(values) / 4 / run.data.period))
    return finite_mean(values[-window:])


@dataclass(frozen=True)
class Summary:
    """A method at a lag, over its seeds."""

    method: str
    lag: int | None
    best: Estimate
    best_steps: tuple[float, ...]
    late: Estimate
    d_pi: Estimate
    collapsed: int
    """Seeds that the collapse rule marks."""
    incomplete: int
    """Runs that do not count."""
    seeds: tuple[int | None, ...]

    @property
    def n(self) -> int:
        """Runs that count."""
        return len(self.seeds)


class Comparison:
    """A collection of runs with their numbers."""

    def __init__(self, collection: Collection, paper: bool = False):
        """paper: whether the paper's numbers stand beside those of the runs."""
        self.collection, self.paper = collection, paper

    @cached_property
    def numbers(self) -> dict[int, RunNumbers]:
        """The numbers of each run, by its id()."""
        return {id(run): run_numbers(run) for run in self.collection.runs}

    def of(self, run: ComparedRun) -> RunNumbers:
        """Return the numbers of a run of the collection."""
        return self.numbers[id(run)]

    def paper_cell(self, method: str, lag: int | None) -> PaperCell | None:
        """Return the paper's numbers of a cell; None where it has none or they are not asked for."""
        return paper_cell(method, lag) if self.paper else None

    def scores(self, method: str, lag: int | None, quantity: str) -> Scores:
        """Return a quantity of the whole runs of a method at a lag by seed: late, final and best (accuracy, a share),
        or d_pi (nats). Runs that lack it and those of unknown seed, which cannot be paired, are left out."""
        runs = self.collection.of(method, lag)
        values = {run.seed: getattr(self.of(run), quantity) for run in runs if run.seed is not None}
        return {seed: value for seed, value in values.items() if math.isfinite(value)}

    def summary(self, method: str, lag: int | None) -> Summary:
        """Return the levels of a method at a lag."""
        runs = self.collection.of(method, lag)
        numbers = [self.of(run) for run in runs]
        return Summary(
            method,
            lag,
            mean_interval([run.best for run in numbers]),
            tuple(run.best_step for run in numbers if math.isfinite(run.best_step)),
            mean_interval([run.late for run in numbers]),
            mean_interval([run.d_pi for run in numbers]),
            sum(run.collapse.met for run in runs),
            len(self.collection.of(method, lag, whole=False)) - len(runs),
            tuple(run.seed for run in runs),
        )

    def initial(self, methods: Sequence[str]) -> Estimate:
        """Return the accuracy before training, over all runs of these methods that measured it."""
        return mean_interval([self.of(run).initial for run in self.collection.runs if run.method in methods])

    def against_best(self, methods: Sequence[str], lag: int | None, quantity: str) -> dict[str, Difference]:
        """Return {method: its distance to the best mean of `methods`, on one task, at this lag}; Holm's correction is
        over the methods. The best d_pi is the lowest, of any other quantity the highest, among the methods with the
        most seeds: otherwise the luckiest single run would be the best. Empty with fewer than two methods."""
        sign = -1.0 if quantity == "d_pi" else 1.0
        estimates = {m: getattr(self.summary(m, lag), quantity) for m in methods}
        means = {method: estimate.mean for method, estimate in estimates.items() if estimate.n}
        if len(means) < 2:
            return {}
        most = max(estimate.n for estimate in estimates.values())
        best = max((m for m in means if estimates[m].n == most), key=lambda method: sign * means[method])
        top = self.scores(best, lag, quantity)
        others = [method for method in means if method != best]
        differences = holm([paired_difference(top, self.scores(method, lag, quantity)) for method in others])
        return dict(zip(others, differences, strict=True)) | {best: Difference(0.0, 0.0, 0.0, 1.0, 0)}


# ----------------------------------------------------------------------------------------------------------- contrasts


class Arm(NamedTuple):
    """Runs of one method at one lag, which differ in their seed alone."""

    runs: Comparison
    method: str
    lag: int | None

    def scores(self, quantity: str) -> Scores:
        """Return a quantity of the arm by seed."""
        return self.runs.scores(self.method, self.lag, quantity)


@dataclass(frozen=True)
class Contrast:
    """One side minus another, paired by seed."""

    label: str
    where: str
    """Lags, and what else tells the sides."""
    differences: Mapping[str, Difference]
    """By quantity: best and late accuracy as shares, d_pi in nats."""
    group: str = ""
    """The contrasts that it was corrected with, where a table has several groups."""
    paper: tuple[float, float] = (math.nan, math.nan)
    """The paper's difference: points of AIME24, d_pi in nats; NaN where the paper has none."""

    def __getitem__(self, quantity: str) -> Difference:
        return self.differences[quantity]

    @property
    def pairs(self) -> int:
        """Seeds that both sides have."""
        return max(difference.n for difference in self.differences.values())


def contrast(
    label: str,
    where: str,
    pairs: Sequence[tuple[Arm, Arm]],
    quantities: Sequence[str],
    paper: tuple[float, float] = (math.nan, math.nan),
) -> Contrast:
    """Return the contrast of two arms, or the mean contrast of several pairs in every seed that has all of them: one
    number with less noise."""
    sides = {q: [seed_mean(arm.scores(q) for arm in side) for side in zip(*pairs, strict=True)] for q in quantities}
    return Contrast(label, where, {q: paired_difference(a, b) for q, (a, b) in sides.items()}, paper=paper)


def seed_mean(scores: Iterable[Scores]) -> Scores:
    """Return the mean of several scores, of each seed that all of them have."""
    every = list(scores)
    seeds = set.intersection(*map(set, every)) if every else set()
    return {seed: float(np.mean([by_seed[seed] for by_seed in every])) for seed in seeds}


def corrected(contrasts: Iterable[Contrast], group: str = "") -> list[Contrast]:
    """Return the contrasts that have pairs, with Holm's correction over all of them, for each quantity by itself."""
    tested = [difference for difference in contrasts if difference.pairs]
    quantities = tested[0].differences if tested else {}
    columns = {quantity: holm([difference[quantity] for difference in tested]) for quantity in quantities}
    return [
        replace(difference, group=group, differences={quantity: columns[quantity][i] for quantity in quantities})
        for i, difference in enumerate(tested)
    ]


# --------------------------------------------------------------------------------- the comparisons that the paper makes

QUANTITIES = ("best", "late", "d_pi")
AGAINST_BASE, AGAINST_BASELINES = "SAT against its own base", "SAT-GSPO w/ R3 against the baselines"


def paper_contrasts(comparison: Comparison) -> list[Contrast]:
    """Return the contrasts that the data hold, corrected within each group and quantity."""
    groups: dict[str, list[Contrast]] = {}
    collection = comparison.collection
    methods = collection.methods
    for lag in collection.lags:
        arm = partial(Arm, comparison, lag=lag)
        where = "?" if lag is None else str(lag)
        for names in collection.by_task.values():  # no contrast is between tasks, and no mean over them
            bases = [(arm(sat), arm(base)) for sat, base in pairs_without("sat", names) if base in names]
            groups.setdefault(AGAINST_BASE, []).extend(_between(*pair, where) for pair in bases)
            if len(bases) > 1:
                groups[AGAINST_BASE].append(_contrast(f"mean of the {len(bases)} pairs above", where, bases))
            for group, pairs in _named_pairs(names).items():
                groups.setdefault(group, []).extend(_between(arm(method), arm(other), where) for method, other in pairs)
    known = [lag for lag in collection.lags if lag is not None]
    if len(known) > 1:
        low, high = known[0], known[-1]
        groups[f"lag {high} against lag {low}"] = [
            _contrast(label_of(method), "", [(Arm(comparison, method, high), Arm(comparison, method, low))])
            for method in methods
        ]
    return [contrast for group, contrasts in groups.items() for contrast in corrected(contrasts, group)]


def _between(a: Arm, b: Arm, where: str) -> Contrast:
    return _contrast(f"{label_of(a.method)} − {label_of(b.method)}", where, [(a, b)])


def _contrast(label: str, where: str, pairs: Sequence[tuple[Arm, Arm]]) -> Contrast:
    papers = [_paper_difference(*pair) for pair in pairs]
    score, d_pi = (float(np.mean(values)) for values in zip(*papers, strict=True))
    return contrast(label, where, pairs, QUANTITIES, (score, d_pi))


def _paper_difference(a: Arm, b: Arm) -> tuple[float, float]:
    cell, other = a.runs.paper_cell(a.method, a.lag), b.runs.paper_cell(b.method, b.lag)
    if cell is None or other is None:
        return math.nan, math.nan
    return cell.score - other.score, cell.d_pi - other.d_pi


def _named_pairs(methods: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Return what else the paper compares of methods on one task, as (method, other method) by group."""
    on = task_suffix(methods[0])
    methods = [method.removesuffix(on) for method in methods]
    best = [("sat-gspo-r3", other) for other in ("grpo", "gspo", "dppo")]
    known = [method for method in map(method_called, methods) if method and not method.has("sat")]
    gspo = [(method.name, method.on("grpo").name) for method in known if method.base_name == "gspo" != method.name]
    groups = {
        AGAINST_BASELINES: best,
        "with R3 against without": pairs_without("r3", methods),
        "with TIS against without": pairs_without("tis", methods),
        "sequence ratio or DPPO against GRPO": [("gspo", "grpo"), ("dppo", "grpo"), *gspo],
    }
    return {
        group: [(method + on, other + on) for method, other in pairs if {method, other} <= {*methods}]
        for group, pairs in groups.items()
    }
