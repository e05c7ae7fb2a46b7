"""The page of a check-up: what is seen, since when, what to try, what cannot be told; tables and figures behind it."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sat_slime.report.checkup.checkup import Checkup
from sat_slime.report.checkup.checkup_tables import tables
from sat_slime.report.checkup.dump_symptoms import LEAST_TAIL, dump_symptoms
from sat_slime.report.number_text import percent
from sat_slime.report.page import Figure, Page, Sheet, listed, warning_box
from sat_slime.runs.collapse import FLOOR_STEPS, SCORES, judge
from sat_slime.runs.folder import writable
from sat_slime.runs.reading import RunData
from sat_slime.runs.rows import has
from sat_slime.runs.symptoms import Symptom, order, symptoms, verdict

METHODS = "docs/choosing.md says what each stabilizer bounds, needs and costs."


@dataclass
class Findings:
    """The findings, for a page or a terminal."""

    page: Path
    summary: list[str]
    symptoms: list[Symptom]
    verdict: str
    """What it is worth that nothing else was found; empty where nothing is to be said of it."""
    unknown: list[str]
    next: list[str]
    """Commands, each with what it is for behind a #."""
    sheets: list[Sheet]
    skipped: list[str]


def write_findings(
    checkup: Checkup, paths: Sequence[Path], folder: Path, figures: Callable[[RunData], Iterable[Figure]]
) -> Findings:
    """Write the page with its tables and figures into a folder that `check_out` accepts.

    Args:
        paths: what the user gave, for the command that makes the page again.
        figures: makes those of the curves.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    of_curves = symptoms(checkup.data)
    names = {symptom.name for symptom in of_curves}
    seen = [*of_curves, *(symptom for symptom in dump_symptoms(checkup.tokens) if symptom.name not in names)]
    findings = Findings(
        folder / "report.html",
        [*_what_was_read(checkup), *_story(checkup, seen)],
        seen,
        verdict(checkup.data, seen),
        list(unknown(checkup)),
        list(_next(checkup, seen)),
        tables(checkup.tokens),
        list(map(str, checkup.skipped)),
    )
    with writable(folder):
        page = Page(folder)
        page.section("seen", "What we see, and what to try", _as_html(findings.symptoms, findings.verdict))
        commands = "".join(f"<p><code>{html.escape(line)}</code></p>" for line in findings.next)
        page.section("next", "Next", f"{commands}<p>{html.escape(METHODS)}</p>")
        page.section("unknown", "Not visible here, and what would show it", f"<ul>{listed(findings.unknown)}</ul>")
        for sheet in findings.sheets:
            page.sheet(sheet)
        for figure in figures(checkup.data):
            page.figure(figure)
        page.again(f"sat-slime diagnose {shlex.join(map(str, paths))}")
        findings.page = page.write(
            "report.html",
            title=f"{Path(paths[0]).resolve().name}: a check-up",
            subtitle="a run of slime, from its own trackers and dumps",
            summary=findings.summary,
            warnings=warning_box(findings.skipped),
        )
    return findings


def _as_html(seen: Sequence[Symptom], verdict: str) -> str:
    paragraphs = "".join(
        f"<p><strong>{html.escape(symptom.heading)}</strong>: {html.escape(symptom.seen)}."
        f"<br>{html.escape(symptom.advice)}.</p>"
        for symptom in seen
    )
    return f"{paragraphs}<p>{html.escape(verdict)}</p>" if verdict else paragraphs


def _what_was_read(checkup: Checkup) -> Iterator[str]:
    parts = []
    if checkup.data.metrics:
        steps = checkup.data.metrics["step"]
        parts.append(f"{len(steps):,} optimizer steps of a tracker ({steps[0]:.0f} to {steps[-1]:.0f})")
    if evals := len(checkup.data.evals.get("accuracy", ())):
        parts.append(f"{evals} evaluations")
    if checkup.tokens.steps:
        parts.append(f"{len(checkup.tokens.steps)} optimizer steps in dumps, {checkup.tokens.whole.tokens:,} tokens")
    yield f"Read: {'; '.join(parts)}."


def _story(checkup: Checkup, seen: Sequence[Symptom]) -> Iterator[str]:
    """Tell what happened, a sentence each."""
    reward = checkup.data.metrics.get("reward/mean", np.zeros(0))
    reward = reward[np.isfinite(reward)]
    if len(reward) > 1:
        window = max(1, min(16, len(reward) // 2))
        yield (
            f"The training reward went from {reward[:window].mean():.3f} to {reward[-window:].mean():.3f} (means of "
            f"the first and last {window} steps)."
        )
    if checkup.data.metrics and (sentence := judge(checkup.data.metrics, checkup.data.evals, 1).sentence()):
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if text := order(seen):
        yield text
    sums = checkup.tokens
    if sums.steps and sums.whole.tail >= LEAST_TAIL:
        rare = sum(group.tail for group in sums.by_probability[:2]) / sums.whole.tail
        held = float(np.mean(sums.concentrations))
        fits = "a gate of whole responses" if held < 0.1 else "a rule for single tokens"
        yield (
            f"In the dumps mean |d| is {sums.whole.size / sums.whole.tokens:.4f} nats; {percent(rare)} of its tail are "
            f"tokens that the engine gave less than 10 %; half of the tail is in {percent(held)} of the responses, "
            f"which {fits} fits."
        )


def _next(checkup: Checkup, seen: Sequence[Symptom]) -> Iterator[str]:
    if checkup.tokens.steps:
        folders = sorted({str(path.parent) for path in checkup.training})
        yield f"sat-slime replay {shlex.join(folders)}   # what every stabilizer would have done to these tokens"
    elif checkup.data.metrics:
        yield (
            "--save-debug-train-data 'dump/{rollout_id}.pt'   # in slime's command, from a checkpoint before the first "
            "symptom; then: sat-slime diagnose dump"
        )
    if any(symptom.since is not None for symptom in seen):
        yield "sat-slime methods sat-gspo   # a stabilizer's formula; the plugin: docs/slime.md"


def unknown(checkup: Checkup) -> Iterator[str]:
    """Tell what was given does not show, a sentence each, with the flag of slime that would show it."""
    yield from _unknown_of_curves(checkup)
    if not checkup.tokens.steps:
        yield (
            "In which tokens the mismatch is, its tail, prompts without a signal and what a stabilizer would do: add "
            "--save-debug-train-data 'DIR/{rollout_id}.pt' (slime 0.3.1: 'DIR/{rollout_id}_{rank}.pt'), or "
            "--dump-details DIR. It costs about 30 bytes a token on disk, more with routing replay; a few rollouts of "
            "a resumed job will do."
        )
    yield (
        "Whether the mismatch is staleness or a difference of the engines: that needs the trainer's log-probs under "
        "the weights that generated the batch, which no data of slime holds (docs/diagnose.md). The first step of a "
        "run has no staleness: what is there is the engines'."
    )


def _unknown_of_curves(checkup: Checkup) -> Iterator[str]:
    metrics = checkup.data.metrics
    if not metrics:
        yield (
            "Since when, and what came first: no tracker was given. Add a TensorBoard folder (--use-tensorboard "
            "--tb-project-name NAME), a W&B export, or the log that the job printed, which has the same numbers."
        )
        return
    if len(metrics["step"]) < FLOOR_STEPS:
        yield f"Trends: only {len(metrics['step'])} steps are there, and levels are compared over {FLOOR_STEPS}."
    if not has(metrics, "mismatch/d_pi"):
        yield (
            "How far the trained policy is from the one that sampled: slime logs train/train_rollout_logprob_abs_diff "
            "by itself where samples have the engine's log-probs. It is missing here, so a custom rollout function "
            "leaves them out, or that chart was not exported."
        )
    if not has(metrics, "reward/mean"):
        yield "The training reward: rollout/raw_reward is missing; in W&B it is another chart, to be exported too."
    if not has(metrics, "loss/kl"):
        yield (
            "The distance from the reference: add --use-kl-loss; with --kl-loss-coef 0 it is measured alone, for a "
            "forward pass of the reference."
        )
    if not has(metrics, "ois") and not has(metrics, "tis"):
        yield (
            "What importance weights do: slime logs train/tis and train/tis_clipfrac with --use-tis. --get-mismatch-"
            "metrics alone does not measure: it wants a --custom-tis-function-path, whose loss is then used."
        )
    if len(checkup.data.evals.get("accuracy", ())) < SCORES:
        yield f"Whether held-out accuracy fell: fewer than {SCORES} evaluations are there. Add --eval-interval."
    if not any(key.startswith(("staleness/", "lag/")) for key in metrics):
        yield (
            "The lag of each batch: slime logs rollout/staleness/* only in its newest, fully asynchronous rollout. "
            "Otherwise weight_versions of --save-debug-rollout-data have it, sample by sample."
        )
