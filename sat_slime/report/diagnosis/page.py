"""`RUN/diagnosis/`: a page, its figures and tables, from the token dumps of a run or from its metrics alone."""

from __future__ import annotations

import html
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sat_slime.report.diagnosis import figures as diagnosis_figures
from sat_slime.report.diagnosis import tables as diagnosis_tables
from sat_slime.report.diagnosis.attribution import load_tokens
from sat_slime.report.diagnosis.from_metrics import metrics_figure, metrics_findings, metrics_table
from sat_slime.report.drawing import has
from sat_slime.report.html import HEAD
from sat_slime.report.page_parts import Figure, Sheet, figure_html, sheet_html
from sat_slime.report.run.page import Run, headline, load_run, section
from sat_slime.report.sheet_style import STYLE
from sat_slime.rollout.token_dump import dump_paths
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.rows import write_atomically

FOLDER = "diagnosis"

PAGE = (
    HEAD
    + """<p class="subtitle">{subtitle}</p>
<div class="summary">{summary}</div>
{warnings}
<nav>{contents}</nav>
{body}
<p class="files">This page again: <code>{command}</code></p>
</body>
</html>
"""
)


@dataclass
class Diagnosis:
    """What was found, for a page or a terminal."""

    page: Path
    findings: list[str]
    warnings: list[str]
    sheets: list[Sheet]


def write_diagnosis(path: str | Path) -> Diagnosis:
    """Takes the mismatch of a run apart and writes RUN/diagnosis/: index.html, figures/, tables/.

    Raises:
        RunFolderError: no run folder, or one in which nothing was measured; says how to measure it.
    """
    run = load_run(path)
    tokens = load_tokens(dump_paths(run.folder.path))
    figures: list[Figure]
    if tokens is not None:
        found = list(diagnosis_tables.findings(tokens))
        doubts = list(diagnosis_tables.warnings(tokens, section(run.config, "pipeline").get("lag")))
        sheets, figures = diagnosis_tables.tables(tokens), diagnosis_figures.figures(tokens)
    elif has(run.data.metrics, "mismatch/implementation"):
        found, doubts = list(metrics_findings(run.data.metrics)), [_without_dumps(run)]
        sheets, figures = [metrics_table(run.data.metrics)], [metrics_figure(run.data.metrics)]
    else:
        raise RunFolderError(_nothing_measured(run))
    folder = run.folder.path / FOLDER
    contents: list[tuple[str, str]] = []
    body = [sheet_html(sheet, folder, contents) for sheet in sheets]
    body += [figure_html(figure, folder, contents) for figure in figures]
    name = str(run.config.get("name") or run.folder.path.name)
    page = PAGE.format(
        style=STYLE,
        title=html.escape(f"{name}: the mismatch taken apart"),
        subtitle=html.escape(headline(run)),
        summary="".join(f"<p>{html.escape(sentence)}</p>" for sentence in found),
        warnings=_warnings_html(doubts),
        contents="".join(f'<a href="#{html.escape(to)}">{html.escape(text)}</a>' for to, text in contents),
        body="\n".join(body),
        command=html.escape(f"sat-slime diagnose {shlex.quote(str(path))}"),
    )
    write_atomically(folder / "index.html", page)
    return Diagnosis(folder / "index.html", found, doubts, sheets)


def _warnings_html(doubts: list[str]) -> str:
    items = "".join(f"<li>{html.escape(text)}</li>" for text in doubts)
    return f'<ul class="warnings">{items}</ul>' if items else ""


def _is_of_slime(run: Run) -> bool:
    return run.config.get("runtime") == "slime"


def _without_dumps(run: Run) -> str:
    """Why this is only the split."""
    if _is_of_slime(run):
        return (
            "A run of slime tells the policy and the implementation part, from the log-probs under the generating "
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
