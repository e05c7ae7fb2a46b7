"""The report of a study, grids that vary one: its figures, its tables, and its summary in words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sat_slime.report.comparison.best_settings import answer_table, ranked_settings
from sat_slime.report.comparison.comparison_tables import contrast_table, grid_table, level_table, tolerance_table
from sat_slime.report.comparison.contrasts import Contrast
from sat_slime.report.comparison.lag_tolerance import KEPT, tolerance_of
from sat_slime.report.comparison.method_names import label_of
from sat_slime.report.comparison.studies import Study, StudyGrid
from sat_slime.report.comparison.study_contrasts import (
    best_radius_contrasts,
    lag_contrasts,
    method_contrasts,
    primary_contrasts,
    sat_contrasts,
    stabilizer_contrasts,
    variant_contrasts,
)
from sat_slime.report.comparison.study_figures import (
    draw_lags,
    draw_methods,
    draw_plane,
    draw_radius,
    draw_time,
    draw_variants,
)
from sat_slime.report.number_text import minus
from sat_slime.report.page import Figure, Page, Sheet


def fill(page: Page, study: Study, command: str, rules: str) -> tuple[str, Iterator[str]]:
    """Put the report's figures and tables on the page; returns its subtitle and its summary. command: makes the page
    again. rules: HTML of what is tested and how."""
    if (answer := answer_table(study)).rows:
        page.sheet(answer)
    for figure in figures(study):
        page.figure(figure, f"{command} --figure {figure.name}")
    for sheet in tables(study):
        page.sheet(sheet)
    page.section("rules", "Rules and tests", rules)
    return f"a study of {len(study.grids)} grids; base: {study.base.name}", summary(study)


def figures(study: Study) -> Iterator[Figure]:
    """List all figures, which are drawn when asked for."""
    key = "A method has the same colour in every figure; the marker shows the base, a filled one R3."
    key_to_points = "A name that has no room is left out; hover over a point to read it."
    yield Figure(
        "lags",
        "What lag costs",
        f"Means over seeds, bars: 95 % interval (Student's t). Dotted: {KEPT:.0%} of the accuracy at lag 1. {key}",
        partial(draw_lags, study),
    )
    yield Figure(
        "radius",
        "A smaller radius",
        "PPO's interval is 1 ± the radius. SAT contracts it on the stale tail, a smaller radius everywhere.",
        partial(draw_radius, study),
    )
    yield Figure(
        "plane",
        "Accuracy against mismatch",
        f"A point for each method of each grid, mean over seeds; upper left is best. Points without a name are of the "
        f"base's settings; those that differ in the clip's radius alone are joined. {key_to_points}",
        partial(draw_plane, study, "d_pi"),
    )
    yield Figure(
        "clipped",
        "Accuracy against what is clipped",
        "The same points over the share of the tokens that the clip takes the gradient of, mean over all steps; those "
        "that clip nothing are left out. A smaller radius clips more, and so does SAT: where their lines are one, SAT "
        f"adds nothing to a smaller radius. {key_to_points}",
        partial(draw_plane, study, "clipped"),
    )
    yield Figure(
        "variants",
        "What a changed setting does",
        "Against the same method at the base's settings, paired by seed, with the bootstrap's 95 % interval. Black: at "
        "least a lead.",
        partial(draw_variants, study),
    )
    yield Figure(
        "methods",
        "Methods side by side",
        "Against GRPO at the same lag and the base's settings, paired by seed, with the bootstrap's 95 % interval. "
        "Black: at least a lead.",
        partial(draw_methods, study),
    )
    yield Figure(
        "time",
        "Accuracy against wall-clock",
        "Accuracy is that of the base; an update takes the median seconds of runs of that lag that had the machine to "
        "themselves, of the same method where it has such runs.",
        partial(draw_time, study),
    )


def tables(study: Study) -> Iterator[Sheet]:
    """Make all tables that have rows."""
    return filter(lambda sheet: sheet.rows, _every_table(study))


def _every_table(study: Study) -> Iterator[Sheet]:
    yield tolerance_table(study)
    for grid in study.sweeps:
        yield contrast_table(
            f"lag_{grid.name}",
            f"{grid.name}: what lag costs",
            "Each method against itself at lag 1. Corrected together.",
            lag_contrasts(grid),
        )
    yield contrast_table(
        "primary",
        "Is SAT more than a smaller radius?",
        "Corrected together. Late accuracy in percentage points, d_pi in nats, with the 95 % bootstrap interval of the "
        "mean over seeds.",
        primary_contrasts(study),
    )
    yield contrast_table(
        "best_radius",
        "Against the best radius",
        "Each seed takes the radius that is best on the other seeds.",
        best_radius_contrasts(study),
    )
    for grid in study.grids:
        if not grid.alone:
            yield contrast_table(
                f"sat_{grid.name}", f"{grid.name}: SAT against its base", "Corrected together.", sat_contrasts(grid)
            )
    for grid in study.grids:
        if not grid.alone:
            yield contrast_table(
                f"stabilizers_{grid.name}",
                f"{grid.name}: what a stabilizer adds",
                "Against the same method without it. Corrected together.",
                stabilizer_contrasts(study, grid),
            )
    yield contrast_table(
        "methods",
        "Other methods",
        "At the base's settings, against GRPO. Corrected together.",
        method_contrasts(study),
    )
    for method in study.base.methods:
        yield contrast_table(
            f"variants_{method}",
            f"{label_of(method)} with other settings",
            "Against the same method in the base. Corrected together.",
            variant_contrasts(study, method),
        )
    for grid in study.grids:
        if not grid.alone:
            yield level_table(grid)
    yield grid_table(study)


def summary(study: Study) -> Iterator[str]:
    """Say what the study shows and which runs there are, a sentence each."""
    best: dict[str, list[str]] = {}
    for lag in study.base.lags:
        for setting in ranked_settings(study, lag)[:1]:
            best.setdefault(setting.name, []).append(str(lag))
    if best:
        yield f"Highest late accuracy: {'; '.join(f'{name} at lag {_listed(lags)}' for name, lags in best.items())}."
    for contrast in primary_contrasts(study):
        yield _sentence(contrast)
    for grid in study.sweeps:
        yield from _tolerated(grid)
    runs = [run for grid in study.grids for run in grid.collection.runs]
    missing = sum(len(grid.collection.not_run) for grid in study.grids)
    whole = sum(run.counts for run in runs)
    yield (
        f"{whole} whole runs in {len(study.grids)} grids; {len(runs) - whole} not whole, {missing} planned, not run. "
        f"Collapsed by the rule: {sum(run.collapse.met for run in runs)}."
    )


def _tolerated(grid: StudyGrid) -> Iterator[str]:
    tolerances = [(method, tolerance_of(grid, method)) for method in grid.methods]
    texts = [
        f"{label_of(method)} {'at least ' if tolerance.lag == tolerance.largest else ''}{tolerance.lag}"
        for method, tolerance in tolerances
        if tolerance
    ]
    if texts:
        yield f"Tolerated lag, {grid.name}: {', '.join(texts)}."


def _sentence(contrast: Contrast) -> str:
    late = contrast["late"]
    points = f"{100 * late.mean:+.1f} points"
    if late.n > 1:
        points += f" [{100 * late.low:+.1f}, {100 * late.high:+.1f}]"
    return f"{contrast.label}, {contrast.where}: {minus(points)}, {late.verdict}."


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
