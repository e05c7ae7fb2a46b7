"""Numbers that pages give of our own runs are those of the kept result tables."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
TABLES = DOCS / "results/frontier/tables"
AT_BASE_SETTING = ("sweep", "methods")
"""Grids of radius 0.2, bf16 engines and the base's learning rate."""
RADII = {"0.2": AT_BASE_SETTING} | {radius: (f"eps-{radius}",) for radius in ("0.005", "0.02", "0.05", "0.1", "0.4")}
NAMES = {
    "GRPO": "grpo",
    "GSPO": "gspo",
    "SAT-GSPO": "sat-gspo",
    "M2PO": "m2po",
    "GRPO w/ R3": "grpo-r3",
    "GRPO w/ MIS-Geo": "grpo-mis-geo",
    "GRPO w/ TIS": "grpo-tis",
    "Decoupled": "grpo-decoupled",
    "CISPO": "cispo",
    "DPPO": "dppo",
}


def accuracies(quantity: str) -> dict[tuple[str, str, int], float]:
    """Late or final accuracy in %, by radius, method and lag."""
    found = {}
    for radius, grids in RADII.items():
        for grid in grids:
            with (TABLES / f"levels_{grid}.csv").open() as file:
                for row in csv.DictReader(file):
                    found[radius, row["method"], int(row["lag"])] = 100 * float(row[f"{quantity} mean"])
    return found


LATE, FINAL = accuracies("late"), accuracies("final")


def table(page: str, heading: str, n: int = 0) -> list[list[str]]:
    """The rows of the n-th table below a heading, without its head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text[text.index(f"\n{heading}\n") :]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in tables[n].splitlines()[2:]]


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d", cell)]


def methods_in(cell: str) -> list[tuple[str, str]]:
    """Method and radius of `grpo` at 0.4, or of GRPO, radius 0.2; 0.2 where it names none."""
    found = re.findall(r"(?:`([\w-]+)`|\b([A-Z][A-Z0-9-]+)\b)(?:,? (?:at|radius) ([\d.]*\d))?", cell)
    return [(plain or NAMES[title], radius or "0.2") for plain, title, radius in found]


def assert_claim(cell: str, claimed: str, lag: int) -> None:
    methods = methods_in(cell)
    assert methods and len(methods) == len(numbers(claimed)), (cell, claimed)
    for (method, radius), number in zip(methods, numbers(claimed), strict=True):
        assert number == pytest.approx(FINAL[radius, method, lag], abs=0.051), (method, radius, lag)


@pytest.mark.parametrize("row", table("choosing.md", "## What to set, by lag"), ids=lambda row: f"lag {row[0]}")
def test_what_to_set_at_a_lag(row):
    lag, advised, accuracy, other, of_other = row
    advised = advised.partition(", and nothing")[0]
    assert_claim(advised, accuracy, int(lag))
    assert_claim(other, of_other, int(lag))
    assert min(numbers(accuracy)) > max(numbers(of_other))


def rows_of_methods() -> list[list[str]]:
    return [row for n in range(1, 7) for row in table("choosing.md", "## What to set, by lag", n)]


@pytest.mark.parametrize("row", rows_of_methods(), ids=lambda row: row[0])
def test_a_method_has_the_accuracy_of_its_runs_and_none_where_it_has_not_run(row):
    names = [name for name in re.findall(r"`([\w-]+)`", row[0].replace("BASE-", "grpo-"))]
    if row[0] == "`sat-BASE`":
        names = ["sat-grpo", "sat-gspo"]
    for lag, cell in zip((8, 32), row[-2:], strict=True):
        runs = [LATE["0.2", name, lag] for name in names if ("0.2", name, lag) in LATE]
        assert numbers(cell) == pytest.approx(runs, abs=0.051) if runs else cell == "–", row[0]


@pytest.mark.parametrize(
    "row", table("results/frontier/README.md", "## The answer first"), ids=lambda row: f"lag {row[0]}"
)
def test_the_best_setting_of_a_lag_and_its_cost(row):
    lag, best, accuracy, cost, grpo, sat_gspo, _ = row
    ((method, radius), *_) = methods_in(best)
    late = {(r, m): level for (r, m, at), level in LATE.items() if at == int(lag)}
    assert max(late, key=lambda key: late[key]) == (radius, method)
    at_lag = {(r, m): level for (r, m, at), level in FINAL.items() if at == int(lag)}
    assert float(accuracy) == pytest.approx(at_lag[radius, method], abs=0.051)
    assert float(cost) == pytest.approx(FINAL["0.2", "grpo", 1] - at_lag[radius, method], abs=0.101)
    assert float(grpo) == pytest.approx(at_lag["0.2", "grpo"], abs=0.051)
    assert float(sat_gspo) == pytest.approx(at_lag["0.2", "sat-gspo"], abs=0.051)
    assert [number for number in numbers(best) if number > 1] in ([], [64.0])


HEADING = "## Other stabilizers, with the defaults of their authors"


@pytest.mark.parametrize("row", table("results/frontier/README.md", HEADING), ids=lambda row: row[0])
def test_other_stabilizers(row):
    for lag, cell in zip((8, 32), row[1:3], strict=True):
        expected = [LATE["0.2", NAMES[name], lag] for name in row[0].split(", ")]
        assert numbers(cell) == pytest.approx(expected, abs=0.051)
