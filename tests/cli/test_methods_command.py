import dataclasses

import pytest
from command_line import sat_slime_command

from sat_slime.config import build_method
from sat_slime.config.method_reading import method_switches
from sat_slime.config.schema import MethodConfig
from sat_slime.objective import base_names, method_names, named_method
from sat_slime.objective.stabilizers import rows


def test_methods_lists_all(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = sat_slime_command("methods")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    for base in base_names():
        assert any(base in (word.rstrip(",") for word in line[:2]) for line in lines), base
    for name, row in rows().items():
        assert any(row.discriminator in line and row.direction in line for line in result.stdout.splitlines()), name
    named = result.stdout.partition("Named methods:")[2].split()
    assert named[: len(method_names())] == method_names()


@pytest.mark.parametrize("name", [*method_names(), "sat-gspo-tis-r3-topp"])
def test_a_method_in_full(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    result = sat_slime_command("methods", name)
    assert result.exit_code == 0
    method = named_method(name)
    for part in method.parts:
        row = rows()[part]
        assert row.formula in result.stdout and row.source in result.stdout and row.needs in result.stdout
    config = MethodConfig(**method_switches(name))
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("method.")]
    for settings in (method.trust_region, *method.stabilizers):
        unread = getattr(settings, "unread", ())
        for field in dataclasses.fields(settings) if settings else ():
            value = getattr(settings, field.name)
            found = [line[1] for line in lines if line[0].split(".")[-1] == field.name]
            if field.name not in unread:
                assert ("unset" if value is None else str(value)) in found, field.name
    assert build_method(config) == method
    assert ("embedded, slime" in result.stdout) == (name != "trpo")


def test_methods_of_a_switch_of_what_is_refused_and_of_what_is_unknown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "method.top_p_replay: true, or BASE-topp" in sat_slime_command("methods", "topp").stdout
    assert "method.tis.cap" in sat_slime_command("methods", "tis").stdout
    assert "SPO replaces the clip" in sat_slime_command("methods", "sat-spo").stdout
    unknown = sat_slime_command("methods", "dpppo")
    assert unknown.exit_code == 2 and "did you mean 'dppo'" in unknown.stderr
