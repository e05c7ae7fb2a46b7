"""Makes every table and figure of the frontier from runs.csv: python studies/frontier/study.py [--figures]

runs.csv has a row for each of the 620 runs. evaluations: step of the weights and accuracy, as a share of 512 answers;
d_pi_first and d_pi_late: nats in the first step and over the last quarter of the steps, in whole lag cycles; k3_kl,
clipped, masked, sat_q: means over all steps of the KL to the engine, of the share of the tokens that the clip or the
stabilizer's own mask takes, and of SAT's quantile; collapsed: by the collapse rule, for good; cycle_seconds: of an
update, mean of each lag cycle, where a run had the machine to itself.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import altair as alt
import numpy as np
from scipy import stats

HERE = Path(__file__).parent
LAGS = (0, 1, 2, 4, 8, 16, 32, 64)
LONG = (8, 16, 32, 64)
FOUR = ("grpo", "gspo", "sat-grpo", "sat-gspo")
RADII = {0.005: "eps-0.005", 0.02: "eps-0.02", 0.05: "eps-0.05", 0.1: "eps-0.1", 0.2: "sweep", 0.4: "eps-0.4"}
NAMES = {
    **{"grpo": "GRPO", "gspo": "GSPO", "sat-grpo": "SAT-GRPO", "sat-gspo": "SAT-GSPO", "m2po": "M2PO"},
    **{"grpo-r3": "GRPO w/ R3", "gspo-r3": "GSPO w/ R3", "sat-gspo-r3": "SAT-GSPO w/ R3", "grpo-tis": "GRPO w/ TIS"},
    **{"grpo-mis-geo": "GRPO w/ MIS-Geo", "grpo-decoupled": "GRPO w/ Decoupled", "cispo": "CISPO", "dppo": "DPPO"},
}
STABILIZERS = ("grpo-r3", "gspo-r3", "grpo-tis", "dppo", "cispo", "grpo-decoupled", "grpo-mis-geo", "m2po")
SAME_RATE = ("sweep", "methods", *(grid for radius, grid in RADII.items() if radius != 0.2))
"""Grids at the study's learning rate, on engines in bf16, with SAT as it is."""
Scores = dict[int, float]
"""A quantity by seed."""


class Run:
    """A row of runs.csv."""

    def __init__(self, row: dict[str, str]):
        self.grid, self.method, self.lag, self.seed = row["grid"], row["method"], int(row["lag"]), int(row["seed"])
        pairs = [pair.split(":") for pair in row["evaluations"].split()]
        self.steps, self.accuracy = (np.array([float(pair[i]) for pair in pairs]) for i in (0, 1))
        self.d_pi, self.first, self.kl, self.clipped, self.masked = (
            float(row[key] or "nan") for key in ("d_pi_late", "d_pi_first", "k3_kl", "clipped", "masked")
        )
        self.collapsed = int(row["collapsed"])
        self.seconds = [float(value) for value in row["cycle_seconds"].split()]
        trained = self.steps > 0
        self.late = float(self.accuracy[trained & (self.steps >= 0.75 * self.steps[-1])].mean())
        self.final = float(self.accuracy[-1])
        best = np.maximum.accumulate(self.accuracy)
        self.fall = float((best - self.accuracy).max())
        self.end_fall = float(best[-1] - self.accuracy[-1])


with (HERE / "runs.csv").open() as file:
    RUNS = [Run(row) for row in csv.DictReader(file)]


def scores(grid: str, method: str, lag: int, what: str = "late") -> Scores:
    """Return a quantity of the runs of a grid, a method and a lag, by seed."""
    wanted = (grid, method, lag)
    return {run.seed: getattr(run, what) for run in RUNS if (run.grid, run.method, run.lag) == wanted}


def mean(grid: str, method: str, lag: int, what: str = "late") -> float:
    """Return its mean over the seeds; NaN where nothing ran."""
    values = list(scores(grid, method, lag, what).values())
    return float(np.mean(values)) if values else float("nan")


def over(many: Iterable[Scores]) -> Scores:
    """Return the mean of several quantities, of the seeds that all have."""
    every = list(many)
    return {seed: float(np.mean([one[seed] for one in every])) for seed in set.intersection(*map(set, every))}


