"""Responses of a run as a page shows them: prompts, answers, rewards and the weights that wrote them."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sat_slime.report.number_text import DASH, decimals
from sat_slime.report.page import Page, Sheet, headline
from sat_slime.rollout.types import TOOL
from sat_slime.runs.folder import RunFolder, RunFolderError
from sat_slime.runs.reading import read_yaml, section
from sat_slime.runs.rows import number, read_rows

FIRST = 5
LONGEST = 300
"""Characters of a prompt or a response that a table shows."""


def sample_files(folder: RunFolder) -> list[Path]:
    """Return the files of kept responses, oldest iteration first."""
    return sorted((file for file in folder.samples.glob("*.jsonl") if file.stem.isdigit()), key=lambda f: int(f.stem))


def first_samples(folder: RunFolder) -> tuple[int, list[dict[str, Any]]] | None:
    """Return the newest iteration whose responses were kept, and five of them, each to a prompt of its own, right and
    wrong by turns as far as there are both; None where none were kept."""
    files = sample_files(folder)
    samples = read_rows(files[-1]) if files else []
    if not samples:
        return None
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in samples:
        groups.setdefault(row.get("prompt"), []).append(row)
    chosen: list[dict[str, Any]] = []
    for group in list(groups.values())[:FIRST]:
        wants_right = len(chosen) % 2 == 0
        chosen.append(next((row for row in group if (number(row, "reward") > 0) == wants_right), group[0]))
    return int(files[-1].stem), chosen


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


def write_samples(folder: RunFolder, iteration: str, out: Path, address: str) -> Path:
    """Write a page of all responses that were kept of an iteration, the newest where none is named; returns its path.
    address: leads to the page of an iteration, whose number is put behind it. Raises RunFolderError where none were
    kept."""
    files = {file.stem: file for file in sample_files(folder)}
    if not files:
        raise RunFolderError(f"{folder.path} has kept no responses: logging.samples_every_n_iterations")
    chosen = iteration if iteration in files else list(files)[-1]
    config = read_yaml(folder.config)
    samples = read_rows(files[chosen])
    steps = section(config, "pipeline").get("optimizer_steps_per_rollout", 1)
    sheet = sample_sheet(int(chosen), samples, int(steps))
    page = Page(out)
    links = "".join(f' <a href="{html.escape(address)}{stem}">{stem}</a>' for stem in files if stem != chosen)
    page.add(f"<p>Iterations:{links}</p>" if links else "")
    page.section("samples", f"Iteration {chosen}", f'<div class="wide">{sheet.as_html()}</div>')
    right = sum(number(row, "reward", 0.0) > 0 for row in samples)
    return page.write(
        "report.html",
        title=f"{folder.path.name}: samples",
        subtitle=headline(config),
        summary=[f"{right} of {len(samples)} responses have a reward."],
        contents=False,
    )


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
