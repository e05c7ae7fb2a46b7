"""Histograms of |d|: the one that a slider moves has the numbers of the rows."""

import numpy as np

from sat_slime.report.drawing import column_of
from sat_slime.report.figure_files import spec_of
from sat_slime.report.histogram import PLACES, over_steps, stairs

EDGES = [0.01, 0.1, 1.0]


def row(step, counts, **more):
    return {"step": step, "lag": 1, "q": 0.05 * step, "edges": EDGES, "counts": counts} | more


def drawn(found):
    """(rows of the bins, what the slider is, the texts) of the panel."""
    spec = spec_of(column_of([over_steps(found)]))
    (slider,) = (one for one in spec["params"] if one["name"] == "step")
    datasets = list(spec["datasets"].values())
    bins = [row for rows in datasets for row in rows if "to" in row]
    return bins, slider, [row["told"] for rows in datasets for row in rows if "told" in row]


def test_each_step_has_its_shares_until_the_next_one():
    bins, slider, told = drawn([row(2, [0, 1, 3, 0]), row(7, [2, 0, 2, 0])])
    assert [(one["since"], one["until"], one["x"], one["y"]) for one in bins] == [
        (2, 7, 0.01, 0.25),
        (2, 7, 0.1, 0.75),
        (7, 1e9, 0.1, 0.5),
    ]
    assert (slider["bind"]["min"], slider["bind"]["max"], slider["value"]) == (2, 7, 7)
    assert told == ["step 2, lag 1, q = 0.1", "step 7, lag 1, q = 0.35"]


def test_several_runs_and_many_steps_are_added_up():
    bins, _, told = drawn([row(step, [0, step % 2, 1, 0]) for step in range(1, 2 * PLACES + 1) for _ in range(3)])
    assert len(told) == PLACES and told[0].startswith("steps 1 to 2, lag 1")
    assert {(one["x"], one["y"]) for one in bins} == {(0.01, 0.33333), (0.1, 0.66667)}


def test_a_line_of_bins_has_gaps_where_they_are_empty():
    edges = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    data = stairs(edges, np.array([0.5, 0, 0.2, 0, 0.3, 0]), "a").values
    assert [(one["x"], one["y"]) for one in data] == [(2, 0.2), (3, None), (4, 0.3), (5, 0.3)]
