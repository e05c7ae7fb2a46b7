"""Metrics of one optimizer step, exact over its micro-batches and ranks.

slime sums what a loss returns and divides by the batch, which makes a mean of everything. So the loss returns what
slime's own loss returns, and all other metrics are kept here until slime reduces the step. Then each is reduced as its
kind demands (a minimum stays one; the tail of |d| is that of all tokens) and joins slime's metrics as `train/NAME`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sat_slime.objective import Method, MetricAccumulator, Surrogate, TokenBatch, mismatch_metrics
from sat_slime.plugin.inside import response_facts, step_threshold
from sat_slime.plugin.inside.patching import wrap_once

_REDUCERS = (
    ("slime.observability.train_metric_utils", "reduce_train_step_metrics"),  # slime after v0.3.1
    ("slime.backends.megatron_utils.model", "reduce_train_step_metrics"),  # v0.3.1
)
"""Modules and names under which slime looks up its reduction, the newest first."""
_GROWING = ("lag/mean", "lag/min", "lag/max", "lag/queue_mean")
_RECORDED = "sat_slime_recorded"
"""Mark of a micro-batch that is recorded already: with --recompute-loss-function its loss runs twice."""


class _Step:
    """Metrics and token columns of the current step's micro-batches, on the host."""

    def __init__(self) -> None:
        self.metrics = MetricAccumulator()
        self.tokens: list[dict[str, Tensor]] = []


_step = _Step()
_facts: dict[str, float] = {}


def record(batch: dict[str, Any], method: Method, tokens: TokenBatch, surrogate: Surrogate, has_rollout: bool) -> None:
    """Keeps the metrics of a micro-batch for the step, only once, however often its loss is computed."""
    if batch.get(_RECORDED):
        return
    batch[_RECORDED] = True
    metrics = dict(surrogate.metrics)
    if "sat/q" in metrics:  # the mean over micro-batches would hide how far they are apart
        metrics |= {"sat/q_min": metrics["sat/q"], "sat/q_max": metrics["sat/q"]}
    _step.metrics.add(metrics, tokens.n_active)
    if has_rollout:
        parts = {"log_probs": tokens.log_probs, "rollout": tokens.rollout_log_probs}
        if method.denominator == "checkpoint" and tokens.proximal_log_probs is not None:
            parts["checkpoint"] = tokens.proximal_log_probs
        _step.tokens.append({name: part.detach()[tokens.mask].cpu() for name, part in parts.items()})


def set_rollout_facts(facts: Mapping[str, float]) -> None:
    """Takes numbers of the current rollout batch (lag, reward), the same on all ranks, which each of its steps
    reports."""
    _facts.clear()
    _facts.update(facts)


def drain(group: dist.ProcessGroup | None) -> dict[str, float]:
    """The step's metrics, the same on all ranks of `group`; the next step starts empty.

    Args:
        group: gloo group of the data- and context-parallel ranks, all of which must call; None: this process alone.
    """
    global _step
    step, _step = _step, _Step()
    metrics = step.metrics.reduce(group)
    names = _all_names(set().union(*step.tokens), group)
    if {"log_probs", "rollout"} <= names:
        columns = {name: torch.cat([part[name] for part in step.tokens] or [torch.zeros(0)]) for name in names}
        metrics |= mismatch_metrics(
            columns["log_probs"],
            columns["rollout"],
            torch.ones(len(columns["log_probs"]), dtype=torch.bool),
            checkpoint_log_probs=columns.get("checkpoint"),
            group=group,
        )
    facts = dict(_facts)
    # If the batch has another step, its lag is one more then: not the part from generation, but the part after it.
    _facts.update({key: value + 1 for key, value in _facts.items() if key in _GROWING})
    return metrics | facts


def _all_names(names: set[str], group: dist.ProcessGroup | None) -> set[str]:
    """The names that any rank has: a rank without a response knows none."""
    if group is None:
        return names
    parts: list[set[str]] = [set()] * dist.get_world_size(group)
    dist.all_gather_object(parts, names, group=group)
    return set().union(*parts)


def install() -> None:
    """Makes slime's reduction of a step return these metrics too; later calls do nothing. Raises RuntimeError where
    slime's reduction is not found."""
    wrap_once(*reducer_place(), _with_ours)


@functools.cache
def reducer_place() -> tuple[ModuleType, str]:
    """Module and name under which slime's trainer looks its reduction up.

    Raises:
        RuntimeError: slime has it in none of the known places.
    """
    for module_name, name in _REDUCERS:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("slime"):
                raise
            continue
        if hasattr(module, name):
            return module, name
    raise RuntimeError(
        f"slime has no {_REDUCERS[0][1]} where it is known to be ({', '.join(module for module, _ in _REDUCERS)}): "
        "this plugin supports v0.3.1 and newer"
    )


def _with_ours(reduction: Callable[..., dict[str, float]]) -> Callable[..., dict[str, float]]:
    def reduce_train_step_metrics(*positional: Any, **keywords: Any) -> dict[str, float]:
        from megatron.core import mpu

        reduced = reduction(*positional, **keywords)
        ours = drain(mpu.get_data_parallel_group_gloo(with_context_parallel=True))
        step_threshold.forget()
        response_facts.count_step()
        return reduced | ours

    return reduce_train_step_metrics
