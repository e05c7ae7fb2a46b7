"""Charts are drawn by Vega-Lite without a warning, with the numbers of their frames."""

import resource

import altair as alt
import pandas as pd
import pytest

from sat_slime.report import charts
from sat_slime.report.charts import (
    COLOURS,
    DASHES,
    bars,
    check_address_space,
    intervals,
    lines,
    looks,
)

CURVE = pd.DataFrame({"x": [1, 2, 3] * 2, "y": [1.0, 0.1, None, 2, 3, 4], "line": ["a.b[c]"] * 3 + ["other"] * 3})
BAND = CURVE.assign(low=CURVE["y"] * 0.9, high=CURVE["y"] * 1.1, own=CURVE["y"])
PARTS = pd.DataFrame({"group": ["g", "g", "h"], "line": ["p", "q", "p"], "y": [1.0, -2, 3]})
PARTS = PARTS.assign(end=[3, None, 3], told=["x", None, "y"])
MEANS = pd.DataFrame({"line": ["m", "n", "m"], "x": [0.5, 0.6, 0.4], "low": [0.4, None, None]})
MEANS = MEANS.assign(high=[0.6, None, None], marked=[1, 0, None], seed=[None, None, "0"])
CHARTS = [
    lines("lines", CURVE, "t", "x", "y", log=True, levels=[0.5]),
    lines("band", BAND, "t", "x", "y", faint="own", zero=True),
    lines("points", BAND, "t", "x", "y", points=True, log_x=True),
    lines("steps", CURVE, "t", "x", "y", steps=True),
    bars("bars", PARTS, "t", "y", text="told"),
    intervals("intervals", MEANS, "t", "x"),
]


def test_every_chart_has_its_files(tmp_path, pictures):
    for chart in CHARTS:
        chart.save(tmp_path)
        svg = (tmp_path / f"{chart.name}.svg").read_text()
        assert svg.startswith("<svg") and "currentColor" not in svg and "NaN" not in svg
        assert len(pd.read_csv(tmp_path / f"{chart.name}.csv")) == len(chart.frame)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_specifications_are_vega_lites_and_single_views_as_wide_as_their_place(chart):
    spec = chart.spec()
    alt.LayerChart.from_dict(
        {key: value for key, value in spec.items() if key not in ("config", "datasets")}, validate=True
    )
    assert spec["width"] == "container" and not {"hconcat", "vconcat", "facet"} & set(spec)
    assert len(spec["datasets"]["numbers"]) == len(chart.frame)


def test_no_two_lines_are_drawn_alike():
    names = [str(i) for i in range(len(COLOURS) * len(DASHES))]
    assert len({(colour, tuple(dash)) for colour, dash in looks(names).values()}) == len(names)


def test_long_lines_are_thinned_on_the_page_with_both_ends():
    frame = pd.DataFrame({"x": range(5000), "y": 1.0, "line": "a"})
    rows = lines("long", frame, "", "x", "y").spec()["datasets"]["numbers"]
    assert len(rows) <= charts.MOST_POINTS + 1 and (rows[0]["x"], rows[-1]["x"]) == (0, 4999)


def test_too_little_address_space_is_a_line_with_the_remedy(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**30, 2**30))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(OSError, match="ulimit -v unlimited"):
        check_address_space()
