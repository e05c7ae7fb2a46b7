"""The report of several runs or of a grid: one self-contained page, and figures and tables beside it as files."""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from sat_slime.grid.state import GridFolder
from sat_slime.report.comparison.collection import collect
from sat_slime.report.comparison.contrasts import Comparison
from sat_slime.report.comparison.curves import key_to
from sat_slime.report.comparison.figures import draw_departure, draw_drift, draw_learning, draw_scores, lag_name
from sat_slime.report.comparison.geometry import draw_geometry
from sat_slime.report.comparison.limits import limits, ours_label, summary
from sat_slime.report.comparison.paper_numbers import SOURCE
from sat_slime.report.comparison.sat_figures import draw_parts, draw_sat
from sat_slime.report.comparison.statistics import TEST
from sat_slime.report.comparison.tables import difference_table, main_table, run_table
from sat_slime.report.comparison.tail import draw_tail, gate_table, lag_table
from sat_slime.report.comparison.token_weights import draw_token_weights
from sat_slime.report.page import Figure, Page, Sheet, check_out, draw_alone, listed
from sat_slime.runs import collapse
from sat_slime.runs.folder import RunFolderError, writable


def figures(comparison: Comparison) -> Iterator[Figure]:
    """All figures, drawn when asked for."""
    collection = comparison.collection
    key = key_to(collection.methods)
    yield Figure(
        "scores",
        "Best scores with their intervals",
        "Left the paper, right ours, each with an axis of its own. Bars: 95 % interval over seeds (Student's t); "
        "small dots: the seeds. A cross marks a collapse.",
        partial(draw_scores, comparison),
    )
    yield Figure(
        "drift",
        "d_pi over training",
        f"Mean over seeds, smoothed over whole lag cycles. {key}",
        partial(draw_drift, comparison),
    )
    yield Figure(
        "accuracy",
        "Held-out accuracy over training",
        f"Mean over seeds; the band goes from the lowest seed to the highest. By the updates of the weights that were "
        f"measured, not by when. {key}",
        partial(draw_learning, comparison, "accuracy"),
    )
    yield Figure(
        "reward",
        "Training reward over training",
        f"As above, by the weights that earned the reward: under lag they are older than those in training. {key}",
        partial(draw_learning, comparison, "reward/mean"),
    )
    yield Figure(
        "departure",
        "Mismatch and KL: who leaves the low band, and when",
        "Every run, those that broke off too; grey lines stay in their band. The marker and its label stand at the "
        f"first step at which the level reached {collapse.MISMATCH_RISE:g} times its lowest (d_pi; or "
        f"{collapse.MISMATCH_CEILING:g} nats), {collapse.KL_RISE:g} times (KL).",
        partial(draw_departure, comparison),
    )
    yield Figure(
        "geometry",
        "Update geometry",
        "Drawn from the objective's own functions, no data: where the gradient of a sampled token acts. DPPO's δ is "
        "0.001. SAT's radius depends on the token's d and the batch's q; the third panel holds the factor fixed as "
        "the paper's figure does.",
        draw_geometry,
    )
    yield Figure(
        "token_weights",
        "What a token weighs",
        "From the objective's own functions, no data: v = g / A, what a method puts in the place of 1 on the token's "
        "own A ∇log π, by the ratio. Dotted: the ratio itself. Left out are methods whose weight is no function of the "
        "token alone: those that judge the response, the state or the batch, as SAT does, and A-3PO, by its lag.",
        draw_token_weights,
    )
    for lag in collection.lags:
        yield Figure(
            f"sat_{lag_name(lag).replace(' ', '_')}",
            f"What SAT does over training, {lag_name(lag)}",
            "Mean over seeds, band from the lowest to the highest. Newly clipped tokens are the only ones that make "
            "a run differ from its base. Strongest contraction: the smallest factor of a step.",
            partial(draw_sat, comparison, lag),
        )
    yield Figure(
        "tail",
        "Tail of |d| by realized lag",
        "d = log π − log μ of single tokens, from the histograms of all runs at the highest lag. The realized lag is "
        "that of the batch, and cycles from 1 to the configured one. The sliders choose a step, of all runs together.",
        partial(draw_tail, collection),
    )
    yield Figure(
        "parts",
        "What the mismatch is made of",
        "Means of the last quarter: d_pi, its policy part (updates since generation) and its implementation part "
        "(what the engines compute differently), and tokens routed to other experts. Means of absolute values: the "
        "parts do not add up to d_pi.",
        partial(draw_parts, comparison),
    )


