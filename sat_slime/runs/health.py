"""Rules about the level of a metric, over the rows of a run: while it goes on and after it.

The rules are in `runs/rules.py`. A rule says nothing of what is not logged, and is no verdict: a run that it holds for
may learn on. What counts as a collapse is `runs/collapse`, and rules
for runs of slime's own loss are in `runs/symptoms`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sat_slime.runs.collapse import LEVEL_STEPS, Band, whole_cycles
from sat_slime.runs.reading import section
from sat_slime.runs.rows import number
from sat_slime.runs.rules import HEALTH, Rule, Yardstick

Planned = Mapping[Yardstick, float]
"""Numbers of a run's settings that rules measure by, as far as they tell: tail, lag, responses and clipped."""
MOST_CLIPPED = 0.09
"""Share of tokens that GRPO's radius may clip on average, with SAT or without. In the calibration of
studies/one-setting the arms above it after 64 steps lost 2 to 19 points to the best fixed radius of their lag, and none
of the best was above; on fresh seeds the share did not tell the loss."""
RUN_STEPS = 64
"""Steps before the mean of a run is judged: what is clipped falls while a run converges."""


class RuleWatch:
    """A rule over the values of its metric, which it takes in the order of the steps."""

    def __init__(self, rule: Rule, period: int = 1, planned: Planned | None = None):
        """period: steps of a lag cycle."""
        whole_run = rule.bound.over == "run"
        self.rule, self.steps = rule, whole_cycles(RUN_STEPS if whole_run else LEVEL_STEPS, period)
        self._planned = planned or {}
        self._newest: deque[float] = deque(maxlen=self.steps)
        self._total, self._measured = 0.0, 0
        self._first: list[float] = []
        self._band = Band(period, rule.bound.limit, rule.bound.ceiling) if rule.bound.of == "lowest" else None
        self.level = math.nan
        """The newest level; NaN until there is one."""
        self.outside = False
        """True while it is out of its bound."""
        self.since: int | None = None
        """Step from which on it was out of it at some time; None: it never was."""
        self.farthest = math.nan
        """The farthest level from then on."""

    def add(self, step: int, value: float) -> None:
        """Take a step; NaN where the metric was not measured."""
        self._newest.append(value)
        if math.isfinite(value):
            self._total, self._measured = self._total + value, self._measured + 1
            if len(self._first) < self.steps:
                self._first.append(value)
        if self._band is not None:
            self._band.add(step, value)
        known = [newest for newest in self._newest if math.isfinite(newest)]
        if len(self._newest) < self.steps or not known:
            self.outside = False
            return
        over = self.rule.bound.over
        levels = {"mean": sum(known) / len(known), "max": max(known), "sum": sum(known)}
        self.level = self._total / self._measured if over == "run" else levels[over]
        self.outside = self._is_outside()
        if self.outside and self.since is None:
            self.since, self.farthest = step, self.level
        if self.since is not None:
            self.farthest = (max if self.rule.bound.above else min)(self.farthest, self.level)

    def _is_outside(self) -> bool:
        bound = self.rule.bound
        if self._band is not None:
            return (self._band.outside or self.level >= bound.ceiling) and self.level >= bound.least
        limit = bound.limit * (self.usual if bound.of else 1.0)
        return (self.level > limit if bound.above else self.level < limit) and self.level >= bound.least

    @property
    def usual(self) -> float:
        """The level of which the bound is a multiple; NaN where it is of nothing, or of what is not known."""
        of = self.rule.bound.of
        if self._band is not None and math.isfinite(self._band.floor):
            return self._band.floor
        if of in ("lowest", "beginning") and self._first:
            return median(self._first)
        return self._planned.get(of, math.nan)

    def seen(self, level: float) -> str:
        """Return what is said of a level that is out of its bound."""
        bound = self.rule.bound
        crossed = f"above {bound.ceiling:g}"
        if level < bound.ceiling or level >= bound.limit * self.usual:
            risen = f"more than {bound.limit:g} times its lowest level of {self.usual:.3g}"
            crossed = risen if level < bound.ceiling else f"{risen}, and {crossed}"
        share = level / self.usual if self.usual else math.nan
        values = {"level": level, "usual": self.usual, "share": share, "limit": bound.limit, "steps": self.steps}
        return self.rule.seen.format(**values, crossed=crossed)


@dataclass(frozen=True)
class Advisory:
    """One thing that looks unhealthy."""

    name: str
    """The name of the rule that holds."""
    text: str
    """A text that says what is seen, its threshold, and what to try."""


@dataclass
class HealthWatch:
    """The rules of all metrics over a history that grows. Feed it the rows of metrics.jsonl in the order written."""

    period: int = 1
    """Steps of a lag cycle."""
    planned: Planned = field(default_factory=dict)
    holding: dict[str, Advisory] = field(init=False, default_factory=dict)
    """The advisories that hold now, by name."""

    def __post_init__(self) -> None:
        self._watches = {metric: RuleWatch(rule, self.period, self.planned) for metric, rule in HEALTH.items()}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> HealthWatch:
        """Return the watch of a run with these settings, as config.yaml has them."""
        pipeline, rollout = section(config, "pipeline"), section(config, "rollout")
        method = section(config, "method")
        sat = section(method, "sat")
        lag, steps = pipeline.get("lag"), pipeline.get("optimizer_steps_per_rollout") or 1
        streams = pipeline.get("mode") == "streaming"
        oldest = pipeline.get("max_staleness") if streams else None if lag is None else max(lag, 1) * steps
        responses = (rollout.get("prompts_per_iteration") or 0) * (rollout.get("samples_per_prompt") or 0)
        tail = 1 - sat["alpha"] if sat.get("enabled") and "alpha" in sat else None
        settings: dict[Yardstick, float | None] = {
            "tail": tail,
            "lag": oldest,
            "responses": responses or None,
            "clipped": MOST_CLIPPED if method.get("base") == "grpo" else None,
        }
        planned: dict[Yardstick, float] = {name: value for name, value in settings.items() if value is not None}
        return cls(max(1, (lag or 1) * steps), planned)

    def step(self, row: Mapping[str, Any]) -> list[Advisory]:
        """Take an optimizer step; return what begins to hold with it."""
        for metric, watch in self._watches.items():
            watch.add(int(number(row, "step", 0.0)), number(row, metric))
        advisories = [self._advisory(watch) for watch in self._watches.values() if watch.outside]
        new = [advisory for advisory in advisories if advisory.name not in self.holding]
        self.holding = {advisory.name: advisory for advisory in advisories}
        return new

    def _advisory(self, watch: RuleWatch) -> Advisory:
        advice = watch.rule.advice.format(or_sat="" if "tail" in self.planned else ", or SAT")
        return Advisory(watch.rule.name, ". ".join(filter(None, (watch.seen(watch.level), advice))))

    def anew(self) -> HealthWatch:
        """Return the same rules over no history."""
        return HealthWatch(self.period, self.planned)

    def replay(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the rows of an earlier part of the run, without a word."""
        for row in rows:
            self.step(row)
