"""Responses of a run as a page shows them: prompts, answers, rewards and the weights that wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sat_slime.report.number_text import DASH, decimals
from sat_slime.report.page import Sheet
from sat_slime.rollout.types import TOOL
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.rows import number, read_rows

FIRST = 5
LONGEST = 300
"""Characters of a prompt or a response that a table shows."""


def first_samples(folder: RunFolder) -> tuple[int, list[dict[str, Any]]] | None:
    """Return the newest iteration whose responses were kept, and five of them, each to a prompt of its own, right and
    wrong by turns as far as there are both; None where none were kept."""
    files = [file for file in folder.samples.glob("*.jsonl") if file.stem.isdigit()]
    newest = max(files, key=lambda file: int(file.stem), default=None)
    samples = read_rows(newest) if newest else []
    if newest is None or not samples:
        return None
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in samples:
        groups.setdefault(row.get("prompt"), []).append(row)
    chosen: list[dict[str, Any]] = []
    for group in list(groups.values())[:FIRST]:
        wants_right = len(chosen) % 2 == 0
        chosen.append(next((row for row in group if (number(row, "reward") > 0) == wants_right), group[0]))
    return int(newest.stem), chosen


def sample_sheet(iteration: int, samples: Sequence[Mapping[str, Any]], steps_per_iteration: int) -> Sheet:
    """Make the table of some responses of an iteration."""
    head = ["prompt", "response", "reward", "weights of step"]
    known = any("log_prob" in row for row in samples)
    rows = []
    for row in samples:
        cells = [_cut(row.get("prompt")), _cut(row.get("response")), f"{number(row, 'reward', 0.0):g}"]
        cells.append(_weights(row, (iteration - 1) * steps_per_iteration))
        if known:
            cells.append(decimals(number(row, "log_prob"), 2))
        rows.append(cells)
    if known:
        head.append("log μ, nats")
    return Sheet("samples", "Samples", "", head, rows, words=True)


def _cut(text: Any) -> str:
    words = str(text)
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} …"


def _weights(row: Mapping[str, Any], step: int) -> str:
    """Tell the weights that a response is of, and how many updates they were behind those in training."""
    parts = list(_parts(row))
    if not parts:
        return DASH
    return ", ".join(
        (f"{version} (lag {step - version})" if version != TOOL else "the tool")
        + (f" for {tokens} tokens" if len(parts) > 1 else "")
        for version, tokens in parts
    )


def _parts(row: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield (version, tokens) in the order of the tokens."""
    versions = row.get("weight_versions")
    if isinstance(versions, list):
        for part in versions:
            if isinstance(part, list) and len(part) == 2 and all(isinstance(value, int) for value in part):
                yield part[0], part[1]
    elif isinstance(row.get("weight_version"), int):
        yield row["weight_version"], 0
