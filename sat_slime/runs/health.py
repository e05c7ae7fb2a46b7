"""Says what looks unhealthy in a run, by a table of rules: bounds on the level of a metric, what is then said, and what
to try. A run of ours is judged by its metrics.jsonl, one of slime's own loss by what its trackers hold.

A level is most often the mean over 16 known steps in a row, so that the order of two symptoms is sure only where more
steps than that lie between them. None is a verdict, and none says what caused the others: a run that a rule holds for
may learn on. What counts as a collapse is `Collapse`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from sat_slime.config.jsonl import number
from sat_slime.objective.metrics import slime_names
from sat_slime.runs.reading import Columns, RunData, has, known, realized_lag, section

LEVEL_STEPS, FLOOR_STEPS = 16, 32
"""A level, and the lowest level, are means over at least so many steps."""
MISMATCH_RISE, MISMATCH_CEILING = 3.0, 0.15
"""d_pi over its lowest level, and the nats from which on no level counts as low. The paper's run at lag 8 leaves its
band of 0.01 above 0.03. Baselines that learn on were seen to reach this factor too: the mismatch alone tells no
collapse. The ceiling is ten times what the paper shows of runs that do not collapse."""
SCORES, SCORE_LOSS, SCORE_ERRORS = 3, 1 / 3, 3.0
"""A score is the mean of so many evaluations: one bad evaluation is no collapse. Share of the best score that is lost,
and standard errors that the loss is at least, where the number of samples is known."""
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
class Rule:
    """Where the level of a metric stops being healthy, what is then said, and what to try. The level is taken of the
    newest 16 steps, or more for whole cycles of the lag.

    The texts may name `{level}`; `{usual}`, what the limit is a multiple of; `{share}`, level over usual; `{limit}`;
    `{steps}` of the level; `{crossed}`, which limit of a level against its lowest was crossed, in words; `{out}`, the
    steps that were out of the bound, and `{known}`, those that have the metric.
    """

    name: str
    """What is then seen, in a word."""
    metric: str
    limit: float
    above: bool = True
    """True where the level is unhealthy above the limit; else it is below it."""
    of: Literal["", "beginning", "lowest", "tail", "lag", "responses"] = ""
    """What the limit is a multiple of; empty: it is the limit itself. `beginning`: the median of the first level.
    `lowest`: the lowest mean over at least 32 steps. Of the run's settings, without which nothing is unhealthy: `tail`,
    the 1 − alpha of SAT; `lag`, the updates that a token may be old; `responses` of a batch."""
    over: Literal["mean", "max", "sum", "size"] = "mean"
    """The way in which the level follows from the values of the steps. `size`: the size at a single step."""
    ceiling: float = math.inf
    """With `lowest`: a level that is unhealthy whatever the lowest one was."""
    least: float = -math.inf
    """A level below this is healthy, whatever the multiple."""
    runs: Literal["", "ours", "slime"] = ""
    """The runs that it is for: ours, or those of slime's own loss; empty: both."""
    seen: str = ""
    advice: str = ""
    """A text on what to try. `{or_sat}`: ", or SAT", where that is off."""

    def says(self, seen: str, advice: str = "") -> Rule:
        return replace(self, seen=seen, advice=advice)


MOST_GRADIENT, MOST_LOSS = 1e3, 1e2
"""Sizes that no step of a run that learns reaches, whatever it began with. Of 839 kept runs of a small model, up to 64
updates stale, the largest gradient norm at a single step is 720 (27 in those without a symptom) and the largest loss
4.2; runs of large models report norms below 10, and slime clips them to 1. A loss is a mean of r A, and A of a group of
n responses is below sqrt(n) in size."""
WRONG_WEIGHTS = 6.0
"""The implementation part of d_pi at the worst step, of that of the first steps. In 620 runs of a small model without
R3 it rose up to 5.5 times in 128 steps, and stayed below 0.06 nats; where one engine of two was given the initial
weights it was more than ten times as large at once."""
LEAST_ESS = 0.5
"""Effective sample size of pi / mu over the tokens, as a share: below, half of a batch counts for nothing."""
MOST_TRUNCATED = 0.2
"""Responses cut at the length limit, as a share."""
BEYOND = "was above {limit:g} in size at {out} of {known} steps, {level:.3g} at most"
BROKEN_BATCH = (
    "No batch that is whole has this: a token that one side finds impossible, a mask or an advantage of the wrong "
    "scale. Look at that step's batch (--save-debug-train-data), and stop: --clip-grad scales such an update down and "
    "keeps its direction"
)

