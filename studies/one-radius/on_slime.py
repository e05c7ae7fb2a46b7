"""Draws docs/images/slime-default.svg, accuracy on the real slime at lag 8: python studies/one-radius/on_slime.py

A thin line is a run of slime_runs.csv, a thick one the mean of an arm's runs, with 95 % Student intervals.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from math import sqrt
from pathlib import Path

import altair as alt
from scipy import stats

HERE = Path(__file__).parent
FIGURE = HERE.parents[1] / "docs" / "images" / "slime-default.svg"
ARMS = {
    "GRPO over the trainer": ("slime's default: over the trainer", "#d55e00"),
    "GRPO 0.2": ("GRPO over the engine's log-probs", "#0072b2"),
    "SAT-GRPO 0.2": ("SAT-GRPO over the engine's log-probs", "#009e73"),
}
"""The arms of the table: their names in the picture, and colours."""


def draw() -> alt.LayerChart:
    """Return the runs, and the means of those that have ended, a colour for each arm."""
    with (HERE / "slime_runs.csv").open(newline="") as file:
        rows = [
            {"arm": ARMS[arm][0], "seed": row["seed"], "step": int(row["step"]), "y": 100 * float(row["accuracy"])}
            for row in csv.DictReader(file)
            for arm in (row["arm"],)
        ]
    cells = defaultdict(list)
    for row in rows:
        cells[row["arm"], row["step"]].append(row["y"])
    means = []
    for (arm, step), values in cells.items():
        mean = statistics.fmean(values)
        half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / sqrt(len(values))
        means.append({"arm": arm, "step": step, "y": mean, "low": mean - half, "high": mean + half})
    x = alt.X("step:Q", title="optimizer steps", axis=alt.Axis(values=sorted({row["step"] for row in rows})))
    what = "held-out accuracy (%)"
    y = alt.Y("y:Q", title=what, scale=alt.Scale(zero=True))
    names, colours = zip(*ARMS.values(), strict=True)
    color = alt.Color(
        "arm:N",
        title=None,
        scale=alt.Scale(domain=names, range=colours),
        legend=alt.Legend(orient="top", direction="vertical", symbolStrokeWidth=3, symbolOpacity=1, labelLimit=400),
    )
    runs = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=1, opacity=0.35).encode(x, y, color, detail="seed:N")
    base = alt.Chart(alt.Data(values=means))
    bars = base.mark_rule(strokeWidth=1.5).encode(x, alt.Y("low:Q", title=what), alt.Y2("high:Q"), color)
    lines = base.mark_line(strokeWidth=3, point=alt.OverlayMarkDef(size=50, filled=True)).encode(x, y, color)
    figure = alt.layer(runs, bars, lines).properties(width=460, height=260, background="white")
    return figure.configure_axis(labelFontSize=12, titleFontSize=13).configure_legend(labelFontSize=13)


if __name__ == "__main__":
    draw().save(FIGURE)