class Difference:
    """a minus b, paired by seed: mean, 95 % percentile bootstrap of the mean, p of Student's test. With five pairs the
    bootstrap covers about 84 %; beyond noise and lead therefore ask for both (plan.md)."""

    def __init__(self, a: Scores, b: Scores):
        pairs = np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
        draws = np.random.default_rng(20_260_718).integers(len(pairs), size=(20_000, len(pairs)))
        self.mean, self.n = float(pairs.mean()), len(pairs)
        self.low, self.high = np.quantile(pairs[draws].mean(axis=1), [0.025, 0.975])
        self.p = self.corrected = float(stats.ttest_1samp(pairs, 0.0).pvalue) if np.ptp(pairs) else 1.0

    @property
    def verdict(self) -> str:
        if self.low <= 0 <= self.high or self.p >= 0.05:
            return "within noise"
        return "beyond noise" if self.corrected < 0.05 else "a lead"

    def __str__(self) -> str:
        return minus(f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]")


def holm(differences: Sequence[Difference]) -> None:
    """Correct the p-values of a group."""
    highest = 0.0
    for rank, item in enumerate(sorted(differences, key=lambda one: one.p)):
        highest = item.corrected = max(highest, min(1.0, (len(differences) - rank) * item.p))


def minus(text: str) -> str:
    return text.replace("-", "−")


def percent(value: float, digits: int = 1) -> str:
    return "" if np.isnan(value) else f"{100 * value:.{digits}f}"


def nats(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4f}"


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


# ------------------------------------------------------------------------------------------------------ tables


def seconds(lag: int) -> float:
    """Return the median seconds of an update over cycles and seeds."""
    return float(np.median([value for run in RUNS if run.grid == "alone" and run.lag == lag for value in run.seconds]))


def best_setting(lag: int) -> tuple[str, str]:
    """Return grid and method of the best fixed setting by late accuracy, of those with five seeds."""
    cells = {(run.grid, run.method) for run in RUNS if run.lag == lag and run.grid in SAME_RATE}
    return max(sorted(cells), key=lambda cell: mean(*cell, lag))


def answer() -> str:
    """The best fixed setting of each lag: accuracy of the final weights, cost against lag 1, seconds."""
    at_1 = mean(*best_setting(1), 1, "final")
    rows = []
    for lag in LAGS:
        grid, method = best_setting(lag)
        radius = next((radius for radius, name in RADII.items() if name == grid), 0.2)
        final = mean(grid, method, lag, "final")
        usual = [percent(mean("sweep", name, lag, "final")) for name in ("grpo", "gspo", "sat-gspo")]
        cost = percent(at_1 - final)
        rows.append([lag, f"{NAMES[method]}, {radius:g}", percent(final), cost, *usual, f"{seconds(lag):.2f}"])
    head = ["lag", "best setting", "accuracy", "cost of the lag", "GRPO 0.2", "GSPO 0.2", "SAT-GSPO 0.2", "s an update"]
    return table(head, rows)


def by_lag() -> str:
    """Late accuracy, d_pi and clipped share of four methods at radius 0.2."""
    shown: dict[str, tuple[str, Callable[[float], str]]] = {
        "": ("late", percent),
        "d_pi, ": ("d_pi", nats),
        "clipped, ": ("clipped", lambda value: percent(value, 2)),
    }
    rows = [
        [prefix + NAMES[method], *(text(mean("sweep", method, lag, what)) for lag in LAGS)]
        for prefix, (what, text) in shown.items()
        for method in FOUR
    ]
    return table(["lag", *LAGS], rows)


def lag_costs() -> str:
    """Each method against itself at lag 1."""
    pairs = [(method, lag) for method in FOUR for lag in LAGS if lag != 1]
    found = {(m, lag): Difference(scores("sweep", m, lag), scores("sweep", m, 1)) for m, lag in pairs}
    holm(list(found.values()))
    rows = [[NAMES[m], lag, item, item.verdict] for (m, lag), item in found.items() if m in ("grpo", "gspo")]
    return table(["method", "lag, minus lag 1", "points", ""], rows)


def sat_gain() -> str:
    """SAT minus its base by lag, corrected together with the means over the long lags."""
    found = {}
    for base in ("grpo", "gspo"):
        sides = {lag: (scores("sweep", f"sat-{base}", lag), scores("sweep", base, lag)) for lag in LAGS}
        found |= {(base, lag): Difference(*pair) for lag, pair in sides.items()}
        found[base, -1] = Difference(*(over(sides[lag][i] for lag in LONG) for i in (0, 1)))
    holm(list(found.values()))
    rows = [[lag, *(f"{found[base, lag]}, {found[base, lag].verdict}" for base in ("grpo", "gspo"))] for lag in LAGS]
    return table(["lag", "SAT-GRPO − GRPO", "SAT-GSPO − GSPO"], rows)


