"""Makes every table of plan.md from runs.csv and slime_runs.csv: python studies/one-radius/study.py [runs.csv]

It may be started at any time: a comparison takes the seeds that all of its cells have, and a part without all its seeds
gives its tables and no verdict.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from run import MEANS, SEEDS
from scipy import stats

HERE = Path(__file__).parent
LAGS = {"A": (1, 8, 32, 64), "B": (1, 4, 8, 16)}
SAT, WIDE, CAPPED = "SAT-GRPO 1.6", "GRPO 0.8", "min(0.8, 0.2 lag^0.6)"
TRAINER, NULL, BASE = "GRPO over the trainer", "GRPO 0.8, other sampling", "GRPO 0.2"
FIXED = {lag: (BASE, "GRPO 0.4", WIDE, *(["GRPO 1.6"] if lag == 64 else [])) for lag in LAGS["A"]}
SUITS, FAILS = -2.0, -1.0
FALL = 15.0
"""Points below the best evaluation so far."""
MOVED = ("entropy", "grad_norm", "d_pi", "d_q99", "length")

Run = dict[int, dict[str, float]]
"""Evaluations by step: accuracy in percent, and means over the steps since the one before."""
Runs = dict[tuple[str, str, int], dict[int, Run]]
"""By part, arm and lag, then by seed."""


def read(path: Path) -> Runs:
    """Return all runs of the table."""
    found: Runs = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            numbers = {name: float(row[name] or "nan") for name in MEANS}
            numbers["accuracy"] = 100 * float(row["accuracy"])
            found[row["part"], row["arm"], int(row["lag"])][int(row["seed"])][int(row["step"])] = numbers
    if ("A", BASE, 1) in found:  # at lag 1 the capped radius is GRPO 0.2, to the formula
        found["A", CAPPED, 1] = found["A", BASE, 1]
    return found


def final(run: Run) -> float:
    return run[max(run)]["accuracy"]


def fall(run: Run) -> float:
    """Return the largest fall of an evaluation from the best before it."""
    accuracies = [run[step]["accuracy"] for step in sorted(run)]
    return max(float(max(accuracies[: i + 1]) - value) for i, value in enumerate(accuracies))


def paired(runs: Runs, part: str, first: Iterable[tuple[str, int]], second: Iterable[tuple[str, int]]) -> np.ndarray:
    """Return the differences by seed of the means over some arms and lags, on the seeds that all of them have."""
    sides = [[runs.get((part, arm, lag), {}) for arm, lag in side] for side in (first, second)]
    seeds = sorted(set.intersection(*(set(cell) for side in sides for cell in side)))
    values = [[np.mean([final(cell[seed]) for cell in side]) for seed in seeds] for side in sides]
    return np.subtract(*values) if seeds else np.zeros(0)


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return Student's interval of the mean; without an end where there are fewer than two values."""
    n = len(values)
    if n < 2 or not np.ptp(values):
        return (float(values[0]), float(values[0])) if n > 1 else (-np.inf, np.inf)
    half = stats.t.ppf((1 + level) / 2, n - 1) * stats.sem(values)
    return float(values.mean() - half), float(values.mean() + half)


def verdict(runs: Runs, candidate: str) -> str:
    """Return suits, fails or open: over every lag and every fixed radius that ran there."""
    cells = [(lag, radius) for lag, radii in FIXED.items() for radius in radii if radius != candidate]
    gaps = [paired(runs, "A", [(candidate, lag)], [(radius, lag)]) for lag, radius in cells]
    if any(len(gap) < len(SEEDS["A"]) for gap in gaps):
        return "no verdict: seeds are missing"
    if all(interval(gap)[0] > SUITS for gap in gaps):
        return "suits every lag"
    if any(interval(gap, 1 - 0.05 / len(cells))[1] < FAILS for gap in gaps):
        return "fails"
    return "open"


