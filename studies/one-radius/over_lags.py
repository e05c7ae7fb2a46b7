"""Draws over_lags.svg, final accuracy of every arm of part B by lag: python studies/one-radius/over_lags.py

Points are means over the ten seeds, bars 95 % Student intervals of a mean: compare arms by study.py, which pairs them.
"""

from __future__ import annotations

import altair as alt
import numpy as np
from study import BASE, HERE, LAGS, SAT, TRAINER, Runs, final, interval, read

PANELS = {
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
"""By panel: the arms by their names in it, each with its name in the table and its colour."""


def panel(runs: Runs, title: str) -> alt.LayerChart:
    """Return a panel's arms over the lags, side by side at each."""
    arms, rows = PANELS[title], []
    for place, (name, (arm, _)) in enumerate(arms.items()):
        for at, lag in enumerate(LAGS["B"]):
            if last := [final(run) for run in runs.get(("B", arm, lag), {}).values()]:
                low, high = interval(np.array(last))
                x = at + (place - (len(arms) - 1) / 2) * 0.09
                rows.append({"arm": name, "x": x, "y": float(np.mean(last)), "low": low, "high": high})
    lags = " : ".join(f"datum.value == {at} ? '{lag}'" for at, lag in enumerate(LAGS["B"]))
    axis = alt.Axis(values=[*range(len(LAGS["B"]))], labelExpr=f"{lags} : ''", grid=False)
    base = alt.Chart(alt.Data(values=rows)).encode(
        alt.X("x:Q", title="lag", axis=axis, scale=alt.Scale(domain=[-0.4, len(LAGS["B"]) - 0.6])),
        color=alt.Color(
            "arm:N",
            title=None,
            scale=alt.Scale(domain=[*arms], range=[colour for _, colour in arms.values()]),
            legend=alt.Legend(orient="top", columns=2, direction="vertical", symbolType="stroke", labelLimit=200),
        ),
    )
    y, low = (alt.Y(f"{of}:Q", scale=alt.Scale(domain=[0, 80]), title="final accuracy (%)") for of in ("y", "low"))
    bars = base.mark_rule(strokeWidth=1.5).encode(low, alt.Y2("high:Q"))
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=30, filled=True)).encode(y)
    return alt.layer(bars, lines).properties(width=270, height=280, title=title)


if __name__ == "__main__":
    runs = read(HERE / "runs.csv")
    figure = alt.hconcat(*(panel(runs, title) for title in PANELS), background="white")
    figure = figure.resolve_scale(color="independent").configure_axis(labelFontSize=12, titleFontSize=13)
    figure.configure_legend(labelFontSize=13, symbolStrokeWidth=3).save(HERE / "over_lags.svg")
