"""Numbers of the runs, their means over seeds, and what is compared with what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sat_slime.report.comparison.collection import Collection, ComparedRun
from sat_slime.report.comparison.methods import label_of, method_called, pairs_without
from sat_slime.report.comparison.paper_numbers import paper_cell
from sat_slime.report.comparison.statistics import Difference, Estimate, holm, mean_interval, paired_difference

Scores = dict[int, float]
"""{seed: a quantity}."""


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of a run that are compared."""

    best: float
    """Best observed accuracy after training began, as a share."""
    best_step: float
    """Step of the weights that earned it; the first one where several did."""
    late: float
    """Mean accuracy over the evaluations of the last quarter: not picked, so not biased upwards."""
    initial: float
    """Accuracy before the first step; NaN where it was not measured."""
    d_pi: float
    """Mean over the last quarter of the steps, in whole lag cycles, nats."""


def run_numbers(run: ComparedRun) -> RunNumbers:
    """The numbers of a run; NaN where the run lacks them."""
    steps, accuracy = score_curve(run)
    trained = steps > 0
    initial = float(accuracy[~trained][0]) if (~trained).any() else math.nan
    best, best_step, late = math.nan, math.nan, math.nan
    if trained.any():
        top = int(np.argmax(accuracy[trained]))
        best, best_step = float(accuracy[trained][top]), float(steps[trained][top])
        late = float(accuracy[trained & (steps >= 0.75 * steps[-1])].mean())
    return RunNumbers(best, best_step, late, initial, late_mean(run, "mismatch/d_pi"))


def score_curve(run: ComparedRun) -> tuple[np.ndarray, np.ndarray]:
    """(steps of the weights that were measured, accuracies), of all evaluations that have both."""
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
    """Mean of a metric over the last quarter of the steps, in whole lag cycles."""
    values = run.data.metrics.get(key)
    if values is None:
        return math.nan
    window = run.data.period * max(1, round(len(values) / 4 / run.data.period))
    known = values[-window:][np.isfinite(values[-window:])]
    return float(known.mean()) if len(known) else math.nan


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
        return len(self.seeds)


@dataclass(frozen=True)
class Contrast:
    """One comparison, and the paper's difference beside it."""

    group: str
    label: str
    lag: str
    best: Difference
    late: Difference
    d_pi: Difference
    paper_best: float
    """In points of AIME24; NaN where the paper has none."""
    paper_d_pi: float


QUANTITIES: Mapping[str, Callable[[RunNumbers], float]] = {
    "best": lambda numbers: numbers.best,
    "late": lambda numbers: numbers.late,
    "d_pi": lambda numbers: numbers.d_pi,
}


