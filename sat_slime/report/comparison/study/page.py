"""The report of a study: one page, and figures and tables beside it as files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from sat_slime.report.comparison.curves import key_to
from sat_slime.report.comparison.methods import label_of
from sat_slime.report.comparison.page import rules
from sat_slime.report.comparison.study import figures as draw
from sat_slime.report.comparison.study.effects import (
    Effect,
    best_radius_effects,
    lag_effects,
    method_effects,
    primary_effects,
    sat_effects,
    stabilizer_effects,
    variant_effects,
)
from sat_slime.report.comparison.study.grids import Study, load_study
from sat_slime.report.comparison.study.tables import (
    effect_table,
    grid_table,
    level_table,
    tolerance_of,
    tolerance_table,
)
from sat_slime.report.comparison.study.tolerance import KEPT
from sat_slime.report.page import Figure, Page, Sheet, check_out, draw_alone
from sat_slime.runs.folder import writable


def figures(study: Study) -> Iterator[Figure]:
    """All figures, drawn when asked for."""
    key = key_to(sorted({method for grid in study.grids for method in grid.methods}))
    key_to_points = (
        f"{key} Of two that differ in their dash alone, one has another marker. A name that has no room is left out; "
        "pointing at a point tells it."
    )
    yield Figure(
        "lags",
        "What lag costs",
        f"Means over seeds, bars: 95 % interval (Student's t). Dotted: {KEPT:.0%} of the accuracy at lag 1. {key}",
        partial(draw.draw_lags, study),
    )
    yield Figure(
        "radius",
        "A smaller radius",
        "PPO's interval is 1 ± the radius. SAT contracts it on the stale tail, a smaller radius everywhere.",
        partial(draw.draw_radius, study),
    )
    yield Figure(
        "plane",
        "Accuracy against mismatch",
        f"A point for each method of each grid, mean over seeds; upper left is best. Points without a name are of the "
        f"base's settings; those that differ in the clip's radius alone are joined. {key_to_points}",
        partial(draw.draw_plane, study, "d_pi"),
    )
    yield Figure(
        "clipped",
        "Accuracy against what is clipped",
        "The same points over the share of the tokens that the clip takes the gradient of, mean over all steps; those "
        "that clip nothing are left out. A smaller radius clips more, and so does SAT: where their lines are one, SAT "
        f"adds nothing to a smaller radius. {key_to_points}",
        partial(draw.draw_plane, study, "clipped"),
    )
    yield Figure(
        "variants",
        "What a changed setting does",
        "Against the same method at the base's settings, paired by seed, with the bootstrap's 95 % interval. Black: at "
        "least a lead.",
        partial(draw.draw_variants, study),
    )
    yield Figure(
        "methods",
        "Methods side by side",
        "Against GRPO at the same lag and the base's settings, paired by seed, with the bootstrap's 95 % interval. "
        "Black: at least a lead.",
        partial(draw.draw_methods, study),
    )
    yield Figure(
        "time",
        "Accuracy against wall-clock",
        "Accuracy is that of the base; an update takes the median seconds of runs of that lag that had the machine to "
        "themselves, of the same method where it has such runs.",
        partial(draw.draw_time, study),
    )


def tables(study: Study) -> Iterator[Sheet]:
    """All tables that have rows."""
    for sheet in _every_table(study):
        if sheet.rows:
            yield sheet


def _every_table(study: Study) -> Iterator[Sheet]:
    yield tolerance_table(study)
    for grid in study.sweeps:
        yield effect_table(
            f"lag_{grid.name}",
            f"{grid.name}: what lag costs",
            "Each method against itself at lag 1. Corrected together.",
            lag_effects(grid),
        )
    yield effect_table(
        "primary",
        "Is SAT more than a smaller radius?",
        "Corrected together. Late accuracy in percentage points, d_pi in nats, with the 95 % bootstrap interval of the "
        "mean over seeds.",
        primary_effects(study),
    )
    yield effect_table(
        "best_radius",
        "Against the best radius",
        "Each seed takes the radius that is best on the other seeds.",
        best_radius_effects(study),
    )
    for grid in study.grids:
        if not grid.alone:
            yield effect_table(
                f"sat_{grid.name}", f"{grid.name}: SAT against its base", "Corrected together.", sat_effects(grid)
            )
    for grid in study.grids:
        if not grid.alone:
            yield effect_table(
                f"stabilizers_{grid.name}",
                f"{grid.name}: what a stabilizer adds",
                "Against the same method without it. Corrected together.",
                stabilizer_effects(study, grid),
            )
    yield effect_table(
        "methods",
        "Other methods",
        "At the base's settings, against GRPO. Corrected together.",
        method_effects(study),
    )
    for method in study.base.methods:
        yield effect_table(
            f"variants_{method}",
            f"{label_of(method)} with other settings",
            "Against the same method in the base. Corrected together.",
            variant_effects(study, method),
        )
    for grid in study.grids:
        if not grid.alone:
            yield level_table(grid)
    yield grid_table(study)


def summary(study: Study) -> Iterator[str]:
    """Which runs there are and what they say, a sentence each."""
    runs = [run for grid in study.grids for run in grid.comparison.collection.runs]
    missing = sum(len(grid.comparison.collection.not_run) for grid in study.grids)
    whole = sum(run.counts for run in runs)
    yield (
        f"{whole} whole runs in {len(study.grids)} grids; {len(runs) - whole} not whole, {missing} planned, not run. "
        f"Collapsed by the rule: {sum(run.collapse.met for run in runs)}."
    )
    for grid in study.sweeps:
        found = [(method, tolerance_of(grid, method)) for method in grid.methods]
        told = [
            f"{label_of(method)} {'at least ' if one.lag == one.largest else ''}{one.lag}"
            for method, one in found
            if one
        ]
        if told:
            yield f"Tolerated lag, {grid.name}: {', '.join(told)}."
    for effect in primary_effects(study):
        yield _sentence(effect)


def _sentence(effect: Effect) -> str:
    one = effect.late
    text = f"{effect.label}, {effect.where}: {100 * one.mean:+.1f} points"
    if one.n > 1:
        text += f" [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
    return f"{text}, {one.verdict}.".replace("-", "−")


def write_study_report(path: str | Path, out: str | Path | None = None, only: Sequence[str] = ()) -> list[Path]:
    """Write report.html, figures/ and tables/ about a folder of grids; returns what to look at.

    out: folder to write to; default: `path`/report. only: names of figures; only these are drawn then, and the page is
    left as it is.

    Raises:
        RunFolderError: no finished run, an unknown figure, a figure without data, or a folder of something else.
    """
    folder = Path(path) / "report" if out is None else Path(out)
    check_out(folder)
    study = load_study(path)
    every = list(figures(study))
    with writable(folder):
        if only:
            return draw_alone(every, only, folder)
        return [_write_page(study, Path(path), folder, every)]


def _write_page(study: Study, path: Path, folder: Path, every: Sequence[Figure]) -> Path:
    command = f"sat-slime report {shlex.quote(str(path))} --out {shlex.quote(str(folder))}"
    page = Page(folder)
    for figure in every:
        page.figure(figure, f"{command} --figure {figure.name}")
    for sheet in tables(study):
        page.sheet(sheet)
    rules(page, command)
    return page.write(
        "report.html",
        title=path.resolve().name,
        subtitle=f"a study of {len(study.grids)} grids; base: {study.base.name}",
        summary=summary(study),
    )
