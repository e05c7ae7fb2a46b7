"""Rules for what looks unhealthy in the dumps of a run, with slime's flags as advice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sat_slime.report.averages import finite_mean
from sat_slime.report.checkup.token_sums import POSITION_EDGES, Group, TokenSums
from sat_slime.runs.collapse import MISMATCH_RISE
from sat_slime.runs.rules import LEAST_ESS
from sat_slime.runs.symptoms import MOST_TRUNCATED, Symptom

BROKEN = 8.0
"""Nats: a token that one side finds 3,000 times likelier than the other is broken, not stale."""
USUAL = 1.0
"""Nats: where the 99 % quantile is above, it is not single tokens that are far."""
CROWDED = 4.0
"""So many times its share of the tokens a group has of the tail."""
MOST_EQUAL = 0.5
"""Share of the responses without a signal."""
LEAST_DUMPS = 4
"""Dumps in a third of all, since mean |d| goes up and down with the lag from one to the next."""
LEAST_TAIL = 200
"""Tail tokens below which it is not said where they are."""


def dump_symptoms(sums: TokenSums) -> Iterator[Symptom]:
    """Find what looks unhealthy in dumps of training."""
    if not sums.steps:
        return
    sizes = np.array([step.mean for step in sums.steps])
    third = len(sizes) // 3
    if third >= LEAST_DUMPS and sizes[-third:].mean() >= MISMATCH_RISE * sizes[:third].mean():
        yield Symptom(
            "drift",
            f"mean |d| grew from {sizes[:third].mean():.3g} nats (the first {third} dumps, from {sums.steps[0].name}) "
            f"to {sizes[-third:].mean():.3g} (the last {third}, to {sums.steps[-1].name})",
            "Ask what each stabilizer would do to these very tokens: sat-slime replay",
        )
    largest = max(sums.steps, key=lambda step: step.largest)
    if largest.largest > BROKEN and largest.quantiles[1] < USUAL:
        yield Symptom(
            "broken tokens",
            f"the largest |d| is {largest.largest:.1f} nats ({largest.name}), above {BROKEN:g}, where 99 % of the "
            f"tokens are below {largest.quantiles[1]:.2f}",
            "Single tokens that one side finds impossible: faults of the engine, top-p or top-k sampling that the "
            "trainer does not know, tokens made anew from text. veto and trm-max drop their responses",
        )
    if (ess := finite_mean([step.ess for step in sums.steps])) < LEAST_ESS:
        yield Symptom(
            "ess",
            f"raw importance weights would leave {ess:.0%} of the tokens as effective sample, below {LEAST_ESS:.0%}",
            "Weights alone (--use-tis) let a few tokens carry the gradient here: lower --tis-clip, or a gate (icepop, "
            "mis-geo)",
        )
    if sums.whole.tail >= LEAST_TAIL:
        yield from _where(sums)
    if (silent := finite_mean([step.no_signal for step in sums.steps])) > MOST_EQUAL:
        yield Symptom(
            "no signal",
            f"{silent:.0%} of the responses in the dumps have no advantage other than 0, above {MOST_EQUAL:.0%}",
            "The batch is smaller than it seems, and the step noisier: easier or harder prompts, or --dynamic-sampling-"
            "filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
        )
    if (cut := finite_mean([step.truncated for step in sums.steps])) > MOST_TRUNCATED:
        yield Symptom(
            "truncated",
            f"{cut:.0%} of the responses in the dumps were cut at the length limit, above {MOST_TRUNCATED:.0%}",
            "It is graded as wrong. Look whether --rollout-stop-token-ids lacks the end of a turn; else raise "
            "--rollout-max-response-len, or mask what was cut",
        )


def _where(sums: TokenSums) -> Iterator[Symptom]:
    for (low, high), group in zip(pairwise(POSITION_EDGES), sums.by_position, strict=True):
        if crowding(group, sums.whole) > CROWDED:
            yield Symptom(
                "position",
                f"{group.tail / sums.whole.tail:.0%} of the tail lie between {low:.0%} and {high:.0%} of the response, "
                f"where {group.tokens / sums.whole.tokens:.0%} of the tokens are",
                "At the end: stop tokens, and responses that were cut or went on after new weights came. At the "
                "start: the chat template, or a first token that is sampled by other rules",
            )
    if not sums.tail_ids:
        return
    token, times = max(sums.tail_ids.items(), key=lambda item: item[1])
    share, usual = times / sums.whole.tail, sums.ids.get(token, 0) / sums.whole.tokens
    if share > 0.1 and share > CROWDED * usual:
        yield Symptom(
            "one token",
            f"{share:.0%} of the tail are the token {token}, which is {usual:.1%} of all tokens",
            f"Look what it is: tokenizer.decode([{token}]). A stop or template token points to a difference in "
            "templates or stop rules between engine and trainer, not to staleness",
        )


def crowding(group: Group, whole: Group) -> float:
    """Return how many times its share of the tokens a group has of the tail."""
    return (group.tail / whole.tail) / (group.tokens / whole.tokens) if group.tokens and whole.tail else 0.0
