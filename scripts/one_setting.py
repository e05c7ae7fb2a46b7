#!/usr/bin/env python3
"""Prints the calibration of docs/results/one-setting/plan.md: accuracy by arm and lag, noise, the freeze, predictions.
With --confirm or --second: the fresh seeds of a round, accuracy by arm and lag, paired intervals, the verdict; with
--both those of the two together, after the fact; --figure draws them.

    .venv/bin/python scripts/one_setting.py [FOLDER] [--seeds 0 1 2]
    .venv/bin/python scripts/one_setting.py --confirm [FOLDER] [--seeds 5 6] [--figure FILE.svg]
    .venv/bin/python scripts/one_setting.py --second [FOLDER]
    .venv/bin/python scripts/one_setting.py --both

FOLDER has the study's grids, or the archives that scripts/keep_study.sh made of them; default: the archives that are
kept. Only rows are read, without sat_slime, so that this also recomputes what `sat-slime report` says of them. An arm
counts where it has all its lags at all seeds.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from drawing import style
from scipy import stats

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs/results/one-setting"
LAGS = (1, 8, 32, 64)
FINAL_STEP = 128
EARLY = 64
"""Steps after which the advice on a narrow radius speaks (sat_slime/runs/health.py)."""
NARROW = 0.09
"""The clipped share of these steps above which a token radius is narrow."""
MODERATE = 0.02
"""The share below which it says nothing: a radius may be right there or too wide."""
TIE = 0.5
"""Points within which the simpler arm is taken."""


@dataclass(frozen=True)
class Arm:
    """An arm of the plan."""

    name: str
    grid: str
    method: str
    kind: str
    """`fixed`: one token radius for all lags, or none. `by lag`: a token radius that grows. `repeat`: a control's
    repeat. `other`: all else."""
    lags: tuple[int, ...] = LAGS


ARMS = (
    *(Arm(f"GRPO {radius}", f"eps-{radius}", "grpo", "fixed") for radius in ("0.2", "0.4", "0.8", "1.6")),
    Arm("no clip", "unclipped", "grpo", "fixed"),
    *(Arm(f"0.2 lag^{p}", f"power-{p}", "grpo-lag-power", "by lag") for p in ("0.5", "0.6", "0.75")),
    *(Arm(f"SAT-GRPO {base}", f"eps-{base}", "sat-grpo", "other") for base in ("0.8", "1.6")),
    Arm("0.015 lag^0.75, sequence", "sequence-0.75", "gspo-lag-power", "other"),
    Arm("M2PO by lag", "m2po", "m2po-lag", "other"),
    Arm("M2PO", "m2po", "m2po", "other"),
    Arm("target clip", "target-clip", "gspo-target-clip", "other"),
    Arm("KL budget", "kl-budget", "grpo-kl-budget", "other"),
    Arm("anneal", "anneal", "grpo-anneal", "other", (32, 64)),
    Arm("BAPO", "bapo", "grpo-bapo", "other"),
    Arm("GRPO 0.8, again", "repeat", "grpo", "repeat"),
)
"""In the order of the plan's table, the simpler ones first."""
FIRST = {"eps-0.2", "eps-0.8", "eps-1.6", "unclipped", "power-0.6", "power-0.75"}
"""The grids of the first comparisons."""
SAME_AT_LAG_1 = {"by lag": "GRPO 0.2"}
"""A token radius of 0.2 lag^p is GRPO at 0.2 there, to the formula, and is not run."""


@dataclass(frozen=True)
class Run:
    """The final weights of a run, in percent, and what its steps let through on average."""

    accuracy: float
    quarters: tuple[float, ...]
    clipped: float
    early_clipped: float
    """Clipped share of the first EARLY steps."""
    k3_kl: float
    d_pi: float
    radius: float


Cells = dict[tuple[str, int, int], Run]
"""By arm, lag and seed."""