RULES = (
    Rule("gradient", "grad_norm", MOST_GRADIENT, over="size", runs="slime").says(
        f"the gradient norm {BEYOND}", BROKEN_BATCH
    ),
    Rule("loss", "loss/total", MOST_LOSS, over="size", runs="slime").says(f"the loss {BEYOND}", BROKEN_BATCH),
    Rule("loss", "loss/policy", MOST_LOSS, over="size", runs="slime").says(f"the policy loss {BEYOND}", BROKEN_BATCH),
    Rule("mismatch", "mismatch/d_pi", MISMATCH_RISE, of="lowest", ceiling=MISMATCH_CEILING).says(
        "mean |log π − log μ| is {level:.3g} nats, {crossed}",
        "The trained policy is far from the one that sampled. Try a smaller lag, radius or learning rate{or_sat}. "
        "Denominator rollout (--use-rollout-logprobs) lets the clip see it, tis (--use-tis) or mis-geo bound it, and "
        "for a MoE r3 (--use-rollout-routing-replay) lowers it",
    ),
    Rule("ess", "mismatch/ess", LEAST_ESS, above=False).says(
        "the effective sample size is {level:.1%} of the tokens, below {limit:.0%}: a few stale ones "
        "carry the gradient",
        "Try a smaller lag or clip radius, or cap the weights (tis)",
    ),
    Rule("engine", "mismatch/implementation", WRONG_WEIGHTS, of="beginning", over="max", least=0.01).says(
        "engine and trainer differ by {level:.3g} nats a token at the same weights, more than {limit:g} times the "
        "{usual:.3g} of the first steps: an engine has other weights than it says, or computes otherwise",
        "Look into the engines' logs for a restart; pipeline.canary: stop names such an engine at the next push",
    ),
    Rule("lag", "lag/max", 1, of="lag", over="max", runs="ours").says(
        "tokens are up to {level:g} updates old, {usual:g} by the plan: weights reach the engines late",
        "Look for errors of the broadcast in the log",
    ),
    Rule("gate", "sat/gate_rate", 0.1, above=False, of="tail", runs="ours").says(
        "SAT's gate is open for {level:.2%} of the tokens, less than a tenth of the tail's {usual:.1%}: "
        "its quantile is over too few responses",
        "Set method.sat.scope to step, or make micro-batches larger",
    ),
    Rule("clip", "clip/fraction", MISMATCH_RISE, of="lowest", least=0.02, runs="slime").says(
        "{level:.1%} of the tokens are clipped, {limit:g} times the lowest level of {usual:.1%}",
        "Updates go farther than --eps-clip lets them. Try a smaller --lr, or fewer optimizer steps per rollout (a "
        "larger --global-batch-size)",
    ),
    Rule("entropy", "loss/entropy", 0.1, above=False, of="beginning").says(
        "entropy is {level:.3g} nats, below a tenth of the {usual:.3g} it started with: nothing new is tried",
        "Try an entropy bonus (loss.entropy_coef; --entropy-coef in a script of slime's), a larger KL term or upper "
        "radius, a smaller learning rate, harder prompts",
    ),
    Rule("noise", "loss/entropy", 3.0, of="lowest", least=0.05, runs="slime").says(
        "entropy rose to {level:.3g} nats, {limit:g} times its lowest level of {usual:.3g}",
        "Responses turn into noise, as unbounded updates on stale bad responses make them. Look at repetition and "
        "truncation beside it; try --use-tis, --use-opsm, topr of the plugin, a smaller --lr",
    ),
    Rule("rejected", "rollout/rejected", 0.01, of="responses", runs="ours").says(
        "{share:.1%} of the responses failed a check, above {limit:.0%}: rollout/rejected/REASON in "
        "metrics.jsonl says which",
    ),
    Rule("canary", "canary/faults", 0, over="sum").says(
        "the canary found engines without the pushed weights {level:g} times in {steps} steps",
        "The log names engine, push and remedy; `pipeline.canary: stop` ends such a run",
    ),
    # It grows as the square of d, from 0, so that nine times its lowest level alone is nothing.
    Rule("kl", "loss/kl", MISMATCH_RISE**2, of="lowest", least=0.1, runs="slime").says(
        "the KL to the reference went to {level:.3g} nats, {limit:g} times its lowest level of {usual:.3g} "
        "and above 0.1",
        "The policy runs away from the reference. Try a larger --kl-loss-coef, or a smaller --lr",
    ),
    Rule("gradient", "grad_norm", 5.0, of="lowest", runs="slime").says(
        "the gradient norm went to {level:.3g}, {limit:g} times its lowest level of {usual:.3g}",
        "A few tokens carry the update. Try a smaller --clip-grad, and a gate in the place of a weight (icepop, "
        "mis-geo)",
    ),
    Rule("capped", "tis_clipfrac", 0.05, runs="slime").says(
        "{level:.1%} of the importance weights are at their cap, above {limit:.0%}",
        "TIS bounds each weight and lets the token in all the same. Drop such tokens instead: "
        "--custom-tis-function-path slime.backends.megatron_utils.loss.icepop_function, or the plugin's mis-geo",
    ),
    Rule("truncated", "truncated_ratio", MOST_TRUNCATED, runs="slime").says(
        "{level:.1%} of the responses were cut at the length limit, above {limit:.0%}",
        "Cut responses get the reward of a wrong answer. Look whether they repeat themselves, or go on after a "
        "turn's end (then --rollout-stop-token-ids lacks it); else raise --rollout-max-response-len, or mask them",
    ),
    Rule("repetition", "repetition_frac", 0.05, runs="slime").says(
        "{level:.1%} of the responses repeat themselves by slime's own test, above {limit:.0%}",
        "The policy has broken down in long responses. Go back to a checkpoint before that, with a smaller --lr or "
        "a bound on staleness",
    ),
    Rule("length", "response/length_mean", 1 / 3, above=False, of="beginning", runs="slime").says(
        "responses shrank to {level:.0f} tokens, less than a third of the {usual:.0f} they started with",
        "Short answers are what the loss pays for: look at the normalization by length, and whether the verifier "
        "accepts an answer without its derivation",
    ),
)


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
        if self.since is None:
            return self.name
        return f"{self.name}, from step {self.since}{'' if self.lasts else ', no longer at the end'}"

    @property
    def text(self) -> str:
        return f"{self.seen}. {self.advice}" if self.advice else self.seen


