"""What looks unhealthy in a run of slime's own loss, from what its trackers hold: since when, and which flag to try.

Each rule is about a level, the mean over 16 known steps in a row, so that the order of two symptoms is sure only where
more steps than that lie between them. A symptom is no verdict, and none of them says what caused the others.
`runs/health` has the rules for runs of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sat_slime.runs.collapse import (
    KL_RISE,
    LEVEL_STEPS,
    MISMATCH_CEILING,
    MISMATCH_RISE,
    SCORE_ERRORS,
    SCORE_LOSS,
    SCORES,
    Band,
    CollapseWatch,
)
from sat_slime.runs.health import LEAST_ENTROPY
from sat_slime.runs.rows import Columns

START_MISMATCH = 0.05
"""Nats. A mean |d| at the very start, when no update is between engine and trainer, above this is no rounding: the
paper's 30B MoE begins at 0.022 without R3, a dense model below that."""
LEAST_KL = 0.1
"""Nats. The KL to the reference begins at 0, so that nine times its lowest level alone is nothing."""
GRADIENT_RISE = 5.0
ENTROPY_RISE = 3.0
LEAST_CLIPPED = 0.02
"""Share of the tokens from which on a rising clip fraction counts."""
MOST_CAPPED, MOST_TRUNCATED, MOST_REPEATING = 0.05, 0.2, 0.05
"""Weights at their cap, responses cut at the length limit, responses that repeat themselves; as shares."""
SHORTER = 1 / 3
"""Responses are too short below this share of their first length."""
NO_RATIO = 1e-6
"""slime's own checks take a KL below 1e-8 for 0; a tracker rounds."""


@dataclass(frozen=True)
class Symptom:
    """One thing that looks unhealthy."""

    name: str
    seen: str
    """What is seen, with its threshold."""
    advice: str
    """What it can mean, and what to change, by slime's flags and our stabilizers."""
    since: int | None = None
    """Optimizer step from which on it is seen, from 1; None where it holds for the whole run."""
    lasts: bool = True
    """Whether it is still seen at the end."""

    @property
    def heading(self) -> str:
        """Its name and time, in words."""
        if self.since is None:
            return self.name
        return f"{self.name}, from step {self.since}{'' if self.lasts else ', no longer at the end'}"


@dataclass(frozen=True)
class Spell:
    """When a quantity was where it should not be."""

    since: int
    level: float
    """Its farthest level from then on."""
    usual: float
    """The level that it left; NaN where the rule has none."""
    lasts: bool


Test = Callable[[np.ndarray, np.ndarray], Spell | None]
"""From (steps) and (values), both of the known values alone, to the spell, if there is one."""


def left_band(rise: float, ceiling: float = math.inf, least: float = 0.0) -> Test:
    """The level rose to `rise` times its lowest, or to `ceiling`, and to `least` at least."""

    def test(steps: np.ndarray, values: np.ndarray) -> Spell | None:
        band, since, level = Band(1, rise, ceiling), None, 0.0
        outside = False
        for i, (step, value) in enumerate(zip(steps.tolist(), values.tolist(), strict=True)):
            band.add(int(step), value)
            now = float(values[max(0, i + 1 - LEVEL_STEPS) : i + 1].mean())
            high = i + 1 >= LEVEL_STEPS and now >= ceiling
            outside = (band.outside or high) and now >= least
            if outside and since is None:
                since = int(step)
            level = max(level, now) if since is not None else 0.0
        usual = band.floor if math.isfinite(band.floor) else float(values[:LEVEL_STEPS].mean())
        return None if since is None else Spell(since, level, usual, outside)

    return test


def beyond(limit: Callable[[float], float], above: bool = True) -> Test:
    """The level is above, or below, a limit, which may depend on the first level."""

    def test(steps: np.ndarray, values: np.ndarray) -> Spell | None:
        if len(values) < LEVEL_STEPS:
            return None
        levels = _levels(values, LEVEL_STEPS)
        ends, first = steps[LEVEL_STEPS - 1 :], float(levels[0])
        out = levels > limit(first) if above else levels < limit(first)
        if not out.any():
            return None
        worst = float(levels.max() if above else levels.min())
        return Spell(int(ends[out.argmax()]), worst, first, bool(out[-1]))

    return test


