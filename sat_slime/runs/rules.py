"""The table of what looks unhealthy in a run: bounds on the level of a metric, what is then said, and what to try.

Runs of ours are judged while they go on, by `runs/health.HealthWatch`; those of slime's own loss afterwards, from what
its trackers hold, by `runs/health.symptoms`. A rule says nothing of what is not logged, and is no verdict: a run that
it holds for may learn on. What counts as a collapse is `runs/collapse`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sat_slime.runs.collapse import KL_RISE, MISMATCH_CEILING, MISMATCH_RISE


@dataclass(frozen=True)
class Bound:
    """The bound at which the level of a metric stops being healthy. The level is taken of the newest 16 steps, or more
    for whole cycles of the lag."""

    limit: float
    above: bool = True
    """True where the level is unhealthy above the limit; else it is below it."""
    of: Literal["", "beginning", "lowest", "tail", "lag", "responses"] = ""
    """The quantity of which the limit is a multiple; empty: it is the limit itself. `beginning`: the median of the
    first level. `lowest`: the lowest mean over at least 32 steps. Of the run's settings: `tail`, the 1 − alpha of SAT;
    `lag`, the updates that a token may be old; `responses` of a batch. Without such a setting
    nothing is unhealthy."""
    over: Literal["mean", "max", "sum", "size"] = "mean"
    """The way in which the level follows from the values of the steps. `size`: the size at a single step."""
    ceiling: float = math.inf
    """With `lowest`: a level that is unhealthy whatever the lowest one was."""
    least: float = -math.inf
    """A level below this is healthy, whatever the multiple."""


@dataclass(frozen=True)
class Rule:
    """A rule says what looks unhealthy about a metric, what is then said, and what to try.

    The texts may name `{level}`; `{usual}`, what the limit is a multiple of; `{share}`, level over usual; `{limit}`;
    `{steps}` of the level; `{crossed}`, which limit of a level against its lowest was crossed, in words; `{out}`, the
    steps that were out of the bound, and `{known}`, those that have the metric.
    """

    name: str
    """In a word."""
    metric: str
    bound: Bound
    seen: str
    advice: str = ""
    """A text on what to try. `{or_sat}`: ", or SAT", where that is off."""
    runs: Literal["", "ours", "slime"] = ""
    """The runs that it is for: ours while they go on, those of slime's own loss afterwards; empty: both."""


MOST_GRADIENT, MOST_LOSS = Bound(1e3, over="size"), Bound(1e2, over="size")
"""Sizes that no step of a run that learns reaches, whatever it began with. Of 839 kept runs of a small model, up to 64
updates stale, the largest gradient norm at a single step is 720 (27 in those without a symptom) and the largest loss
4.2; runs of large models report norms below 10, and slime clips them to 1. A loss is a mean of r A, and A of a group of
n responses is below sqrt(n) in size."""
WRONG_WEIGHTS = Bound(6.0, of="beginning", over="max", least=0.01)
"""The implementation part of d_pi at the worst step, of that of the first steps. In 620 runs of a small model without
R3 it rose up to 5.5 times in 128 steps, and stayed below 0.06 nats; where one engine of two was given the initial
weights it was more than ten times as large at once."""
LEAST_ESS = 0.5
"""Effective sample size of pi / mu over the tokens, as a share: below, half of a batch counts for nothing."""
LEAST_KL = 0.1
"""Nats of the KL to the reference, which begins at 0, so that nine times its lowest level alone is nothing."""
MOST_TRUNCATED = 0.2
"""Responses cut at the length limit, as a share."""
BEYOND = "was above {limit:g} in size at {out} of {known} steps, {level:.3g} at most"
BROKEN_BATCH = (
    "No batch that is whole has this: a token that one side finds impossible, a mask or an advantage of the wrong "
    "scale. Look at that step's batch (--save-debug-train-data), and stop: --clip-grad scales such an update down and "
    "keeps its direction"
)

