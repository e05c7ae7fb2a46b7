"""The files that a rehearsal left, read: records of ranks and engines, rows of the run, samples of rollouts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import read_rows
from sat_slime.report.dumps import load_payload

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Records:
    """Everything that the checks read."""

    ranks: Mapping[int, list[Row]] = field(default_factory=dict)
    """Rows of each trainer rank, in their order, of all of its jobs."""
    engines: Sequence[Row] = ()
    """A row for each rank of each engine, of the first job."""
    metrics: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    rollouts: Mapping[int, list[Row]] = field(default_factory=dict)
    """Samples of each rollout, as dicts of slime's."""

    def of_ranks(self, event: str, last: bool = False) -> Iterator[tuple[int, Row]]:
        """Yield each rank with its first, or last, row of an event."""
        for rank, rows in sorted(self.ranks.items()):
            if some := [row for row in rows if row["event"] == event]:
                yield rank, some[-1 if last else 0]


def read_records(folder: Path, run: Path) -> Records:
    """Read the records in a rehearsal's folder and the rows of its run's folder, as far as they are there."""
    ranks = {int(file.stem.partition("-")[2]): _lines(file) for file in folder.glob("records/rank-*.jsonl")}
    engines = [row for file in sorted(folder.glob("records/engine-*.jsonl")) for row in _lines(file)[:1]]
    rollouts = {
        int(file.stem): load_payload(file)["samples"] for file in folder.glob("rollouts/*.pt") if file.stem.isdigit()
    }
    return Records(ranks, engines, read_rows(run / "metrics.jsonl"), read_rows(run / "eval.jsonl"), rollouts)


def _lines(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
