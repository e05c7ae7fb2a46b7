"""Says what looks unhealthy in a run, by the table of `runs/rules`: advisories to a run of ours while it goes on, and
symptoms of a run of slime's own loss, from what its trackers hold: since when, and which flag to try.

Each rule is about a level, most often the mean over 16 known steps in a row, so that the order of two symptoms is sure
only where more steps than that lie between them. None is a verdict, and none says what caused the others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from sat_slime.config.jsonl import number
from sat_slime.objective.metrics import slime_names
from sat_slime.runs.collapse import (
    FLOOR_STEPS,
    LEVEL_STEPS,
    SCORE_ERRORS,
    SCORE_LOSS,
    SCORES,
    Band,
    CollapseWatch,
    whole_cycles,
)
from sat_slime.runs.reading import RunData, batch_setting, section
from sat_slime.runs.rows import Columns
from sat_slime.runs.rules import RULES, Rule

GROWTH, FIRST_STEPS = 2.0, 4
"""A mismatch that grew to so many times that of the first steps, which are so few or a cycle of the lag."""
START_MISMATCH = 0.05
"""Nats. A mean |d| at the very start, when no update is between engine and trainer, above this is no rounding: the
paper's 30B MoE begins at 0.022 without R3, a dense model below that."""
MOST_NAMED = 4
"""Metrics that a sentence names."""
NO_RATIO = 1e-6
"""slime's own checks take a KL below 1e-8 for 0; a tracker rounds."""


@dataclass(frozen=True)
class Symptom:
    """One thing that looks unhealthy."""

    name: str
    seen: str
    """A sentence of what is seen, with its threshold."""
    advice: str
    """A text on what it can mean and what to change; it may be empty."""
    since: int | None = None
    """Optimizer step from which on it is seen, from 1; None where it holds for the whole run."""
    lasts: bool = True
    """True where it is still seen at the end."""

    @property
    def heading(self) -> str:
        """Its name and time, in words."""
        if self.since is None:
            return self.name
        return f"{self.name}, from step {self.since}{'' if self.lasts else ', no longer at the end'}"

    @property
    def text(self) -> str:
        """What is seen, and what to try."""
        return f"{self.seen}. {self.advice}" if self.advice else self.seen


# ------------------------------------------------------------------------------------------------ a rule over its steps


class RuleWatch:
    """A rule over the values of its metric, which it takes in the order of the steps."""

    def __init__(self, rule: Rule, period: int = 1, planned: Mapping[str, float] | None = None):
        """period: steps of a lag cycle. planned: as HealthWatch.planned."""
        bound = rule.bound
        self.rule, self._planned = rule, planned or {}
        self.steps = whole_cycles(1 if bound.over == "size" else LEVEL_STEPS, period)
        self._newest: deque[float] = deque(maxlen=self.steps)
        self._known, self._out = 0, 0
        self._first: list[float] = []
        self._band = Band(period, bound.limit, bound.ceiling) if bound.of == "lowest" else None
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
            self._known += 1
            if len(self._first) < self.steps:
                self._first.append(value)
        if self._band is not None:
            self._band.add(step, value)
        known = [newest for newest in self._newest if math.isfinite(newest)]
        self.outside = len(self._newest) == self.steps and bool(known) and self._leaves(known)
        self._out += self.outside
        if self.outside and self.since is None:
            self.since, self.farthest = step, self.level
        elif self.since is not None:
            self.farthest = (max if self.rule.bound.above else min)(self.farthest, self.level)

    def _leaves(self, known: Sequence[float]) -> bool:
        """Take the level of the newest values; return whether it is out of its bound."""
        bound = self.rule.bound
        match bound.over:
            case "mean":
                self.level = sum(known) / len(known)
            case "max":
                self.level = max(known)
            case "sum":
                self.level = sum(known)
            case "size":
                self.level = abs(known[-1])
        if self._band is not None:
            beyond = self._band.outside or self.level >= bound.ceiling
        else:
            limit = bound.limit * (self.usual if bound.of else 1.0)
            beyond = self.level > limit if bound.above else self.level < limit
        return beyond and self.level >= bound.least

    @property
    def usual(self) -> float:
        """The level of which the bound is a multiple; NaN where it is of nothing, or of what is not known."""
        of = self.rule.bound.of
        if self._band is not None and math.isfinite(self._band.floor):
            return self._band.floor
        if of in ("lowest", "beginning") and self._first:
            return median(self._first)
        return self._planned.get(of, math.nan)

    def symptom(self, level: float, or_sat: str = ", or SAT") -> Symptom:
        """Return what is said of a level that is out of its bound."""
        bound, usual = self.rule.bound, self.usual
        crossed = f"above {bound.ceiling:g}"
        if level < bound.ceiling or level >= bound.limit * usual:
            risen = f"more than {bound.limit:g} times its lowest level of {usual:.3g}"
            crossed = risen if level < bound.ceiling else f"{risen}, and {crossed}"
        seen = self.rule.seen.format(
            level=level,
            usual=usual,
            share=level / usual if usual else math.nan,
            limit=bound.limit,
            steps=self.steps,
            crossed=crossed,
            out=self._out,
            known=self._known,
        )
        return Symptom(self.rule.name, seen, self.rule.advice.format(or_sat=or_sat), self.since, self.outside)