def read(folder: Path) -> Cells:
    """Return the finished runs of a folder with grids or their archives."""
    arms = {(arm.grid, arm.method): arm for arm in ARMS}
    cells: Cells = {}
    for grid, cell, evaluations, metrics in finished(folder):
        arm = arms.get((grid, cell["method"]))
        if arm is None or not evaluations or evaluations[-1]["step"] != FINAL_STEP:
            continue
        last = evaluations[-1]
        means = {
            key: statistics.fmean(row[key] for row in metrics if key in row) if any(key in r for r in metrics) else 0.0
            for key in ("clip/fraction", "mismatch/k3_kl", "mismatch/d_pi", "radius/high")
        }
        quarters = tuple(100 * value for value in last.get("accuracy_by_run", ()))
        clipped, *others = means.values()
        early = statistics.fmean(row.get("clip/fraction", 0.0) for row in metrics[:EARLY]) if metrics else 0.0
        run = Run(100 * last["accuracy"], quarters, clipped, early, *others)
        cells[arm.name, cell["lag"], cell["seed"]] = run
    return cells


def finished(folder: Path) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]]:
    """Yield grid, row of state.json, evaluations and steps of each finished run."""

    def rows(text: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in text.splitlines()]

    for path in sorted(folder.glob("*/state.json")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["state"] == "finished":
                run = path.parent / cell["folder"]
                yield (
                    path.parent.name,
                    cell,
                    *(rows((run / f"{name}.jsonl").read_text()) for name in ("eval", "metrics")),
                )
    for path in sorted(folder.glob("*.tar.xz")):
        with tarfile.open(path) as archive:
            files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
            texts = {name: file.read().decode() for name, file in files.items() if file and name.endswith(("l", "n"))}
        grid = path.name.removesuffix(".tar.xz")
        for cell in json.loads(texts[f"{grid}/state.json"])["cells"]:
            if cell["state"] == "finished":
                run_name = f"{grid}/{cell['folder']}"
                yield grid, cell, *(rows(texts[f"{run_name}/{name}.jsonl"]) for name in ("eval", "metrics"))


def value(cells: Cells, arm: Arm, lag: int, seed: int) -> float | None:
    """Return the accuracy of an arm at a lag, in percent; None where it did not run."""
    name = SAME_AT_LAG_1.get(arm.kind, arm.name) if lag == 1 else arm.name
    run = cells.get((name, lag, seed))
    return None if run is None else run.accuracy


def whole_seeds(cells: Cells, arms: Sequence[Arm], seeds: Sequence[int] | None = None) -> list[int]:
    """Return those of the seeds, default all, at which every arm has all its lags."""
    seeds = sorted({seed for _, _, seed in cells}) if seeds is None else seeds
    return [s for s in seeds if all(value(cells, arm, lag, s) is not None for arm in arms for lag in arm.lags)]


def means(cells: Cells, arms: Sequence[Arm], seeds: Sequence[int]) -> dict[str, dict[int, float]]:
    """Return the mean accuracy of each arm at each of its lags, in percent."""
    return {
        arm.name: {lag: statistics.fmean(value(cells, arm, lag, s) or 0.0 for s in seeds) for lag in arm.lags}
        for arm in arms
    }


@dataclass(frozen=True)
class Frozen:
    """What the plan's rule takes from the calibration."""

    fixed: str
    """F, the best single fixed setting."""
    best: dict[int, str]
    """B(lag), the best fixed setting of each lag."""
    arms: tuple[str, ...]
    """The radius by lag, and the one of all others, with the smallest worst loss to B."""
    worst_loss: dict[str, float]
    """Points that an arm loses to B at the lag where it loses most."""


def freeze(accuracy: dict[str, dict[int, float]], arms: Sequence[Arm]) -> Frozen:
    """Apply the rule of the plan's section "The freeze". Ties go to the simpler arm, that is the earlier one."""
    fixed = [arm.name for arm in arms if arm.kind == "fixed"]
    best = {lag: first_best({name: accuracy[name][lag] for name in fixed}) for lag in LAGS}
    over_lags = {name: statistics.fmean(accuracy[name][lag] for lag in LAGS) for name in fixed}
    worst = {
        arm.name: max(accuracy[best[lag]][lag] - accuracy[arm.name][lag] for lag in LAGS)
        for arm in arms
        if arm.kind != "repeat" and arm.lags == LAGS
    }
    chosen = []
    for kind in ("by lag", "other"):
        of_kind = {arm.name: -worst[arm.name] for arm in arms if arm.kind == kind and arm.name in worst}
        if of_kind:
            chosen.append(first_best(of_kind))
    return Frozen(first_best(over_lags), best, tuple(chosen), worst)


def first_best(values: dict[str, float]) -> str:
    """Return the first name whose value is within TIE of the highest."""
    highest = max(values.values())
    return next(name for name, number in values.items() if number >= highest - TIE)


def noise(cells: Cells) -> tuple[float, float, int]:
    """Return the standard deviation of a cell, from repeats; the part of it that sampling answers explains, from the
    quarters of each evaluation; and the number of pairs. In points."""
    pairs = [
        (run, cells["GRPO 0.8, again", lag, seed])
        for (name, lag, seed), run in cells.items()
        if name == "GRPO 0.8" and ("GRPO 0.8, again", lag, seed) in cells
    ]
    if not pairs:
        return float("nan"), float("nan"), 0
    repeat = (statistics.fmean((a.accuracy - b.accuracy) ** 2 for a, b in pairs) / 2) ** 0.5
    runs = [run for pair in pairs for run in pair]
    sampling = statistics.fmean(statistics.variance(run.quarters) / len(run.quarters) for run in runs) ** 0.5
    return repeat, sampling, len(pairs)


@dataclass(frozen=True)
class Judged:
    """A prediction of the plan at one lag, with what was measured and its verdict."""

    number: int
    lag: int | None
    text: str
    measured: float
    error: float
    """Standard error of the mean over seeds."""
    verdict: str


def judge(number: int, lag: int | None, text: str, samples: list[float], low: float, high: float) -> Judged:
    """Hold the mean of samples, one of each seed, against a predicted interval whose ends have the tolerance in them.

    Held: inside. Refuted: outside by more than a standard error. Else open.
    """
    mean = statistics.fmean(samples)
    error = statistics.stdev(samples) / len(samples) ** 0.5 if len(samples) > 1 else float("inf")
    outside = max(low - mean, mean - high, 0.0)
    verdict = "held" if outside == 0 else "refuted" if outside > error else "open"
    return Judged(number, lag, text, mean, error, verdict)


def predictions(cells: Cells, seeds: Sequence[int]) -> Iterator[Judged]:
    """Yield the verdicts on those of the plan's nine predictions whose arms have run at these seeds."""
    by_name = {arm.name: arm for arm in ARMS}

    def of(name: str, lag: int) -> list[float]:
        numbers = [value(cells, by_name[name], lag, seed) for seed in seeds]
        return [number for number in numbers if number is not None]

    def minus(name: str, other: str, lag: int) -> list[float]:
        pairs = [(value(cells, by_name[name], lag, s), value(cells, by_name[other], lag, s)) for s in seeds]
        return [a - b for a, b in pairs if a is not None and b is not None]

    infinite = float("inf")
    fixed = [arm for arm in ARMS if arm.kind == "fixed" and whole_seeds(cells, [arm], seeds) == list(seeds)]
    accuracy = means(cells, fixed, seeds)
    best = {lag: max(accuracy, key=lambda name: accuracy[name][lag]) for lag in LAGS}
    for lag, wanted in zip(LAGS, (66, 66, 65, 63), strict=True):
        yield judge(1, lag, f"GRPO 0.8 has {wanted} %", of("GRPO 0.8", lag), wanted - 2.5, wanted + 2.5)
    for lag, wanted in ((32, -10), (64, -18)):
        text = f"GRPO 0.2 minus 0.8 is {wanted}"
        yield judge(2, lag, text, minus("GRPO 0.2", "GRPO 0.8", lag), wanted - 4, wanted + 4)
    for lag in LAGS[1:]:
        text = f"0.2 lag^0.6 loses at most 2 to {best[lag]}"
        yield judge(3, lag, text, minus("0.2 lag^0.6", best[lag], lag), -2.5, infinite)
    for lag in LAGS[2:]:
        yield judge(4, lag, f"no clip is 2 below {best[lag]}", minus("no clip", best[lag], lag), -infinite, -1.5)
    for lag in LAGS:
        text = "SAT-GRPO 0.8 minus GRPO 0.8 is from -2 to 1"
        yield judge(5, lag, text, minus("SAT-GRPO 0.8", "GRPO 0.8", lag), -2.5, 1.5)
    if below := minus("M2PO", "GRPO 0.2", 1):
        yield judge(6, 1, "M2PO is 3 below GRPO 0.2", below, -infinite, -2.5)
    for lag in LAGS:
        if difference := minus("M2PO by lag", best[lag], lag):
            yield judge(7, lag, f"M2PO by lag is within 3 of {best[lag]}", difference, -3.5, infinite)
    radii = [list(accuracy).index(best[lag]) for lag in LAGS]
    verdict = "held" if radii == sorted(radii) else "refuted"
    yield Judged(8, None, "the best fixed radius does not fall with lag: " + ", ".join(best.values()), 0, 0, verdict)
    repeat, _, pairs = noise(cells)
    if pairs:
        verdict = "held" if abs(repeat - 2) <= 0.7 else "refuted"
        yield Judged(9, None, "a cell repeats within 2 points", repeat, repeat / (2 * pairs) ** 0.5, verdict)


def narrow(cells: Cells, seeds: Sequence[int], best: dict[int, str]) -> dict[tuple[str, int], tuple[float, float]]:
    """Return by arm and lag what each arm of GRPO's lost to the best fixed radius, and its early clipped share."""
    by_name = {arm.name: arm for arm in ARMS}
    token_arms = [arm for arm in ARMS if "grpo" in arm.method and arm.kind != "repeat"]
    return {
        (arm.name, lag): (
            statistics.fmean(
                (value(cells, by_name[best[lag]], lag, s) or 0.0) - cells[arm.name, lag, s].accuracy for s in seeds
            ),
            statistics.fmean(cells[arm.name, lag, s].early_clipped for s in seeds),
        )
        for arm in token_arms
        for lag in arm.lags
        if all((arm.name, lag, s) in cells for s in seeds)
    }


# ------------------------------------------------------------------------------------------------ the confirmation

FROZEN = Frozen(
    "GRPO 0.8",
    {1: "GRPO 0.2", 8: "GRPO 0.2", 32: "GRPO 0.4", 64: "GRPO 0.8"},
    ("0.2 lag^0.6", "SAT-GRPO 1.6"),
    {"GRPO 0.8": 4.0, "0.2 lag^0.6": 3.0, "SAT-GRPO 1.6": 1.0},
)
"""The plan's section "Frozen", which tests hold against the kept calibration."""
MARGIN, FAILS = -2.0, -1.0
"""Points to B(lag): a setting suits every lag with all lower ends above the first, and fails with an upper end below
the second."""


@dataclass(frozen=True)
class Expectation:
    """An interval that the plan expects of a mean over lags, of an arm or of its difference to another."""

    name: str
    other: str | None
    low: float
    high: float
    lags: tuple[int, ...] = LAGS

    def __str__(self) -> str:
        of = f"{self.name} minus {self.other}" if self.other else f"the mean of {self.name}"
        at = "" if self.lags == LAGS else f" at lag {', '.join(map(str, self.lags))}"
        return f"Expected {self.low:g} to {self.high:g} of {of}{at}"


@dataclass(frozen=True)
class Round:
    """A confirmation on seeds of its own."""

    frozen: Frozen
    seeds: tuple[int, ...]
    expected: tuple[Expectation, ...]
    folders: tuple[Path, ...]
    """Where its runs are kept."""


FIRST_ROUND = Round(
    FROZEN,
    tuple(range(5, 15)),
    (
        Expectation("GRPO 0.8", None, 63.0, 66.0),
        Expectation("SAT-GRPO 1.6", "GRPO 0.8", 0.0, 3.5),
        Expectation("0.2 lag^0.6", "GRPO 0.8", -1.0, 2.5),
    ),
    (KEPT / "confirm/runs",),
)
SECOND_ROUND = Round(
    replace(FROZEN, arms=("0.2 lag^0.6",)),
    tuple(range(15, 35)),
    (
        Expectation("0.2 lag^0.6", "GRPO 0.8", 0.5, 2.0),
        Expectation("0.2 lag^0.6", "GRPO 0.8", -1.0, 3.0, (64,)),  # which is B there
    ),
    (KEPT / "second/runs",),
)
BOTH_ROUNDS = Round(
    SECOND_ROUND.frozen,
    (*FIRST_ROUND.seeds, *SECOND_ROUND.seeds),
    (),
    (*FIRST_ROUND.folders, *SECOND_ROUND.folders),
)
"""After the fact: the plan pools no rounds."""


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences, one of each seed, in points, with its 95 % interval by Student's t."""

    mean: float
    low: float
    high: float
    p: float
    """Two-sided; of all differences being 0 it is 1."""

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def difference(samples: Sequence[float]) -> Difference:
    """Return the mean of paired differences with its interval, n - 1 degrees of freedom."""
    values = np.asarray(samples, dtype=float)
    if np.ptp(values) == 0:  # B itself, or one seed
        end = 0.0 if len(values) > 1 else float("inf")
        mean = float(values[0])
        return Difference(mean, mean - end, mean + end, float(mean == 0 or len(values) == 1))
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(0.95)
    return Difference(float(values.mean()), float(interval.low), float(interval.high), float(test.pvalue))


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Return the p-values of several comparisons after Holm's correction."""
    corrected, highest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p))
        corrected[name] = highest
    return corrected