def planned() -> str:
    """The four comparisons of the plan."""
    smaller = [RADII[radius] for radius in (0.1, 0.05, 0.02, 0.005)]
    own = over(scores("sweep", "sat-gspo", lag, "d_pi") for lag in (8, 32))

    def apart(grid: str) -> float:
        other = over(scores(grid, "gspo", lag, "d_pi") for lag in (8, 32))
        return abs(float(np.mean([own[seed] - other[seed] for seed in own])))

    nearest = min(RADII, key=lambda radius: apart(RADII[radius]))
    rows = {
        f"SAT-{base.upper()} − {base.upper()} at 0.2, mean of lag 8, 16, 32, 64": tuple(
            over(scores("sweep", method, lag) for lag in LONG) for method in (f"sat-{base}", base)
        )
        for base in ("gspo", "grpo")
    }
    rows[f"SAT-GSPO at 0.2 − GSPO at {nearest:g}, where d_pi is nearest; mean of lag 8, 32"] = (
        over(scores("sweep", "sat-gspo", lag) for lag in (8, 32)),
        over(scores(RADII[nearest], "gspo", lag) for lag in (8, 32)),
    )
    rows["SAT-GSPO − GSPO at equal radius, 0.005 to 0.1; mean of lag 8, 32"] = tuple(
        over(scores(grid, method, lag) for grid in smaller for lag in (8, 32)) for method in ("sat-gspo", "gspo")
    )
    found = {label: Difference(*pair) for label, pair in rows.items()}
    holm(list(found.values()))
    return table(
        ["", "points", "p, corrected", ""], [[k, d, f"{d.corrected:.3f}", d.verdict] for k, d in found.items()]
    )


def radii() -> str:
    """Late accuracy by radius."""
    cells = [("gspo", 1), ("sat-gspo", 1), *((method, lag) for lag in (8, 32) for method in FOUR)]
    rows = [
        [f"{NAMES[method]}, lag {lag}", *(percent(mean(grid, method, lag)) for grid in RADII.values())]
        for method, lag in cells
    ]
    return table(["radius", *RADII], rows)


def picked(method: str, fixed: bool) -> Scores:
    """Return late accuracy at the radius that is best on the other seeds, over lag 8 and 32; over lag 1, 8 and 32 and
    radii up to 0.2 where one radius has to serve them (`fixed`)."""
    lags = (1, 8, 32) if fixed else (8, 32)
    late = [over(scores(g, method, lag) for lag in lags) for radius, g in RADII.items() if not fixed or radius <= 0.2]
    found = {}
    for seed in late[0]:
        best = max(late, key=lambda one: np.mean([value for other, value in one.items() if other != seed]))
        found[seed] = best[seed]
    return found


def best_radius() -> str:
    """SAT-GSPO minus GSPO, each at a radius that the other seeds choose."""
    rows = [
        ["own radius over lag 8 and 32", Difference(picked("sat-gspo", False), picked("gspo", False))],
        ["one radius for lag 1, 8 and 32, after the fact", Difference(picked("sat-gspo", True), picked("gspo", True))],
    ]
    return table(["SAT-GSPO − GSPO, radius chosen on the other seeds", "points"], rows)


def stabilizers() -> str:
    """Every method at lag 8 and 32, and against GRPO, corrected together."""
    cells = [(grid, m) for grid, ms in (("sweep", FOUR), ("methods", STABILIZERS)) for m in ms]
    found = {
        (m, lag): Difference(scores(grid, m, lag), scores("sweep", "grpo", lag))
        for lag in (8, 32)
        for grid, m in cells
        if m != "grpo"
    }
    holm(list(found.values()))
    rows = []
    for grid, m in cells:
        taken = [
            mean(grid, m, lag, "masked" if m in ("dppo", "grpo-mis-geo", "cispo", "m2po") else "clipped")
            for lag in (8, 32)
        ]
        against = ["" if m == "grpo" else f"{found[m, lag]}, {found[m, lag].verdict}" for lag in (8, 32)]
        levels = [percent(mean(grid, m, lag)) for lag in (8, 32)] + [
            nats(mean(grid, m, lag, "d_pi")) for lag in (8, 32)
        ]
        collapsed = sum(sum(scores(grid, m, lag, "collapsed").values()) for lag in (8, 32)) or ""
        rows.append([NAMES[m], *levels, *map(percent, taken), collapsed, *against])
    head = ["", "lag 8", "lag 32", "d_pi, 8", "32", "taken, % 8", "32", "collapsed", "minus GRPO, lag 8", "lag 32"]
    return table(head, rows)


