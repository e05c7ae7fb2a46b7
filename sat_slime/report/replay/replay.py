"""Replays every method on the tokens of dumps: dumps in, sums out, one optimizer step in memory at a time."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sat_slime.objective import mismatch_metrics
from sat_slime.report.dumps.dump_files import Dump, Skipped, find_dumps, steps
from sat_slime.report.dumps.step_batch import Column, Layout, StepBatch
from sat_slime.report.replay.candidates import UNCLIPPED, Candidate, LeftOut, answerable, read_columns
from sat_slime.report.replay.method_sums import SCOPES, Cosines, SpanResult, Sums, reduced, span_result
from sat_slime.report.replay.scope_sweep import Sweep, sweep_step
from sat_slime.report.replay.token_gradient import CLIPPED, MASKED, Metrics, StepView, spans
from sat_slime.runs.folder import RunFolderError

SPAN_TOKENS = 32_768
"""Tokens that are computed together: enough to outweigh the cost of calling torch, few enough for the processor's
cache."""

AHEAD_TOKENS = 8 * SPAN_TOKENS
"""Tokens of steps that are read ahead of what is computed; a larger step is alone in memory."""


@dataclass(frozen=True)
class StepRow:
    """One optimizer step."""

    name: str
    responses: int
    tokens: int
    lag: float | None
    microbatches: int
    mismatch: dict[str, float]
    """Metrics of the mismatch, by the names of a run's metrics."""
    shares: np.ndarray
    """(M, 3) for each method: the clipped and the masked share of the tokens with an advantage; the effective share."""
    scopes: dict[tuple[int, str], dict[str, float]]
    """Metrics of each SAT method under each scope of its quantile, by the names of a run's metrics."""


@dataclass
class Replay:
    """The result of a replay, of which tables and figures are made."""

    candidates: list[Candidate]
    left_out: list[LeftOut]
    skipped: list[Skipped] = field(default_factory=list)
    rows: list[StepRow] = field(default_factory=list)
    total: Sums = field(default_factory=lambda: Sums.none(0))
    cosines: Cosines = field(default_factory=lambda: Cosines(0))
    sweeps: dict[int, Sweep] = field(default_factory=dict)
    token_mean: bool = False
    seconds: float = 0.0
    passed_over: int = 0
    """Dumps that were left out, since a method reads what they do not hold."""

    @property
    def tokens(self) -> int:
        """Active tokens of all steps."""
        return self.total.tokens

    @property
    def responses(self) -> int:
        """Responses of all steps."""
        return sum(row.responses for row in self.rows)

    def sat_methods(self) -> list[int]:
        """Return the indices of the SAT methods."""
        return [i for i, candidate in enumerate(self.candidates) if candidate.method.sat]


def replay(
    paths: Sequence[str | Path],
    candidates: Sequence[Candidate],
    layout: Layout | None = None,
    token_mean: bool = False,
    threads: int | None = None,
    on_step: Callable[[StepRow], None] = lambda row: None,
    every_dump: bool = False,
) -> Replay:
    """Replay the methods on every optimizer step in `paths`.

    A method that reads what only some dumps hold confines all of them to those, so that they are compared on the same
    tokens; with `every_dump` such a method is left out instead, but for one that divides by pi_l.

    Args:
        token_mean: tokens weigh alike, not responses.
        threads: default: one per core.
        on_step: is called after each step.

    Raises:
        RunFolderError: nothing that was given can be replayed.
    """
    began = time.perf_counter()
    dumps, skipped = find_dumps(paths)
    usable, left_out = answerable(candidates, _columns(candidates, dumps, every_dump))
    if not usable:
        raise RunFolderError(f"none of the methods can be replayed: {left_out[0].label} {left_out[0].reason}")
    result = Replay(
        usable, left_out, skipped, token_mean=token_mean, total=Sums.none(len(usable)), cosines=Cosines(len(usable))
    )
    result.sweeps = {index: Sweep() for index in result.sat_methods()}
    needed = frozenset[Column]().union(*(read_columns(candidate.method) for candidate in usable))
    result.passed_over = sum(not needed <= dump.columns for dump in dumps)
    dumps = [dump for dump in dumps if needed <= dump.columns]
    threads_of_torch = torch.get_num_threads()
    torch.set_num_threads(1)  # spans are computed side by side instead
    try:
        with ThreadPoolExecutor(threads or _cores()) as pool:
            waiting: deque[_Waiting] = deque()
            for item in steps(dumps, layout or Layout(), needed):
                if isinstance(item, Skipped):
                    result.skipped.append(item)
                    continue
                waiting.append(_begin(result, item, len(result.rows) + len(waiting), pool))
                del item  # a large step must not be in memory together with the next one
                while sum(step.tokens for step in waiting) > AHEAD_TOKENS:
                    on_step(_finish(result, waiting.popleft()))
            while waiting:
                on_step(_finish(result, waiting.popleft()))
    finally:
        torch.set_num_threads(threads_of_torch)
    if not result.rows:
        reasons = "; ".join(map(str, result.skipped[:3]))
        raise RunFolderError(f"nothing to replay: {reasons}")
    result.seconds = time.perf_counter() - began
    return result