@dataclass(frozen=True)
class Confirmation:
    """What the fresh seeds say of F and the arms."""

    to_best: dict[str, dict[int, Difference]]
    """By arm, F first, and lag: the difference to B(lag), of H2."""
    to_fixed: dict[str, Difference]
    """By arm: the difference of its mean over the four lags to F's, of H1."""
    corrected: dict[str, float]
    """By arm: the p-value of H1 after Holm's correction."""

    def suits(self, name: str) -> str:
        """Return `suits`, `fails` or `open`: H2 of an arm."""
        at_lags = self.to_best[name].values()
        if any(item.high < FAILS for item in at_lags):
            return "fails"
        return "suits" if all(item.low > MARGIN for item in at_lags) else "open"

    def beats(self, name: str) -> bool:
        """Return whether H1 of an arm holds."""
        return self.to_fixed[name].mean > 0 and self.corrected[name] < 0.05

    def verdict(self, fixed: str) -> str:
        """Return the entry of the plan's table."""
        f_suits = self.suits(fixed)
        suitable = [name for name in self.to_fixed if self.suits(name) == "suits"]
        better = [name for name in suitable if self.beats(name)]
        if better:
            names = " and ".join(better)
            return f"{names}: better, and {fixed} will do" if f_suits == "suits" else f"{names}: confirmed"
        if f_suits == "suits":
            return f"{fixed}: it suits every lag and nothing beats it"
        if suitable:
            names = " and ".join(suitable)
            return f"{names}: a lead" if f_suits == "open" else f"{names}: confirmed"
        return "nothing is confirmed"


