"""Draws final accuracy by lag: python studies/one-radius/over_lags.py

over_lags.svg has every arm of part B, every_lag.svg those of part A over μ and the primary question's differences, once
all seeds are there. Points are means over the seeds, bars 95 % Student intervals of a mean: compare arms by study.py,
which pairs them.
"""

from __future__ import annotations

import altair as alt
import numpy as np
from run import SEEDS
from study import BASE, CAPPED, FIXED, HERE, SAT, SUITS, TRAINER, WIDE, Runs, final, interval, paired, read

ACCURACY = "final accuracy (%)"
Arms = dict[str, tuple[str, str]]
"""Arms by their names in a panel, each with its name in the table and its colour."""
PANELS_B: dict[str, Arms] = {
    "divided by the trainer": {
        f"{BASE}, over μ": (BASE, "#999999"),
        "GRPO": (TRAINER, "#d55e00"),
        "GRPO + R3": (f"{TRAINER}, R3", "#cc79a7"),
        "GRPO + IcePop": (f"{TRAINER}, IcePop", "#e69f00"),
        "GRPO + TIS": (f"{TRAINER}, TIS", "#0072b2"),
        "GSPO": ("GSPO over the trainer", "#000000"),
    },
    "GRPO and M2PO over μ": {
        name: (name, colour)
        for name, colour in (
            *((BASE, "#999999"), ("SAT-GRPO 0.2", "#d55e00"), ("GRPO at SAT's radius", "#e69f00")),
            *((SAT, "#0072b2"), ("M2PO", "#009e73")),
        )
    },
    "GSPO over μ": {
        name: (name, colour)
        for name, colour in (("GSPO 0.2", "#999999"), ("SAT-GSPO 0.2", "#d55e00"), ("GSPO at SAT's radius", "#e69f00"))
    },
}
RADII = {BASE: "#999999", "GRPO 0.4": "#e69f00", WIDE: "#009e73", "GRPO 1.6": "#000000"}
ARMS_A: Arms = {arm: (arm, colour) for arm, colour in {SAT: "#d55e00", CAPPED: "#0072b2", **RADII}.items()}


def panel(values: dict[tuple[str, int], np.ndarray], arms: Arms, title: str, y_title: str) -> alt.LayerChart:
    """Return arms over the lags, side by side at each. values: those of the seeds by arm and lag."""
    known, rows = sorted({lag for _, lag in values}), []
    for place, (name, (arm, _)) in enumerate(arms.items()):
        for at, lag in enumerate(known):
            if len(last := values.get((arm, lag), ())):
                low, high = interval(np.array(last))
                x = at + (place - (len(arms) - 1) / 2) * 0.09
                rows.append({"arm": name, "x": x, "y": float(np.mean(last)), "low": low, "high": high})
    lags = " : ".join(f"datum.value == {at} ? '{lag}'" for at, lag in enumerate(known))
    axis = alt.Axis(values=[*range(len(known))], labelExpr=f"{lags} : ''", grid=False)
    base = alt.Chart(alt.Data(values=rows)).encode(
        alt.X("x:Q", title="lag", axis=axis, scale=alt.Scale(domain=[-0.4, len(known) - 0.6])),
        color=alt.Color(
            "arm:N",
            title=None,
            scale=alt.Scale(domain=[*arms], range=[colour for _, colour in arms.values()]),
            legend=alt.Legend(orient="top", columns=2, direction="vertical", symbolType="stroke", labelLimit=200),
        ),
    )
    scale = alt.Scale(domain=[0, 80]) if y_title == ACCURACY else alt.Scale(nice=True)
    y, low = (alt.Y(f"{of}:Q", scale=scale, title=y_title) for of in ("y", "low"))
    bars = base.mark_rule(strokeWidth=1.5).encode(low, alt.Y2("high:Q"))
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=30, filled=True)).encode(y)
    return alt.layer(bars, lines).properties(width=270, height=280, title=title)


def finals(runs: Runs, part: str) -> dict[tuple[str, int], np.ndarray]:
    """Return the final accuracies of a part by arm and lag."""
    return {(arm, lag): np.array([*map(final, cell.values())]) for (of, arm, lag), cell in runs.items() if of == part}


def save(name: str, *panels: alt.LayerChart) -> None:
    figure = alt.hconcat(*panels, background="white").resolve_scale(color="independent")
    figure = figure.configure_axis(labelFontSize=12, titleFontSize=13)
    figure.configure_legend(labelFontSize=13, symbolStrokeWidth=3).save(HERE / name)


if __name__ == "__main__":
    runs = read(HERE / "runs.csv")
    of_b = finals(runs, "B")
    save("over_lags.svg", *(panel(of_b, arms, title, ACCURACY) for title, arms in PANELS_B.items()))
    gaps = {(radius, lag): paired(runs, "A", [(SAT, lag)], [(radius, lag)]) for lag in FIXED for radius in FIXED[lag]}
    if all(len(gap) == len(SEEDS["A"]) for gap in gaps.values()):
        minus = {f"{SAT} − {radius}": (radius, colour) for radius, colour in RADII.items()}
        limit = alt.Chart(alt.Data(values=[{"y": SUITS}])).mark_rule(strokeDash=[5, 4]).encode(y="y:Q")
        differences = panel(gaps, minus, f"it suits a lag where all bars end above {SUITS:g}", "points")
        save("every_lag.svg", panel(finals(runs, "A"), ARMS_A, "over μ", ACCURACY), differences + limit)
