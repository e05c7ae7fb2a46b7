"""Lines of methods: no two are drawn alike, and what the page says of them is what is drawn."""

import pytest
from matplotlib.figure import Figure

from sat_slime.objective import base_names, method_names, named_method
from sat_slime.report.comparison.curves import key_to, style_of
from sat_slime.report.drawing import COLOURS


def test_no_two_methods_are_drawn_alike():
    seen = {}
    for name in method_names():
        style = style_of(name)
        look = style["color"], style["linestyle"], style["marker"], style["markerfacecolor"] == "white"
        assert seen.setdefault(look, name) == name


@pytest.mark.parametrize("name", method_names())
def test_every_style_can_be_drawn_in_one_of_our_colours(name):
    style = style_of(name)
    assert style["color"] in COLOURS.values() and style["marker"]
    figure = Figure()
    figure.subplots().plot([0, 1], [0, 1], **style)
    figure.draw_without_rendering()


def test_a_method_of_several_has_the_colour_of_the_first_and_the_dash_of_the_last():
    both, sat, tis = (named_method(name).style for name in ("sat-grpo-tis", "sat-grpo", "grpo-tis"))
    assert (both.colour, both.dash, both.marker) == (sat.colour, tis.dash, sat.marker)
    assert "blue dotted: SAT + TIS" in key_to(["sat-grpo-tis"])


def test_a_variant_has_a_marker_of_its_own():
    variants = [name for name in base_names() if named_method(name).base.variant]
    assert variants
    for name in variants:
        plain = named_method(name).base.name
        assert named_method(name).style.marker != named_method(plain).style.marker
