"""The collapse rule, the same for every run, after it and while it goes on.

A run **has collapsed** where, at an evaluation, both hold:

- **score**: the mean of the newest 3 evaluations lies at least a third below the best such mean so far, and at least
  3 standard errors of the two;
- **mismatch**: at some step since that best, d_pi was out of its low band: its mean over the newest 16 steps or more (a
  whole number of lag cycles) was at least three times the lowest mean that it has held over 32 steps or more, or at
  least 0.15 nats, for a run that never had a low level.

Where it holds at the last evaluation the run is marked as collapsed, from the evaluation on since when it has held;
where it held and no longer does, as recovered. A run without evaluations is judged by its training reward, in blocks
of 16 steps or more. What the rule cannot see (too few evaluations, no d_pi) it does not mark.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sat_slime.config.jsonl import number

SCORES = 3
"""A score is the mean of so many evaluations: one bad evaluation is no collapse."""
SCORE_LOSS = 1 / 3
"""Share of the best score that is lost."""
SCORE_ERRORS = 3.0
"""The loss is at least so many standard errors, where the number of samples is known."""
MISMATCH_RISE, MISMATCH_CEILING = 3.0, 0.15
"""d_pi over its lowest level, and the nats from which on no level counts as low. The paper's run at lag 8 leaves its
band of 0.01 above 0.03. Baselines that learn on were seen to reach this factor too: the mismatch alone tells no
collapse. The ceiling is ten times what the paper shows of runs that do not collapse."""
KL_RISE = MISMATCH_RISE**2
"""The KL grows as the square of d."""
LEVEL_STEPS, FLOOR_STEPS = 16, 32
"""A level, and the lowest level, are means over at least so many steps."""


class Band:
    """The low band of a quantity that cycles with the lag, and when it was first left."""

    def __init__(self, period: int, rise: float, ceiling: float = math.inf):
        """period: steps of a lag cycle. The band ends where the level is `rise` times the lowest one, or `ceiling`."""
        self._level = whole_cycles(LEVEL_STEPS, period)
        self._floor_steps = whole_cycles(FLOOR_STEPS, period)
        self._newest: deque[float] = deque(maxlen=self._floor_steps)
        self._skip = period  # the first cycle begins with a batch of lag 0
        self._limit, self._ceiling = rise, ceiling
        self.floor = math.inf
        self.departed: int | None = None
        """First step out of the band."""
        self.outside = False
        """True while the newest level is out of it."""

    def add(self, step: int, value: float) -> float:
        """Take a step; return the newest level over the lowest one, NaN until that is known."""
        if not math.isfinite(value):
            return math.nan
        if self._skip > 0:
            self._skip -= 1
            return math.nan
        self._newest.append(value)
        if len(self._newest) < self._floor_steps:
            return math.nan
        newest = list(self._newest)
        self.floor = min(self.floor, sum(newest) / len(newest))
        level = sum(newest[-self._level :]) / self._level
        rise = level / self.floor if self.floor > 0 else math.nan
        self.outside = rise >= self._limit or level >= self._ceiling
        if self.outside and self.departed is None:
            self.departed = step
        return rise


def whole_cycles(steps: int, period: int) -> int:
    """Return at least so many steps, in whole cycles of the lag."""
    return period * -(-steps // period)


def first_departure(
    steps: np.ndarray, values: np.ndarray, period: int, rise: float, ceiling: float = math.inf
) -> int | None:
    """Return the first step at which `values` left their low band."""
    band = Band(period, rise, ceiling)
    for step, value in zip(steps, values, strict=True):
        band.add(int(step), float(value))
    return band.departed


@dataclass(frozen=True)
class Score:
    """Mean of SCORES evaluations."""

    step: int
    """Step of the newest of these evaluations."""
    mean: float
    samples: float
    """Answers in all of them together; NaN where unknown."""

    def error(self) -> float:
        """Return the standard error of a share of successes; 0 where it is unknown, so that the loss alone decides."""
        inside = 0 <= self.mean <= 1 and self.samples > 0
        return math.sqrt(self.mean * (1 - self.mean) / self.samples) if inside else 0.0


class CollapseWatch:
    """The rule over a history that grows. Feed it the rows of metrics.jsonl and eval.jsonl in the order written."""

    def __init__(self, period: int = 1, by_accuracy: bool = True):
        """period: steps of a lag cycle. by_accuracy: whether the run evaluates; else its training reward is the
        score."""
        self.period, self.by_accuracy = period, by_accuracy
        self.band = Band(period, MISMATCH_RISE, MISMATCH_CEILING)
        self.best: Score | None = None
        self.newest: Score | None = None
        self.rise = math.nan
        """d_pi's newest level over its lowest."""
        self.rise_since_best = math.nan
        """The highest `rise` since the best score."""
        self.outside_since_best = False
        """True where d_pi was out of its band since then."""
        self.score_fell = False
        """True while the score's half of the rule holds."""
        self.since: int | None = None
        """Evaluation from which on the whole rule has held; None while it does not."""
        self.ever: int | None = None
        """First evaluation at which it held."""
        self._scores: deque[tuple[float, float]] = deque(maxlen=SCORES)
        self._rewards: list[float] = []

    def step(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Take an optimizer step; return what the rule adds to the step's metrics."""
        step = int(number(row, "step", 0))
        self.rise = self.band.add(step, number(row, "mismatch/d_pi"))
        if self.rise == self.rise:
            self.rise_since_best = max(self.rise, self.rise_since_best if self.rise_since_best > 0 else 0.0)
            self.outside_since_best |= self.band.outside
        if not self.by_accuracy:
            reward = number(row, "reward/mean")
            self._rewards += [reward] if reward == reward else []
            if len(self._rewards) == whole_cycles(LEVEL_STEPS, self.period):
                self._add_score(step, sum(self._rewards) / len(self._rewards), math.nan)
                self._rewards.clear()
        known = {"collapse/mismatch_rise": self.rise, "collapse/score_loss": self.score_loss}
        return {name: value for name, value in known.items() if value == value} | {"collapse/met": float(self.met)}

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Take an evaluation."""
        accuracy = number(row, "accuracy")
        if self.by_accuracy and accuracy == accuracy:
            self._add_score(int(number(row, "step", 0)), accuracy, number(row, "n_samples"))

    def _add_score(self, step: int, score: float, samples: float) -> None:
        self._scores.append((score, samples))
        if len(self._scores) < SCORES:
            return
        mean = sum(value for value, _ in self._scores) / SCORES
        self.newest = Score(step, mean, sum(count for _, count in self._scores))
        if self.best is None or mean >= self.best.mean:
            self.best, self.rise_since_best, self.outside_since_best = self.newest, self.rise, self.band.outside
        loss = self.best.mean - mean
        noise = SCORE_ERRORS * math.hypot(self.best.error(), self.newest.error())
        self.score_fell = self.best.mean > 0 and loss >= SCORE_LOSS * self.best.mean and loss > noise
        if self.score_fell and self.outside_since_best:
            self.since = step if self.since is None else self.since
            self.ever = step if self.ever is None else self.ever
        else:
            self.since = None

    def replay(self, steps: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]) -> None:
        """Take the rows of metrics.jsonl and eval.jsonl, merged by step; an evaluation follows the step that it is
        of."""
        tagged = [*((row, self.step) for row in steps), *((row, self.evaluation) for row in evaluations)]
        dated = [(number(row, "step"), row, take) for row, take in tagged]
        for _, row, take in sorted((one for one in dated if math.isfinite(one[0])), key=lambda one: one[0]):
            take(row)

    @property
    def met(self) -> bool:
        """True while the rule holds."""
        return self.since is not None

    @property
    def score_loss(self) -> float:
        """Share of the best score that is lost now; NaN until scores are known."""
        if self.best is None or self.newest is None or self.best.mean <= 0:
            return math.nan
        return 1 - self.newest.mean / self.best.mean

    def sentence(self) -> str:
        """Return what holds now, in words; empty while the rule does not."""
        if not self.met or self.best is None or self.newest is None:
            return ""
        what = "accuracy" if self.by_accuracy else "training reward"
        return (
            f"the run meets the collapse rule since step {self.since}: {what} fell from {self.best.mean:.3f} (mean of "
            f"{SCORES}, to step {self.best.step}) to {self.newest.mean:.3f}, and d_pi left its low band "
            f"({self.rise_since_best:.1f} times its lowest level, {self.band.floor:.4f} nats)"
        )


def judge(metrics: Mapping[str, np.ndarray], evals: Mapping[str, np.ndarray], period: int) -> CollapseWatch:
    """Return the rule over a whole run, from the columns of its metrics.jsonl and eval.jsonl."""
    watch = CollapseWatch(max(1, period), by_accuracy="accuracy" in evals)
    watch.replay(_rows(metrics), _rows(evals))
    return watch


def _rows(columns: Mapping[str, np.ndarray]) -> Iterator[dict[str, float]]:
    known = [key for key in ("step", "mismatch/d_pi", "reward/mean", "accuracy", "n_samples") if key in columns]
    for row in zip(*(columns[key].tolist() for key in known), strict=True):
        yield dict(zip(known, row, strict=True))
