import dataclasses

import pytest
from command_line import sat_slime_command

from sat_slime.config import build_method
from sat_slime.config.method_section import method_switches
from sat_slime.config.schema import MethodConfig
from sat_slime.objective import method_names, named_method
from sat_slime.objective.method import STABILIZERS, switches


def test_methods_lists_all():
    result = sat_slime_command("methods")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    formulas = (" ".join(kind.__doc__.replace("`", "").split()) for kind in STABILIZERS.values())
    assert all(formula in result.stdout for formula in formulas)
    suffixes = [f"-{kind.name}" for kind in switches() if kind.place == "suffix"]
    assert " ".join(method_names()) in lines and " ".join(["sat-", "BASE", *suffixes]) in lines


@pytest.mark.parametrize("name", [*method_names(), *(kind.name for kind in switches()), "sat-gspo-tis-r3-topp"])
def test_one_in_full_has_formula_and_settings(name):
    result = sat_slime_command("methods", name)
    assert result.exit_code == 0
    if (beside := STABILIZERS.get(name)) and beside.place != "base":
        parts = [beside()]
        assert "BASE" in result.stdout
    else:
        method = named_method(name)
        parts = [part for part in (method.clip, *method.stabilizers) if part]
        assert build_method(MethodConfig(**method_switches(name))) == method
        assert ("lab, slime" in result.stdout) == (not method.has("topp"))
    for part in parts:
        if type(part) in STABILIZERS.values():
            assert " ".join(part.__doc__.replace("`", "").split()) in result.stdout
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            assert f".{field.name} = {'unset' if value is None else value}: " in result.stdout, field.name


def test_methods_of_what_is_a_switch_and_of_what_is_refused():
    assert "switched on by method.top_p_replay: true, or BASE-topp" in sat_slime_command("methods", "topp").stdout
    assert "SPO has no clip interval" in sat_slime_command("methods", "sat-spo").stdout
