"""Token dumps: what a batch's optimizer steps read, in the form of slime's --save-debug-train-data (format 2).

So one reader serves both: sat_slime/report/dumps.py, which has the columns that a sample of ours has beside slime's.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sat_slime.config.jsonl import write_atomically
from sat_slime.lab.responses import Response
from sat_slime.objective import Method


@dataclass(frozen=True)
class DumpedStep:
    """An optimizer step: its responses, and their N tokens in a row."""

    responses: Sequence[Response]
    microbatches: Sequence[int]
    """Responses of each micro-batch."""
    columns: Mapping[str, Tensor]
    """(N,) each, by the names of the dump."""


def write_dump(path: Path, method: Method, steps: Sequence[DumpedStep | None]) -> None:
    """Writes a file that is there whole or not at all. Raises OSError.

    Args:
        path: its name is the iteration, counted from 1.
        steps: those of the iteration, each of as many responses as any other; None where one is not dumped.
    """
    samples: list[dict[str, Any]] = []
    parts: list[list[int]] = []
    for number, step in enumerate(steps):
        if step is None:
            continue
        for size in step.microbatches:
            begin = parts[-1][-1] + 1 if parts else 0
            parts.append(list(range(begin, begin + size)))
        lengths = [len(response.output_ids) for response in step.responses]
        # Parts of one tensor are one array in the file.
        rows = {name: column.detach().split(lengths) for name, column in step.columns.items()}
        for i, response in enumerate(step.responses):
            tokens = {"tokens": [*response.prompt_ids, *response.output_ids], "response_lengths": lengths[i]}
            place = {"rollout_position": number * len(lengths) + i, "rewards": response.reward}
            samples.append({**place, **tokens, **{name: row[i] for name, row in rows.items()}})
    layout = {
        "partition": [sample["rollout_position"] for sample in samples],
        "micro_batch_indices": parts,
        "num_microbatches": [len(step.microbatches) if step else 0 for step in steps],
    }
    head = {"format_version": 2, "rollout_id": int(path.stem) - 1, "rank": 0}
    ours = {"method": method.name, "routing_replay": method.has("r3")}
    file = io.BytesIO()
    torch.save({**head, **ours, "samples": samples, "dp_shards": [layout]}, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, file.getvalue())
