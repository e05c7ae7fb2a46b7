"""What a study compares: differences paired by seed, in groups that are corrected together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sat_slime.report.comparison.contrasts import Scores
from sat_slime.report.comparison.methods import label_of, pairs_without, stabilizers_beside
from sat_slime.report.comparison.statistics import Difference, holm, paired_difference
from sat_slime.report.comparison.study.grids import Study, StudyGrid
from sat_slime.report.comparison.study.tolerance import REFERENCE

LONG_LAG = 8
"""Lags from here on are long."""
QUANTITIES = ("late", "d_pi")
Sides = tuple[Scores, Scores]


@dataclass(frozen=True)
class Effect:
    """A minus B, paired by seed."""

    label: str
    where: str
    """Lags, and the grid where there are several."""
    late: Difference
    """Of late accuracy, a share."""
    d_pi: Difference
    """Nats."""


@dataclass(frozen=True)
class _Entry:
    label: str
    where: str
    sides: Mapping[str, Sides]


def _corrected(entries: Sequence[_Entry]) -> list[Effect]:
    """Holm's correction is over the entries, for each quantity by itself."""
    columns = {
        quantity: holm([paired_difference(*entry.sides[quantity]) for entry in entries]) for quantity in QUANTITIES
    }
    effects = [
        Effect(entry.label, entry.where, late, d_pi)
        for entry, late, d_pi in zip(entries, columns["late"], columns["d_pi"], strict=True)
    ]
    return [effect for effect in effects if effect.late.n or effect.d_pi.n]


def _mean(scores: Iterable[Scores]) -> Scores:
    """The mean of each seed that all of them have."""
    every = list(scores)
    seeds = set.intersection(*map(set, every)) if every else set()
    return {seed: float(np.mean([one[seed] for one in every])) for seed in seeds}


def _pooled(label: str, where: str, pairs: Sequence[Mapping[str, Sides]]) -> _Entry:
    """The mean of several comparisons in every seed that has all of them: one number with less noise."""
    sides = {q: (_mean(pair[q][0] for pair in pairs), _mean(pair[q][1] for pair in pairs)) for q in QUANTITIES}
    return _Entry(label, where, sides)


def _sides(a: tuple[StudyGrid, str, int], b: tuple[StudyGrid, str, int]) -> dict[str, Sides]:
    return {q: (a[0].scores(a[1], a[2], q), b[0].scores(b[1], b[2], q)) for q in QUANTITIES}


def _lag_text(lags: Sequence[int]) -> str:
    return f"lag {', '.join(map(str, lags))}"


def sat_effects(grid: StudyGrid) -> list[Effect]:
    """SAT against its base at every lag of a grid, and over all long lags together."""
    entries = []
    for one, base in _sat_pairs(grid):
        label = f"{label_of(one)} − {label_of(base)}"
        at = {lag: _sides((grid, one, lag), (grid, base, lag)) for lag in grid.lags}
        entries += [_Entry(label, f"lag {lag}", sides) for lag, sides in at.items()]
        long = [lag for lag in grid.lags if lag >= LONG_LAG]
        if len(long) > 1:
            entries.append(_pooled(label, f"mean of {_lag_text(long)}", [at[lag] for lag in long]))
    return _corrected(entries)


def lag_effects(grid: StudyGrid) -> list[Effect]:
    """Every method of a sweep at each lag against itself at lag 1."""
    return _corrected(
        [
            _Entry(label_of(method), f"lag {lag} − {REFERENCE}", _sides((grid, method, lag), (grid, method, REFERENCE)))
            for method in grid.methods
            for lag in grid.lags
            if lag != REFERENCE
        ]
    )


def _sat_pairs(grid: StudyGrid) -> list[tuple[str, str]]:
    return [(one, base) for one, base in pairs_without("sat", grid.methods) if base in grid.methods]


def variant_effects(study: Study, method: str) -> list[Effect]:
    """A method with other settings against itself in the base, at every lag."""
    return _corrected(
        [
            _Entry(grid.name, f"lag {lag}", _sides((grid, method, lag), (study.base, method, lag)))
            for grid in study.variants
            for lag in grid.lags
            if method in grid.methods
        ]
    )


def method_effects(study: Study, against: str = "grpo") -> list[Effect]:
    """Every method at the base's settings against one method of the base, lag by lag, at the lags of the grids that
    have others."""
    grids = [grid for grid in study.others if not study.changed(grid) and not grid.alone]
    return _corrected(
        [
            _Entry(
                f"{label_of(method)} − {label_of(against)}",
                f"lag {lag}",
                _sides((grid, method, lag), (study.base, against, lag)),
            )
            for lag in sorted({lag for grid in grids for lag in grid.lags})
            for grid in [study.base, *grids]
            for method in grid.methods
            if method != against
        ]
    )