def confirm(cells: Cells, seeds: Sequence[int], frozen: Frozen = FROZEN) -> Confirmation:
    """Apply the plan's section "The verdict" to seeds at which all frozen settings have run."""
    by_name = {arm.name: arm for arm in ARMS}

    def accuracy(name: str, lag: int) -> np.ndarray:
        return np.array([value(cells, by_name[name], lag, seed) for seed in seeds], dtype=float)

    def over_lags(name: str) -> np.ndarray:
        return np.mean([accuracy(name, lag) for lag in LAGS], axis=0)

    to_best = {
        name: {lag: difference(accuracy(name, lag) - accuracy(frozen.best[lag], lag)) for lag in LAGS}
        for name in (frozen.fixed, *frozen.arms)
    }
    to_fixed = {name: difference(over_lags(name) - over_lags(frozen.fixed)) for name in frozen.arms}
    return Confirmation(to_best, to_fixed, holm({name: item.p for name, item in to_fixed.items()}))


def frozen_cells(frozen: Frozen = FROZEN) -> set[tuple[Arm, int]]:
    """Return the arm and lag of each run of a fresh seed: F, the arms, and B of each lag."""
    by_name = {arm.name: arm for arm in ARMS}
    cells = {(name, lag) for name in (frozen.fixed, *frozen.arms) for lag in LAGS} | {
        (name, lag) for lag, name in frozen.best.items()
    }
    return {(by_name[SAME_AT_LAG_1.get(by_name[name].kind, name) if lag == 1 else name], lag) for name, lag in cells}