def falls() -> str:
    """How far runs fell below their own best evaluation at lag 8: the largest fall, and what is left at the end."""
    cells = [(grid, m, f"{NAMES[m]} {radius:g}") for radius, grid in RADII.items() for m in FOUR]
    cells += [("methods", m, f"{NAMES[m]} 0.2") for m in STABILIZERS]
    ran = [cell for cell in cells if scores(*cell[:2], 8)]
    rows = [[name, percent(mean(g, m, 8, "fall")), percent(mean(g, m, 8, "end_fall"))] for g, m, name in ran]
    return table(["lag 8", "largest fall, points", "at the end"], sorted(rows, key=lambda row: -float(row[2])))


def other_grids() -> str:
    """Late accuracy, d_pi and clipped share of every grid that changes something else than the radius."""
    grids = [grid for grid in dict.fromkeys(run.grid for run in RUNS) if grid not in (*SAME_RATE, "alone")]
    rows = []
    for grid in grids:
        for m in dict.fromkeys(run.method for run in RUNS if run.grid == grid):
            late = [percent(mean(grid, m, lag)) for lag in (1, 8, 32)]
            others = [nats(mean(grid, m, lag, "d_pi")) for lag in (8, 32)] + [percent(mean(grid, m, 8, "clipped"))]
            rows.append([f"`{grid}`", NAMES[m], *late, *others])
    head = ["grid", "method", "lag 1", "lag 8", "lag 32", "d_pi, lag 8", "lag 32", "clipped, % lag 8"]
    return table(head, rows)


def predicted() -> str:
    """The three comparisons that were noted before they ran, and SAT's gain in other settings."""
    rows = {
        "lag 1: GSPO 0.02 − SAT-GSPO 0.05": (("eps-0.02", "gspo", 1), ("eps-0.05", "sat-gspo", 1)),
        "FP8 engines, lag 8: GSPO 0.05 − SAT-GSPO 0.2": (("fp8-eps-0.05", "gspo", 8), ("fp8", "sat-gspo", 8)),
        "4e-4, lag 8: GSPO 0.1 − SAT-GSPO 0.2": (("stern-eps-0.1", "gspo", 8), ("stern", "sat-gspo", 8)),
        "4e-4, lag 32: GSPO 0.1 − SAT-GSPO 0.2": (("stern-eps-0.1", "gspo", 32), ("stern", "sat-gspo", 32)),
        "FP8 engines, lag 8: SAT-GSPO − GSPO": (("fp8", "sat-gspo", 8), ("fp8", "gspo", 8)),
        "FP8 engines, lag 8: SAT-GRPO − GRPO": (("fp8", "sat-grpo", 8), ("fp8", "grpo", 8)),
        "FP8 − bf16, lag 8, GRPO": (("fp8", "grpo", 8), ("sweep", "grpo", 8)),
        "half the rate, lag 8: SAT-GSPO − GSPO": (("half-lr", "sat-gspo", 8), ("half-lr", "gspo", 8)),
        "twice the KL, lag 8: SAT-GSPO − GSPO": (("double-kl", "sat-gspo", 8), ("double-kl", "gspo", 8)),
        "4e-4, lag 8: SAT-GSPO − GSPO": (("stern", "sat-gspo", 8), ("stern", "gspo", 8)),
    }
    return table(
        ["", "points"], [[label, Difference(*(scores(*cell) for cell in pair))] for label, pair in rows.items()]
    )


TABLES = (answer, by_lag, lag_costs, sat_gain, planned, radii, best_radius, stabilizers, falls, predicted, other_grids)

# ------------------------------------------------------------------------------------------------------ figures

COLOURS = ["#0072b2", "#d55e00", "#56b4e9", "#e69f00"]