def tables(comparison: Comparison) -> Iterator[Sheet]:
    """All tables but the list of runs."""
    ours = ours_label(comparison.collection)
    for lag in comparison.collection.lags:
        yield main_table(comparison, lag, ours, explain=lag == comparison.collection.lags[0])
    if (differences := difference_table(comparison)) is not None:
        yield differences


def tail_tables(comparison: Comparison) -> Iterator[Sheet]:
    """Tables of what the gate does by realized lag and |d|."""
    if rows := lag_table(comparison.collection):
        yield Sheet(
            "lag_gate",
            "Realized lag, |d| and the gate",
            "Means over the optimizer steps of that lag, all runs of the method pooled; |d| and q in nats. With the "
            "sequence ratio q and the gate are of the responses' mean d.",
            rows[0],
            rows[1:],
        )
    if rows := gate_table(comparison.collection):
        yield Sheet(
            "lag_d_gate",
            "Realized lag x |d| x gate rate",
            "SAT-GRPO with and without R3 at the highest lag, pooled: the share of a lag's tokens in a range of |d| "
            "(nats), and for how many of those the gate is open. From the histograms and q of each step: exact but "
            "for the bin that holds q.",
            rows[0],
            rows[1:],
        )


def write_grid_report(
    paths: Sequence[str | Path], out: str | Path | None = None, only: Sequence[str] = ()
) -> list[Path]:
    """Write report.html, figures/ and tables/ about `paths`; returns what to look at.

    out: folder to write to. Default: the grid itself where a single one is given, else `report`. only: names of
    figures; only these are drawn then, and the page is left as it is.

    Raises:
        RunFolderError: a path without runs, an unknown figure, a figure without data, or a folder of something else.
    """
    folder = _folder(paths, out)
    collection = collect(paths)
    if not collection.runs and not collection.planned:
        raise RunFolderError(f"{paths[0]} holds no run yet: there is nothing to report")
    comparison = Comparison(collection)
    every = list(figures(comparison))
    with writable(folder):
        if only:
            return draw_alone(every, only, folder)
        return [_write_page(comparison, paths, folder, every)]


def rules(page: Page, command: str, more: str = "") -> None:
    """Add the section of what is tested and by which rules. command: makes the page again. more: HTML."""
    test, rule = f"Differences: {TEST}.", str(collapse.__doc__).strip()
    again = f"<p>This page again: <code>{html.escape(command)}</code></p>"
    page.section("rules", "Rules and tests", f"<p>{html.escape(test)}</p><pre>{html.escape(rule)}</pre>{more}{again}")


def _folder(paths: Sequence[str | Path], out: str | Path | None) -> Path:
    if out is None and len(paths) == 1 and GridFolder(paths[0]).is_grid():
        return Path(paths[0])
    folder = Path("report" if out is None else out)
    check_out(folder)
    return folder


def _write_page(comparison: Comparison, paths: Sequence[str | Path], folder: Path, every: Sequence[Figure]) -> Path:
    command = "sat-slime report " + shlex.join(map(str, paths))
    if len(paths) > 1 or folder != Path(paths[0]):
        command += f" --out {shlex.quote(str(folder))}"
    page = Page(folder)
    for sheet in tables(comparison):
        page.sheet(sheet)
    for figure in every:
        page.figure(figure, f"{command} --figure {figure.name}")
        if figure.name == "tail":
            for sheet in tail_tables(comparison):
                page.sheet(sheet)
    page.section("limits", "What the figures do not show", f"<ul>{listed(limits(comparison))}</ul>")
    rules(page, command, f"<p>Paper: {html.escape(SOURCE)}.</p>")
    page.sheet(run_table(comparison))
    name = Path(paths[0]).resolve().name
    return page.write(
        "report.html",
        title=name if len(paths) == 1 else f"{name} and {len(paths) - 1} more",
        subtitle=f"{ours_label(comparison.collection)}; beside them: paper, 30B, one seed",
        summary=summary(comparison),
    )
