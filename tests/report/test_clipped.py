"""Figures follow Altair's schema, and what is drawn in a panel that can be zoomed stays within it."""

from altair.utils.schemapi import debug_mode
from synthetic import write_cell, write_run

from sat_slime.report.compared_runs import collect
from sat_slime.report.comparison import figures as grid_figures
from sat_slime.report.figure_files import spec_of
from sat_slime.report.run import figures
from sat_slime.report.stats import Comparison
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


def valid_specs(figures):
    """The specifications of all that have data; drawn with each part held against Altair's schema."""
    with debug_mode(True):
        return [spec_of(drawing) for figure in figures if (drawing := figure.draw()) is not None]


def test_the_figures_of_a_run(tmp_path):
    run = load_run(write_run(tmp_path / "run", 40))
    specs = valid_specs(figures(run.data, run.config))
    assert len(specs) > 4 and [mark for spec in specs for mark in unclipped(spec)] == []
    line = {"type": "line"}
    assert list(unclipped({"params": [{"bind": "scales"}], "layer": [{"mark": line}]})) == [line]


def test_the_figures_of_a_comparison_follow_the_schema(tmp_path):
    runs = [write_cell(tmp_path / f"{method}", method, 8, 0) for method in ("gspo", "sat-gspo-r3")]
    assert len(valid_specs(grid_figures(Comparison(collect(runs))))) == 7
