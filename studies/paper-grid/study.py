"""Makes the table, the contrasts and the figure of the paper's grid: python studies/paper-grid/study.py [--figure]

cells.csv has a row for each method and lag: means over three seeds with Student's 95 % intervals, accuracies as shares,
d_pi in nats, the paper's numbers before them. differences.csv has the differences paired by seed, runs.csv a row for
each run. They are what the report of the 78 runs wrote; the runs' own rows are not kept.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import altair as alt

HERE = Path(__file__).parent
NAMES = {
    **{"grpo": "GRPO", "gspo": "GSPO", "grpo-r3": "GRPO w/ R3", "gspo-r3": "GSPO w/ R3", "grpo-tis": "GRPO w/ TIS"},
    **{"gspo-tis": "GSPO w/ TIS", "grpo-tis-r3": "GRPO w/ TIS + R3", "gspo-tis-r3": "GSPO w/ TIS + R3", "dppo": "DPPO"},
    **{
        "sat-grpo": "SAT-GRPO",
        "sat-gspo": "SAT-GSPO",
        "sat-grpo-r3": "SAT-GRPO w/ R3",
        "sat-gspo-r3": "SAT-GSPO w/ R3",
    },
}


def rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open() as file:
        return list(csv.DictReader(file))


CELLS = {(row["method"], int(row["lag"])): row for row in rows("cells.csv")}


def levels() -> str:
    """Late accuracy in %, and d_pi in nats, means over three seeds."""
    lines = ["| | late accuracy, lag 1 | lag 8 | d_pi, lag 1 | lag 8 |", "|---|---|---|---|---|"]
    for method, name in NAMES.items():
        cells = [CELLS[method, lag] for lag in (1, 8)]
        late = [f"{100 * float(cell['late mean']):.1f}" for cell in cells]
        lines.append("| " + " | ".join([name, *late, *(f"{float(cell['d_pi mean']):.4f}" for cell in cells)]) + " |")
    return "\n".join(lines)


def sat() -> str:
    """SAT minus its base in late accuracy. Brackets of three pairs are their smallest and largest, which cover 75 %."""
    lines = ["| | lag | points, [min, max] | p | p, Holm | d_pi, nats |", "|---|---|---|---|---|---|"]
    for row in rows("differences.csv"):
        if row["group"] == "SAT against its own base":
            mean, low, high = (100 * float(row[f"late {part}"]) for part in ("mean", "low", "high"))
            tested = [f"{float(row[f'late {part}']):.3f}" for part in ("p", "p Holm")]
            points = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")
            d_pi = f"{float(row['d_pi mean']):+.4f}".replace("-", "−")
            lines.append(f"| {row['difference']} | {row['lag']} | {points} | {' | '.join(tested)} | {d_pi} |")
    return "\n".join(lines)


def draw() -> alt.Chart:
    """Late accuracy of each method at lag 1 and 8."""
    data = [
        {"method": name, "lag": str(lag), "late": 100 * float(cell["late mean"])}
        for method, name in NAMES.items()
        for lag, cell in ((lag, CELLS[method, lag]) for lag in (1, 8))
    ]
    base = alt.Chart(alt.InlineData(values=data)).encode(
        alt.X("late:Q", title="late accuracy, %", scale=alt.Scale(zero=False)),
        alt.Y("method:N", title=None, sort=list(NAMES.values())),
    )
    points = base.mark_point(filled=True, opacity=1, size=60).encode(
        alt.Color("lag:N", scale=alt.Scale(range=["#0072b2", "#d55e00"]))
    )
    line = base.mark_line(color="#bbb").encode(detail="method:N")
    return alt.layer(line, points).properties(width=520, height=alt.Step(22), background="white")


def main() -> None:
    print("\n\n".join(make() for make in (levels, sat)))
    if "--figure" in sys.argv[1:]:
        draw().save(HERE / "accuracy.svg")


if __name__ == "__main__":
    main()