def pitman_morgan(runs: Runs, lag: int) -> tuple[float, int]:
    """Return the p-value of equal spread of SAT-GRPO 1.6 and GRPO 0.8 over the seeds, and their number."""
    cells = [runs.get(("A", arm, lag), {}) for arm in (SAT, WIDE)]
    seeds = sorted(set(cells[0]) & set(cells[1]))
    a, b = (np.array([final(cell[seed]) for seed in seeds]) for cell in cells)
    return (float(stats.pearsonr(a + b, a - b).pvalue) if len(seeds) > 2 else np.nan), len(seeds)


def holm(p: Sequence[float]) -> np.ndarray:
    """Return p-values corrected for their number."""
    order, n = np.argsort(p), len(p)
    raised = np.maximum.accumulate(np.array(p)[order] * np.arange(n, 0, -1))
    corrected = np.empty(n)
    corrected[order] = np.minimum(raised, 1.0)
    return corrected


def tests(runs: Runs, part: str) -> str:
    """Return the registered list of a part: difference, interval, p, p by Holm."""
    one = lambda arm, lag: [(arm, lag)]  # noqa: E731
    if part == "A":
        pairs = [
            *((f"SAT-GRPO 1.6 - radius by lag, lag {lag}", one(SAT, lag), one(CAPPED, lag)) for lag in (8, 32, 64)),
            *((f"over the trainer - GRPO 0.2, lag {lag}", one(TRAINER, lag), one(BASE, lag)) for lag in (1, 8)),
            *((f"over the trainer - GRPO 0.8, lag {lag}", one(TRAINER, lag), one(WIDE, lag)) for lag in (32, 64)),
            (
                "SAT-GRPO 1.6 - GRPO 0.8, mean of lags",
                [(SAT, lag) for lag in LAGS["A"]],
                [(WIDE, lag) for lag in LAGS["A"]],
            ),
        ]
    else:
        pairs = [
            *((f"over the trainer - GRPO 0.2, lag {lag}", one(TRAINER, lag), one(BASE, lag)) for lag in (4, 8, 16)),
            *(
                (f"with {what} - without, lag 8", one(f"{TRAINER}, {what}", 8), one(TRAINER, 8))
                for what in ("R3", "TIS", "IcePop")
            ),
            *(
                (
                    f"SAT-{base} 0.2 - {base} at its radius, lag {lag}",
                    one(f"SAT-{base} 0.2", lag),
                    one(f"{base} at SAT's radius", lag),
                )
                for base in ("GRPO", "GSPO")
                for lag in (8, 16)
            ),
            *((f"SAT-GRPO 1.6 - GRPO 0.2, lag {lag}", one(SAT, lag), one(BASE, lag)) for lag in (8, 16)),
        ]
    rows, p = [], []
    if part == "A":
        for lag in LAGS["A"]:
            value, n = pitman_morgan(runs, lag)
            rows.append([f"spread of SAT-GRPO 1.6 and GRPO 0.8, lag {lag}", n, "", ""])
            p.append(value)
    for name, first, second in pairs:
        gap = paired(runs, part, first, second)
        low, high = interval(gap)
        mean = f"{gap.mean():+.1f}" if len(gap) else ""
        rows.append([name, len(gap), mean, f"[{low:+.1f}, {high:+.1f}]"])
        p.append(float(stats.ttest_1samp(gap, 0).pvalue) if len(gap) > 1 and np.ptp(gap) else np.nan)
    known = [value for value in p if not np.isnan(value)]
    raised = iter(holm(known)) if len(known) == len(p) else iter([np.nan] * len(known))
    for row, value in zip(rows, p, strict=True):
        row += ["", ""] if np.isnan(value) else [f"{value:.3g}", f"{next(raised):.3g}"]
    return table(["", "seeds", "points", "95 %", "p", "p, Holm"], rows)


