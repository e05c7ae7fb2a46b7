"""What is drawn in a panel that can be zoomed stays within it."""

import pytest
from made_up_study import LAGS, write_grid
from synthetic import write_run

from sat_slime.report.comparison.studies import load_study
from sat_slime.report.comparison.study_report import figures as study_figures
from sat_slime.report.figure_files import spec_of
from sat_slime.report.run.run_figures import figures
from sat_slime.runs.reading import load_run


def unclipped(spec, zoomed=False):
    """Marks of zoomed panels that are drawn beyond them. Text and what stands for a pointer may be."""
    zoomed |= any(param.get("bind") == "scales" for param in spec.get("params", ()))
    mark = spec.get("mark")
    drawn = isinstance(mark, dict) and mark["type"] != "text" and mark.get("size") != 0  # that is a key's
    if zoomed and drawn and not mark.get("clip"):
        yield mark
    for part in (*spec.get("layer", ()), *spec.get("vconcat", ()), *spec.get("hconcat", ())):
        yield from unclipped(part, zoomed)


def test_the_figures_of_a_run(tmp_path):
    run = load_run(write_run(tmp_path / "run", 40))
    drawings = [figure.draw() for figure in figures(run.data, run.config)]
    specs = [spec_of(drawing) for drawing in drawings if drawing is not None]
    assert len(specs) > 4 and [mark for spec in specs for mark in unclipped(spec)] == []
    line = {"type": "line"}
    assert list(unclipped({"params": [{"bind": "scales"}], "layer": [{"mark": line}]})) == [line]


def test_the_figures_of_a_study(folder):
    drawings = [figure.draw() for figure in study_figures(load_study(folder))]
    assert [mark for drawing in drawings if drawing for mark in unclipped(spec_of(drawing))] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_grid(folder, "sweep", ("gspo", "sat-gspo"), LAGS)
    write_grid(folder, "alone", ("gspo",), (0, 1, 8), parallel=1)
    return folder
