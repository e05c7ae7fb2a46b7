"""Finds what looks unhealthy in a run of slime's own loss, from what its trackers hold: since when, and which flag to
try.

Each rule is about a level, the mean over 16 known steps in a row, so that the order of two symptoms is sure only where
more steps than that lie between them. A symptom is no verdict, and none of them says what caused the others.
The rules for runs of ours are in the metrics' entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sat_slime.objective.metric import Bound, Rule
from sat_slime.objective.metrics import ENTROPY_LOSS, MISMATCH_BAND, run_metrics
from sat_slime.runs.collapse import (
    KL_RISE,
    LEVEL_STEPS,
    MISMATCH_CEILING,
    MISMATCH_RISE,
    SCORE_ERRORS,
    SCORE_LOSS,
    SCORES,
    CollapseWatch,
)
from sat_slime.runs.health import RuleWatch
from sat_slime.runs.rows import Columns

START_MISMATCH = 0.05
"""Nats. A mean |d| at the very start, when no update is between engine and trainer, above this is no rounding: the
paper's 30B MoE begins at 0.022 without R3, a dense model below that."""
LEAST_KL = 0.1
"""Nats of the KL to the reference."""
MOST_TRUNCATED = 0.2
"""Responses cut at the length limit, as a share."""
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
            f"mean |log π − log μ| went to {{level:.3g}} nats, {MISMATCH_RISE:g} times its lowest level of "
            f"{{usual:.3g}} or above {MISMATCH_CEILING:g}",
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
"""The rules by the metric that they are about; those of other metrics are in their entries."""


def symptoms(metrics: Columns, evals: Columns) -> list[Symptom]:
    """Return what looks unhealthy. The earliest comes first; what holds for the whole run comes last."""
    ordered = [*_falls(metrics, evals), *_start(metrics), *_by_rules(metrics), *_not_finite(metrics)]
    ordered.sort(key=lambda symptom: (symptom.since is None, symptom.since or 0))
    return ordered + list(_blind_clip(metrics))


def _by_rules(metrics: Columns) -> Iterator[Symptom]:
    entries = {metric.pattern: (metric.health,) for metric in run_metrics() if metric.health is not None}
    for key, rules in (entries | RULES).items():
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


def _not_finite(metrics: Columns) -> Iterator[Symptom]:
    """Yield the symptom of a gradient or a loss that was no number while other metrics of its step were."""
    for key, what in (("grad_norm", "the gradient norm"), ("loss/total", "the loss")):
        if key not in metrics or "loss/policy" not in metrics:
            continue
        broken = ~np.isfinite(metrics[key]) & np.isfinite(metrics.get("clip/fraction", metrics["loss/policy"]))
        if broken.any():
            steps = metrics["step"][broken]
            yield Symptom(
                "overflow",
                f"{what} was no finite number at {len(steps)} steps",
                "A log-prob of −inf or an exploding ratio: look at that step's batch "
                "(--save-debug-train-data), and at top-p sampling whose tokens the trainer finds impossible",
                int(steps[0]),
                bool(broken[-1]),
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