@dataclass(frozen=True)
class Rule:
    """A test of one metric and what to say. seen: with {level} and {usual}."""

    name: str
    key: str
    test: Test
    seen: str
    advice: str


RULES = (
    Rule(
        "mismatch",
        "mismatch/d_pi",
        left_band(MISMATCH_RISE, MISMATCH_CEILING),
        f"mean |log π − log μ| went to {{level:.3g}} nats, {MISMATCH_RISE:g} times its lowest level of {{usual:.3g}} "
        f"or above {MISMATCH_CEILING:g}",
        "The trained policy is far from the one that sampled. Less staleness: a smaller --lr or "
        "--update-weights-interval. A bound on it: --use-rollout-logprobs, so that the clip sees it, or --use-tis; "
        "with the plugin sat-gspo, mis-geo or m2po. A MoE: --use-rollout-routing-replay",
    ),
    Rule(
        "start",
        "mismatch/d_pi",
        lambda steps, values: (
            Spell(int(steps[0]), float(values[0]), math.nan, bool(values[-1] > START_MISMATCH))
            if values[0] > START_MISMATCH and steps[0] <= 2
            else None
        ),
        f"mean |log π − log μ| was {{level:.3g}} nats at the first step already, above {START_MISMATCH:g}",
        "No update lies between engine and trainer there, so they compute differently: data types and quantization of "
        "the engine, sampling temperature and top-p that the trainer does not apply, a MoE's routing "
        "(--use-rollout-routing-replay), tokens that a custom rollout function made anew",
    ),
    Rule(
        "clip",
        "clip/fraction",
        left_band(MISMATCH_RISE, least=LEAST_CLIPPED),
        f"{{level:.1%}} of the tokens are clipped, {MISMATCH_RISE:g} times the lowest level of {{usual:.1%}}",
        "Updates go farther than --eps-clip lets them. Try a smaller --lr, or fewer optimizer steps per rollout (a "
        "larger --global-batch-size)",
    ),
    Rule(
        "kl",
        "loss/kl",
        left_band(KL_RISE, least=LEAST_KL),
        f"the KL to the reference went to {{level:.3g}} nats, {KL_RISE:g} times its lowest level of {{usual:.3g}} and "
        f"above {LEAST_KL:g}",
        "The policy runs away from the reference. Try a larger --kl-loss-coef, or a smaller --lr",
    ),
    Rule(
        "entropy",
        "loss/entropy",
        beyond(lambda first: LEAST_ENTROPY * first, above=False),
        "entropy fell to {level:.3g} nats, below a tenth of the {usual:.3g} it began with",
        "Nothing new is tried. Try --entropy-coef, a larger --eps-clip-high, a smaller --lr, and harder prompts",
    ),
    Rule(
        "noise",
        "loss/entropy",
        left_band(ENTROPY_RISE, least=0.05),
        f"entropy rose to {{level:.3g}} nats, {ENTROPY_RISE:g} times its lowest level of {{usual:.3g}}",
        "Responses turn into noise, as unbounded updates on stale bad responses make them. Look at repetition and "
        "truncation beside it; try --use-tis, --use-opsm, topr of the plugin, a smaller --lr",
    ),
    Rule(
        "gradient",
        "grad_norm",
        left_band(GRADIENT_RISE),
        f"the gradient norm went to {{level:.3g}}, {GRADIENT_RISE:g} times its lowest level of {{usual:.3g}}",
        "A few tokens carry the update. Try a smaller --clip-grad, and a gate in the place of a weight (icepop, "
        "mis-geo)",
    ),
    Rule(
        "capped",
        "tis_clipfrac",
        beyond(lambda _: MOST_CAPPED),
        f"{{level:.1%}} of the importance weights are at their cap, above {MOST_CAPPED:.0%}",
        "TIS bounds each weight and lets the token in all the same. Drop such tokens instead: "
        "--custom-tis-function-path slime.backends.megatron_utils.loss.icepop_function, or the plugin's mis-geo",
    ),
    Rule(
        "truncated",
        "truncated_ratio",
        beyond(lambda _: MOST_TRUNCATED),
        f"{{level:.0%}} of the responses were cut at the length limit, above {MOST_TRUNCATED:.0%}",
        "Cut responses get the reward of a wrong answer. Look whether they repeat themselves, or go on after a "
        "turn's end (then --rollout-stop-token-ids lacks it); else raise --rollout-max-response-len, or mask them",
    ),
    Rule(
        "repetition",
        "repetition_frac",
        beyond(lambda _: MOST_REPEATING),
        f"{{level:.0%}} of the responses repeat themselves by slime's own test, above {MOST_REPEATING:.0%}",
        "The policy has broken down in long responses. Go back to a checkpoint before that, with a smaller --lr or a "
        "bound on staleness",
    ),
    Rule(
        "length",
        "response/length_mean",
        beyond(lambda first: SHORTER * first, above=False),
        "responses shrank to {level:.0f} tokens, less than a third of the {usual:.0f} they began with",
        "Short answers are what the loss pays for: look at the normalization by length, and whether the verifier "
        "accepts an answer without its derivation",
    ),
)


