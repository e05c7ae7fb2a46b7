"""Looks stay apart, and each has a sample for the key."""

import re

import pytest

from sat_slime.report.looks import BLUE, MARKERS, Look, apart


def test_no_look_is_there_twice():
    looks = apart([Look(str(i), BLUE, "-", "o") for i in range(100)])
    assert [look.name for look in looks] == [str(i) for i in range(100)]
    assert len({look.apart for look in looks}) == 100
    assert looks[0] == Look("0", BLUE, "-", "o")


def test_looks_that_differ_stay_as_they_are():
    looks = [Look("a", BLUE, "-", "o"), Look("b", BLUE, "--", "o"), Look("c", BLUE, "-", "o", filled=True)]
    assert apart(looks) == looks


def test_points_by_themselves_differ_in_more_than_a_dash():
    looks = [Look("a", BLUE, "-", "o"), Look("b", BLUE, ":", "o"), Look("c", BLUE, "--", "o")]
    told = apart(looks, dashes=False)
    assert told[0] == looks[0] and len({(look.colour, look.marker, look.filled) for look in told}) == 3
    assert [look.dash for look in told] == ["-", ":", "--"]


@pytest.mark.parametrize("dash", ["-", "--", ":", "-.", (0, (5, 1, 1, 1)), ""])
@pytest.mark.parametrize("marker", ["", *MARKERS])
def test_the_sample_of_a_line_has_its_dashes_and_its_marker(dash, marker):
    look = Look("a", BLUE, dash, marker)
    strokes = re.findall(r"M(-?[\d.]+),0H(-?[\d.]+)", look.swatch.removesuffix(look.path))
    assert look.swatch.endswith(look.path)
    assert len(strokes) == 0 if dash == "" else len(strokes) >= 2 if marker or dash != "-" else len(strokes) == 1
    assert all(-4.5 <= float(a) < float(b) <= 4.5 for a, b in strokes)


def test_a_marker_that_is_none_of_ours_is_a_circle():
    assert Look("a", BLUE, "-", "nothing").path == Look("a", BLUE, "-", "o").path
