"""Finds what is wrong with the rows of a run folder: lines that are no rows, and rows that are missing or there twice.

A kill can tear the last line of a file, and a resume makes what follows its checkpoint again. Anything else was lost or
damaged afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sat_slime.runs.folder import RunFolder
from sat_slime.runs.reading import read_yaml, section
from sat_slime.runs.rows import damaged_lines, is_histogram, read_rows

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
    last = last_step(config, str(folder.state().get("status")))
    yield from lost_rows(folder, last)
    yield from _evaluations(folder, config, ended=last is not None)


def last_step(config: Mapping[str, Any], status: str) -> int | None:
    """Return the optimizer step of the last row that the run must have. None where that is not certain: the run has not
    finished, a collapse may have ended it, or it is a run of slime."""
    pipeline, collapse = section(config, "pipeline"), section(config, "collapse")
    if status != "finished" or config.get("runtime") != "embedded" or collapse.get("stop"):
        return None
    return int(pipeline.get("iterations", 0)) * int(pipeline.get("optimizer_steps_per_rollout", 1)) or None


def lost_rows(folder: RunFolder, last: int | None = None) -> Iterator[str]:
    """Yield a sentence for each file with damaged lines, and for missing or repeated rows of optimizer steps.

    last: the number of steps. Default: that of the last row.
    """
    for path in (folder.metrics, folder.eval, folder.histograms):
        if damaged := damaged_lines(path, is_histogram if path == folder.histograms else None):
            many = len(damaged) > 1
            yield (
                f"{path.name} is damaged: line{'s' * many} {_named(damaged)} {'are no rows' if many else 'is no row'}, "
                "and left out."
            )
    steps = _whole_numbers(read_rows(folder.metrics), "step")
    yield from _gaps(folder.metrics, steps, last)
    if folder.histograms.exists():
        # The row of the newest step is written after that of metrics.jsonl.
        sure = max(steps, default=1) - 1 if last is None else last
        yield from _gaps(folder.histograms, _whole_numbers(read_rows(folder.histograms), "step"), sure)


def missing_steps(steps: Iterable[int], last: int | None = None) -> list[int]:
    """Return the numbers that are missing between 1 and `last`. Unset: between the least and the greatest of
    `steps`."""
    there = set(steps)
    if last is None and not there:
        return []
    first, end = (min(there), max(there)) if last is None else (1, last)
    return [step for step in range(first, end + 1) if step not in there]


def _gaps(path: Path, steps: Sequence[int], last: int | None) -> Iterator[str]:
    if missing := missing_steps(steps, last):
        yield f"{path.name} lacks {_rows_of('optimizer step', missing)}: what is made of all rows leaves that out."
    if twice := sorted(step for step, count in Counter(steps).items() if count > 1):
        yield f"{path.name} has more than one row of optimizer step {_named(twice)}."


def _evaluations(folder: RunFolder, config: Mapping[str, Any], ended: bool) -> Iterator[str]:
    """Yield sentences about missing evaluations. An embedded run has one before the first step, one every n iterations,
    and, once it has ended, one after the last."""
    evaluation = section(config, "eval")
    every = evaluation.get("every_n_iterations")
    done = max(_whole_numbers(read_rows(folder.metrics), "iteration"), default=0)
    if config.get("runtime") != "embedded" or not every or not done:
        return
    expected = {*range(0, done, int(every))}  # the one after the newest iteration may be going on
    if not ended and evaluation.get("beside", "none") != "none":
        expected.discard(max(expected))  # and so may the one before it
    if ended:
        expected.add(done)
    if missing := sorted(expected - set(_whole_numbers(read_rows(folder.eval), "iteration"))):
        yield f"{folder.eval.name} lacks {_rows_of('the evaluation after iteration', missing)}."


def _rows_of(what: str, numbers: Sequence[int]) -> str:
    return f"{len(numbers)} row{'s' * (len(numbers) > 1)}, of {what} {_named(numbers)}"


def _named(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more


def _whole_numbers(rows: Iterable[Mapping[str, Any]], key: str) -> list[int]:
    return [row[key] for row in rows if isinstance(row.get(key), int)]
