"""Lines of methods: no two are drawn alike, and what the page says of them is what is drawn."""

import pytest

from sat_slime.objective import method_names, named_method
from sat_slime.objective.method import base_names
from sat_slime.report.looks import COLOURS, MARKERS
from sat_slime.report.method_names import key_to, looks_of, style_of


def test_no_two_methods_are_drawn_alike_and_each_as_its_stabilizers_say():
    looks = looks_of(method_names())
    assert len({look.apart for look in looks.values()}) == len(looks)
    for name, look in looks.items():
        style = style_of(named_method(name))
        assert (look.dash, look.marker, look.filled) == (style.dash, style.marker, style.filled)


@pytest.mark.parametrize("name", method_names())
def test_every_style_can_be_drawn_in_one_of_our_colours(name):
    look = looks_of([name])[name]
    assert look.colour in COLOURS.values() and look.marker in MARKERS and look.swatch
    assert all(length > 0 for length in look.dashes) or look.dash == "-"


def test_names_that_are_none_of_methods_are_drawn_apart_too():
    looks = looks_of(["grpo", "my run", "your run"])
    assert len({look.apart for look in looks.values()}) == 3
    assert [look.name for look in looks.values()] == ["GRPO", "my run", "your run"]


def test_a_method_of_several_has_the_colour_of_the_first_and_the_dash_of_the_last():
    both, sat, tis = (style_of(named_method(name)) for name in ("sat-grpo-tis", "sat-grpo", "grpo-tis"))
    assert (both.colour, both.dash, both.marker) == (sat.colour, tis.dash, sat.marker)
    assert "blue dotted: SAT + TIS" in key_to(["sat-grpo-tis"])


def test_a_variant_has_a_marker_of_its_own():
    variants = [name for name in base_names() if named_method(name).variant]
    assert variants
    for name in variants:
        plain = named_method(name).base.name
        assert style_of(named_method(name)).marker != style_of(named_method(plain)).marker
