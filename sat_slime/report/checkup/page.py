"""The page of a check-up: what is seen, since when, what to try; tables and figures behind it."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sat_slime.report.checkup.checkup import Checkup
from sat_slime.report.checkup.dump_symptoms import LEAST_TAIL, dump_symptoms
from sat_slime.report.checkup.rollout_facts import longest_version
from sat_slime.report.checkup.tables import percent, tables
from sat_slime.report.checkup.unknown import unknown
from sat_slime.report.page import Figure, Page, Sheet, listed, warning_box
from sat_slime.runs.collapse import judge
from sat_slime.runs.folder import writable
from sat_slime.runs.reading import RunData
from sat_slime.runs.symptoms import Symptom, order, symptoms

METHODS = "docs/choosing.md says what each stabilizer bounds, needs and costs."


@dataclass
class Findings:
    """What was found, for a page or a terminal."""

    page: Path
    summary: list[str]
    symptoms: list[Symptom]
    unknown: list[str]
    next: list[str]
    """Commands, each with what it is for behind a #."""
    sheets: list[Sheet]
    skipped: list[str]


def write_findings(
    found: Checkup,
    paths: Sequence[Path],
    folder: Path,
    figures: Callable[[RunData], Iterable[Figure]],
) -> Findings:
    """Write the page with its tables and figures into a folder that `check_out` accepts. figures: of the curves. Raises
    RunFolderError."""
    of_curves = symptoms(found.data.metrics, found.data.evals)
    seen = [*of_curves, *(one for one in dump_symptoms(found) if one.name not in {other.name for other in of_curves})]
    told = Findings(
        folder / "report.html",
        [*_read(found), *_story(found, seen)],
        seen,
        list(unknown(found)),
        list(_next(found, seen)),
        tables(found),
        [f"{one.path}: {one.reason}" for one in found.skipped],
    )
    with writable(folder):
        page = Page(folder)
        page.section("seen", "What we see, and what to try", _as_html(told.symptoms))
        commands = "".join(f"<p><code>{html.escape(line)}</code></p>" for line in told.next)
        page.section("next", "Next", f"{commands}<p>{html.escape(METHODS)}</p>")
        page.section("unknown", "What this cannot tell, and what would", f"<ul>{listed(told.unknown)}</ul>")
        for sheet in told.sheets:
            page.sheet(sheet)
        for figure in figures(found.data):
            page.figure(figure)
        again = html.escape(f"sat-slime diagnose {shlex.join(map(str, paths))}")
        page.add(f'<p class="files">This page again: <code>{again}</code></p>')
        told.page = page.write(
            "report.html",
            title=f"{Path(paths[0]).resolve().name}: a check-up",
            subtitle="a run of slime, from its own trackers and dumps",
            summary=told.summary,
            warnings=warning_box(told.skipped),
        )
    return told


def _as_html(seen: Sequence[Symptom]) -> str:
    if not seen:
        return "<p>None of the rules found anything unhealthy in what was given.</p>"
    return "".join(
        f"<p><strong>{html.escape(one.heading)}</strong>: {html.escape(one.seen)}.<br>{html.escape(one.advice)}.</p>"
        for one in seen
    )


def _read(found: Checkup) -> Iterator[str]:
    """What was read."""
    parts = []
    if found.data.metrics:
        steps = found.data.metrics["step"]
        parts.append(f"{len(steps):,} optimizer steps of a tracker ({steps[0]:.0f} to {steps[-1]:.0f})")
    if evals := len(found.data.evals.get("accuracy", ())):
        parts.append(f"{evals} evaluations")
    if found.tokens.steps:
        parts.append(f"{len(found.tokens.steps)} optimizer steps in dumps, {found.tokens.whole.tokens:,} tokens")
    if found.rollouts:
        parts.append(f"{len(found.rollouts)} dumped rollouts, {sum(one.samples for one in found.rollouts):,} samples")
    yield f"Read: {'; '.join(parts)}."
    if found.given.evaluations:
        yield f"{len(found.given.evaluations)} dumps of evaluations were passed over."


def _story(found: Checkup, seen: Sequence[Symptom]) -> Iterator[str]:
    """What happened, a sentence each."""
    reward = found.data.metrics.get("reward/mean", np.zeros(0))
    reward = reward[np.isfinite(reward)]
    if len(reward) > 1:
        window = max(1, min(16, len(reward) // 2))
        yield (
            f"The training reward went from {reward[:window].mean():.3f} to {reward[-window:].mean():.3f} (means of "
            f"the first and last {window} steps)."
        )
    if found.data.metrics and (sentence := judge(found.data.metrics, found.data.evals, 1).sentence()):
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if text := order(seen):
        yield text
    sums = found.tokens
    if sums.steps and sums.whole.tail >= LEAST_TAIL:
        rare = sum(group.tail for group in sums.by_probability[:2]) / sums.whole.tail
        held = float(np.mean(sums.concentrations))
        fits = "a gate of whole responses" if held < 0.1 else "a rule for single tokens"
        yield (
            f"In the dumps mean |d| is {sums.whole.size / sums.whole.tokens:.4f} nats; {percent(rare)} of its tail are "
            f"tokens that the engine gave less than 10 %; half of the tail is in {percent(held)} of the responses, "
            f"which {fits} fits."
        )
    ages = [one for one in found.rollouts if np.isfinite(one.spread)]
    if ages and max(one.oldest for one in ages) > 0:
        mean = float(np.mean([one.spread for one in ages]))
        yield (
            f"In the dumped rollouts a sample's oldest weights are {mean:.2f} updates behind the newest of its "
            f"rollout, {max(one.oldest for one in ages):.0f} at most."
        )
    if (together := longest_version(found.rollouts)) > 1:
        yield (
            f"Up to {together} rollouts in a row were written by one version of the weights, so that the last of them "
            f"is up to {together} rollouts old when it is trained."
        )


def _next(found: Checkup, seen: Sequence[Symptom]) -> Iterator[str]:
    if found.tokens.steps:
        folders = sorted({str(path.parent) for path in found.given.training})
        yield f"sat-slime replay {shlex.join(folders)}   # what every stabilizer would have done to these tokens"
    elif found.data.metrics:
        yield (
            "--save-debug-train-data 'dump/{rollout_id}.pt'   # in slime's command, from a checkpoint before the first "
            "symptom; then: sat-slime diagnose dump"
        )
    if any(one.since is not None for one in seen):
        yield "sat-slime methods sat-gspo   # a stabilizer's formula; the plugin is five lines: docs/slime.md"
