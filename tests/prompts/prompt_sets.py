"""Small data sets in the original formats, with all of their columns."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
SLIME = DAPO.replace("$Answer (without quotes)", "\\boxed{$Answer}")
Pair = tuple[str, str]
"""A problem and its label."""


def pairs(start: int, stop: int) -> list[Pair]:
    """Problems that differ only in a number."""
    return [(f"What is ${i} + \\frac{{1}}{{2}} \\cdot 2$?", str(i + 1)) for i in range(start, stop)]


def dapo_rows(problems: Sequence[Pair], copies: int) -> Iterable[dict[str, Any]]:
    """Rows as in BytedTsinghua-SIA/DAPO-Math-17k and AIME-2024, which hold the whole set again and again."""
    for i, (problem, label) in enumerate(itertools.chain.from_iterable([problems] * copies)):
        yield {
            "data_source": "math_dapo",
            "prompt": [{"content": DAPO.replace("{}", problem), "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": label, "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": str(uuid.UUID(int=i % len(problems)))},
        }


def dolci_rows(problems: Sequence[Pair]) -> Iterable[dict[str, Any]]:
    """Rows as in allenai/Dolci-RL-Zero-Math-7B."""
    for problem, label in problems:
        messages = [{"content": problem, "role": "user"}]
        yield {"prompt": problem, "messages": messages, "ground_truth": label, "dataset": "math"}


def processed_rows(problems: Sequence[Pair]) -> Iterable[dict[str, Any]]:
    """Rows as in open-r1/DAPO-Math-17k-Processed."""
    for row, (problem, label) in zip(dapo_rows(problems, 1), problems, strict=True):
        yield row | {"prompt": problem, "source_prompt": row["prompt"], "solution": label}


def slime_rows(problems: Sequence[Pair]) -> Iterable[dict[str, Any]]:
    """Rows as in zhuzilin/dapo-math-17k and zhuzilin/aime-2024."""
    for problem, label in problems:
        yield {"prompt": [{"content": SLIME.replace("{}", problem), "role": "user"}], "label": label}


def write(path: Path, rows: Iterable[dict[str, Any]], row_group: int = 1000) -> Path:
    """Writes a parquet or a JSON-lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = iter(rows)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path
    import pyarrow
    from pyarrow import parquet

    writer = None
    while batch := list(itertools.islice(rows, row_group)):
        table = pyarrow.Table.from_pylist(batch)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return path
