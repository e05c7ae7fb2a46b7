"""The page of a replay, figures and tables beside it as files."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from sat_slime.report.number_text import count_of
from sat_slime.report.page import Page, Sheet, check_out, warning_box
from sat_slime.report.replay.replay import Replay
from sat_slime.report.replay.replay_figures import figures
from sat_slime.report.replay.replay_tables import sweep_rows, tables, weighted
from sat_slime.runs.folder import writable


def write_page(result: Replay, folder: Path, command: Sequence[str]) -> Path:
    """Write report.html, figures/ and tables/ into a folder; returns the page. command: makes the page again. Raises
    RunFolderError where the folder holds something else or cannot be written."""
    check_out(folder)
    with writable(folder):
        page = Page(folder)
        sheets = {sheet.name: sheet for sheet in tables(result)}
        steps = sheets.pop("steps")
        page.sheet(sheets.pop("methods"))
        for figure in figures(result):
            page.figure(figure)
            behind = sheets.pop(_AFTER.get(figure.name, ""), None)
            if behind is not None and len(behind.head) <= WIDEST:
                page.sheet(behind)
            elif behind is not None:
                behind.save(folder / "tables")
        page.sheet(steps)
        Sheet("scope_sweep", "", "", [], [], numbers=sweep_rows(result)).save(folder / "tables")
        if (left_out := _left_out(result)) is not None:
            page.sheet(left_out)
        page.again(shlex.join(command))
        return page.write(
            "report.html",
            title="Replay",
            subtitle=f"{count_of(len(result.rows), 'optimizer step')}, {result.tokens:,} tokens",
            summary=summary(result),
            warnings=_warnings(result),
        )


WIDEST = 16
"""Columns of a table beyond which the figure before it says more, so that it is a file alone."""

_AFTER = {"cosines": "cosine_numbers", "scope": "scopes"}
"""{figure: the table that stands behind it}."""


def summary(result: Replay) -> Iterator[str]:
    """Say what was read and what it shows, a sentence each."""
    d_pi = weighted(result, lambda row: row.mismatch["mismatch/d_pi"])
    lags = sorted({round(row.lag, 1) for row in result.rows if row.lag is not None})
    steps = count_of(len(result.rows), "optimizer step")
    text = f"{count_of(result.responses, 'response')} of {steps}; d_pi {d_pi:.4f} nats"
    if lags:
        text += f", lag {lags[0]:g}" + (f" to {lags[-1]:g}" if len(lags) > 1 else "")
    yield f"{text}. Each method is asked what it would do to the first optimizer step on these tokens."
    cosines = result.cosines.mean[:-1, -1]
    order = [i for i in sorted(range(len(cosines)), key=lambda i: -cosines[i]) if math.isfinite(cosines[i])]
    if len(order) > 1:
        near, far = result.candidates[order[0]], result.candidates[order[-1]]
        yield (
            f"Nearest to the unclipped gradient: {near.label} (cosine {cosines[order[0]]:.3f}); farthest: {far.label} "
            f"({cosines[order[-1]]:.3f})."
        )
    if result.passed_over:
        yield passed_over(result)
    yield verdict(result)


EQUAL = 0.999
"""Cosine from which on two methods make the same first step on these tokens."""


def verdict(result: Replay) -> str:
    """Say of each method of SAT whether it is its base here; without one, which methods make the same step."""
    cosines, labels = result.cosines.mean, [candidate.label for candidate in result.candidates]
    names = {name: i for i, one in enumerate(result.candidates) for name in (one.label, *one.same)}
    said = []
    for index in result.sat_methods():
        candidate = result.candidates[index]
        base = candidate.method.without("sat").label
        if (other := names.get(base)) is None or not math.isfinite(cosines[index, other]):
            continue
        cosine = cosines[index, other]
        if cosine >= EQUAL:
            said.append(f"here {candidate.label} is {base}: their gradients have cosine {cosine:.4f}")
        else:
            said.append(f"{candidate.label} differs from {base}: cosine {cosine:.3f}")
    if not said:
        pairs = [(i, j) for i in range(len(labels)) for j in range(i) if cosines[i, j] >= EQUAL]
        said = [f"here {labels[i]} makes the step of {labels[j]}" for i, j in pairs[:4]]
        said = said or ["no two of the methods make the same step here"]
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def passed_over(result: Replay) -> str:
    """Return a sentence on the dumps that were left out."""
    return (
        f"{result.passed_over} dumps were left out, since they do not hold what one of the methods reads; leave that "
        "method out of --methods to have them all."
    )


def _warnings(result: Replay) -> str:
    lines = list(map(str, result.skipped[:20]))
    if len(result.skipped) > 20:
        lines.append(f"and {len(result.skipped) - 20} more")
    return f"<p><strong>Files and tokens that were left out</strong></p>{warning_box(lines)}" if lines else ""


def _left_out(result: Replay) -> Sheet | None:
    if not result.left_out:
        return None
    return Sheet(
        "not_replayed",
        "Methods that this dump cannot answer",
        "What was asked for and needs what the dump does not hold.",
        ["methods", "reason"],
        [[methods.label, methods.reason] for methods in result.left_out],
    )