# --------------------------------------------------------------------------------------------------------- runs of ours


@dataclass
class HealthWatch:
    """The rules for runs of ours over a history that grows. Feed it the rows of metrics.jsonl in the order written."""

    period: int = 1
    """Steps of a lag cycle."""
    planned: Mapping[str, float] = field(default_factory=dict)
    """Numbers of a run's settings that rules measure by, as far as they tell: tail, lag and responses."""
    holding: dict[str, Symptom] = field(init=False, default_factory=dict)
    """What holds now, by the names of the rules."""

    def __post_init__(self) -> None:
        self._watches = [RuleWatch(rule, self.period, self.planned) for rule in RULES if rule.runs != "slime"]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> HealthWatch:
        """Return the watch of a run with these settings, as config.yaml has them."""
        pipeline, method = section(config, "pipeline"), section(config, "method")
        sat = section(method, "sat")
        lag, steps = pipeline.get("lag"), pipeline.get("optimizer_steps_per_rollout") or 1
        streams = pipeline.get("mode") == "streaming"
        oldest = pipeline.get("max_staleness") if streams else None if lag is None else max(lag, 1) * steps
        prompts, samples = (
            batch_setting(config, name) or 0 for name in ("prompts_per_iteration", "samples_per_prompt")
        )
        settings = {
            "tail": 1 - sat["alpha"] if "alpha" in sat else None,
            "lag": oldest,
            "responses": prompts * samples or None,
        }
        known = {name: value for name, value in settings.items() if value is not None}
        return cls(max(1, (lag or 1) * steps), known)

    def step(self, row: Mapping[str, Any]) -> list[Symptom]:
        """Take an optimizer step; return what begins to hold with it."""
        step = int(number(row, "step", 0.0))
        for watch in self._watches:
            watch.add(step, number(row, watch.rule.metric))
        or_sat = "" if "tail" in self.planned else ", or SAT"
        found = [watch.symptom(watch.level, or_sat) for watch in self._watches if watch.outside]
        new = [symptom for symptom in found if symptom.name not in self.holding]
        self.holding = {symptom.name: symptom for symptom in found}
        return new

    def anew(self, rows: Iterable[Mapping[str, Any]]) -> HealthWatch:
        """Return the same rules over the rows of an earlier part of the run alone."""
        other = HealthWatch(self.period, self.planned)
        for row in rows:
            other.step(row)
        return other


# ------------------------------------------------------------------------------------------------- runs of slime's loss


def symptoms(data: RunData) -> list[Symptom]:
    """Return what looks unhealthy. The earliest comes first; what holds for the whole run comes last. Of two findings
    of one name the later one is told only where it alone lasts to the end."""
    metrics = data.metrics
    found = [*_falls(metrics, data.evals), *_start(metrics), *_not_finite(data), *_by_rules(metrics)]
    told: list[Symptom] = []
    for symptom in sorted(found, key=lambda symptom: symptom.since or 0):
        if not any(one.name == symptom.name and (one.lasts or not symptom.lasts) for one in told):
            told.append(symptom)
    mismatch = next((symptom.since for symptom in told if symptom.name == "mismatch"), None) or math.inf
    for symptom in _drift(metrics):
        if (symptom.since or 0) < mismatch - LEVEL_STEPS:  # else it is the same finding
            told.append(symptom)
    told.sort(key=lambda symptom: symptom.since or 0)
    return told + list(_blind_clip(metrics))