def levels(runs: Runs, part: str) -> str:
    """Return final accuracy, lowest run, largest fall, runs that fall and radius of each arm and lag."""
    rows = []
    for (of, arm, lag), cell in sorted(runs.items()):
        if of == part:
            last = np.array([final(run) for run in cell.values()])
            spread = f" ± {last.std(ddof=1):.1f}" if len(last) > 1 else ""
            values = (row["radius_high"] for run in cell.values() for row in run.values())
            known = [radius for radius in values if not np.isnan(radius)]
            falls = [fall(run) for run in cell.values()]
            fell = sum(value >= FALL for value in falls)
            shown = f"{np.mean(known):.3f}" if known else ""
            told = [f"{last.mean():.1f}{spread}", f"{last.min():.1f}", f"{np.mean(falls):.1f}", fell, shown]
            rows.append([arm, lag, len(last), *told])
    head = ["arm", "lag", "seeds", "final accuracy, %", "lowest", "largest fall, mean", f"fall by {FALL:g}", "radius"]
    return table(head, rows)


def radii(runs: Runs) -> str:
    """Return SAT-GRPO 1.6 minus each fixed radius, and what the null arm says of the noise."""
    rows = []
    for lag, fixed in FIXED.items():
        for arm, radius in [*((SAT, radius) for radius in fixed), (NULL, WIDE)]:
            gap = paired(runs, "A", [(arm, lag)], [(radius, lag)])
            if len(gap) > 1:
                low, high = interval(gap)
                what = [f"{gap.mean():+.1f}", f"[{low:+.1f}, {high:+.1f}]", f"{gap.std(ddof=1):.1f}"]
                rows.append([f"{arm} - {radius}", lag, len(gap), *what])
    return table(["", "lag", "seeds", "points", "95 %", "standard deviation"], rows)


def against_base(runs: Runs) -> str:
    """Return SAT at base 0.2 minus its base, mean of the lags of part B: a description, which was not registered."""
    rows = []
    for base in (BASE, "GSPO 0.2"):
        gap = paired(runs, "B", *([(arm, lag) for lag in LAGS["B"]] for arm in (f"SAT-{base}", base)))
        low, high = interval(gap)
        rows.append([f"SAT-{base} - {base}, mean of lags", len(gap), f"{gap.mean():+.1f} [{low:+.1f}, {high:+.1f}]"])
    return table(["not registered", "seeds", "points, 95 %"], rows)


def described(runs: Runs) -> str:
    """Return differences of part A that were not registered: to the radius that suits every lag, and how they pass."""
    over = lambda arm: [(arm, lag) for lag in LAGS["A"]]  # noqa: E731
    middle = "GRPO 0.4"
    gaps = {f"{SAT} - {middle}, mean of lags": paired(runs, "A", over(SAT), over(middle))}
    gaps |= {f"{middle} - {BASE}, lag {lag}": paired(runs, "A", [(middle, lag)], [(BASE, lag)]) for lag in LAGS["A"]}
    base, wide = (runs.get(("A", arm, 64), {}) for arm in (BASE, WIDE))
    seeds = sorted(set(base) & set(wide))
    for step in (128, 256, 512):
        both = [(base[seed], wide[seed]) for seed in seeds if step in base[seed] and step in wide[seed]]
        values = np.array([one[step]["accuracy"] - other[step]["accuracy"] for one, other in both])
        gaps[f"{BASE} - {WIDE}, lag 64, after {step} steps"] = values
    rows = []
    for name, gap in gaps.items():
        if len(gap) > 1:
            low, high = interval(gap)
            rows.append([name, len(gap), f"{gap.mean():+.1f}", f"[{low:+.1f}, {high:+.1f}]"])
    return table(["not registered", "seeds", "points", "95 %"], rows)


