"""What looks unhealthy about a metric of a run: bounds on its level, what is then said, and what to try."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Yardstick = Literal["", "beginning", "lowest", "tail", "lag", "responses", "clipped"]


@dataclass(frozen=True)
class Bound:
    """The bound at which the level of a metric stops being healthy. The level is taken of the newest 16 steps, or more
    for whole cycles of the lag."""

    limit: float
    above: bool = True
    """True where the level is unhealthy above the limit; else it is below it."""
    of: Yardstick = ""
    """The quantity of which the limit is a multiple; empty: it is the limit itself. `beginning`: the median of the
    first level. `lowest`: the lowest mean over at least 32 steps. Of the run's settings: `tail`, the 1 − alpha of SAT;
    `lag`, the updates that a token may be old; `responses` of a batch; `clipped`, the share of tokens that a radius may
    clip. Without such a setting nothing is unhealthy."""
    over: Literal["mean", "max", "sum", "run"] = "mean"
    """The way in which the level follows from the values of the steps. `run`: the mean of all steps, once there are
    64."""
    ceiling: float = math.inf
    """With `lowest`: a level that is unhealthy whatever the lowest one was."""
    least: float = -math.inf
    """A level below this is healthy, whatever the multiple."""


@dataclass(frozen=True)
class Rule:
    """A rule says what looks unhealthy about a metric, what is then said, and what to try. It is advice and no verdict.

    The texts may name `{level}`; `{usual}`, what the limit is a multiple of; `{share}`, level over usual; `{limit}`;
    `{steps}` of the level; `{crossed}`, which limit of a level against its lowest was crossed, in words.
    """

    name: str
    """In a word."""
    bound: Bound
    seen: str
    advice: str = ""
    """A text on what to try. `{or_sat}`: ", or SAT", where that is off."""


MISMATCH_BAND = Bound(3.0, of="lowest", ceiling=0.15)
"""d_pi in nats over its lowest level: the paper's run at lag 8 leaves its band of 0.01 above 0.03. Baselines that learn
on were seen to reach this factor too: the mismatch alone tells no collapse. No level from the ceiling on counts as low:
it is ten times what the paper shows of runs that do not collapse."""
WRONG_WEIGHTS = Bound(6.0, of="beginning", over="max", least=0.01)
"""The implementation part of d_pi at the worst step, of that of the first steps. In 620 runs of a small model without
R3 it rose up to 5.5 times in 128 steps, and stayed below 0.06 nats; where one engine of two was given the initial
weights it was more than ten times as large at once."""
LEAST_ESS = 0.5
"""Effective sample size of pi / mu over the tokens, as a share: below, half of a batch counts for nothing."""
ENTROPY_LOSS = Bound(0.1, above=False, of="beginning")
"""Entropy as a share of that at the beginning. Runs that learned well went to 0.2."""

HEALTH: dict[str, Rule] = {
    "mismatch/d_pi": Rule(
        "mismatch",
        MISMATCH_BAND,
        "d_pi is {level:.3g} nats, {crossed}",
        "Try a smaller radius, lag or learning rate{or_sat}",
    ),
    "mismatch/ess": Rule(
        "ess",
        Bound(LEAST_ESS, above=False),
        "the effective sample size is {level:.0%} of the tokens, below {limit:.0%}: a few stale ones "
        "carry the gradient",
        "Try a smaller lag or clip radius, or cap the weights (tis)",
    ),
    "mismatch/implementation": Rule(
        "engine",
        WRONG_WEIGHTS,
        "engine and trainer differ by {level:.3g} nats a token at the same weights, more than {limit:g} times the "
        "{usual:.3g} of the first steps: an engine has other weights than it says, or computes otherwise",
        "Look into the engines' logs for a restart; pipeline.canary: stop names such an engine at the next push",
    ),
    "lag/max": Rule(
        "lag",
        Bound(1, of="lag", over="max"),
        "tokens are up to {level:g} updates old, {usual:g} by the plan: weights reach the engines late",
        "Look for errors of the broadcast in the log",
    ),
    "sat/gate_rate": Rule(
        "gate",
        Bound(0.1, above=False, of="tail"),
        "SAT's gate is open for {level:.2%} of the tokens, less than a tenth of the tail's {usual:.0%}: "
        "its quantile is over too few responses",
        "Set method.sat.scope to step, or make micro-batches larger",
    ),
    "clip/fraction": Rule(
        "radius",
        Bound(1, of="clipped", over="run"),
        "{level:.1%} of the tokens have been clipped, above {usual:.0%}: the radius is narrow for this "
        "lag. Radii that clipped so many lost 2 to 19 points at lag 32 and 64 in a calibration; on fresh seeds the "
        "share did not predict the loss",
        "Try twice the radius (method.clip): docs/choosing.md",
    ),
    "loss/entropy": Rule(
        "entropy",
        ENTROPY_LOSS,
        "entropy is {level:.3g} nats, below a tenth of the {usual:.3g} it started with: nothing new is tried",
        "Try loss.entropy_coef, a larger loss.kl_coef, or a smaller learning rate",
    ),
    "rollout/rejected": Rule(
        "rejected",
        Bound(0.01, of="responses"),
        "{share:.1%} of the responses failed a check, above {limit:.0%}: rollout/rejected/REASON in "
        "metrics.jsonl says which",
    ),
    "rollout/restarts": Rule(
        "restarts",
        Bound(0, over="sum"),
        "engines were restarted {level:g} times in {steps} steps: the log names what died, and memory is "
        "the usual cause",
    ),
    "canary/faults": Rule(
        "canary",
        Bound(0, over="sum"),
        "the canary found engines without the pushed weights {level:g} times in {steps} steps",
        "The log names engine, push and remedy; `pipeline.canary: stop` ends such a run",
    ),
}
"""The rules of runs of ours, by metric."""
