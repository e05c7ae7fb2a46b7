#!/usr/bin/env python3
"""Prints where one setting holds, round three of docs/results/one-setting/plan.md: accuracy by condition, lag and arm,
the differences over the conditions, the predictions, the verdict.

    .venv/bin/python scripts/one_setting_holds.py [FOLDER]

FOLDER has the round's grids, or the archives that scripts/keep_study.sh made of them; default: the archives that are
kept. Only rows are read, without sat_slime. A condition counts where all its runs have ended.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from one_setting import FINAL_STEP, KEPT, Difference, Judged, difference, finished, judge

SEEDS = (35, 36, 37)
NARROW, GROWS, WIDE = "GRPO 0.2", "0.2 lag^0.6", "GRPO 0.8"
ARMS = {("narrow", "grpo"): NARROW, ("narrow", "grpo-lag-power"): GROWS, ("wide", "grpo"): WIDE}
"""By the end of a grid's name, and the method."""
OTHERS = {GROWS: (NARROW, WIDE), WIDE: (NARROW, GROWS)}
"""The settings that are judged, and what each is held against."""
LAGS = {"lags": (0, 2, 4, 16), "streaming": (4, 16)}
"""Lags of the conditions that have others than OTHER_LAGS. Those of streaming are half its bounds on lag, 8 and 32."""
OTHER_LAGS = (8, 32)
CONDITIONS = ("lags", "more-lr", "half-lr", "pointer-chasing", "longer", "streaming", "fp8", "layers")
MARGIN, EXCEPTION = -2.0, -5.0
"""Points to a fixed radius. It holds with all lower ends above the first, but for conditions below the second."""
INFINITE = float("inf")


@dataclass(frozen=True)
class Run:
    """Accuracy before training and of the final weights, in percent, and the mean lag of the tokens."""

    initial: float
    accuracy: float
    lag: float


Cells = dict[tuple[str, str, int, int], Run]
"""By condition, arm, lag and seed."""


def read(folder: Path) -> Cells:
    """Return the finished runs of a folder with grids or their archives."""
    cells: Cells = {}
    for grid, cell, evaluations, metrics in finished(folder):
        condition, _, radius = grid.rpartition("-")
        arm = ARMS.get((radius, cell["method"]))
        if arm is None or cell["seed"] not in SEEDS or not evaluations or evaluations[-1]["step"] != FINAL_STEP:
            continue
        lag = statistics.fmean(row["lag/mean"] for row in metrics)
        run = Run(100 * evaluations[0]["accuracy"], 100 * evaluations[-1]["accuracy"], lag)
        cells[condition, arm, cell["lag"], cell["seed"]] = run
    return cells


def lags_of(condition: str) -> tuple[int, ...]:
    """Return the lags at which a condition runs, the shorter one first."""
    return LAGS.get(condition, OTHER_LAGS)


def run_of(cells: Cells, condition: str, arm: str, lag: int, seed: int) -> Run | None:
    """Return a run; at lag 0 the radius by lag is GRPO at 0.2, and is not run."""
    return cells.get((condition, NARROW if (arm, lag) == (GROWS, 0) else arm, lag, seed))


def whole(cells: Cells) -> list[str]:
    """Return the conditions of which all runs have ended."""
    return [
        condition
        for condition in CONDITIONS
        if all(
            run_of(cells, condition, arm, lag, seed)
            for arm in ARMS.values()
            for lag in lags_of(condition)
            for seed in SEEDS
        )
    ]


def accuracies(cells: Cells, condition: str, arm: str, lag: int) -> list[float]:
    """Return the accuracy at each seed, in percent."""
    runs = [run_of(cells, condition, arm, lag, seed) for seed in SEEDS]
    return [run.accuracy for run in runs if run is not None]


def minus(cells: Cells, condition: str, lag: int, arm: str, other: str) -> list[float]:
    """Return an arm minus another one at each seed."""
    pairs = zip(accuracies(cells, condition, arm, lag), accuracies(cells, condition, other, lag), strict=True)
    return [a - b for a, b in pairs]


def better_other(cells: Cells, condition: str, lag: int, arm: str) -> str:
    """Return the one of the two other arms with the higher mean, the earlier of equals. Those of the radius by lag are
    the fixed ones."""
    return max(OTHERS[arm], key=lambda other: statistics.fmean(accuracies(cells, condition, other, lag)))


@dataclass(frozen=True)
class Prediction:
    """An interval, its tolerance in it, for the radius by lag, or another arm, minus a fixed radius at a lag of a
    condition. other: None is the better fixed one."""

    number: int
    condition: str
    lag: int
    other: str | None
    low: float
    high: float
    arm: str = GROWS


PREDICTIONS = (
    *(Prediction(1, "lags", lag, None, -3.0, INFINITE) for lag in (2, 4, 16)),
    Prediction(2, "lags", 0, NARROW, -4.0, 2.0, WIDE),
    Prediction(3, "more-lr", 8, None, -3.0, INFINITE),
    Prediction(3, "more-lr", 32, None, -9.0, 1.0),
    Prediction(4, "half-lr", 32, NARROW, 0.0, 8.0),
    Prediction(5, "pointer-chasing", 32, NARROW, -1.0, INFINITE),
    Prediction(6, "longer", 32, NARROW, 2.0, INFINITE),
    Prediction(7, "streaming", 4, None, -3.0, 3.0),
    Prediction(7, "streaming", 16, NARROW, 1.0, INFINITE),
    Prediction(8, "fp8", 32, NARROW, 4.0, 14.0),
    Prediction(9, "layers", 32, NARROW, 2.0, INFINITE),
)


