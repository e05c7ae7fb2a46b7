"""The page of the metrics: every column of metrics.jsonl and eval.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sat_slime.objective.metrics import EVALUATION, Metric, run_metrics
from sat_slime.runs.rules import HEALTH as RULES
from sat_slime.runs.rules import Bound

from .markdown import code, linked, page, table

REDUCTIONS = {"mean": "mean", "sum": "sum", "min": "min", "max": "max", "step": ""}
RUNTIMES = {"embedded": " Embedded runs alone.", "slime": " On slime alone."}
INTRODUCTION = """\
The columns of `metrics.jsonl`, a line per optimizer step, and of `eval.jsonl`, a line per evaluation, in
[the run folder](../run-folder.md). A **step** is one optimizer update; `step` counts from 1. An **iteration** is one
rollout batch. Words in braces stand for a column each.

The third column of the tables says how the number of a step follows from its micro-batches and ranks; where it is
empty, the number is of the whole step or batch at once. slime's own name of a number stands behind its meaning."""

HEALTH = """\
What looks [unhealthy](../report.md#health): the level of a metric, over the newest 16 steps or more for whole cycles of
the lag, is out of its bound."""
OVER = {"mean": "mean", "max": "largest", "sum": "sum", "run": "mean of the run, after 64 steps"}
OF = {
    "beginning": "its first level",
    "lowest": "its lowest mean over 32 steps",
    "tail": "SAT's tail, 1 − alpha",
    "lag": "the lag of the plan",
    "responses": "the responses of a batch",
    "clipped": "9 % of the tokens, where the clip is GRPO's",
}


def metrics() -> str:
    """The page."""
    tables = ["## Of a step", _metrics(run_metrics()), "## Of an evaluation", _metrics(EVALUATION)]
    return page("Metrics", INTRODUCTION, *tables, "## Health", HEALTH, _rules())


def _metrics(entries: Iterable[Metric]) -> str:
    return table(["key", "unit", "over micro-batches", "meaning"], map(_row, entries))


def _rules() -> str:
    rows = [[code(rule.name), code(name), OVER[rule.bound.over], _holds(rule.bound)] for name, rule in RULES.items()]
    return table(["advisory", "metric", "level", "holds"], rows)


def _holds(bound: Bound) -> str:
    times = "" if bound.limit == 1 else f"{bound.limit:g} times "
    limit = f"{times}{OF[bound.of]}" if bound.of else f"{bound.limit:g}"
    ceiling = f", or above {bound.ceiling:g}" if math.isfinite(bound.ceiling) else ""
    least = f", and {bound.least:g}" if math.isfinite(bound.least) else ""
    return f"{'above' if bound.above else 'below'} {limit}{least}{ceiling}"


def _row(metric: Metric) -> list[str]:
    names = metric.names if metric.pattern.startswith("{") else [metric.pattern]
    slime = f" slime: {', '.join(map(code, metric.slime))}." if metric.slime else ""
    meaning = linked(f"{metric.meaning}{RUNTIMES.get(metric.runtime or '', '')}{slime}", "../")
    return [", ".join(map(code, names)), metric.unit, REDUCTIONS[metric.reduction], meaning]