def confirmable_seeds(cells: Cells, of: Round = FIRST_ROUND) -> list[int]:
    """Return the seeds of a round at which all of these have run."""
    return [s for s in of.seeds if all((arm.name, lag, s) in cells for arm, lag in frozen_cells(of.frozen))]


def print_confirmation(cells: Cells, seeds: Sequence[int], of: Round = FIRST_ROUND) -> None:
    """Print the tables and the verdict."""
    frozen = of.frozen
    by_name = {arm.name: arm for arm in ARMS}
    names = (frozen.fixed, *frozen.arms)
    print(f"{len(cells)} runs; seeds {', '.join(map(str, seeds))} are whole\n")
    print("| accuracy, % | " + " | ".join(f"lag {lag}" for lag in LAGS) + " | mean | lowest run |")
    print("|---|" + "---|" * (len(LAGS) + 2))
    for name in (*names, "best of each lag"):
        at_lags = [
            [value(cells, by_name[frozen.best[lag] if name not in by_name else name], lag, s) or 0.0 for s in seeds]
            for lag in LAGS
        ]
        shown = [f"{np.mean(row):.1f} ± {np.std(row, ddof=1) if len(row) > 1 else 0.0:.1f}" for row in at_lags]
        print(f"| {name} | {' | '.join(shown)} | {np.mean(at_lags):.1f} | {np.min(at_lags):.1f} |")
    found = confirm(cells, seeds, frozen)
    print("\n| minus the best fixed radius of the lag | " + " | ".join(f"lag {lag}" for lag in LAGS) + " | every lag |")
    print("|---|" + "---|" * (len(LAGS) + 1))
    for name in names:
        print(f"| {name} | {' | '.join(map(str, found.to_best[name].values()))} | {found.suits(name)} |")
    print(f"\n| mean over the lags minus {frozen.fixed} | p | p, Holm | beats it |\n|---|---|---|---|")
    for name, item in found.to_fixed.items():
        beats = "yes" if found.beats(name) else "no"
        print(f"| {name}: {item} | {item.p:.3f} | {found.corrected[name]:.3f} | {beats} |")
    print()
    for expected in of.expected:
        samples = [
            statistics.fmean(
                (value(cells, by_name[expected.name], lag, s) or 0.0)
                - ((value(cells, by_name[expected.other], lag, s) or 0.0) if expected.other else 0.0)
                for lag in expected.lags
            )
            for s in seeds
        ]
        judged = judge(0, None, str(expected), samples, expected.low, expected.high)
        print(f"{judged.text}: {judged.measured:.1f} ± {judged.error:.1f}, {judged.verdict}")
    waits = "" if len(seeds) == len(of.seeds) else f" on {len(seeds)} of {len(of.seeds)} seeds, so that it waits"
    print(f"\nVerdict{waits}: {found.verdict(frozen.fixed)}")