def failing(runs: Runs) -> dict[tuple[str, int], dict[int, bool]]:
    """Return which runs of part B fail: less than half of what GRPO 0.2 gained at lag 1 on the same seed."""
    reference = runs.get(("B", BASE, 1), {})
    found = {}
    for (part, arm, lag), cell in runs.items():
        if part == "B":
            gains = {seed: (run, reference[seed]) for seed, run in cell.items() if seed in reference}
            found[arm, lag] = {
                seed: final(run) - run[min(run)]["accuracy"] < (final(ref) - ref[min(ref)]["accuracy"]) / 2
                for seed, (run, ref) in gains.items()
            }
    return found


def failures(runs: Runs) -> str:
    """Return by arm and lag how many runs fail and fall, what left its usual range first, and the verdict."""
    rows = []
    for (arm, lag), failed in sorted(failing(runs).items()):
        n, k = len(failed), sum(failed.values())
        low, high = stats.binomtest(k, n).proportion_ci(0.95) if n else (0.0, 1.0)
        says = "fails" if low > 0.5 else "holds" if high < 0.5 else "open"
        cell = runs["B", arm, lag]
        falls = sum(fall(run) >= FALL for run in cell.values())
        first = [name for seed, fails in failed.items() if fails for name in moved_first(runs, cell[seed], lag)]
        counts = ", ".join(f"{name} {first.count(name)}" for name in MOVED if name in first)
        rows.append([arm, lag, f"{k} of {n}", falls, says if n == len(SEEDS["B"]) else "", counts])
    return table(["arm", "lag", "fail", "fall", "the arm", "moved first"], rows)


def moved_first(runs: Runs, run: Run, lag: int) -> list[str]:
    """Return what first left 3 standard deviations of GRPO 0.2 at this lag, between the same evaluations."""
    usual = runs.get(("B", BASE, lag), {}).values()
    for step in sorted(run):
        away = []
        for name in MOVED:
            values = np.array([other[step][name] for other in usual if step in other])
            values = values[~np.isnan(values)]
            if len(values) > 1 and abs(run[step][name] - values.mean()) > 3 * values.std(ddof=1):
                away.append(name)
        if away:
            return away
    return []


def on_slime(runs: Runs) -> str:
    """Return of the runs on the real slime what each arm has at the end, how many fail, and the paired difference to
    GRPO 0.2."""
    rows = []
    reference = runs.get(("slime", BASE, 8), {})
    for (part, arm, lag), cell in sorted(runs.items()):
        if part == "slime":
            last = np.array([final(run) for run in cell.values()])
            pairs = [(run, reference[seed]) for seed, run in cell.items() if seed in reference]
            gains = [[final(run) - run[min(run)]["accuracy"] for run in pair] for pair in pairs]
            gap = paired(runs, "slime", [(arm, lag)], [(BASE, lag)])
            low, high = interval(gap)
            difference = f"{gap.mean():+.1f} [{low:+.1f}, {high:+.1f}]" if arm != BASE and len(gap) > 1 else ""
            fails = f"{sum(gain < other / 2 for gain, other in gains)} of {len(gains)}"
            rows.append(
                [arm, len(last), f"{last.mean():.1f}", f"{last.min():.1f} to {last.max():.1f}", fails, difference]
            )
    return table(["arm", "seeds", "final accuracy, %", "from, to", "fail", "minus GRPO 0.2, 95 %"], rows)


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def main() -> None:
    of_slime = HERE / "slime_runs.csv"
    if len(sys.argv) == 1 and of_slime.exists():
        print(f"On the real slime\n\n{on_slime(read(of_slime))}")
    table_of_lab = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "runs.csv"
    if not table_of_lab.exists():
        return
    runs = read(table_of_lab)
    print("Part A\n")
    for candidate in (SAT, BASE, "GRPO 0.4", WIDE, CAPPED):
        print(f"{candidate}: {verdict(runs, candidate)}")
    print(f"\n{radii(runs)}\n{tests(runs, 'A')}\n{described(runs)}\n{levels(runs, 'A')}\nPart B\n")
    print(f"{failures(runs)}\n{tests(runs, 'B')}\n{against_base(runs)}\n{levels(runs, 'B')}")


if __name__ == "__main__":
    main()