class Comparison:
    """A collection with its numbers."""

    def __init__(self, collection: Collection):
        self.collection = collection

    @cached_property
    def numbers(self) -> dict[int, RunNumbers]:
        """The numbers of each run, by its id()."""
        return {id(run): run_numbers(run) for run in self.collection.runs}

    def of(self, run: ComparedRun) -> RunNumbers:
        return self.numbers[id(run)]

    def by_seed(self, method: str, lag: int | None, quantity: str) -> Scores:
        """A quantity of the whole runs of a method at a lag, without runs of unknown seed, which cannot be paired."""
        runs = self.collection.of(method, lag)
        return {run.seed: QUANTITIES[quantity](self.of(run)) for run in runs if run.seed is not None}

    def summary(self, method: str, lag: int | None) -> Summary:
        runs = self.collection.of(method, lag)
        numbers = [self.of(run) for run in runs]
        return Summary(
            method,
            lag,
            mean_interval([one.best for one in numbers]),
            tuple(one.best_step for one in numbers if math.isfinite(one.best_step)),
            mean_interval([one.late for one in numbers]),
            mean_interval([one.d_pi for one in numbers]),
            sum(run.collapse.met for run in runs),
            len(self.collection.of(method, lag, whole=False)) - len(runs),
            tuple(run.seed for run in runs),
        )

    @cached_property
    def initial(self) -> Estimate:
        """Accuracy before training, over all runs that measured it."""
        return mean_interval([one.initial for one in self.numbers.values()])

    def against_best(self, lag: int | None, quantity: str) -> dict[str, Difference]:
        """{method: its distance to the best mean at this lag}; Holm's correction is over the methods. The best d_pi is
        the lowest, of any other quantity the highest, among the methods with the most seeds: otherwise the luckiest
        single run would be the best. Empty with fewer than two methods."""
        sign = -1.0 if quantity == "d_pi" else 1.0
        estimates = {m: getattr(self.summary(m, lag), quantity) for m in self.collection.methods}
        means = {method: estimate.mean for method, estimate in estimates.items() if estimate.n}
        if len(means) < 2:
            return {}
        most = max(estimate.n for estimate in estimates.values())
        best = max((m for m in means if estimates[m].n == most), key=lambda method: sign * means[method])
        top = self.by_seed(best, lag, quantity)
        others = [method for method in means if method != best]
        differences = holm([paired_difference(top, self.by_seed(method, lag, quantity)) for method in others])
        return dict(zip(others, differences, strict=True)) | {best: Difference(0.0, 0.0, 0.0, 1.0, 0)}

    @cached_property
    def contrasts(self) -> list[Contrast]:
        """The comparisons that the paper makes or implies and that the data hold, corrected within each group and
        quantity."""
        found: list[Contrast] = []
        for group, entries in self._groups().items():
            columns = {
                quantity: holm([paired_difference(*(side[quantity] for side in sides)) for _, _, sides, _ in entries])
                for quantity in QUANTITIES
            }
            for i, (label, lag, _, paper) in enumerate(entries):
                best, late, d_pi = (columns[quantity][i] for quantity in ("best", "late", "d_pi"))
                if max(best.n, late.n, d_pi.n):
                    found.append(Contrast(group, label, lag, best, late, d_pi, *paper))
        return found

    def _groups(self) -> dict[str, list[Entry]]:
        methods = self.collection.methods
        groups: dict[str, list[Entry]] = {}
        for lag in self.collection.lags:
            pairs = [(one, base) for one, base in pairs_without("sat", methods) if base in methods]
            groups.setdefault("SAT against its own base", []).extend(
                [*(self._entry(one, base, lag, lag) for one, base in pairs), *self._pooled(pairs, lag)]
            )
            for group, pair_list in _named_pairs(methods).items():
                entries = [self._entry(one, other, lag, lag) for one, other in pair_list]
                groups.setdefault(group, []).extend(entries)
        lags = [lag for lag in self.collection.lags if lag is not None]
        if len(lags) > 1:
            entries = [self._entry(method, method, lags[-1], lags[0]) for method in methods]
            groups[f"lag {lags[-1]} against lag {lags[0]}"] = entries
        return {group: entries for group, entries in groups.items() if entries}

    def _entry(self, a: str, b: str, lag_a: int | None, lag_b: int | None) -> Entry:
        sides = tuple(
            {quantity: self.by_seed(method, lag, quantity) for quantity in QUANTITIES}
            for method, lag in ((a, lag_a), (b, lag_b))
        )
        label = label_of(a) if a == b else f"{label_of(a)} − {label_of(b)}"
        lag = "" if lag_a != lag_b else "?" if lag_a is None else str(lag_a)
        return label, lag, sides, _paper_difference((a, lag_a), (b, lag_b))

    def _pooled(self, pairs: list[tuple[str, str]], lag: int | None) -> list[Entry]:
        """SAT minus its base, averaged over the pairs, in every seed that has all of them: one number with less
        noise."""
        if len(pairs) < 2:
            return []
        sides = []
        for names in zip(*pairs, strict=True):
            side = {}
            for quantity in QUANTITIES:
                scores = [self.by_seed(name, lag, quantity) for name in names]
                seeds = set.intersection(*(set(one) for one in scores))
                side[quantity] = {seed: float(np.mean([one[seed] for one in scores])) for seed in seeds}
            sides.append(side)
        papers = [_paper_difference((a, lag), (b, lag)) for a, b in pairs]
        paper = (float(np.mean([p[0] for p in papers])), float(np.mean([p[1] for p in papers])))
        return [(f"mean of the {len(pairs)} pairs above", "?" if lag is None else str(lag), tuple(sides), paper)]


Entry = tuple[str, str, tuple[dict[str, Scores], ...], tuple[float, float]]
"""(label, lag, the two sides by quantity and seed, the paper's differences of score and d_pi)."""


def _paper_difference(a: tuple[str, int | None], b: tuple[str, int | None]) -> tuple[float, float]:
    one, other = paper_cell(*a), paper_cell(*b)
    if one is None or other is None:
        return math.nan, math.nan
    return one.score - other.score, one.d_pi - other.d_pi


def _named_pairs(methods: list[str]) -> dict[str, list[tuple[str, str]]]:
    """What else the paper compares."""
    best = [("sat-gspo-r3", other) for other in ("grpo", "gspo", "dppo")]
    known = [method for method in map(method_called, methods) if method and not method.has("sat")]
    gspo = [(one.name, one.on("grpo").name) for one in known if one.base_name == "gspo" and one.name != "gspo"]
    groups = {
        "SAT-GSPO w/ R3 against the baselines": best,
        "with R3 against without": pairs_without("r3", methods),
        "with TIS against without": pairs_without("tis", methods),
        "sequence ratio or DPPO against GRPO": [("gspo", "grpo"), ("dppo", "grpo"), *gspo],
    }
    return {
        group: [(one, other) for one, other in pairs if one in methods and other in methods]
        for group, pairs in groups.items()
    }