def draw(cells: Cells, seeds: Sequence[int], path: Path, frozen: Frozen = FROZEN) -> None:
    """Write the picture: accuracy over lag, a line for each setting, and below it the paired differences to the best
    fixed radius of the lag with their 95 % intervals."""
    by_name = {arm.name: arm for arm in ARMS}
    envelope, names = "best fixed radius of each lag", (frozen.fixed, *frozen.arms)
    found = confirm(cells, seeds, frozen)
    means, differences = [], []
    for place, name in enumerate((envelope, *names)):
        for lag in LAGS:
            arm = by_name[frozen.best[lag] if name == envelope else name]
            accuracy = statistics.fmean(value(cells, arm, lag, s) or 0.0 for s in seeds)
            means.append({"setting": name, "lag": lag, "accuracy": accuracy})
            if name != envelope:
                item = found.to_best[name][lag]
                at = lag * 1.12 ** (place - 2)  # side by side, so that intervals can be told apart
                differences.append(
                    {"setting": name, "lag": at, "difference": item.mean, "low": item.low, "high": item.high}
                )
    colour = alt.Color(
        "setting:N",
        scale=alt.Scale(domain=[envelope, *names], range=["#9a9a9a", "#0072b2", "#e69f00", "#d55e00"]),
        legend=alt.Legend(orient="top", title=None, columns=2, labelLimit=0, symbolStrokeWidth=3),
    )
    lag_axis = alt.X(
        "lag:Q", title="lag", scale=alt.Scale(type="log", base=2, domain=[0.8, 80]), axis=alt.Axis(values=list(LAGS))
    )
    upper = alt.Chart(alt.InlineData(values=means)).encode(x=lag_axis, color=colour)
    y = alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False))
    lower = alt.Chart(alt.InlineData(values=differences)).encode(x=lag_axis, color=colour)
    margin = alt.Chart(alt.InlineData(values=[{"at": 0.0}, {"at": MARGIN}])).encode(y="at:Q")
    chart = alt.vconcat(
        alt.layer(
            upper.mark_line(strokeWidth=2).encode(y=y), upper.mark_point(filled=True, size=45, opacity=1).encode(y=y)
        ).properties(width=440, height=200),
        alt.layer(
            margin.mark_rule(strokeDash=[4, 3], color="#606060"),
            lower.mark_rule(strokeWidth=2).encode(
                y=alt.Y("low:Q", title="minus the best fixed radius, points"), y2="high:Q"
            ),
            lower.mark_point(filled=True, size=45, opacity=1).encode(y="difference:Q"),
        ).properties(width=440, height=200),
        background=PAPER,
        padding=18,
    )
    chart = chart.configure_axis(labelFontSize=13, titleFontSize=13, gridOpacity=0.4).configure_legend(labelFontSize=13)
    text = io.StringIO()
    chart.save(text, format="svg")
    path.write_text(as_card(text.getvalue()), encoding="utf-8")


