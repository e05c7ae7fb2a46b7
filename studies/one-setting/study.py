"""Makes every table and the figure of one setting for every lag from runs.csv:
python studies/one-setting/study.py [--figure]

runs.csv has a row for each of the 718 runs. evaluations: step of the weights and accuracy as a share, before training
and of the final weights (2,048 answers; quarters: of each quarter of them); the others are means over all steps, of the
lag, the clipped share (clipped_first_64: of the first 64 steps), the KL to the engine, d_pi, the radius where a method
moves it, and SAT's quantile.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from scipy import stats

HERE = Path(__file__).parent
LAGS = (1, 8, 32, 64)
ARMS = {
    **{("eps-" + radius, "grpo"): f"GRPO {radius}" for radius in ("0.2", "0.4", "0.8", "1.6")},
    ("unclipped", "grpo"): "no clip",
    **{(f"power-{p}", "grpo-lag-power"): f"0.2 lag^{p}" for p in ("0.5", "0.6", "0.75")},
    **{("eps-" + radius, "sat-grpo"): f"SAT-GRPO {radius}" for radius in ("0.8", "1.6")},
    ("sequence-0.75", "gspo-lag-power"): "0.015 lag^0.75, sequence",
    ("m2po", "m2po-lag"): "M2PO by lag",
    ("m2po", "m2po"): "M2PO",
    ("target-clip", "gspo-target-clip"): "target clip",
    ("kl-budget", "grpo-kl-budget"): "KL budget",
    ("anneal", "grpo-anneal"): "anneal",
    ("bapo", "grpo-bapo"): "BAPO",
    ("repeat", "grpo"): "GRPO 0.8, again",
}
"""By grid and method, the simpler ones first."""
FIXED = ("GRPO 0.2", "GRPO 0.4", "GRPO 0.8", "GRPO 1.6", "no clip")
BY_LAG = ("0.2 lag^0.5", "0.2 lag^0.6", "0.2 lag^0.75")
NARROW, GROWS, WIDE, SAT = "GRPO 0.2", "0.2 lag^0.6", "GRPO 0.8", "SAT-GRPO 1.6"
BEST = {1: NARROW, 8: NARROW, 32: "GRPO 0.4", 64: WIDE}
"""The best fixed radius of each lag, as frozen after the calibration."""
CONDITIONS = ("lags", "more-lr", "half-lr", "pointer-chasing", "longer", "streaming", "fp8", "layers")
OTHERS = CONDITIONS[1:]
"""Those that the verdict of round three is over."""


def read() -> dict[tuple[str, str, int, int], dict[str, Any]]:
    """Return the runs by round (of round three, the condition), arm, lag and seed; accuracies in percent."""
    found = {}
    with (HERE / "runs.csv").open() as file:
        for row in csv.DictReader(file):
            where, arm = row["round"], ARMS.get((row["grid"], row["method"]))
            if where == "round three":
                where, _, radius = row["grid"].rpartition("-")
                arm = GROWS if row["method"] == "grpo-lag-power" else WIDE if radius == "wide" else NARROW
            accuracies = [100 * float(pair.split(":")[1]) for pair in row["evaluations"].split()]
            numbers = {key: float(row[key] or "nan") for key in ("mean_lag", "clipped", "clipped_first_64")}
            quarters = [100 * float(value) for value in row["quarters"].split()]
            run = {"initial": accuracies[0], "final": accuracies[-1], "quarters": quarters, **numbers}
            found[where, str(arm), int(row["lag"]), int(row["seed"])] = run
    return found


RUNS = read()


def values(where: str, arm: str, lag: int, seeds: Iterable[int], what: str = "final") -> np.ndarray:
    """Return a number of each seed. The radius by lag is GRPO at 0.2 at lag 0 and 1, and did not run there."""
    name = NARROW if arm in BY_LAG and lag < 2 else arm
    rounds = ("round one", "round two") if where == "both" else (where,)
    every = [RUNS.get((part, name, lag, seed)) for seed in seeds for part in rounds]
    return np.array([run[what] for run in every if run is not None])


class Difference:
    """A mean of paired differences in points, with Student's 95 % interval and its p."""

    def __init__(self, samples: Sequence[float] | np.ndarray):
        samples = np.asarray(samples, dtype=float)
        self.mean, half = float(samples.mean()), 0.0
        self.p = 1.0
        if np.ptp(samples):
            half = float(stats.t.ppf(0.975, len(samples) - 1) * stats.sem(samples))
            self.p = float(stats.ttest_1samp(samples, 0.0).pvalue)
        self.low, self.high = self.mean - half, self.mean + half

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Return p-values after Holm's correction."""
    corrected, highest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        corrected[name] = highest = max(highest, min(1.0, (len(p_values) - rank) * p))
    return corrected


