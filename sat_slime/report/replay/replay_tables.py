"""The tables of a replay: text for the page, plain numbers for CSV."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sat_slime.report.judged import judged_by
from sat_slime.report.number_text import DASH, decimals, minus, percent_number
from sat_slime.report.page import Heading, Sheet
from sat_slime.report.replay.method_sums import GROUPS, SCOPES
from sat_slime.report.replay.replay import Replay, StepRow
from sat_slime.report.replay.scope_sweep import ORDERS, SIZES
from sat_slime.report.replay.token_gradient import CLIPPED, FATES, KEPT, MASKED, REWEIGHTED

SHOWN_STEPS = 40
"""Rows that the table of steps shows; its CSV holds all."""
REFERENCE = "unclipped r A"


def tables(result: Replay) -> Iterator[Sheet]:
    """Make all tables, in the order of the page."""
    yield methods_table(result)
    if result.sat_methods():
        yield scope_table(result)
    yield cosine_table(result)
    yield steps_table(result)


def labels(result: Replay) -> list[str]:
    """Return the labels of the methods."""
    return [candidate.label for candidate in result.candidates]


def mean_effective(result: Replay) -> np.ndarray:
    """Return (M,) the effective share of the tokens, mean over the steps in which it is known."""
    values = np.stack([row.shares[:, 2] for row in result.rows])
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(axis=0) / known.sum(axis=0)


def methods_table(result: Replay) -> Sheet:
    """Tell what every method does to the tokens."""
    cosines, effective = result.cosines.mean[:, -1], mean_effective(result)
    rows: list[list[str]] = []
    numbers = [_METHOD_HEAD]
    group = ""
    for index, candidate in enumerate(result.candidates):
        if (judged := judged_by(candidate.method)) != group:
            group = judged
            rows.append([Heading(judged), *[""] * (len(_METHOD_COLUMNS) - 1)])
        sums = result.total.methods[index]
        share = sums.fates / max(sums.tokens, 1)
        cells = [share[:2, CLIPPED].sum(), share[2:, CLIPPED].sum(), *share[:, MASKED]]
        cells += [share[:, REWEIGHTED].sum(), share[:, KEPT].sum(), effective[index]]
        rows.append(
            [
                candidate.label,
                *(percent_number(value) for value in cells),
                _weight(sums.weight_max),
                _signed(cosines[index], 3),
                ", ".join(candidate.same) or DASH,
            ]
        )
        means = [float(effective[index]), sums.weight_max, float(cosines[index])]
        fates = sums.fates.ravel().tolist()
        numbers.append([candidate.label, judged, sums.tokens, *fates, *means, " ".join(candidate.same)])
    return Sheet(
        "methods",
        "What each method does to the tokens",
        "Percent of the tokens with an advantage. Methods are grouped by what they judge by: each token's ratio alone; "
        "its probabilities under both policies; the response as a whole; the distributions of the state; or a "
        "threshold over the whole batch. Clipped: the clip interval takes the token's gradient away. Masked: "
        "a gate drops it, and the interval would not have; above and below: on which side of 1 the ratio lies. "
        "Re-weighted: it keeps a gradient, but not r A. With v = g / A, g the gradient weight: effective = "
        "(Σ|v|)² / (n Σv²), mean over the steps. Cosine: of the whole gradient with that of the unclipped r A, mean "
        "over the steps.",
        _METHOD_COLUMNS,
        rows,
        [("clipped", 2), ("masked, A > 0", 2), ("masked, A < 0", 2), ("", 6)],
        numbers,
    )


_METHOD_COLUMNS = ["method", "A > 0", "A < 0", *("above", "below") * 2, "re-weighted", "kept", "effective", "largest v",
                   "cosine", "same formula"]  # fmt: skip
_METHOD_HEAD: list[Any] = [
    "method",
    "judges",
    "tokens",
    *(f"{fate}, {group}" for group in GROUPS for fate in FATES),
    *("effective share", "largest |v|", "cosine with unclipped", "same formula"),
]


def scope_table(result: Replay) -> Sheet:
    """Tell what SAT does with its quantile over a micro-batch and over the whole step."""
    rows, numbers = [], []
    head = ["method", *(f"{key}, {scope}" for key in ("gate", "newly", "q") for scope in SCOPES), "too small"]
    for index in result.sat_methods():
        values = [
            weighted(result, lambda row, s=scope, i=index, k=key: row.scopes[i, s].get(k, math.nan))
            for key in ("sat/gate_rate", "sat/newly_clipped", "sat/q")
            for scope in SCOPES
        ]
        small = weighted(result, lambda row, i=index: row.scopes[i, "microbatch"].get("sat/scope_too_small", math.nan))
        label = result.candidates[index].label
        rows.append(
            [label, *map(percent_number, values[:4]), *(_signed(v, 4) for v in values[4:]), percent_number(small)]
        )
        numbers.append([label, *values, small])
    return Sheet(
        "scopes",
        "The two scopes of SAT's quantile",
        "Gate open and newly clipped (gradient taken only by SAT), percent of the active tokens; q in nats, mean. Too "
        "small: micro-batches in which one response holds so many of the tokens that the gate cannot open for it. "
        f"{_microbatches(result)}",
        ["method", *(scope for _ in range(3) for scope in ("micro-batch", "step")), "micro-batches"],
        rows,
        [("gate open", 2), ("newly clipped", 2), ("q, nats", 2), ("too small", 1)],
        [head, *numbers],
    )


def _microbatches(result: Replay) -> str:
    per_step = [row.microbatches for row in result.rows]
    least, most = min(per_step), max(per_step)
    responses = result.responses / max(sum(per_step), 1)
    how_many = f"{least}" if least == most else f"{least} to {most}"
    return f"A step has {how_many} micro-batch{'es' if most > 1 else ''}, of {responses:.0f} responses on average."


def weighted(result: Replay, value: Any) -> float:
    """Return the mean over steps, weighted by their active tokens. value: of a StepRow; NaN does not count."""
    pairs = [(value(row), row.tokens) for row in result.rows]
    known = [(v, n) for v, n in pairs if math.isfinite(v)]
    total = sum(n for _, n in known)
    return math.fsum(v * n for v, n in known) / total if total else math.nan


def cosine_table(result: Replay) -> Sheet:
    """Tell the cosines between the gradients of the methods."""
    names = [*labels(result), REFERENCE]
    cosines, least = result.cosines.mean, result.cosines.least
    rows = [[name, *(_signed(value, 3) for value in line)] for name, line in zip(names, cosines, strict=True)]
    numbers: list[list[Any]] = [["method", "other", "mean", "min"]]
    for i, name in enumerate(names):
        numbers += [[name, other, float(cosines[i, j]), float(least[i, j])] for j, other in enumerate(names)]
    return Sheet(
        "cosine_numbers",
        "Cosines between the gradients, as numbers",
        f"Of the vectors w g over a step's tokens, {_reduction(result)}; mean over the steps. The minimum is in "
        "the CSV.",
        ["", *names],
        rows,
        [],
        numbers,
    )


def _reduction(result: Replay) -> str:
    if result.token_mean:
        return "every token of the same weight w"
    return "w = 1 / (active tokens of the response), so that responses weigh alike"


def steps_table(result: Replay) -> Sheet:
    """List the optimizer steps that were read."""
    head = ["step", "responses", "tokens", "micro-batches", "lag", "d_pi", "|d| 99 %", "effective"]
    names = labels(result)
    numbers: list[list[Any]] = [
        [*head, *(f"{name}: {what}" for name in names for what in ("clipped", "masked", "effective"))]
    ]
    rows = []
    for row in result.rows:
        numbers.append([*_step_numbers(row), *row.shares.ravel().tolist()])
        rows.append(_step_text(row))
    if len(rows) > SHOWN_STEPS:
        left = len(rows) - SHOWN_STEPS
        half = SHOWN_STEPS // 2
        middle = Heading(f"{left} more in the CSV")
        rows = [*rows[:half], [middle, *[""] * (len(head) - 1)], *rows[-half:]]
    return Sheet(
        "steps",
        "Optimizer steps",
        "Lag: optimizer updates between the generating weights and the trained ones, where the dump has it. d_pi: mean "
        "of |log π − log μ|; effective: that of the importance weights π / μ. The CSV has every method's shares of "
        "each step.",
        head,
        rows,
        [],
        numbers,
    )


def _step_numbers(row: StepRow) -> list[Any]:
    mismatch = [row.mismatch[f"mismatch/{key}"] for key in ("d_pi", "q99", "ess")]
    return [row.name, row.responses, row.tokens, row.microbatches, "" if row.lag is None else row.lag, *mismatch]


def _step_text(row: StepRow) -> list[str]:
    d_pi, q99, ess = (row.mismatch[f"mismatch/{key}"] for key in ("d_pi", "q99", "ess"))
    lag = DASH if row.lag is None else f"{row.lag:.2f}".rstrip("0").rstrip(".")
    counts = [f"{row.responses:,}", f"{row.tokens:,}", f"{row.microbatches:,}", lag]
    return [row.name, *counts, f"{d_pi:.4f}", f"{q99:.3f}", percent_number(ess)]


def sweep_rows(result: Replay) -> list[list[Any]]:
    """Return the scope sweep as rows, its head first."""
    rows: list[list[Any]] = [["method", "order", "responses", "tokens", "gate rate", "newly clipped"]]
    for index, sweep in result.sweeps.items():
        gate, newly = sweep.rates(sweep.gated), sweep.rates(sweep.newly)
        label = result.candidates[index].label
        for (i, order), (j, size) in itertools.product(enumerate(ORDERS), enumerate(SIZES)):
            rows.append([label, order, size, int(sweep.tokens[i, j]), float(gate[i, j]), float(newly[i, j])])
    return rows


def _weight(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _signed(value: float, digits: int) -> str:
    return minus(decimals(value, digits))