PAPER = "#fdfdfc"
"""What stands behind the picture, by which it is found again in the SVG."""
CARD = style(
    "",
    """
  [fill="#fdfdfc"] {{ fill: {paper}; }} [fill="#000"] {{ fill: {ink}; }} [stroke="#ddd"] {{ stroke: {rule}; }}
  [stroke="#888"], [stroke="#9a9a9a"], [stroke="#606060"] {{ stroke: {dim}; }} [fill="#9a9a9a"] {{ fill: {dim}; }}
  [stroke="#0072b2"] {{ stroke: {old}; }} [fill="#0072b2"] {{ fill: {old}; }}
  [stroke="#d55e00"] {{ stroke: {new}; }} [fill="#d55e00"] {{ fill: {new}; }}
""",
)
"""The colours of the other drawn pictures, in light and dark, in the place of those that Vega writes."""


def as_card(svg: str) -> str:
    """Return an SVG of Vega's on a card with round corners, as the other drawn pictures have, light or dark."""
    start, end = svg.split(">", 1)
    paper = f'fill="{PAPER}"'
    return f"{start}><style>{CARD}</style>" + end.replace(paper, paper + ' rx="8"', 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="default: the kept archives")
    parser.add_argument("--seeds", type=int, nargs="*", help="default: those whose comparisons are whole")
    rounds = parser.add_mutually_exclusive_group()
    rounds.add_argument(
        "--confirm", dest="round", action="store_const", const=FIRST_ROUND, help="the fresh seeds and the verdict"
    )
    rounds.add_argument("--second", dest="round", action="store_const", const=SECOND_ROUND, help="round two's")
    rounds.add_argument("--both", dest="round", action="store_const", const=BOTH_ROUNDS, help="both, after the fact")
    parser.add_argument("--figure", type=Path, help="with a round: also draw accuracy over lag into this file")
    options = parser.parse_args()
    kept = options.round.folders if options.round else (KEPT / "runs",)
    cells = {
        name: run for folder in ([options.folder] if options.folder else kept) for name, run in read(folder).items()
    }
    if options.round:
        complete = confirmable_seeds(cells, options.round)
        seeds = complete if options.seeds is None else options.seeds
        if not seeds or set(seeds) - set(complete):
            sys.exit(
                f"{options.folder or KEPT}: not whole in the frozen settings at seeds {options.seeds or 'of the plan'}"
            )
        print_confirmation(cells, seeds, options.round)
        if options.figure:
            draw(cells, seeds, options.figure, options.round.frozen)
        return
    seeds = options.seeds or whole_seeds(cells, [arm for arm in ARMS if arm.grid in FIRST])
    arms = [arm for arm in ARMS if seeds and whole_seeds(cells, [arm], seeds) == seeds]
    if not {arm.grid for arm in arms} >= FIRST:
        sys.exit(
            f"{options.folder or KEPT}: the first comparisons are not whole at any of these seeds: {seeds or 'all'}"
        )
    accuracy = means(cells, arms, seeds)
    frozen = freeze(accuracy, arms)
    print(f"{len(cells)} runs; seeds {', '.join(map(str, seeds))} are whole in {len(arms)} arms\n")
    print("| arm | " + " | ".join(f"lag {lag}" for lag in LAGS) + " | mean | worst loss | clipped, % |")
    print("|---|" + "---|" * (len(LAGS) + 3))
    for arm in arms:
        shown = []
        for lag in LAGS:
            numbers = [v for s in seeds if (v := value(cells, arm, lag, s)) is not None]
            spread = f" ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else ""
            shown.append(f"{statistics.fmean(numbers):.1f}{spread}" if numbers else "")
        whole = f"{statistics.fmean(accuracy[arm.name].values()):.1f}" if arm.lags == LAGS else ""
        loss = f"{frozen.worst_loss[arm.name]:.1f}" if arm.name in frozen.worst_loss else ""
        clipped = [
            f"{100 * statistics.fmean(cells[arm.name, lag, s].clipped for s in seeds):.1f}"
            for lag in LAGS
            if all((arm.name, lag, s) in cells for s in seeds)
        ]
        print(f"| {arm.name} | {' | '.join(shown)} | {whole} | {loss} | {', '.join(clipped)} |")
    print(f"\nF is {frozen.fixed}; B is {', '.join(f'{name} at lag {lag}' for lag, name in frozen.best.items())}")
    print(f"arms: {', '.join(frozen.arms)}")
    repeat, sampling, pairs = noise(cells)
    print(f"a cell repeats within {repeat:.2f} points ({pairs} pairs), of which sampling answers is {sampling:.2f}\n")
    for item in predictions(cells, seeds):
        at = f" at lag {item.lag}" if item.lag else ""
        print(f"{item.number}. {item.text}{at}: {item.measured:.1f} ± {item.error:.1f}, {item.verdict}")
    print(f"\nToken radii whose first {EARLY} steps clipped more than {100 * NARROW:g} %, and what they lost:")
    lost = narrow(cells, seeds, frozen.best)
    for (name, lag), (fallen, share) in lost.items():
        if share > NARROW:
            print(f"{name} at lag {lag}: {100 * share:.1f} %, lost {fallen:.1f}")
    others = max(loss for loss, share in lost.values() if MODERATE < share <= NARROW)
    print(f"Those that clipped {100 * MODERATE:g} to {100 * NARROW:g} % lost at most {others:.1f}")


if __name__ == "__main__":
    main()