def spread(numbers: np.ndarray) -> str:
    return f"{numbers.mean():.1f} ± {numbers.std(ddof=1):.1f}"


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, head)) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


# ------------------------------------------------------------------------------------------------ fresh seeds

ROUNDS = {
    "both": (range(5, 35), (GROWS,)),
    "round two": (range(15, 35), (GROWS,)),
    "round one": (range(5, 15), (GROWS, SAT)),
}


def to_best(where: str, arm: str, lag: int) -> Difference:
    """Return an arm minus the best fixed radius of a lag."""
    seeds = ROUNDS[where][0]
    return Difference(values(where, arm, lag, seeds) - values(where, BEST[lag], lag, seeds))


def suits(where: str, arm: str) -> str:
    """Return the plan's verdict: suits every lag, fails, or open."""
    at_lags = [to_best(where, arm, lag) for lag in LAGS]
    if any(item.high < -1 for item in at_lags):
        return "fails"
    return "suits" if all(item.low > -2 for item in at_lags) else "open"


def accuracy(where: str) -> str:
    seeds, arms = ROUNDS[where]
    rows = []
    for name in (WIDE, *arms, "best of each lag"):
        at = [values(where, BEST[lag] if name == "best of each lag" else name, lag, seeds) for lag in LAGS]
        rows.append([name, *map(spread, at), f"{np.mean(at):.1f}", f"{np.min(at):.1f}"])
    return table(["accuracy, %", *(f"lag {lag}" for lag in LAGS), "mean", "lowest run"], rows)


def to_best_table(where: str) -> str:
    arms = (WIDE, *ROUNDS[where][1])
    rows = [[arm, *(to_best(where, arm, lag) for lag in LAGS), suits(where, arm)] for arm in arms]
    return table(["minus the best fixed radius of the lag", *(f"lag {lag}" for lag in LAGS), "every lag"], rows)


def to_fixed(where: str) -> str:
    seeds, arms = ROUNDS[where]

    def mean(name: str) -> np.ndarray:
        return np.mean([values(where, name, lag, seeds) for lag in LAGS], axis=0)

    found = {arm: Difference(mean(arm) - mean(WIDE)) for arm in arms}
    corrected = holm({arm: item.p for arm, item in found.items()})
    rows = [
        [
            f"{arm}: {item}",
            f"{item.p:.3f}",
            f"{corrected[arm]:.3f}",
            "yes" if item.mean > 0 and corrected[arm] < 0.05 else "no",
        ]
        for arm, item in found.items()
    ]
    return table([f"mean over the lags minus {WIDE}", "p", "p, Holm", "beats it"], rows)


def direct() -> str:
    """Both rounds, after the fact: the radius by lag minus GRPO at 0.8."""
    seeds = ROUNDS["both"][0]
    items = [Difference(values("both", GROWS, lag, seeds) - values("both", WIDE, lag, seeds)) for lag in LAGS]
    return table(
        [f"{GROWS} minus {WIDE}", *(f"lag {lag}" for lag in LAGS)],
        [["points", *items], ["p", *(f"{i.p:.3f}" for i in items)]],
    )


def steadiness() -> str:
    """Round one, after the fact: is SAT-GRPO 1.6 steadier than GRPO 0.8? p of Pitman and Morgan, of the correlation of
    the paired sums and differences."""
    rows = []
    for lag in LAGS:
        a, b = (values("round one", arm, lag, range(5, 15)) for arm in (SAT, WIDE))
        p = stats.pearsonr(a + b, a - b).pvalue
        rows.append(
            [lag, f"{a.std(ddof=1):.1f}", f"{b.std(ddof=1):.1f}", f"{p:.3f}", f"{a.min():.1f}", f"{b.min():.1f}"]
        )
    return table(["lag", f"± of {SAT}", f"± of {WIDE}", "p", f"lowest of {SAT}", f"of {WIDE}"], rows)


# ---------------------------------------------------------------------------------------------- where it holds