RULES = (
    Rule("gradient", "grad_norm", MOST_GRADIENT, f"the gradient norm {BEYOND}", BROKEN_BATCH, runs="slime"),
    Rule("loss", "loss/total", MOST_LOSS, f"the loss {BEYOND}", BROKEN_BATCH, runs="slime"),
    Rule("loss", "loss/policy", MOST_LOSS, f"the policy loss {BEYOND}", BROKEN_BATCH, runs="slime"),
    Rule(
        "mismatch",
        "mismatch/d_pi",
        Bound(MISMATCH_RISE, of="lowest", ceiling=MISMATCH_CEILING),
        "mean |log π − log μ| is {level:.3g} nats, {crossed}",
        "The trained policy is far from the one that sampled. Try a smaller lag, radius or learning rate{or_sat}. On "
        "slime --use-rollout-logprobs lets the clip see it, --use-tis or mis-geo bound it, and for a MoE "
        "--use-rollout-routing-replay lowers it",
    ),
    Rule(
        "ess",
        "mismatch/ess",
        Bound(LEAST_ESS, above=False),
        "the effective sample size is {level:.0%} of the tokens, below {limit:.0%}: a few stale ones "
        "carry the gradient",
        "Try a smaller lag or clip radius, or cap the weights (tis)",
    ),
    Rule(
        "engine",
        "mismatch/implementation",
        WRONG_WEIGHTS,
        "engine and trainer differ by {level:.3g} nats a token at the same weights, more than {limit:g} times the "
        "{usual:.3g} of the first steps: an engine has other weights than it says, or computes otherwise",
        "Look into the engines' logs for a restart; pipeline.canary: stop names such an engine at the next push",
    ),
    Rule(
        "lag",
        "lag/max",
        Bound(1, of="lag", over="max"),
        "tokens are up to {level:g} updates old, {usual:g} by the plan: weights reach the engines late",
        "Look for errors of the broadcast in the log",
        runs="ours",
    ),
    Rule(
        "gate",
        "sat/gate_rate",
        Bound(0.1, above=False, of="tail"),
        "SAT's gate is open for {level:.2%} of the tokens, less than a tenth of the tail's {usual:.0%}: "
        "its quantile is over too few responses",
        "Set method.sat.scope to step, or make micro-batches larger",
        runs="ours",
    ),
    Rule(
        "clip",
        "clip/fraction",
        Bound(MISMATCH_RISE, of="lowest", least=0.02),
        "{level:.1%} of the tokens are clipped, {limit:g} times the lowest level of {usual:.1%}",
        "Updates go farther than --eps-clip lets them. Try a smaller --lr, or fewer optimizer steps per rollout (a "
        "larger --global-batch-size)",
        runs="slime",
    ),
    Rule(
        "entropy",
        "loss/entropy",
        Bound(0.1, above=False, of="beginning"),  # runs that learned well went to 0.2
        "entropy is {level:.3g} nats, below a tenth of the {usual:.3g} it started with: nothing new is tried",
        "Try an entropy bonus (loss.entropy_coef, on slime --entropy-coef), a larger KL term or upper radius, a "
        "smaller learning rate, harder prompts",
    ),
    Rule(
        "noise",
        "loss/entropy",
        Bound(3.0, of="lowest", least=0.05),
        "entropy rose to {level:.3g} nats, {limit:g} times its lowest level of {usual:.3g}",
        "Responses turn into noise, as unbounded updates on stale bad responses make them. Look at repetition and "
        "truncation beside it; try --use-tis, --use-opsm, topr of the plugin, a smaller --lr",
        runs="slime",
    ),
    Rule(
        "rejected",
        "rollout/rejected",
        Bound(0.01, of="responses"),
        "{share:.1%} of the responses failed a check, above {limit:.0%}: rollout/rejected/REASON in "
        "metrics.jsonl says which",
        runs="ours",
    ),
    Rule(
        "restarts",
        "rollout/restarts",
        Bound(0, over="sum"),
        "engines were restarted {level:g} times in {steps} steps: the log names what died, and memory is "
        "the usual cause",
    ),
    Rule(
        "canary",
        "canary/faults",
        Bound(0, over="sum"),
        "the canary found engines without the pushed weights {level:g} times in {steps} steps",
        "The log names engine, push and remedy; `pipeline.canary: stop` ends such a run",
    ),
    Rule(
        "kl",
        "loss/kl",
        Bound(KL_RISE, of="lowest", least=LEAST_KL),
        f"the KL to the reference went to {{level:.3g}} nats, {{limit:g}} times its lowest level of {{usual:.3g}} "
        f"and above {LEAST_KL:g}",
        "The policy runs away from the reference. Try a larger --kl-loss-coef, or a smaller --lr",
        runs="slime",
    ),
    Rule(
        "gradient",
        "grad_norm",
        Bound(5.0, of="lowest"),
        "the gradient norm went to {level:.3g}, {limit:g} times its lowest level of {usual:.3g}",
        "A few tokens carry the update. Try a smaller --clip-grad, and a gate in the place of a weight (icepop, "
        "mis-geo)",
        runs="slime",
    ),
    Rule(
        "capped",
        "tis_clipfrac",
        Bound(0.05),
        "{level:.1%} of the importance weights are at their cap, above {limit:.0%}",
        "TIS bounds each weight and lets the token in all the same. Drop such tokens instead: "
        "--custom-tis-function-path slime.backends.megatron_utils.loss.icepop_function, or the plugin's mis-geo",
        runs="slime",
    ),
    Rule(
        "truncated",
        "truncated_ratio",
        Bound(MOST_TRUNCATED),
        "{level:.0%} of the responses were cut at the length limit, above {limit:.0%}",
        "Cut responses get the reward of a wrong answer. Look whether they repeat themselves, or go on after a "
        "turn's end (then --rollout-stop-token-ids lacks it); else raise --rollout-max-response-len, or mask them",
        runs="slime",
    ),
    Rule(
        "repetition",
        "repetition_frac",
        Bound(0.05),
        "{level:.0%} of the responses repeat themselves by slime's own test, above {limit:.0%}",
        "The policy has broken down in long responses. Go back to a checkpoint before that, with a smaller --lr or "
        "a bound on staleness",
        runs="slime",
    ),
    Rule(
        "length",
        "response/length_mean",
        Bound(1 / 3, above=False, of="beginning"),
        "responses shrank to {level:.0f} tokens, less than a third of the {usual:.0f} they started with",
        "Short answers are what the loss pays for: look at the normalization by length, and whether the verifier "
        "accepts an answer without its derivation",
        runs="slime",
    ),
)
