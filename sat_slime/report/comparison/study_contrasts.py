"""The contrasts of a study, in groups that are corrected together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sat_slime.report.comparison.contrasts import Arm, Contrast, Scores, contrast, corrected, seed_mean
from sat_slime.report.comparison.lag_tolerance import REFERENCE
from sat_slime.report.comparison.method_names import label_of, pairs_without, stabilizers_beside
from sat_slime.report.comparison.statistics import paired_difference
from sat_slime.report.comparison.studies import Study, StudyGrid

LONG_LAG = 8
"""Lags from here on are long."""
QUANTITIES = ("late", "d_pi")


def _contrast(label: str, where: str, *pairs: tuple[Arm, Arm]) -> Contrast:
    return contrast(label, where, pairs, QUANTITIES)


def _difference(method: str, other: str) -> str:
    return f"{label_of(method)} − {label_of(other)}"


def _lag_text(lags: Sequence[int]) -> str:
    return f"lag {', '.join(map(str, lags))}"


def _sat_pairs(grid: StudyGrid) -> list[tuple[str, str]]:
    return [(method, base) for method, base in pairs_without("sat", grid.methods) if base in grid.methods]


def sat_contrasts(grid: StudyGrid) -> list[Contrast]:
    """Return SAT against its base at every lag of a grid, and over all long lags together."""
    contrasts = []
    for method, base in _sat_pairs(grid):
        label = _difference(method, base)
        pairs = {lag: (Arm(grid, method, lag), Arm(grid, base, lag)) for lag in grid.lags}
        contrasts += [_contrast(label, f"lag {lag}", pair) for lag, pair in pairs.items()]
        long = [lag for lag in grid.lags if lag >= LONG_LAG]
        if len(long) > 1:
            contrasts.append(_contrast(label, f"mean of {_lag_text(long)}", *(pairs[lag] for lag in long)))
    return corrected(contrasts)


def lag_contrasts(grid: StudyGrid) -> list[Contrast]:
    """Return every method of a sweep at each lag against itself at lag 1."""
    return corrected(
        _contrast(label_of(method), f"lag {lag} − {REFERENCE}", (Arm(grid, method, lag), Arm(grid, method, REFERENCE)))
        for method in grid.methods
        for lag in grid.lags
        if lag != REFERENCE
    )


def variant_contrasts(study: Study, method: str) -> list[Contrast]:
    """Return a method with other settings against itself in the base, at every lag."""
    return corrected(
        _contrast(grid.name, f"lag {lag}", (Arm(grid, method, lag), Arm(study.base, method, lag)))
        for grid in study.variants
        for lag in grid.lags
        if method in grid.methods
    )


def method_contrasts(study: Study, against: str = "grpo") -> list[Contrast]:
    """Return every method at the base's settings against one method of the base, lag by lag, at the lags of the grids
    that have others."""
    grids = [grid for grid in study.others if not study.changed(grid) and not grid.alone]
    return corrected(
        _contrast(_difference(method, against), f"lag {lag}", (Arm(grid, method, lag), Arm(study.base, against, lag)))
        for lag in sorted({lag for grid in grids for lag in grid.lags})
        for grid in [study.base, *grids]
        for method in grid.methods
        if method != against
    )


def stabilizer_contrasts(study: Study, grid: StudyGrid) -> list[Contrast]:
    """Return every other stabilizer than SAT of a grid's methods: each method that has it against the same without it,
    which the grid has itself, or the base has at the same settings."""
    at_base = [study.base] if not study.changed(grid) else []
    contrasts = []
    for stabilizer in stabilizers_beside(grid.methods):
        for method, without in pairs_without(stabilizer, grid.methods):
            partners = [other for other in (grid, *at_base) if without in other.methods]
            if stabilizer != "sat" and partners:
                contrasts += [
                    _contrast(
                        _difference(method, without),
                        f"lag {lag}",
                        (Arm(grid, method, lag), Arm(partners[0], without, lag)),
                    )
                    for lag in grid.lags
                ]
    return corrected(contrasts)


# --------------------------------------------------------------------------------------------------- the radius


def radius_lags(study: Study) -> list[int]:
    """Return the lags at which there are other radii than the base's."""
    every = [set(grid.whole_lags) for grid in study.by_radius.values() if grid is not study.base]
    return sorted(set.intersection(*every)) if every else []


