"""The comparisons that the paper makes or implies, in our runs, with the paper's own difference beside each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from sat_slime.report.comparison.contrasts import Arm, Comparison, Contrast, contrast, corrected
from sat_slime.report.comparison.method_names import label_of, method_called, pairs_without, task_suffix

QUANTITIES = ("best", "late", "d_pi")
AGAINST_BASE, AGAINST_BASELINES = "SAT against its own base", "SAT-GSPO w/ R3 against the baselines"


def paper_contrasts(comparison: Comparison) -> list[Contrast]:
    """Return the contrasts that the data hold, corrected within each group and quantity."""
    groups: dict[str, list[Contrast]] = {}
    collection = comparison.collection
    methods = collection.methods
    for lag in collection.lags:
        arm = partial(Arm, comparison, lag=lag)
        where = "?" if lag is None else str(lag)
        for names in collection.by_task.values():  # no contrast is between tasks, and no mean over them
            bases = [(arm(sat), arm(base)) for sat, base in pairs_without("sat", names) if base in names]
            groups.setdefault(AGAINST_BASE, []).extend(_between(*pair, where) for pair in bases)
            if len(bases) > 1:
                groups[AGAINST_BASE].append(_contrast(f"mean of the {len(bases)} pairs above", where, bases))
            for group, pairs in _named_pairs(names).items():
                groups.setdefault(group, []).extend(_between(arm(method), arm(other), where) for method, other in pairs)
    known = [lag for lag in collection.lags if lag is not None]
    if len(known) > 1:
        low, high = known[0], known[-1]
        groups[f"lag {high} against lag {low}"] = [
            _contrast(label_of(method), "", [(Arm(comparison, method, high), Arm(comparison, method, low))])
            for method in methods
        ]
    return [contrast for group, contrasts in groups.items() for contrast in corrected(contrasts, group)]


def _between(a: Arm, b: Arm, where: str) -> Contrast:
    return _contrast(f"{label_of(a.method)} − {label_of(b.method)}", where, [(a, b)])


def _contrast(label: str, where: str, pairs: Sequence[tuple[Arm, Arm]]) -> Contrast:
    papers = [_paper_difference(*pair) for pair in pairs]
    score, d_pi = (float(np.mean(values)) for values in zip(*papers, strict=True))
    return contrast(label, where, pairs, QUANTITIES, (score, d_pi))


def _paper_difference(a: Arm, b: Arm) -> tuple[float, float]:
    cell, other = a.runs.paper_cell(a.method, a.lag), b.runs.paper_cell(b.method, b.lag)
    if cell is None or other is None:
        return math.nan, math.nan
    return cell.score - other.score, cell.d_pi - other.d_pi


def _named_pairs(methods: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Return what else the paper compares of methods on one task, as (method, other method) by group."""
    on = task_suffix(methods[0])
    methods = [method.removesuffix(on) for method in methods]
    best = [("sat-gspo-r3", other) for other in ("grpo", "gspo", "dppo")]
    known = [method for method in map(method_called, methods) if method and not method.has("sat")]
    gspo = [(method.name, method.on("grpo").name) for method in known if method.base_name == "gspo" != method.name]
    groups = {
        AGAINST_BASELINES: best,
        "with R3 against without": pairs_without("r3", methods),
        "with TIS against without": pairs_without("tis", methods),
        "sequence ratio or DPPO against GRPO": [("gspo", "grpo"), ("dppo", "grpo"), *gspo],
    }
    return {
        group: [(method + on, other + on) for method, other in pairs if {method, other} <= {*methods}]
        for group, pairs in groups.items()
    }