def predictions(cells: Cells, conditions: Sequence[str]) -> Iterator[Judged]:
    """Yield the verdicts on the plan's predictions of conditions that are whole."""
    for item in PREDICTIONS:
        if item.condition in conditions:
            other = item.other or better_other(cells, item.condition, item.lag, item.arm)
            text = f"{item.condition}: {item.arm} minus {other}, from {item.low:g} to {item.high:g}"
            samples = minus(cells, item.condition, item.lag, item.arm, other)
            yield judge(item.number, item.lag, text, samples, item.low, item.high)
    others = [name for name in CONDITIONS if name != "lags"]
    if set(others) <= set(conditions):
        for which, (at, low, high) in enumerate((("shorter", -3.0, 2.0), ("longer", 3.0, 13.0))):
            samples = [statistics.fmean(minus(cells, name, lags_of(name)[which], WIDE, NARROW)) for name in others]
            text = f"all at their {at} lag: {WIDE} minus {NARROW}, from {low:g} to {high:g}"
            yield judge(10, None, text, samples, low, high)


def over_conditions(cells: Cells, conditions: Sequence[str], which: int, arm: str, other: str) -> Difference:
    """Return an arm minus another one, a value for each condition, its mean over the seeds. which: 0, at the shorter
    lag of each; 1, at the longer."""
    return difference([statistics.fmean(minus(cells, name, lags_of(name)[which], arm, other)) for name in conditions])


def verdict(cells: Cells, conditions: Sequence[str], arm: str) -> str:
    """Return the verdict of the plan on a setting, over the conditions other than `lags`."""
    intervals = [over_conditions(cells, conditions, which, arm, other) for which in (0, 1) for other in OTHERS[arm]]
    exceptions = [
        f"{name} at lag {lag}"
        for name in conditions
        for lag in lags_of(name)
        if statistics.fmean(minus(cells, name, lag, arm, better_other(cells, name, lag, arm))) < EXCEPTION
    ]
    if any(item.high < 0 for item in intervals):
        return "fails"
    if any(item.low <= MARGIN for item in intervals):
        return "open"
    return f"holds, but for {', '.join(exceptions)}" if exceptions else "holds"


def print_round(cells: Cells, conditions: Sequence[str]) -> None:
    """Print the tables, the predictions and the verdict."""
    print(f"{len(cells)} runs; whole: {', '.join(conditions)}\n")
    losses = " | ".join(f"{arm} minus the better other" for arm in OTHERS)
    print(f"| condition | lag | mean lag | at first | {' | '.join(ARMS.values())} | {losses} |")
    print("|---|" + "---|" * (len(ARMS) + 5))
    for name in conditions:
        for lag in lags_of(name):
            runs = [run_of(cells, name, arm, lag, seed) for arm in ARMS.values() for seed in SEEDS]
            initial, mean_lag = (
                statistics.fmean(getattr(run, part) for run in runs if run is not None) for part in ("initial", "lag")
            )
            at_seeds = [accuracies(cells, name, arm, lag) for arm in ARMS.values()]
            shown = " | ".join(f"{statistics.fmean(row):.1f} ± {statistics.stdev(row):.1f}" for row in at_seeds)
            losses = " | ".join(
                f"{statistics.fmean(minus(cells, name, lag, arm, better_other(cells, name, lag, arm))):+.1f}"
                for arm in OTHERS
            )
            print(f"| {name} | {lag} | {mean_lag:.1f} | {initial:.1f} | {shown} | {losses} |")
    others = [name for name in conditions if name != "lags"]
    if len(others) > 1:
        print(f"\n| over {len(others)} conditions | shorter lag | longer lag |\n|---|---|---|")
        for arm, against in OTHERS.items():
            for other in against:
                shown = " | ".join(str(over_conditions(cells, others, which, arm, other)) for which in (0, 1))
                print(f"| {arm} minus {other} | {shown} |")
    print()
    for item in predictions(cells, conditions):
        at = f" at lag {item.lag}" if item.lag is not None else ""
        print(f"{item.number}. {item.text}{at}: {item.measured:.1f} ± {item.error:.1f}, {item.verdict}")
    left = [name for name in CONDITIONS if name not in conditions]
    for arm in OTHERS:
        print(f"\nVerdict on {arm}: {'waits for ' + ', '.join(left) if left else verdict(cells, others, arm)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=KEPT / "holds/runs", help="default: the kept archives")
    folder = parser.parse_args().folder
    cells = read(folder)
    conditions = whole(cells)
    if not conditions:
        sys.exit(f"{folder}: no condition is whole at seeds {', '.join(map(str, SEEDS))}")
    print_round(cells, conditions)


if __name__ == "__main__":
    main()