def stabilizer_effects(study: Study, grid: StudyGrid) -> list[Effect]:
    """Every other stabilizer than SAT of a grid's methods: each method that has it against the same without it, which
    the grid has itself, or the base has at the same settings."""
    at_base = [study.base] if not study.changed(grid) else []
    entries = []
    for stabilizer in stabilizers_beside(grid.methods):
        for one, without in pairs_without(stabilizer, grid.methods):
            beside = [other for other in (grid, *at_base) if without in other.methods]
            if stabilizer != "sat" and beside:
                label = f"{label_of(one)} − {label_of(without)}"
                at = [(lag, _sides((grid, one, lag), (beside[0], without, lag))) for lag in grid.lags]
                entries += [_Entry(label, f"lag {lag}", sides) for lag, sides in at]
    return _corrected(entries)


# --------------------------------------------------------------------------------------------------- the radius


def radius_lags(study: Study) -> list[int]:
    """Lags at which there are other radii than the base's."""
    every = [set(grid.whole_lags) for grid in study.by_radius.values() if grid is not study.base]
    return sorted(set.intersection(*every)) if every else []


def radius_of_same_mismatch(study: Study, method: str) -> float | None:
    """The radius at which the base of a method of SAT has the d_pi nearest to SAT's own at the study's radius, as means
    over the lags of the radii and the seeds that both have. None where there are no radii."""
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
    return _mean(grid.scores(method, lag, "d_pi") for lag in lags)


def primary_effects(study: Study) -> list[Effect]:
    """The comparisons that tell whether SAT raises accuracy under lag, and whether it is more than a smaller radius:
    over long lags; against the base at the radius that has SAT's d_pi; at equal radius, over the smaller ones."""
    grid, entries = study.base, []
    long = [lag for lag in grid.lags if lag >= LONG_LAG]
    for one, base in _sat_pairs(grid):
        pairs = [_sides((grid, one, lag), (grid, base, lag)) for lag in long]
        label = f"{label_of(one)} − {label_of(base)}"
        entries.append(_pooled(label, f"{grid.radius_text}, mean of {_lag_text(long)}", pairs))
    for one, base in _sat_pairs(grid):
        entries += _radius_entries(study, one, base)
    return _corrected(entries)


def _radius_entries(study: Study, one: str, base: str) -> Iterator[_Entry]:
    lags = radius_lags(study)
    same = radius_of_same_mismatch(study, one)
    smaller = [
        grid
        for radius, grid in study.by_radius.items()
        if radius < (study.base.radius or 0.0) and {one, base} <= set(grid.methods)
    ]
    if same is None or not smaller:
        return
    other = study.by_radius[same]
    pairs = [_sides((study.base, one, lag), (other, base, lag)) for lag in lags]
    label = f"{label_of(one)} − {label_of(base)}"
    where = f"{study.base.radius_text} − {same:g}, where d_pi is nearest; mean of {_lag_text(lags)}"
    yield _pooled(label, where, pairs)
    equal = [_sides((grid, one, lag), (grid, base, lag)) for grid in smaller for lag in lags]
    radii = ", ".join(f"{grid.radius:g}" for grid in sorted(smaller, key=lambda grid: -(grid.radius or 0.0)))
    yield _pooled(label, f"equal radius, mean of {radii} and {_lag_text(lags)}", equal)


def best_radius_effects(study: Study) -> list[Effect]:
    """SAT at the study's radius, and at its own best one, against the base at its best radius.

    Each seed takes the radius that is best on the other seeds, mean over the lags: otherwise the best would be picked
    by its own luck.
    """
    lags, entries = radius_lags(study), []
    for one, base in _sat_pairs(study.base):
        if not lags or not all({base} <= set(grid.methods) for grid in study.by_radius.values()):
            continue
        best = {q: _picked(study, base, lags, q) for q in QUANTITIES}
        own = {q: _mean(study.base.scores(one, lag, q) for lag in lags) for q in QUANTITIES}
        where = f"mean of {_lag_text(lags)}"
        label = f"{label_of(one)} − {label_of(base)} at its best radius"
        entries.append(_Entry(label, f"{study.base.radius_text}, {where}", {q: (own[q], best[q]) for q in best}))
        if all(one in grid.methods for grid in study.by_radius.values()):
            tuned = {q: _picked(study, one, lags, q) for q in QUANTITIES}
            entries.append(_Entry(label, f"at its best radius too, {where}", {q: (tuned[q], best[q]) for q in best}))
    return _corrected(entries)


def _picked(study: Study, method: str, lags: Sequence[int], quantity: str) -> Scores:
    """{seed: a quantity at the radius whose late accuracy is best on the other seeds}."""
    grids = list(study.by_radius.values())
    late = [_mean(grid.scores(method, lag, "late") for lag in lags) for grid in grids]
    wanted = [_mean(grid.scores(method, lag, quantity) for lag in lags) for grid in grids]
    seeds = set.intersection(*map(set, late)) if late else set()
    picked = {}
    for seed in seeds:
        others = sorted(seeds - {seed})
        if others:
            best = int(np.argmax([np.mean([one[other] for other in others]) for one in late]))
            picked[seed] = wanted[best][seed]
    return picked