def verdict(data: RunData, found: Sequence[Symptom]) -> str:
    """Return what the absence of further symptoms is worth, in a sentence; empty where some were found, over as many
    steps as levels need. `found`: all symptoms, those of dumps included."""
    steps = len(data.metrics.get("step", ()))
    slimes = {ours: own for own, ours in slime_names().items()}
    logged = (rule for rule in RULES if rule.runs == "slime" or (not rule.runs and rule.metric in slimes))
    of_levels = [rule.metric for rule in logged if rule.bound.over != "size"]
    lengths = {slimes.get(key, key): len(known(data.metrics, key)[0]) for key in ("reward/mean", *of_levels)}
    judged = [name for name, length in lengths.items() if length >= FLOOR_STEPS]
    if not steps:
        return "" if found else "The dumps show nothing unhealthy; without a tracker no curve was judged."
    if not judged:
        opening = "Beyond that no verdict" if found else "No verdict"
        longest = max(lengths.values())
        return f"{opening}: of what the rules judge {longest} steps are there at most, and a level takes {FLOOR_STEPS}."
    missing = ", ".join(name for name in lengths if name not in judged)
    also = f" Not judged, since fewer than {FLOOR_STEPS} steps have it: {missing}." if missing else ""
    return "" if found else f"The rules found nothing unhealthy in {', '.join(judged)} of {steps} steps.{also}"


def _by_rules(metrics: Columns) -> Iterator[Symptom]:
    for watch in [RuleWatch(rule) for rule in RULES if rule.runs != "ours"]:
        steps, values = known(metrics, watch.rule.metric)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            watch.add(int(step), value)
        if watch.since is not None:
            yield watch.symptom(watch.farthest)


def _start(metrics: Columns) -> Iterator[Symptom]:
    """Yield the symptom of a mismatch where no update is between engine and trainer."""
    steps, values = known(metrics, "mismatch/d_pi")
    if len(values) and values[0] > START_MISMATCH and steps[0] <= 2:
        yield Symptom(
            "start",
            f"mean |log π − log μ| was {values[0]:.3g} nats at the first step already, above {START_MISMATCH:g}",
            "No update lies between engine and trainer there, so they compute differently: data types and quantization "
            "of the engine, sampling temperature and top-p that the trainer does not apply, a MoE's routing "
            "(--use-rollout-routing-replay), tokens that a custom rollout function made anew",
            int(steps[0]),
            bool(values[-1] > START_MISMATCH),
        )


def _drift(metrics: Columns) -> Iterator[Symptom]:
    """Yield the growth of the mismatch since the first steps: slower than what the band sees, whose lowest level, a
    mean of 32 steps, grows with it. Each step of the newest level is above each of the first, so that ups and downs
    with the lag are none."""
    steps, values = known(metrics, "mismatch/d_pi")
    lags = known(metrics, "lag/max")[1]
    period = max(1, int(lags.max())) if len(lags) else 1
    steps, values = steps[period:], values[period:]  # the first cycle begins with a batch of lag 0
    few, many = whole_cycles(FIRST_STEPS, period), whole_cycles(LEVEL_STEPS, period)
    if len(values) < few + many:
        return
    first, windows = values[:few], np.lib.stride_tricks.sliding_window_view(values[few:], many)
    levels = windows.mean(axis=1)
    grown = (levels >= GROWTH * first.mean()) & (windows.min(axis=1) > first.max())
    if grown.any():
        yield Symptom(
            "drift",
            f"mean |log π − log μ| grew to {levels[grown].max():.3g} nats, from {first.mean():.3g} in the first steps",
            "Where the lag is the same, the engine computes farther and farther from the trainer, or the updates grow: "
            "look at the first step after a push (--update-weights-interval 1), at data types and a MoE's routing "
            "(--use-rollout-routing-replay); a smaller --lr. Bounds on it as for a mismatch",
            int(steps[few + many - 1 :][grown][0]),
            bool(grown[-1]),
        )


