"""The answer of a study: the best setting at each lag, what the lag costs there, and what is told from noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sat_slime.report.comparison.lag_tolerance import REFERENCE
from sat_slime.report.comparison.method_names import label_of
from sat_slime.report.comparison.statistics import Estimate, holm, mean_interval, paired_difference
from sat_slime.report.comparison.studies import RADII, Study, StudyGrid
from sat_slime.report.comparison.study_figures import seconds_per_update
from sat_slime.report.number_text import DASH, decimals, minus
from sat_slime.report.page import Sheet, Strong


@dataclass(frozen=True)
class Setting:
    """A method with the settings of a grid, at one lag."""

    method: str
    changes: str
    """What the grid changes of the base, in words; empty for the base's own settings."""
    scores: dict[int, float]
    """Late accuracy by seed."""
    final: float
    """Mean accuracy of the final weights."""
    d_pi: float

    @property
    def late(self) -> Estimate:
        return mean_interval(list(self.scores.values()))

    @property
    def name(self) -> str:
        return f"{label_of(self.method)}{f', {self.changes}' if self.changes else ''}"


def ranked_settings(study: Study, lag: int) -> list[Setting]:
    """Return every method and setting that learned the base's problem at a lag, the most accurate first. Those with
    fewer seeds than the most have no place: the luckiest single run would be the best."""
    settings = []
    for grid in study.grids:
        if grid.alone or not study.of_one_problem(grid):
            continue
        for method in grid.methods:
            if scores := grid.scores(method, lag, "late"):
                final, d_pi = (
                    mean_interval(list(grid.scores(method, lag, q).values())).mean for q in ("final", "d_pi")
                )
                settings.append(Setting(method, _changes(study, grid), scores, final, d_pi))
    most = max((len(setting.scores) for setting in settings), default=0)
    whole = [setting for setting in settings if len(setting.scores) == most]
    return sorted(whole, key=lambda setting: -setting.late.mean)


def _changes(study: Study, grid: StudyGrid) -> str:
    changed = study.changed(grid)
    if grid.radius is not None and any(key in changed for key in RADII):
        changed = {**{key: value for key, value in changed.items() if key not in RADII}, "radius": grid.radius}
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in changed.items())


def answer_table(study: Study) -> Sheet:
    """Tell the best setting at each lag, its cost against the best at lag 1, the time of an update, and how far it is
    told from the others."""
    seconds = _seconds(study)
    reference = ranked_settings(study, REFERENCE)
    rows, numbers = [], [_NUMBERS]
    for lag in study.base.lags:
        ranked = ranked_settings(study, lag)
        if not ranked:
            continue
        best, *others = ranked
        late = best.late
        cost = paired_difference(best.scores, reference[0].scores) if reference and lag != REFERENCE else None
        tested = holm([paired_difference(best.scores, other.scores) for other in others])
        clear = sum(difference.verdict == "beyond noise" for difference in tested)
        interval = f" [{100 * max(late.low, 0):.1f}, {100 * late.high:.1f}]" if late.n > 1 else ""
        rows.append(
            [
                str(lag),
                Strong(best.name),
                f"{100 * late.mean:.1f}{interval}",
                decimals(100 * best.final, 1),
                DASH if cost is None or not cost.n else minus(f"{100 * cost.mean:+.1f}"),
                decimals(best.d_pi, 4),
                decimals(seconds.get(lag, np.nan), 2),
                f"better than {clear} of {len(others)} others beyond noise",
            ]
        )
        points = "" if cost is None else cost.mean
        numbers.append([lag, best.method, best.changes, late.mean, late.low, late.high, best.final, points, best.d_pi,
                        seconds.get(lag, ""), clear, len(others)])  # fmt: skip
    return Sheet(
        "answer",
        "The best setting at each lag, and what the lag costs",
        "The highest mean late accuracy of all methods and settings on the same problem, of those with the most seeds "
        "[95 % interval]: picked, so a little too high. Final: of the last weights, equally old at every lag. Cost: "
        "points of late accuracy against the best at lag 1, paired by seed. Time: of an update, where runs had the "
        "machine to themselves. Verdict: paired tests against every other setting at the lag, corrected together.",
        ["lag", "best setting", "late, %", "final, %", "cost, points", "d_pi, nats", "update, s", "verdict"],
        rows,
        numbers=numbers,
        words=True,
    )


_NUMBERS: list[Any] = [
    *("lag", "method", "changes", "late mean", "late low", "late high", "final mean", "cost mean", "d_pi"),
    *("seconds an update", "beyond noise", "others"),
]


def _seconds(study: Study) -> dict[int, float]:
    """Return {lag: median seconds of an update over the methods that ran alone}."""
    alone = [grid for grid in study.grids if grid.alone]
    by_method = [seconds_per_update(grid, method) for grid in alone for method in grid.methods]
    lags = {lag for seconds in by_method for lag in seconds}
    return {lag: float(np.median([seconds[lag] for seconds in by_method if lag in seconds])) for lag in lags}
