"""The engine of every comparison: the numbers of runs, their levels over seeds, and contrasts of two sides.

paper_contrasts says which arms are set against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sat_slime.report.averages import finite_mean
from sat_slime.report.comparison.compared_runs import Collection, ComparedRun
from sat_slime.report.comparison.paper_numbers import PaperCell, paper_cell
from sat_slime.report.comparison.statistics import Difference, Estimate, holm, mean_interval, paired_difference

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


# --------------------------------------------------------------------------------------------------- contrasts


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
