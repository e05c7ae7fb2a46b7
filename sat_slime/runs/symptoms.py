"""Finds what looks unhealthy in a run of slime's own loss, from what its trackers hold: since when, and which flag to
try.

Each rule is about a level, the mean over 16 known steps in a row, so that the order of two symptoms is sure only where
more steps than that lie between them. A symptom is no verdict, and none of them says what caused the others.
The rules for runs of ours are in `runs/rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sat_slime.objective.metrics import slime_names
from sat_slime.runs.collapse import (
    FLOOR_STEPS,
    KL_RISE,
    LEVEL_STEPS,
    MISMATCH_RISE,
    SCORE_ERRORS,
    SCORE_LOSS,
    SCORES,
    CollapseWatch,
    whole_cycles,
)
from sat_slime.runs.health import RuleWatch
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import Columns
from sat_slime.runs.rules import ENTROPY_LOSS, HEALTH, MISMATCH_BAND, Bound, Rule

BROKEN = {
    "grad_norm": ("gradient", "the gradient norm", 1e3),
    "loss/total": ("loss", "the loss", 1e2),
    "loss/policy": ("loss", "the policy loss", 1e2),
}
"""Name, words and bound of what no step of a run that learns reaches, whatever it began with. Of 839 kept runs of a
small model, up to 64 updates stale, the largest gradient norm at a single step is 720 (27 in those without a symptom)
and the largest loss 4.2; runs of large models report norms below 10, and slime clips them to 1. A loss is a mean of
r A, and A of a group of n responses is below sqrt(n) in size."""
GROWTH, FIRST_STEPS = 2.0, 4
"""A mismatch that grew to so many times that of the first steps, which are so few or a cycle of the lag."""
START_MISMATCH = 0.05
"""Nats. A mean |d| at the very start, when no update is between engine and trainer, above this is no rounding: the
paper's 30B MoE begins at 0.022 without R3, a dense model below that."""
LEAST_KL = 0.1
"""Nats of the KL to the reference."""
MOST_TRUNCATED = 0.2
"""Responses cut at the length limit, as a share."""
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
    """A text on what it can mean, and what to change, by slime's flags and our stabilizers."""
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


