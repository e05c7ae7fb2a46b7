"""The tables of a check-up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sat_slime.report.checkup.dump_symptoms import crowding
from sat_slime.report.checkup.token_sums import POSITION_EDGES, PROBABILITY_EDGES, SIGNS, Group, TokenSums
from sat_slime.report.number_text import percent
from sat_slime.report.page import Heading, Sheet

MOST_IDS = 8
"""Token ids that are listed."""
MOST_ROWS = 24
"""Dumps that a table shows; of more it shows as many, evenly chosen, and its CSV has all."""


def tables(sums: TokenSums) -> list[Sheet]:
    """Make all tables that there are numbers for."""
    sheets = [steps_table(sums), places_table(sums)] if sums.steps else []
    return [*sheets, ids_table(sums)] if sums.tail_ids else sheets


def steps_table(sums: TokenSums) -> Sheet:
    """Tell the mismatch of each dumped optimizer step."""
    head = ["dump", "responses", "tokens", "mean |d|", "90 %", "99 %", "99.9 %", "largest", "ESS", "no signal", "cut"]
    rows: list[list[str]] = []
    numbers: list[list[Any]] = []
    for step in sums.steps:
        sizes = [step.mean, *step.quantiles, step.largest]
        shares = [step.ess, step.no_signal, step.truncated]
        counts = [f"{step.responses:,}", f"{step.tokens:,}"]
        rows.append([step.name, *counts, *(f"{size:.4f}" for size in sizes), *map(percent, shares)])
        numbers.append([step.name, step.responses, step.tokens, *sizes, *shares])
    return Sheet(
        "dumped_steps",
        "The mismatch of each dumped step",
        "d = log π − log μ of the active tokens, in nats: mean and quantiles of |d|. ESS: the share of the tokens that "
        "raw importance weights leave. No signal: responses whose advantages are all 0. Cut: at the length limit."
        f"{_shown(rows)}",
        head,
        _some(rows),
        numbers=[head, *numbers],
    )


def places_table(sums: TokenSums) -> Sheet:
    """Tell where the mismatch is: by place, by probability, by the sign of the advantage."""
    head = ["tokens", "share", "mean |d|", "mean d", "of the tail", "times their share"]
    rows: list[list[str]] = []
    numbers: list[list[Any]] = []
    kinds: list[tuple[str, Sequence[str], Sequence[Group]]] = [
        ("by place in the response", _ranges(POSITION_EDGES, percent), sums.by_position),
        ("by the engine's probability μ", _ranges(PROBABILITY_EDGES, lambda edge: f"{edge:g}"), sums.by_probability),
        ("by the sign of the advantage", SIGNS, sums.by_sign),
    ]
    for heading, labels, groups in kinds:
        rows.append([Heading(heading)] + [""] * (len(head) - 1))
        for label, group in zip(labels, groups, strict=True):
            if not group.tokens:
                continue
            means = [group.size / group.tokens, group.drift / group.tokens]
            shares = [group.tokens / sums.whole.tokens, group.tail / max(1, sums.whole.tail)]
            times = crowding(group, sums.whole)
            texts = [percent(shares[0]), f"{means[0]:.4f}", f"{means[1]:+.4f}", percent(shares[1]), f"{times:.1f}"]
            rows.append([label, *texts])
            numbers.append([f"{heading}: {label}", shares[0], *means, shares[1], times])
    return Sheet(
        "places",
        "Where the mismatch is",
        "All dumps together. The tail of a step is what lies beyond the 99 % quantile of its |d|; the last column says "
        "how many times as often a token of this kind is in it as any token.",
        head,
        rows,
        numbers=[head, *numbers],
    )


def ids_table(sums: TokenSums) -> Sheet:
    """Tell which token ids are most often in a tail."""
    head = ["token id", "of the tail", "of all tokens"]
    most = sorted(sums.tail_ids.items(), key=lambda item: -item[1])[:MOST_IDS]
    numbers = [[token, times / sums.whole.tail, sums.ids.get(token, 0) / sums.whole.tokens] for token, times in most]
    rows = [[str(token), percent(tail), percent(usual)] for token, tail, usual in numbers]
    return Sheet(
        "tail_tokens",
        "Which tokens are in the tail",
        "The ids that are there most often; tokenizer.decode([ID]) says what they are. A few ids with most of the tail "
        "point to templates, stop tokens or sampling rules; many ids with a little each, to staleness.",
        head,
        rows,
        numbers=[head, *numbers],
    )


def _some(rows: list[list[str]]) -> list[list[str]]:
    if len(rows) <= MOST_ROWS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, MOST_ROWS).round().astype(int)]


def _shown(rows: list[list[str]]) -> str:
    return f" Of {len(rows)} dumps {MOST_ROWS} are shown; the CSV has all." if len(rows) > MOST_ROWS else ""


def _ranges(edges: Sequence[float], text: Any) -> list[str]:
    return [f"{text(low)} to {text(high)}" for low, high in pairwise(edges)]