HELD = (35, 36, 37)


def lags_of(condition: str) -> tuple[int, ...]:
    return {"lags": (0, 2, 4, 16), "streaming": (4, 16)}.get(condition, (8, 32))


def condition_minus(condition: str, lag: int, arm: str, other: str) -> np.ndarray:
    return values(condition, arm, lag, HELD) - values(condition, other, lag, HELD)


def conditions() -> str:
    rows = []
    arms = (NARROW, GROWS, WIDE)
    for name in CONDITIONS:
        for lag in lags_of(name):
            at = {arm: values(name, arm, lag, HELD) for arm in arms}
            mean_lag, initial = (
                np.mean([values(name, arm, lag, HELD, k) for arm in arms]) for k in ("mean_lag", "initial")
            )
            losses = []
            for arm in (GROWS, WIDE):
                better = max((one for one in arms if one != arm), key=lambda one: at[one].mean())
                losses.append(f"{(at[arm] - at[better]).mean():+.1f}")
            rows.append([name, lag, f"{mean_lag:.1f}", f"{initial:.1f}", *map(spread, at.values()), *losses])
    head = [
        "condition",
        "lag",
        "mean lag",
        "at first",
        *arms,
        *(f"{arm} minus the better other" for arm in (GROWS, WIDE)),
    ]
    return table(head, rows)


PAIRS = ((GROWS, NARROW), (GROWS, WIDE), (WIDE, NARROW), (WIDE, GROWS))


def over_conditions() -> str:
    """As registered: a value for each condition, its mean over the three seeds."""
    rows = []
    for arm, other in PAIRS:
        items = [Difference([condition_minus(n, lags_of(n)[i], arm, other).mean() for n in OTHERS]) for i in (0, 1)]
        rows.append([f"{arm} minus {other}", *items])
    return table(["over 7 conditions", "shorter lag", "longer lag"], rows)


def over_seeds() -> str:
    """After the fact: a value for each seed, its mean over the conditions, which share the three seeds."""
    rows = []
    for arm, other in PAIRS[:3]:
        items = [
            Difference(np.mean([condition_minus(n, lags_of(n)[i], arm, other) for n in OTHERS], axis=0)) for i in (0, 1)
        ]
        rows.append([f"{arm} minus {other}", *items])
    return table(["over 3 seeds", "shorter lag", "longer lag"], rows)


# ------------------------------------------------------------------------------------------------- calibration

CALIBRATED = (0, 1, 2)


def losses() -> dict[tuple[str, int], float]:
    """Return what each arm lost to the best fixed radius of each lag."""
    found = {}
    for arm in ARMS.values():
        for lag in LAGS:
            own = values("calibration", arm, lag, CALIBRATED)
            if len(own):
                found[arm, lag] = float((values("calibration", BEST[lag], lag, CALIBRATED) - own).mean())
    return found


def calibration() -> str:
    lost, rows = losses(), []
    for arm in ARMS.values():
        at = [values("calibration", arm, lag, CALIBRATED) for lag in LAGS]
        whole = all(len(one) for one in at)
        shares = [
            f"{100 * np.mean([RUNS['calibration', arm, lag, seed]['clipped'] for seed in CALIBRATED]):.1f}"
            for lag in LAGS
            if ("calibration", arm, lag, 0) in RUNS
        ]
        worst = f"{max(lost[arm, lag] for lag in LAGS):.1f}" if whole and not arm.endswith("again") else ""
        mean = f"{np.mean(at):.1f}" if whole else ""
        rows.append([arm, *(spread(one) if len(one) else "" for one in at), mean, worst, ", ".join(shares)])
    return table(["arm", *(f"lag {lag}" for lag in LAGS), "mean", "worst loss", "clipped, %"], rows)


def narrow() -> str:
    """The token radii whose first 64 steps clipped most, and what they lost."""
    rows = []
    for (arm, lag), loss in losses().items():
        if ("calibration", arm, lag, 0) in RUNS and arm in TOKEN_ARMS:
            share = 100 * values("calibration", arm, lag, CALIBRATED, "clipped_first_64").mean()
            if share > 5:
                rows.append([f"{arm}, lag {lag}", f"{share:.1f}", f"{loss:.1f}"])
    return table(["arm", "clipped in 64 steps, %", "lost, points"], sorted(rows, key=lambda row: -float(row[1])))