def whole_cycles(steps: int, period: int) -> int:
    """Return at least so many steps, in whole cycles of the lag."""
    return period * -(-steps // period)


def windows(values: np.ndarray, size: int) -> np.ndarray:
    """Return (n, size): the newest values at each of (n,) steps, NaN before the first; of n + 1 values at most."""
    size = min(size, len(values) + 1)  # a lag may be as large as anybody likes
    return np.lib.stride_tricks.sliding_window_view(np.concatenate([np.full(size, np.nan), values]), size)[1:]


def band_of(values: pd.Series, period: int, rise: float, ceiling: float = math.inf) -> pd.DataFrame:
    """Return for each of finite values that cycle with the lag: level, a mean; floor, the lowest so far, NaN until it
    is known; risen, the level over it; left, whether the level is out of the band, which ends at `rise` times the
    lowest one, or at `ceiling`."""
    counted = values.iloc[period:]  # the first cycle begins with a batch of lag 0
    level, lowest = (
        pd.Series(windows(counted.to_numpy(), whole_cycles(steps, period)).mean(axis=1), counted.index, float)
        for steps in (LEVEL_STEPS, FLOOR_STEPS)
    )
    floor = lowest.cummin()
    risen = (level / floor).where(floor > 0)
    left = floor.notna() & ((risen >= rise) | (level >= ceiling))
    band = pd.DataFrame({"level": level, "floor": floor, "risen": risen}).reindex(values.index)
    return band.assign(left=left.reindex(values.index, fill_value=False))


def judged(
    rule: Rule, steps: np.ndarray, values: np.ndarray, period: int, planned: Mapping[str, float]
) -> Symptom | None:
    """Return what a rule says of the values of its metric, with the worst level since it began, or None.

    Args:
        steps: (n,).
        values: (n,), NaN where a step did not measure it.
        period: steps of a lag cycle.
        planned: what is known of the run's settings that rules measure by, as of `measures`.
    """
    there = np.isfinite(values)
    size = 1 if rule.over == "size" else whole_cycles(LEVEL_STEPS, period)
    recent = windows(np.where(there, values, np.nan), size)
    measured = np.isfinite(recent)
    total, counts = np.where(measured, recent, 0).sum(axis=1), measured.sum(axis=1)
    level = {
        "mean": total / np.maximum(counts, 1),
        "max": np.where(measured, recent, -np.inf).max(axis=1),
        "sum": total,
        "size": np.abs(recent[:, 0]),
    }[rule.over]
    level = np.where((counts > 0) & (np.arange(len(values)) >= size - 1), level, np.nan)
    finite = pd.Series(values)[there]
    usual = np.full(len(values), planned.get(rule.of, np.nan))
    if rule.of in ("lowest", "beginning"):
        usual = finite.head(size).expanding().median().reindex(range(len(values))).ffill().to_numpy()
    limit = rule.limit * usual if rule.of else rule.limit
    outside = level > limit if rule.above else level < limit
    if rule.of == "lowest":
        band = band_of(finite, period, rule.limit, rule.ceiling)
        floor = band["floor"].reindex(range(len(values))).ffill().to_numpy()
        usual = np.where(np.isnan(floor), usual, floor)
        outside = level >= rule.ceiling
        outside[there] |= band["left"].to_numpy()
    outside &= level >= rule.least
    if not outside.any():
        return None
    since = int(outside.argmax())
    told, beside = float((np.fmax if rule.above else np.fmin).reduce(level[since:])), float(usual[-1])
    crossed = f"above {rule.ceiling:g}"
    if told < rule.ceiling or told >= rule.limit * beside:
        risen = f"more than {rule.limit:g} times its lowest level of {beside:.3g}"
        crossed = risen if told < rule.ceiling else f"{risen}, and {crossed}"
    facts = {"level": told, "usual": beside, "limit": rule.limit, "steps": size, "crossed": crossed}
    facts |= {"share": told / beside if beside else math.nan, "out": outside.sum(), "known": there.sum()}
    advice = rule.advice.format(or_sat="" if "tail" in planned else ", or SAT")
    return Symptom(rule.name, rule.seen.format(**facts), advice, int(steps[since]), bool(outside[-1]))


def scores(steps: np.ndarray, values: np.ndarray, samples: np.ndarray | float = math.nan) -> pd.DataFrame:
    """Return the scores of evaluations, from the third on: step, of the newest of SCORES; mean; error, the standard
    error of a share of successes, 0 where that is unknown: then the loss alone decides; best, the row of the best score
    so far; fell, whether it lies below that by a third and beyond the errors of the two."""
    frame = pd.DataFrame({"step": steps, "mean": values, "answers": samples})
    for column in ("mean", "answers"):
        frame[column] = windows(frame[column].to_numpy(float), SCORES).sum(axis=1) / SCORES
    frame = frame[SCORES - 1 :].reset_index(drop=True)
    mean, top = frame["mean"], frame["mean"].cummax()
    error = np.sqrt((mean * (1 - mean)).clip(lower=0) / (SCORES * frame["answers"]))
    frame["error"] = error.where(mean.between(0, 1) & (frame["answers"] > 0), 0.0)
    frame["best"] = pd.Series(frame.index, dtype=float).where(mean == top).ffill().astype(int)
    noise = SCORE_ERRORS * np.hypot(frame["error"].to_numpy()[frame["best"]], frame["error"])
    return frame.assign(fell=(top > 0) & (top - mean >= SCORE_LOSS * top) & (top - mean > noise))


@dataclass
class Collapse:
    """The collapse rule, the same for every run.

    A run **has collapsed** where, at an evaluation, both hold:

    - **score**: the mean of the newest 3 evaluations lies at least a third below the best such mean so far, and at
      least 3 standard errors of the two;
    - **mismatch**: at some step since that best, d_pi was out of its low band: its mean over the newest 16 steps or
      more (a whole number of lag cycles) was at least three times the lowest mean that it has held over 32 steps or
      more, or at least 0.15 nats, for a run that never had a low level.

    Where it holds at the last evaluation the run is marked as collapsed, from the evaluation on since when it has held;
    where it held and no longer does, as recovered. A run without evaluations is judged by its training reward, in
    blocks of 16 steps or more. What the rule cannot see (too few evaluations, no d_pi) it does not mark.
    """

    known: bool = False
    """Whether there are as many evaluations as a score takes."""
    fell: bool = False
    """Whether the score fell, whatever the mismatch did."""
    since: int | None = None
    """Evaluation from which on the whole rule has held; None while it does not."""
    ever: int | None = None
    """First evaluation at which it held."""
    departed: int | None = None
    """First step at which d_pi was out of its low band."""
    sentence: str = ""
    """What holds now, in words; empty while the rule does not."""

    @property
    def met(self) -> bool:
        return self.since is not None


def judge(metrics: Columns, evals: Columns, period: int) -> Collapse:
    """Return the collapse rule over the columns of a run's metrics.jsonl and eval.jsonl, by its training reward where
    it has no accuracy. period: steps of a lag cycle."""
    steps, d_pi = known(metrics, "mismatch/d_pi")
    band = band_of(pd.Series(d_pi), period, MISMATCH_RISE, MISMATCH_CEILING)
    left = band["left"].to_numpy()
    what, (at, values) = "accuracy", known(evals, "accuracy")
    samples: np.ndarray | float = math.nan
    if "accuracy" not in evals:
        what, (at, values) = "training reward", known(metrics, "reward/mean")
        block = whole_cycles(LEVEL_STEPS, period)
        count = len(values) // block
        at, values = at[block - 1 :: block], values[: count * block].reshape(count, block).mean(axis=1)
    elif "n_samples" in evals:
        samples = evals["n_samples"][np.isfinite(evals["accuracy"]) & np.isfinite(evals["step"])]
    found = Collapse(len(values) >= SCORES, departed=int(steps[left.argmax()]) if left.any() else None)
    every = scores(at, values, samples)
    # The steps up to an evaluation's own were before it.
    before = np.searchsorted(np.maximum.accumulate(steps), at, "right")[SCORES - 1 :]
    for newest, now in zip(every.itertuples(), before, strict=True):
        best = every.loc[newest.best]
        best_before = max(0, before[newest.best] - 1)
        found.fell = bool(newest.fell)
        holds = found.fell and bool(left[best_before:now].any())
        found.since = (found.since or int(newest.step)) if holds else None
        found.ever = found.ever or found.since
        found.sentence = ""
        if holds:
            peak = band.loc[band["level"][best_before:now].idxmax()]
            found.sentence = (
                f"the run meets the collapse rule since step {found.since}: {what} fell from {best['mean']:.3f} "
                f"(mean of {SCORES}, to step {best['step']:.0f}) to {newest.mean:.3f}, and d_pi left its low band "
                f"({peak.level:.4f} nats, after {peak.floor:.4f} at its lowest)"
            )
    return found


def measures(config: Mapping[str, Any]) -> dict[str, float]:
    """Return what config.yaml has of the settings that rules measure by: tail, lag and responses."""
    pipeline, sat = section(config, "pipeline"), section(section(config, "method"), "sat")
    lag, steps = pipeline.get("lag"), pipeline.get("optimizer_steps_per_rollout") or 1
    streams = pipeline.get("mode") == "streaming"
    if "slime" in config:
        batch, keys = section(config, "slime"), ("rollout-batch-size", "n-samples-per-prompt")
    else:
        batch, keys = section(config, "rollout"), ("prompts_per_iteration", "samples_per_prompt")
    settings = {
        "tail": 1 - number(sat, "alpha"),
        "lag": pipeline.get("max_staleness") if streams else None if lag is None else max(lag, 1) * steps + steps - 1,
        "responses": math.prod(number(batch, key, 0.0) for key in keys) or None,
    }
    return {name: value for name, value in settings.items() if value is not None and math.isfinite(value)}


def advisories(data: RunData, planned: Mapping[str, float]) -> Iterator[Symptom]:
    """Yield what ever looked unhealthy in a run of ours."""
    if has(data.metrics, "sat/gate_rate"):
        planned = {"tail": math.nan, **planned}  # SAT is on, whether or not its alpha is known
    for rule in RULES:
        if rule.runs != "slime" and has(data.metrics, rule.metric):
            values = data.metrics[rule.metric]
            steps = np.nan_to_num(data.metrics.get("step", np.zeros(len(values))))  # a damaged row may lack its own
            if symptom := judged(rule, steps, values, data.period, planned):
                yield symptom


def symptoms(data: RunData) -> list[Symptom]:
    """Return what looks unhealthy, by the rules for runs of ours where it is one. The earliest comes first, what holds
    for the whole run last. Of two findings of one name the later is told only where it alone lasts to the end."""
    metrics = data.metrics
    found = [*_falls(metrics, data.evals), *_start(metrics), *_not_finite(data)]
    if data.settings is not None:
        found += advisories(data, measures(data.settings))
    for rule in RULES if data.settings is None else ():
        if rule.runs != "ours" and (symptom := judged(rule, *known(metrics, rule.metric), 1, {})):
            found.append(symptom)
    mismatch = min((symptom.since or math.inf for symptom in found if symptom.name == "mismatch"), default=math.inf)
    # else it is the same finding
    found += [symptom for symptom in _drift(metrics) if (symptom.since or 0) < mismatch - LEVEL_STEPS]
    told: list[Symptom] = []
    for symptom in sorted(found, key=lambda symptom: symptom.since or 0):
        if not any(one.name == symptom.name and (one.lasts or not symptom.lasts) for one in told):
            told.append(symptom)
    return [*told, *_without_effect(metrics)]


def _start(metrics: Columns) -> Iterator[Symptom]:
    """Yield the symptom of a mismatch where no update is between engine and trainer."""
    steps, values = known(metrics, "mismatch/d_pi")
    if len(values) and values[0] > START_MISMATCH and steps[0] <= 2:
        yield Symptom(
            "start",
            f"mean |log π − log μ| was {values[0]:.3g} nats at the first step already, above {START_MISMATCH:g}",
            "No update lies between engine and trainer there, so they compute differently: data types and quantization "
            "of the engine, sampling temperature and top-p that the trainer does not apply, a MoE's routing (r3: "
            "--use-rollout-routing-replay), tokens that a custom rollout function made anew",
            int(steps[0]),
            bool(values[-1] > START_MISMATCH),
        )


def _drift(metrics: Columns) -> Iterator[Symptom]:
    """Yield the growth of the mismatch since the first steps: slower than what the band sees, whose lowest level, a
    mean of 32 steps, grows with it. Each step of the newest level is above each of the first, so that ups and downs
    with the lag are none."""
    steps, values = known(metrics, "mismatch/d_pi")
    lag, of_one = realized_lag(metrics)
    period = max(lag, 1) * of_one
    steps, values = steps[period:], values[period:]  # the first cycle begins with a batch of lag 0
    few, many = whole_cycles(FIRST_STEPS, period), whole_cycles(LEVEL_STEPS, period)
    first, after = values[:few], values[few:]
    if len(after) < many:
        return
    levels = np.lib.stride_tricks.sliding_window_view(after, many)
    level = levels.mean(axis=1)
    grown = (level >= GROWTH * first.mean()) & (levels.min(axis=1) > first.max())
    if grown.any():
        yield Symptom(
            "drift",
            f"mean |log π − log μ| grew to {level[grown].max():.3g} nats, from {first.mean():.3g} in the first steps",
            "Where the lag is the same, the engine computes farther and farther from the trainer, or the updates grow: "
            "look at the first step after a push (lag 1: --update-weights-interval 1), at data types and a MoE's "
            "routing (r3: --use-rollout-routing-replay); a smaller learning rate. Bounds on it as for a mismatch",
            int(steps[few + many - 1 :][grown][0]),
            bool(grown[-1]),
        )


def _falls(metrics: Columns, evals: Columns) -> Iterator[Symptom]:
    """Yield the falls of training reward and evaluated score by a third or more. Unlike the collapse rule this sees one
    in the first 48 steps, and says when it began: from when on the level stayed below two thirds of the best."""
    advice = (
        "Look at what started before it. Resume from a checkpoint before the first of that, with one thing changed: "
        "broken weights seldom learn again what they lost"
    )

    def onset(steps: np.ndarray, level: np.ndarray, best: float) -> int:
        good = np.flatnonzero(level >= (1 - SCORE_LOSS) * best)
        return int(steps[min(int(good[-1]) + 1 if len(good) else 0, len(steps) - 1)])

    steps, values = known(metrics, "reward/mean")
    if len(values) >= 2 * LEVEL_STEPS:
        full = slice(LEVEL_STEPS - 1, None)
        level = np.lib.stride_tricks.sliding_window_view(values, LEVEL_STEPS).mean(axis=1)
        best, peak = float(level.max()), int(level.argmax()) + LEVEL_STEPS
        after = values[max(peak, len(values) - SCORES * LEVEL_STEPS) :]
        now = float(after.mean()) if len(after) >= LEVEL_STEPS else math.inf
        error = float(np.std(values[full] - level)) * math.sqrt(1 / LEVEL_STEPS + 1 / max(1, len(after)))
        if best > 0 and best - now >= SCORE_LOSS * best and best - now > SCORE_ERRORS * error:
            text = f"the training reward fell from {best:.3f} at its best to {now:.3f}, by a third or more"
            yield Symptom("reward", text, advice, onset(steps[full], level, best))
    steps, values = known(evals, "accuracy")
    every = scores(steps, values)
    if len(every) and every["fell"].iloc[-1]:
        best, newest = every["mean"][every["best"].iloc[-1]], every["mean"].iloc[-1]
        text = f"the evaluated score fell from {best:.3f} to {newest:.3f} (means of {SCORES})"
        since = every["step"][every.index[~every["fell"]].max() + 1]
        began = min(int(since), onset(steps, values, best))
        yield Symptom("evaluation", f"{text}, by a third or more", advice, began)


def _not_finite(data: RunData) -> Iterator[Symptom]:
    """Yield the symptom of metrics that were no numbers."""
    if not data.not_finite:
        return
    last = int(np.nanmax(data.metrics["step"])) if "step" in data.metrics else 0
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


def _without_effect(metrics: Columns) -> Iterator[Symptom]:
    """Yield the symptoms of a SAT that removes nothing, and of a clip where every ratio is 1, as slime's is with one
    optimizer step per rollout."""
    newly = known(metrics, "sat/newly_clipped")[1]
    if len(newly) >= LEVEL_STEPS and not newly.any():
        yield Symptom(
            "no-op",
            "SAT changed nothing: sat/newly_clipped is 0 at every step",
            "Where sat/radius_high is the base's own radius, the quantile of |d| lies beyond it, and a wider one "
            "(--eps-clip, method.clip) lets SAT act. Where sat/gate_rate is 0, set method.sat.scope to step, or make "
            "micro-batches larger",
        )
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


def verdict(data: RunData, found: Sequence[Symptom]) -> str:
    """Return what the absence of further symptoms is worth, in a sentence; empty where some were found, over as many
    steps as levels need. `found`: all symptoms, those of dumps included."""
    steps = len(data.metrics.get("step", ()))
    if not steps:
        return "" if found else "The dumps show nothing unhealthy; without a tracker no curve was judged."
    slimes = {ours: own for own, ours in slime_names().items()}
    other = "ours" if data.settings is None else "slime"
    of_levels = [rule for rule in RULES if rule.over != "size" and rule.runs != other]
    logged = [one.metric for one in of_levels if one.runs == "slime" or one.metric in slimes]
    names = slimes if data.settings is None else {}
    lengths = {names.get(key, key): len(known(data.metrics, key)[0]) for key in ("reward/mean", *logged)}
    judged = [name for name, length in lengths.items() if length >= FLOOR_STEPS]
    if not judged:
        opening = "Beyond that no verdict" if found else "No verdict"
        longest = max(lengths.values())
        return f"{opening}: {longest} steps of a metric are there at most, and the rules need {FLOOR_STEPS}."
    missing = ", ".join(name for name in lengths if name not in judged)
    also = f" Not judged, since fewer than {FLOOR_STEPS} steps have it: {missing}." if missing else ""
    return "" if found else f"The rules found nothing unhealthy in {', '.join(judged)} of {steps} steps.{also}"