def _columns(candidates: Sequence[Candidate], dumps: Sequence[Dump], every_dump: bool) -> frozenset[Column]:
    """Return, of what the methods read, the columns of the dump that holds most of it; with `every_dump` those of all
    dumps, but for that of pi_l, which few dumps hold."""
    read = frozenset[Column]().union(
        *(read_columns(candidate.method) for candidate in candidates if not candidate.refused)
    )
    most = max((dump.columns & read for dump in dumps), key=len, default=frozenset())
    if not every_dump or not dumps:
        return most
    few = frozenset[Column](["checkpoint_log_probs"])
    return frozenset.intersection(*(dump.columns for dump in dumps)) & read | (most & few)


@dataclass
class _Waiting:
    """A step that is being computed."""

    batch: StepBatch
    tokens: int
    parts: deque[Future[SpanResult]]
    sweep: Future[dict[int, Sweep]]
    mismatch: Future[dict[str, float]]


def _begin(result: Replay, batch: StepBatch, seed: int, pool: ThreadPoolExecutor) -> _Waiting:
    view = StepView(batch)
    view.prepare([*(candidate.method for candidate in result.candidates), UNCLIPPED])
    score = partial(mismatch_metrics, checkpoint_log_probs=batch.checkpoint_log_probs)
    return _Waiting(
        batch,
        len(batch.mask),
        deque(
            pool.submit(span_result, result.candidates, view, span, result.token_mean)
            for span in spans(batch, SPAN_TOKENS)
        ),
        pool.submit(sweep_step, result.candidates, view, seed),
        pool.submit(score, batch.log_probs, batch.rollout_log_probs, batch.mask),
    )


def _finish(result: Replay, waiting: _Waiting) -> StepRow:
    """Add a step to the result. Its spans are summed in their order, so that sums do not depend on which thread was
    first."""
    batch = waiting.batch
    sums = Sums.none(len(result.candidates))
    scopes: dict[tuple[int, str], list[Metrics]] = {(i, scope): [] for i in result.sat_methods() for scope in SCOPES}
    while waiting.parts:
        part = waiting.parts.popleft().result()
        sums.add(part.sums)
        for key, more in part.scopes.items():
            scopes[key] += more
    for index, sweep in waiting.sweep.result().items():
        result.sweeps[index].add(sweep)
    assert batch.microbatches is not None
    row = StepRow(
        name=batch.name,
        responses=len(batch.lengths),
        tokens=sums.tokens,
        lag=batch.lag,
        microbatches=len(batch.microbatches),
        mismatch=waiting.mismatch.result(),
        shares=np.array([[method.share(CLIPPED), method.share(MASKED), method.effective] for method in sums.methods]),
        scopes={key: reduced(rows) for key, rows in scopes.items()},
    )
    result.total.add(sums)
    result.cosines.add(sums.cosines())
    result.rows.append(row)
    return row


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
