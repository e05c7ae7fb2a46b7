"""Draws docs/images/one-radius.svg, the radius that SAT comes to over q: python studies/one-radius/curve.py

The points are runs of SAT-GRPO: the mean q of the runs of a lag, from the compact tables of the frontier (base 0.2) and
of one-setting (0.8 and 1.6).
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

import altair as alt
import numpy as np
from altair import datum

from sat_slime.objective.sat import one_radius

HERE = Path(__file__).parent
FIGURE = HERE.parents[1] / "docs" / "images" / "one-radius.svg"
GRIDS = {("frontier", "sweep"): 0.2, ("one-setting", "eps-0.8"): 0.8, ("one-setting", "eps-1.6"): 1.6}
"""The base radius of each grid with SAT-GRPO."""
LAGS = (1, 8, 32, 64)
NAMES = {(0.2, 32): "", (0.2, 64): "lag 32, 64"}
"""Names of points that would lie over one another."""
COLOURS = {0.2: "#0072b2", 0.8: "#d55e00", 1.6: "#009e73"}


def mean_q() -> dict[tuple[float, int], float]:
    """Return the mean q of the runs by base radius and lag."""
    found = defaultdict(list)
    for study in ("frontier", "one-setting"):
        with (HERE.parent / study / "runs.csv").open() as file:
            for row in csv.DictReader(file):
                base = GRIDS.get((study, row["grid"]))
                if base and row["method"] == "sat-grpo" and int(row["lag"]) in LAGS:
                    found[base, int(row["lag"])].append(float(row["sat_q"]))
    return {key: statistics.fmean(values) for key, values in sorted(found.items())}


def draw() -> alt.LayerChart:
    """Return the curves, and a point for each base radius and lag."""
    curve = [
        {"q": float(q), "radius": one_radius(float(q), eps), "base": f"ε = {eps:g}"}
        for eps in COLOURS
        for q in np.geomspace(0.005, 2, 200)
    ]
    points = [
        {"q": q, "radius": one_radius(q, base), "base": f"ε = {base:g}", "lag": NAMES.get((base, lag), f"lag {lag}")}
        for (base, lag), q in mean_q().items()
    ]
    x = alt.X(
        "q:Q",
        scale=alt.Scale(type="log", domain=[0.005, 2]),
        title="q, the 90 % quantile of |d| in the batch (nats)",
        axis=alt.Axis(values=[0.01, 0.03, 0.1, 0.3, 1], grid=True),
    )
    y = alt.Y(
        "radius:Q",
        scale=alt.Scale(type="log", domain=[0.015, 2]),
        title="radius above 1",
        axis=alt.Axis(values=[0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6]),
    )
    color = alt.Color(
        "base:N",
        title="base radius",
        scale=alt.Scale(domain=[f"ε = {eps:g}" for eps in COLOURS], range=list(COLOURS.values())),
    )
    lines = alt.Chart(alt.Data(values=curve)).mark_line(strokeWidth=2.5).encode(x, y, color)
    marks = alt.Chart(alt.Data(values=points))
    dots = marks.mark_circle(size=70, opacity=1).encode(x, y, color)
    outer = marks.mark_text(align="right", dx=-7, dy=-7, fontSize=12).encode(x, y, alt.Text("lag:N"))
    inner = marks.mark_text(align="left", dx=7, dy=9, fontSize=12).encode(x, y, alt.Text("lag:N"))
    names = (
        outer.transform_filter(datum.base == "ε = 1.6"),
        inner.transform_filter(datum.base == "ε = 0.2"),
    )
    figure = alt.layer(lines, dots, *names).properties(width=460, height=300, background="white")
    return figure.configure_axis(labelFontSize=12, titleFontSize=13).configure_legend(
        labelFontSize=12, titleFontSize=13, orient="top", titleOrient="left"
    )


if __name__ == "__main__":
    draw().save(FIGURE)