def known(metrics: Columns, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, values) of a metric where it is a finite number."""
    if key not in metrics:
        return np.zeros(0), np.zeros(0)
    there = np.isfinite(metrics[key])
    return metrics["step"][there], metrics[key][there]


def _falls(metrics: Columns, evals: Columns) -> Iterator[Symptom]:
    advice = (
        "Look at what started before it. Resume from a checkpoint before the first of that, with one thing changed: "
        "broken weights seldom learn again what they lost"
    )
    steps, rewards = known(metrics, "reward/mean")
    if (fall := _reward_fall(steps, rewards)) is not None:
        since, now, best = fall
        text = f"the training reward fell from {best:.3f} at its best to {now:.3f}, by a third or more"
        yield Symptom("reward", text, advice, since)
    watch, fell = CollapseWatch(), None
    steps, scores = known(evals, "accuracy")
    for step, score in zip(steps.tolist(), scores.tolist(), strict=True):
        watch.evaluation({"step": int(step), "accuracy": score})
        fell = (fell or int(step)) if watch.score_fell else None
    if fell is not None and watch.best is not None and watch.newest is not None:
        fell = min(fell, _onset(steps, scores, (1 - SCORE_LOSS) * watch.best.mean))
        text = f"the evaluated score fell from {watch.best.mean:.3f} to {watch.newest.mean:.3f} (means of {SCORES})"
        yield Symptom("evaluation", f"{text}, by a third or more", advice, fell)


def _reward_fall(steps: np.ndarray, values: np.ndarray) -> tuple[int, float, float] | None:
    """Return (step at which it began, level now, best level) where the reward fell by a third or more, from the best
    level to that of the last 3 levels' steps, and beyond three standard errors of the two. Unlike the collapse rule it
    sees a fall in the first 48 steps, and says when it began. A best level of 0 or below has no third."""
    if len(values) < 2 * LEVEL_STEPS:
        return None
    levels = np.convolve(values, np.full(LEVEL_STEPS, 1 / LEVEL_STEPS), mode="valid")
    best, peak = float(levels.max()), int(levels.argmax()) + LEVEL_STEPS
    after = values[max(peak, len(values) - SCORES * LEVEL_STEPS) :]
    if len(after) < LEVEL_STEPS:
        return None
    now, noise = float(after.mean()), float(np.std(values[LEVEL_STEPS - 1 :] - levels))
    error = noise * math.sqrt(1 / LEVEL_STEPS + 1 / len(after))
    if best <= 0 or best - now < SCORE_LOSS * best or best - now <= SCORE_ERRORS * error:
        return None
    return _onset(steps[LEVEL_STEPS - 1 :], levels, (1 - SCORE_LOSS) * best), now, best


def _onset(steps: np.ndarray, levels: np.ndarray, limit: float) -> int:
    """Return the step from which on the level stayed below `limit` to the end."""
    good = np.flatnonzero(levels >= limit)
    return int(steps[min(int(good[-1]) + 1 if len(good) else 0, len(steps) - 1)])


def _not_finite(data: RunData) -> Iterator[Symptom]:
    """Yield the symptom of metrics that were no numbers."""
    if not data.not_finite:
        return
    last = int(data.metrics["step"][-1]) if "step" in data.metrics else 0
    broken = {key: sorted(set(steps)) for key, steps in data.not_finite.items()}
    in_order = sorted(broken, key=lambda key: (broken[key][0], key))
    named = [f"{key} at {len(broken[key])} steps from {broken[key][0]} on" for key in in_order[:MOST_NAMED]]
    more = f", and {len(in_order) - MOST_NAMED} more" if len(in_order) > MOST_NAMED else ""
    yield Symptom(
        "overflow",
        f"NaN or infinite: {', '.join(named)}{more}",
        "A log-prob of −inf or an exploding ratio: look at that step's batch (--save-debug-train-data), and at top-p "
        "sampling whose tokens the trainer finds impossible",
        broken[in_order[0]][0],
        any(steps[-1] >= last for steps in broken.values()),
    )


def _blind_clip(metrics: Columns) -> Iterator[Symptom]:
    """Yield the symptom of a clip where every ratio is 1, as slime's is with one optimizer step per rollout."""
    sizes = [np.abs(known(metrics, key)[1]) for key in ("ppo_kl", "clip/fraction")]
    if any(len(size) < LEVEL_STEPS or size.max() > NO_RATIO for size in sizes):
        return
    weighted = "; what bounds an update here is the cap of TIS alone" if "tis_clipfrac" in metrics else ""
    yield Symptom(
        "blind clip",
        f"train/ppo_kl and train/pg_clipfrac are 0 at every step: the ratio is always 1, nothing is ever clipped"
        f"{weighted}",
        "With one optimizer step per rollout slime's old log-probs are the trainer's own, so that the clip sees no "
        "staleness at all. --use-rollout-logprobs puts the engine's there (not together with --use-tis)",
    )


def order(symptoms: Sequence[Symptom]) -> str:
    """Return in words what came before the score fell; empty where nothing fell."""
    fell = next((symptom for symptom in symptoms if symptom.name in ("reward", "evaluation")), None)
    if fell is None or fell.since is None:
        return ""
    ahead = {
        symptom: fell.since - symptom.since for symptom in symptoms if symptom.since is not None and symptom is not fell
    }
    before = _named(symptom for symptom, steps in ahead.items() if steps > LEVEL_STEPS)
    beside = _named(symptom for symptom, steps in ahead.items() if abs(steps) <= LEVEL_STEPS)
    text = f"the {fell.name} fell, at step {fell.since}"
    text = f"Before {text}, came: {before}" if before else f"Nothing that is logged moved clearly before {text}"
    return f"{text}; at about the same time: {beside}." if beside else f"{text}."


def _named(symptoms: Iterable[Symptom]) -> str:
    return ", ".join(f"{symptom.name} (step {symptom.since})" for symptom in symptoms)
