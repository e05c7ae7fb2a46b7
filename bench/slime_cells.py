"""Prints the cells of a grid of the real slime on a laptop, beside the lab runtime's, as a table in Markdown.

sat-slime grid configs/grid/laptop.yaml --set cluster.slime_dir=DIR --set cluster.megatron_dir=DIR
sat-slime grid configs/grid/laptop-lab.yaml --seeds 1234
python bench/slime_cells.py grids/slime-laptop [grids/lab-laptop]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any


def rows_of(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def d_pi(rows: list[dict[str, Any]]) -> float:
    """The mean d_pi over the steps that had a lag, which is all but the first."""
    return statistics.fmean(row["mismatch/d_pi"] for row in rows[1:])


def cells(slime: Path, lab: Path | None) -> list[list[str]]:
    """The table's rows, one for each run."""
    table = []
    for run in sorted((slime / "runs").iterdir()):
        method, lag, _ = run.name.rsplit("-", 2)
        rows = rows_of(run)
        if len(rows) < 2:
            table.append([method, lag.removeprefix("lag"), f"{len(rows)} steps", "", "", "", "", ""])
            continue
        lags = [int(row["lag/max"]) for row in rows]
        other = rows_of(lab / "runs" / run.name) if lab else []
        agreements = [row["routing/agreement"] for row in rows if "routing/agreement" in row]
        table.append(
            [
                method,
                lag.removeprefix("lag"),
                ",".join(map(str, lags)),
                f"{rows[0]['mismatch/d_pi']:.1e}",
                f"{d_pi(rows):.4f}",
                f"{d_pi(other):.4f}" if other[1:] else "",
                f"{min(agreements):.3f}" if agreements else "",
                f"{statistics.median(row['time/step'] for row in rows[1:]):.1f}",
            ]
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slime", type=Path)
    parser.add_argument("lab", type=Path, nargs="?")
    options = parser.parse_args()
    head = ["method", "lag", "lags trained at", "d_pi, step 1", "d_pi, mean", "lab", "routes agree", "s/step"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in cells(options.slime, options.lab):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