def colour(names: Sequence[str]) -> alt.Color:
    return alt.Color(
        "method:N", title=None, scale=alt.Scale(domain=list(names), range=COLOURS), legend=alt.Legend(orient="top")
    )


def draw_lags() -> alt.Chart:
    """Late accuracy by lag, with Student's 95 % intervals over five seeds."""
    rows = []
    for place, method in enumerate(FOUR):
        for at, lag in enumerate(LAGS):
            values = 100 * np.array(list(scores("sweep", method, lag).values()))
            half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
            level = float(values.mean())
            rows.append(
                {
                    "method": NAMES[method],
                    "at": at + 0.08 * (place - 1.5),
                    "late": level,
                    "low": level - half,
                    "high": level + half,
                }
            )
    ticks = alt.Axis(values=list(range(len(LAGS))), labelExpr=f"{list(LAGS)}[datum.value]", grid=False)
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        alt.X("at:Q", title="lag", axis=ticks, scale=alt.Scale(domain=[-0.3, 7.3], nice=False)),
        colour([NAMES[m] for m in FOUR]),
    )
    late = alt.Y("late:Q", title="late accuracy, %", scale=alt.Scale(zero=False))
    bars = base.mark_rule().encode(alt.Y("low:Q", title="late accuracy, %"), y2="high:Q")
    return alt.layer(
        bars, base.mark_line().encode(late), base.mark_point(filled=True, opacity=1).encode(late)
    ).properties(width=460, height=260)


def draw_clipped() -> alt.Chart:
    """Late accuracy over the clipped share at lag 8 and 32: one point a radius, one line a method."""
    panels = []
    for lag in (8, 32):
        rows = [
            {
                "method": NAMES[m],
                "radius": radius,
                "clipped": 100 * mean(g, m, lag, "clipped"),
                "late": 100 * mean(g, m, lag),
            }
            for m in ("gspo", "sat-gspo", "grpo", "sat-grpo")
            for radius, g in RADII.items()
            if scores(g, m, lag)
        ]
        base = alt.Chart(alt.InlineData(values=rows), title=f"lag {lag}").encode(
            alt.X("clipped:Q", title="clipped, % of the tokens", scale=alt.Scale(type="log")),
            alt.Y("late:Q", title="late accuracy, %", scale=alt.Scale(zero=False)),
            colour([NAMES[m] for m in FOUR]),
        )
        line = base.mark_line().encode(order="radius:Q")
        plain = base.transform_filter("indexof(datum.method, 'SAT') < 0")
        beside = {"align": "left", "dx": 7, "dy": -6, "fontSize": 11}
        label = plain.mark_text(**beside).encode(text="radius:N")
        halo = plain.mark_text(**beside, stroke="white", strokeWidth=2).encode(text="radius:N")
        points = base.mark_point(filled=True, opacity=1)
        panels.append(alt.layer(line, points, halo, label).properties(width=270, height=250))
    return alt.hconcat(*panels)


def draw_mismatch() -> alt.Chart:
    """Mean |d| over the last quarter of the steps, by lag: a point a seed, a line through their means."""
    rows = [
        {"method": NAMES[method], "lag": lag, "d": d}
        for method in ("gspo", "grpo")
        for lag in LAGS
        for d in scores("sweep", method, lag, "d_pi").values()
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        alt.X("lag:O", title="lag", axis=alt.Axis(labelAngle=0)),
        alt.Y("d:Q", title="mean |d|, nats", scale=alt.Scale(type="log", domain=[0.003, 0.3], nice=False)),
        colour([NAMES[m] for m in ("gspo", "grpo")]),
    )
    return alt.layer(
        base.mark_point(filled=True, opacity=0.6), base.mark_line().encode(y=alt.Y("mean(d):Q", title="mean |d|, nats"))
    ).properties(width=460, height=220)


def main() -> None:
    for make in TABLES:
        print(f"{(make.__doc__ or '').strip()}\n\n{make()}\n")
    if "--figures" in sys.argv[1:]:
        in_docs = HERE.parents[1] / "docs/images/lag.svg"
        figures = {HERE / "lags.svg": draw_lags(), HERE / "clipped.svg": draw_clipped(), in_docs: draw_mismatch()}
        for path, chart in figures.items():
            large = chart.configure(background="white").configure_axis(labelFontSize=12, titleFontSize=13)
            large.configure_legend(labelFontSize=13).save(path)


if __name__ == "__main__":
    main()
