"""Finds what is wrong with the rows of a run folder: lines that are no rows, and rows that are missing, there twice,
out of order or beyond the plan.

A kill can tear the last line of a file, and a resume makes what follows its checkpoint again. Anything else was lost or
damaged afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sat_slime.runs.folder import RunFolder
from sat_slime.runs.reading import read_yaml, section
from sat_slime.runs.rows import damaged_lines, of_first_dataset, read_rows

MOST_STEPS = 1_000_000
"""No run has more optimizer steps: a row of a greater one is damaged."""
SHOWN = 5
"""A sentence names so many numbers, and counts the rest."""


def faults_of(path: str | Path) -> list[str]:
    """Return what is wrong with the rows of a run folder, a sentence each. Nothing is wrong with what is no run
    folder."""
    folder = RunFolder(path)
    return list(row_faults(folder, read_yaml(folder.config))) if folder.is_run() else []


def row_faults(folder: RunFolder, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the rows, a sentence for each fault. config: the settings of the run, as plain
    values."""
    pipeline, collapse, evaluation = (section(config, name) for name in ("pipeline", "collapse", "eval"))
    iterations, per_iteration = (
        value if isinstance(value, int) else 0
        for value in (pipeline.get("iterations", 0), pipeline.get("optimizer_steps_per_rollout", 1))
    )
    planned = iterations * per_iteration or None
    embedded = config.get("runtime") == "embedded"
    # where it may have ended early, or is of slime, the last row is not certain
    ended = folder.state().get("status") == "finished" and embedded and not collapse.get("stop")
    yield from lost_rows(folder, planned if ended else None, planned)
    evals = of_first_dataset(read_rows(folder.eval))
    done = max(_whole_numbers(read_rows(folder.metrics), "iteration"), default=0)
    every = evaluation.get("every_n_iterations")
    if not embedded:
        yield from _misplaced(folder.eval, _whole_numbers(evals, "step"), planned, "evaluation after step")
    elif every and done and evals:
        # one before the first step, one every n iterations, one after the last; the newest may be going on, and beside
        # training the one before it too
        expected = {*range(0, min(done, MOST_STEPS), int(every))}
        if not ended and evaluation.get("beside", "none") != "none":
            expected.discard(max(expected))
        there = _whole_numbers(evals, "iteration")
        what = "evaluation after iteration"
        yield from _missing(folder.eval, sorted((expected | ({done} if ended else set())) - set(there)), what)
        yield from _misplaced(folder.eval, there, iterations or None, what)


def lost_rows(folder: RunFolder, last: int | None, planned: int | None = None) -> Iterator[str]:
    """Yield a sentence for each file with damaged lines, and for misplaced and missing rows of optimizer steps.

    last: the number of the last row. None: that of the last one there is. planned: steps of the whole run.
    """
    for path in (folder.metrics, folder.eval):
        if damaged := damaged_lines(path):
            many = len(damaged) > 1
            yield (
                f"{path.name} is damaged: line{'s' * many} {_named(damaged)} {'are no rows' if many else 'is no row'}, "
                "and left out."
            )
    steps = _whole_numbers(read_rows(folder.metrics), "step")
    there = {step for step in steps if step <= MOST_STEPS}
    first, end = (min(there, default=1), max(there, default=0)) if last is None else (1, min(last, MOST_STEPS))
    wanted = range(first, end + 1)
    # a tracker may have a row every few steps: without a plan none is known to be missing
    yield from _missing(folder.metrics, [step for step in wanted if step not in there] if planned or last else [], STEP)
    yield from _misplaced(folder.metrics, steps, planned, STEP)


STEP = "optimizer step"


def _missing(path: Path, numbers: Sequence[int], what: str) -> Iterator[str]:
    if numbers:
        rows = f"{len(numbers)} row{'s' * (len(numbers) > 1)}"
        yield f"{path.name} lacks {rows}, of {what} {_named(numbers)}: what is made of all rows leaves that out."


def _misplaced(path: Path, numbers: Sequence[int], planned: int | None, what: str) -> Iterator[str]:
    if twice := sorted(number for number, count in Counter(numbers).items() if count > 1):
        yield f"{path.name} has more than one row of {what} {_named(twice)}."
    elif late := [after for before, after in pairwise(numbers) if after < before]:
        yield f"{path.name} is out of order: {what} {_named(late)} comes after a later one."
    if planned is not None and (beyond := sorted({number for number in numbers if number > planned})):
        yield f"{path.name} goes beyond the plan of {planned}: {what} {_named(beyond)}."


def _named(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more


def _whole_numbers(rows: Iterable[Mapping[str, Any]], key: str) -> list[int]:
    return [row[key] for row in rows if isinstance(row.get(key), int)]
