"""The files of a figure: equal for equal data, and without what only a pointer finds."""

import struct

from test_drawing import panel

from sat_slime.report.drawing import column_of
from sat_slime.report.figure_files import save, spec_of


def marks(part):
    if isinstance(part, list):
        return [mark for one in part for mark in marks(one)]
    if not isinstance(part, dict):
        return []
    own = [part["mark"]] if isinstance(part.get("mark"), dict) else []
    return own + [mark for value in part.values() for mark in marks(value)]


def test_equal_data_gives_equal_files(tmp_path):
    for folder in ("one", "two"):
        drawing = column_of([panel("a", []), panel("b", [])])
        save(spec_of(drawing), drawing.table, tmp_path / folder, "figure")
    for kind in ("png", "svg", "csv"):
        assert (tmp_path / f"one/figure.{kind}").read_bytes() == (tmp_path / f"two/figure.{kind}").read_bytes()


def test_files_have_no_unseen_points(tmp_path):
    drawing = column_of([panel("a", [])])
    spec = spec_of(drawing)
    svg = save(spec, drawing.table, tmp_path, "figure")
    assert any(mark.get("style") == "pointed" for mark in marks(spec))
    text = svg.decode()
    assert text.startswith("<svg") and text.count('d="M2.') == 0
    assert text.count("mark-symbol role-mark") == 2  # the markers, and the key's, which have no size


def test_a_picture_is_a_png_of_the_written_width(tmp_path):
    drawing = column_of([panel("a", [])])
    save(spec_of(drawing), drawing.table, tmp_path, "figure")
    png = (tmp_path / "figure.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and 1000 < struct.unpack(">I", png[16:20])[0] < 1400


def test_black_is_the_colour_of_the_text():
    config = spec_of(column_of([panel("a", [])]))["config"]
    assert config["axis"]["labelColor"] == "currentColor" and config["background"] == "transparent"