TOKEN_ARMS = [arm for (_, method), arm in ARMS.items() if "grpo" in method and not arm.endswith("again")]


def fresh_narrow() -> str:
    """The same of GRPO at 0.2 in round three, where it was to hold and did not."""
    rows = []
    for name in OTHERS:
        for lag in lags_of(name):
            share = 100 * values(name, NARROW, lag, HELD, "clipped_first_64").mean()
            best = max(values(name, arm, lag, HELD).mean() for arm in (NARROW, GROWS, WIDE))
            rows.append([f"{name}, lag {lag}", f"{share:.1f}", f"{best - values(name, NARROW, lag, HELD).mean():.1f}"])
    return table(
        ["GRPO 0.2", "clipped in 64 steps, %", "lost to the best of three, points"],
        sorted(rows, key=lambda r: -float(r[1])),
    )


def noise() -> str:
    """How far GRPO at 0.8 repeats, and what sampling answers explains of it, in points."""
    cells = [(lag, seed) for lag in LAGS for seed in CALIBRATED]
    a, b = ([RUNS["calibration", arm, lag, seed] for lag, seed in cells] for arm in (WIDE, f"{WIDE}, again"))
    repeat = np.sqrt(np.mean([(x["final"] - y["final"]) ** 2 for x, y in zip(a, b, strict=True)]) / 2)
    sampling = np.sqrt(np.mean([np.var(run["quarters"], ddof=1) / len(run["quarters"]) for run in a + b]))
    return table(["pairs", "repeat", "sampling"], [[len(cells), f"{repeat:.2f}", f"{sampling:.2f}"]])


# ------------------------------------------------------------------------------------------------------ figure


def draw() -> alt.VConcatChart:
    """Accuracy over lag in both rounds, and the paired differences to the best fixed radius with 95 % intervals."""
    envelope = "best fixed radius of each lag"
    means, differences = [], []
    for place, name in enumerate((envelope, WIDE, GROWS)):
        for lag in LAGS:
            level = values("both", BEST[lag] if name == envelope else name, lag, ROUNDS["both"][0]).mean()
            means.append({"setting": name, "lag": lag, "accuracy": float(level)})
            if name != envelope:
                item = to_best("both", name, lag)
                at = lag * 1.12 ** (place - 1.5)
                differences.append({"setting": name, "lag": at, "mean": item.mean, "low": item.low, "high": item.high})
    colour = alt.Color(
        "setting:N",
        title=None,
        scale=alt.Scale(domain=[envelope, WIDE, GROWS], range=["#9a9a9a", "#0072b2", "#d55e00"]),
        legend=alt.Legend(orient="top", labelLimit=0),
    )
    lag = alt.X(
        "lag:Q", title="lag", scale=alt.Scale(type="log", base=2, domain=[0.8, 80]), axis=alt.Axis(values=list(LAGS))
    )
    upper = alt.Chart(alt.InlineData(values=means)).encode(
        lag, colour, alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False))
    )
    lower = alt.Chart(alt.InlineData(values=differences)).encode(lag, colour)
    title = "minus the best fixed radius, points"
    zero = (
        alt.Chart(alt.InlineData(values=[{"at": 0}, {"at": -2}]))
        .mark_rule(strokeDash=[4, 3])
        .encode(alt.Y("at:Q", title=title))
    )
    bars = lower.mark_rule(strokeWidth=2).encode(alt.Y("low:Q", title=title), y2="high:Q")
    points = lower.mark_point(filled=True, size=45, opacity=1).encode(alt.Y("mean:Q", title=title))
    return alt.vconcat(
        alt.layer(upper.mark_line(), upper.mark_point(filled=True, size=45, opacity=1)).properties(
            width=440, height=200
        ),
        alt.layer(zero, bars, points).properties(width=440, height=150),
    ).configure(background="white")


def tables() -> Iterable[str]:
    for where in ROUNDS:
        yield from (make(where) for make in (accuracy, to_best_table, to_fixed))
    yield from (make() for make in (direct, steadiness, conditions, over_conditions, over_seeds))
    yield from (make() for make in (calibration, narrow, fresh_narrow, noise))


def main() -> None:
    print("\n\n".join(tables()))
    if "--figure" in sys.argv[1:]:
        draw().save(HERE / "accuracy.svg")


if __name__ == "__main__":
    main()