RULES: dict[str, tuple[Rule, ...]] = {
    "mismatch/d_pi": (
        Rule(
            "mismatch",
            MISMATCH_BAND,
            "mean |log π − log μ| went to {level:.3g} nats, {crossed}",
            "The trained policy is far from the one that sampled. Less staleness: a smaller --lr or "
            "--update-weights-interval. A bound on it: --use-rollout-logprobs, so that the clip sees it, or --use-tis; "
            "with the plugin sat-gspo, mis-geo or m2po. A MoE: --use-rollout-routing-replay",
        ),
    ),
    "clip/fraction": (
        Rule(
            "clip",
            Bound(MISMATCH_RISE, of="lowest", least=0.02),
            "{level:.1%} of the tokens are clipped, {limit:g} times the lowest level of {usual:.1%}",
            "Updates go farther than --eps-clip lets them. Try a smaller --lr, or fewer optimizer steps per rollout (a "
            "larger --global-batch-size)",
        ),
    ),
    "loss/kl": (
        Rule(
            "kl",
            # It begins at 0, so that nine times its lowest level alone is nothing.
            Bound(KL_RISE, of="lowest", least=LEAST_KL),
            f"the KL to the reference went to {{level:.3g}} nats, {{limit:g}} times its lowest level of {{usual:.3g}} "
            f"and above {LEAST_KL:g}",
            "The policy runs away from the reference. Try a larger --kl-loss-coef, or a smaller --lr",
        ),
    ),
    "loss/entropy": (
        Rule(
            "entropy",
            ENTROPY_LOSS,
            "entropy fell to {level:.3g} nats, below a tenth of the {usual:.3g} it started with",
            "Nothing new is tried. Try --entropy-coef, a larger --eps-clip-high, a smaller --lr, and harder prompts",
        ),
        Rule(
            "noise",
            Bound(3.0, of="lowest", least=0.05),
            "entropy rose to {level:.3g} nats, {limit:g} times its lowest level of {usual:.3g}",
            "Responses turn into noise, as unbounded updates on stale bad responses make them. Look at repetition and "
            "truncation beside it; try --use-tis, --use-opsm, topr of the plugin, a smaller --lr",
        ),
    ),
    "grad_norm": (
        Rule(
            "gradient",
            Bound(5.0, of="lowest"),
            "the gradient norm went to {level:.3g}, {limit:g} times its lowest level of {usual:.3g}",
            "A few tokens carry the update. Try a smaller --clip-grad, and a gate in the place of a weight (icepop, "
            "mis-geo)",
        ),
    ),
    "tis_clipfrac": (
        Rule(
            "capped",
            Bound(0.05),
            "{level:.1%} of the importance weights are at their cap, above {limit:.0%}",
            "TIS bounds each weight and lets the token in all the same. Drop such tokens instead: "
            "--custom-tis-function-path slime.backends.megatron_utils.loss.icepop_function, or the plugin's mis-geo",
        ),
    ),
    "truncated_ratio": (
        Rule(
            "truncated",
            Bound(MOST_TRUNCATED),
            "{level:.0%} of the responses were cut at the length limit, above {limit:.0%}",
            "Cut responses get the reward of a wrong answer. Look whether they repeat themselves, or go on after a "
            "turn's end (then --rollout-stop-token-ids lacks it); else raise --rollout-max-response-len, or mask them",
        ),
    ),
    "repetition_frac": (
        Rule(
            "repetition",
            Bound(0.05),
            "{level:.0%} of the responses repeat themselves by slime's own test, above {limit:.0%}",
            "The policy has broken down in long responses. Go back to a checkpoint before that, with a smaller --lr or "
            "a bound on staleness",
        ),
    ),
    "response/length_mean": (
        Rule(
            "length",
            Bound(1 / 3, above=False, of="beginning"),
            "responses shrank to {level:.0f} tokens, less than a third of the {usual:.0f} they started with",
            "Short answers are what the loss pays for: look at the normalization by length, and whether the verifier "
            "accepts an answer without its derivation",
        ),
    ),
}
"""The rules by the metric that they are about; those of other metrics are in runs/rules.py."""


def symptoms(data: RunData) -> list[Symptom]:
    """Return what looks unhealthy. The earliest comes first; what holds for the whole run comes last. Of two findings
    of one name the later one is told only where it alone lasts to the end."""
    metrics = data.metrics
    found = [*_falls(metrics, data.evals), *_start(metrics), *_not_finite(data), *_broken(metrics), *_by_rules(metrics)]
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
    lengths = {slimes.get(key, key): len(known(data.metrics, key)[0]) for key in ("reward/mean", *RULES)}
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
    for key, rules in ({metric: (rule,) for metric, rule in HEALTH.items()} | RULES).items():
        steps, values = known(metrics, key)
        for watch in map(RuleWatch, rules):
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                watch.add(int(step), value)
            if watch.since is not None:
                advice = watch.rule.advice.format(or_sat=", or SAT")
                yield Symptom(watch.rule.name, watch.seen(watch.farthest), advice, watch.since, watch.outside)


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


def _broken(metrics: Columns) -> Iterator[Symptom]:
    """Yield what is beyond any bound at single steps, from the first one on: no level is needed to see it."""
    for key, (name, what, limit) in BROKEN.items():
        steps, values = known(metrics, key)
        beyond = np.abs(values) > limit
        if beyond.any():
            yield Symptom(
                name,
                f"{what} was above {limit:g} in size at {int(beyond.sum())} of {len(steps)} steps, "
                f"{np.abs(values).max():.3g} at most",
                "No batch that is whole has this: a token that one side finds impossible, a mask or an advantage of "
                "the wrong scale. Look at that step's batch (--save-debug-train-data), and stop: --clip-grad scales "
                "such an update down and keeps its direction",
                int(steps[beyond][0]),
                bool(beyond[-1]),
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