def symptoms(metrics: Columns, evals: Columns) -> list[Symptom]:
    """What looks unhealthy. The earliest comes first; what holds for the whole run comes last."""
    found = [*_falls(metrics, evals), *_by_rules(metrics), *_not_finite(metrics)]
    found.sort(key=lambda one: (one.since is None, one.since or 0))
    return found + list(_blind_clip(metrics))


def _by_rules(metrics: Columns) -> list[Symptom]:
    found = []
    for rule in RULES:
        steps, values = known(metrics, rule.key)
        if len(values) and (spell := rule.test(steps, values)) is not None:
            text = rule.seen.format(level=spell.level, usual=spell.usual)
            found.append(Symptom(rule.name, text, rule.advice, spell.since, spell.lasts))
    return found


def known(metrics: Columns, key: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of a metric where it is a finite number."""
    if key not in metrics:
        return np.zeros(0), np.zeros(0)
    there = np.isfinite(metrics[key])
    return metrics["step"][there], metrics[key][there]


def _falls(metrics: Columns, evals: Columns) -> Iterator[Symptom]:
    advice = (
        "Look at what began before it. Go on from a checkpoint before the first of that, with one thing changed: "
        "broken weights seldom learn again what they lost"
    )
    steps, rewards = known(metrics, "reward/mean")
    if (fall := _reward_fall(steps, rewards)) is not None:
        text = f"the training reward fell from {fall.usual:.3f} at its best to {fall.level:.3f}, by a third or more"
        yield Symptom("reward", text, advice, fall.since)
    watch, since = CollapseWatch(), None
    steps, scores = known(evals, "accuracy")
    for step, score in zip(steps.tolist(), scores.tolist(), strict=True):
        watch.evaluation({"step": int(step), "accuracy": score})
        since = (since or int(step)) if watch.score_fell else None
    if since is not None and watch.best is not None and watch.newest is not None:
        since = min(since, _onset(steps, scores, (1 - SCORE_LOSS) * watch.best.mean))
        text = f"the evaluated score fell from {watch.best.mean:.3f} to {watch.newest.mean:.3f} (means of {SCORES})"
        yield Symptom("evaluation", f"{text}, by a third or more", advice, since)


def _reward_fall(steps: np.ndarray, values: np.ndarray) -> Spell | None:
    """From the best level to that of the last 3 levels' steps: by a third or more, and beyond three standard errors of
    the two. Unlike the collapse rule it sees a fall in the first 48 steps, and says when it began. A best level of 0 or
    below has no third."""
    if len(values) < 2 * LEVEL_STEPS:
        return None
    levels = _levels(values, LEVEL_STEPS)
    best, peak = float(levels.max()), int(levels.argmax()) + LEVEL_STEPS
    after = values[max(peak, len(values) - SCORES * LEVEL_STEPS) :]
    if len(after) < LEVEL_STEPS:
        return None
    now, noise = float(after.mean()), float(np.std(values[LEVEL_STEPS - 1 :] - levels))
    error = noise * math.sqrt(1 / LEVEL_STEPS + 1 / len(after))
    if best <= 0 or best - now < SCORE_LOSS * best or best - now <= SCORE_ERRORS * error:
        return None
    return Spell(_onset(steps[LEVEL_STEPS - 1 :], levels, (1 - SCORE_LOSS) * best), now, best, True)


def _onset(steps: np.ndarray, levels: np.ndarray, limit: float) -> int:
    """The step from which on the level stayed below `limit` to the end."""
    good = np.flatnonzero(levels >= limit)
    return int(steps[min(int(good[-1]) + 1 if len(good) else 0, len(steps) - 1)])


def _levels(values: np.ndarray, window: int) -> np.ndarray:
    """Means over `window` values in a row, one for each place at which a window ends."""
    return np.convolve(values, np.full(window, 1 / window), mode="valid")


def _not_finite(metrics: Columns) -> list[Symptom]:
    """A gradient or a loss that was no number while other metrics of its step were."""
    found = []
    for key, what in (("grad_norm", "the gradient norm"), ("loss/total", "the loss")):
        if key not in metrics or "loss/policy" not in metrics:
            continue
        broken = ~np.isfinite(metrics[key]) & np.isfinite(metrics.get("clip/fraction", metrics["loss/policy"]))
        if broken.any():
            steps = metrics["step"][broken]
            found.append(
                Symptom(
                    "overflow",
                    f"{what} was no finite number at {len(steps)} steps",
                    "A log-prob of −inf or an exploding ratio: look at that step's batch "
                    "(--save-debug-train-data), and at top-p sampling whose tokens the trainer finds impossible",
                    int(steps[0]),
                    bool(broken[-1]),
                )
            )
    return found


def _blind_clip(metrics: Columns) -> list[Symptom]:
    """The clip of a run in which every ratio is 1, as slime's is with one optimizer step per rollout."""
    sizes = [np.abs(known(metrics, key)[1]) for key in ("ppo_kl", "clip/fraction")]
    if any(len(size) < LEVEL_STEPS or size.max() > NO_RATIO for size in sizes):
        return []
    weighted = "; what bounds an update here is the cap of TIS alone" if "tis_clipfrac" in metrics else ""
    return [
        Symptom(
            "blind clip",
            f"train/ppo_kl and train/pg_clipfrac are 0 at every step: the ratio is always 1, nothing is ever clipped"
            f"{weighted}",
            "With one optimizer step per rollout slime's old log-probs are the trainer's own, so that the clip sees no "
            "staleness at all. --use-rollout-logprobs puts the engine's there (not together with --use-tis)",
        )
    ]


def order(found: Sequence[Symptom]) -> str:
    """In words, what came before the score fell; empty where nothing fell."""
    fell = next((one for one in found if one.name in ("reward", "evaluation")), None)
    if fell is None or fell.since is None:
        return ""
    ahead = {one: fell.since - one.since for one in found if one.since is not None and one is not fell}
    before = _named(one for one, steps in ahead.items() if steps > LEVEL_STEPS)
    beside = _named(one for one, steps in ahead.items() if abs(steps) <= LEVEL_STEPS)
    text = f"the {fell.name} fell, at step {fell.since}"
    text = f"Before {text}, came: {before}" if before else f"Nothing that is logged moved clearly before {text}"
    return f"{text}; at about the same time: {beside}." if beside else f"{text}."


def _named(found: Iterable[Symptom]) -> str:
    return ", ".join(f"{one.name} (step {one.since})" for one in found)
