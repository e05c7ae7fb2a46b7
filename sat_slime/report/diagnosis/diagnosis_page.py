"""The page of a diagnosis, RUN/diagnosis/, from the token dumps of a run or from its metrics alone."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sat_slime.report.diagnosis.attribution import load_tokens
from sat_slime.report.diagnosis.diagnosis_figures import figures
from sat_slime.report.diagnosis.diagnosis_tables import findings, tables, warnings
from sat_slime.report.diagnosis.split_by_lag import metrics_figure, metrics_findings, metrics_table
from sat_slime.report.page import Figure, Page, Sheet, headline, warning_box
from sat_slime.rollout.token_dump import dump_paths
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.reading import Run, load_run, section
from sat_slime.runs.rows import has

FOLDER = "diagnosis"


@dataclass
class Diagnosis:
    """The findings, for a page or a terminal."""

    page: Path
    findings: list[str]
    warnings: list[str]
    sheets: list[Sheet]


def write_diagnosis(path: str | Path) -> Diagnosis:
    """Take the mismatch of a run apart and write RUN/diagnosis/: index.html, figures/, tables/.

    Raises:
        RunFolderError: no run folder, or one in which nothing was measured; says how to measure it.
    """
    run = load_run(path)
    tokens = load_tokens(dump_paths(run.folder.path))
    drawn: list[Figure]
    if tokens is not None:
        sentences = list(findings(tokens))
        doubts = list(warnings(tokens, section(run.config, "pipeline").get("lag")))
        sheets, drawn = tables(tokens), figures(tokens)
    elif has(run.data.metrics, "mismatch/implementation"):
        sentences, doubts = list(metrics_findings(run.data.metrics)), [_without_dumps(run)]
        sheets, drawn = [metrics_table(run.data.metrics)], [metrics_figure(run.data.metrics)]
    else:
        raise RunFolderError(_nothing_measured(run))
    page = Page(run.folder.path / FOLDER)
    for sheet in sheets:
        page.sheet(sheet)
    for figure in drawn:
        page.figure(figure)
    page.again(f"sat-slime diagnose {shlex.quote(str(path))}")
    written = page.write(
        "index.html",
        title=f"{run.name}: the mismatch taken apart",
        subtitle=headline(run.config),
        summary=sentences,
        warnings=warning_box(doubts),
    )
    return Diagnosis(written, sentences, doubts, sheets)


def _is_of_slime(run: Run) -> bool:
    return run.config.get("runtime") == "slime"


def _without_dumps(run: Run) -> str:
    """Say why the page has the split alone."""
    if _is_of_slime(run):
        return (
            "A run of slime has the policy and the implementation part, from the log-probs under the generating "
            "weights. Routing, precision and the rest, and the total variation, need the tokens scored again with the "
            "weights at hand, which only the embedded runtime does."
        )
    return (
        "The run was not diagnosed, so this is only the split into policy and implementation part. For routing, "
        "precision and the rest, run it again with --set diagnose.every_n_steps=5."
    )


def _nothing_measured(run: Run) -> str:
    path = run.folder.path
    if not np.size(run.data.metrics.get("step", ())):
        return f"{path} has logged no optimizer step yet: there is no mismatch to take apart"
    if _is_of_slime(run):
        return (
            f"{path} has no log-probs under the generating weights, so the mismatch cannot be split: run with "
            "--set method.denominator=checkpoint"
        )
    return (
        f"{path} has no diagnosed steps and no split of the mismatch: run again with --set diagnose.every_n_steps=5 "
        "(every 5th optimizer step)"
    )