def radius_of_same_mismatch(study: Study, method: str) -> float | None:
    """Return the radius at which the base of a method of SAT has the d_pi nearest to SAT's own at the study's
    radius, as means over the lags of the radii and the seeds that both have. None where there are no radii."""
    plain, lags = _plain(method), radius_lags(study)
    if not lags or plain is None:
        return None
    own = _d_pi(study.base, method, lags)
    apart = {}
    for radius, grid in study.by_radius.items():
        other = _d_pi(grid, plain, lags)
        if seeds := own.keys() & other.keys():
            apart[radius] = abs(np.mean([own[seed] - other[seed] for seed in seeds]))
    return min(apart, key=lambda radius: apart[radius]) if apart else None


def _plain(method: str) -> str | None:
    return dict(pairs_without("sat", [method])).get(method)


def _d_pi(grid: StudyGrid, method: str, lags: Sequence[int]) -> Scores:
    return seed_mean(grid.scores(method, lag, "d_pi") for lag in lags)


def primary_contrasts(study: Study) -> list[Contrast]:
    """Return the contrasts that tell whether SAT raises accuracy under lag, and whether it is more than a smaller
    radius: over long lags; against the base at the radius that has SAT's d_pi; at equal radius, over the smaller
    ones."""
    grid, contrasts = study.base, []
    long = [lag for lag in grid.lags if lag >= LONG_LAG]
    for method, base in _sat_pairs(grid):
        if long:
            where = f"{grid.radius_text}, mean of {_lag_text(long)}"
            pairs = [(Arm(grid, method, lag), Arm(grid, base, lag)) for lag in long]
            contrasts.append(_contrast(_difference(method, base), where, *pairs))
    for method, base in _sat_pairs(grid):
        contrasts += _radius_contrasts(study, method, base)
    return corrected(contrasts)


def _radius_contrasts(study: Study, method: str, base: str) -> Iterator[Contrast]:
    lags = radius_lags(study)
    nearest = radius_of_same_mismatch(study, method)
    smaller = [
        grid
        for radius, grid in study.by_radius.items()
        if radius < (study.base.radius or 0.0) and {method, base} <= set(grid.methods)
    ]
    if nearest is None or not smaller:
        return
    other, label = study.by_radius[nearest], _difference(method, base)
    where = f"{study.base.radius_text} − {nearest:g}, where d_pi is nearest; mean of {_lag_text(lags)}"
    yield _contrast(label, where, *((Arm(study.base, method, lag), Arm(other, base, lag)) for lag in lags))
    radii = ", ".join(f"{grid.radius:g}" for grid in sorted(smaller, key=lambda grid: -(grid.radius or 0.0)))
    where = f"equal radius, mean of {radii} and {_lag_text(lags)}"
    yield _contrast(label, where, *((Arm(grid, method, lag), Arm(grid, base, lag)) for grid in smaller for lag in lags))


def best_radius_contrasts(study: Study) -> list[Contrast]:
    """Return SAT at the study's radius, and at its own best one, against the base at its best radius.

    Each seed takes the radius that is best on the other seeds, mean over the lags: otherwise the best would be picked
    by its own luck.
    """
    lags, contrasts = radius_lags(study), []
    for method, base in _sat_pairs(study.base):
        if not lags or not all(base in grid.methods for grid in study.by_radius.values()):
            continue
        best = {q: _picked(study, base, lags, q) for q in QUANTITIES}
        own = {q: seed_mean(study.base.scores(method, lag, q) for lag in lags) for q in QUANTITIES}
        sides = {f"{study.base.radius_text}, mean of {_lag_text(lags)}": own}
        if all(method in grid.methods for grid in study.by_radius.values()):
            tuned = {q: _picked(study, method, lags, q) for q in QUANTITIES}
            sides[f"at its best radius too, mean of {_lag_text(lags)}"] = tuned
        label = f"{_difference(method, base)} at its best radius"
        for where, side in sides.items():
            contrasts.append(Contrast(label, where, {q: paired_difference(side[q], best[q]) for q in QUANTITIES}))
    return corrected(contrasts)


def _picked(study: Study, method: str, lags: Sequence[int], quantity: str) -> Scores:
    """Return {seed: a quantity at the radius whose late accuracy is best on the other seeds}."""
    grids = list(study.by_radius.values())
    late = [seed_mean(grid.scores(method, lag, "late") for lag in lags) for grid in grids]
    wanted = [seed_mean(grid.scores(method, lag, quantity) for lag in lags) for grid in grids]
    seeds = set.intersection(*map(set, late)) if late else set()
    picked = {}
    for seed in seeds:
        others = sorted(seeds - {seed})
        if others:
            best = int(np.argmax([np.mean([scores[other] for other in others]) for scores in late]))
            picked[seed] = wanted[best][seed]
    return picked
