import dataclasses
import io

import pytest
from command_line import sat_slime_command
from rich.console import Console

from sat_slime.cli.method_tables import show_table
from sat_slime.config import build_method
from sat_slime.config.method_section import method_switches
from sat_slime.config.schema import MethodConfig
from sat_slime.objective import method_names, named_method
from sat_slime.objective.method import STABILIZERS, switches


def test_methods_lists_all(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = sat_slime_command("methods")
    assert result.exit_code == 0
    named = result.stdout.partition("Named methods, the first 13 of them the paper's:")[2].split()
    assert named[: len(method_names())] == method_names()
    suffixes = [f"-{kind.name}" for kind in switches() if kind.place == "suffix"]
    assert " ".join(["sat-", "BASE", *suffixes]) in " ".join(result.stdout.split())


@pytest.mark.parametrize("columns", [80, 160])
def test_the_table_keeps_to_the_terminal_and_breaks_no_word(columns):
    console = Console(file=io.StringIO(), width=columns)
    show_table(console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= columns and "…" not in text
    assert set(" ".join(method_names()).split()) <= set(text.split())


@pytest.mark.parametrize("name", [kind.name for kind in switches()])
def test_what_stands_beside_a_base_in_full(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    result = sat_slime_command("methods", name)
    assert result.exit_code == 0
    assert " ".join(STABILIZERS[name].__doc__.split()) in " ".join(result.stdout.split()) and "BASE" in result.stdout
    keys = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("method.")]
    section = STABILIZERS[name].key or STABILIZERS[name].prefix()
    assert all(key.startswith(f"method.{section}.") for key in keys)


@pytest.mark.parametrize("name", [*method_names(), "sat-gspo-tis-r3-topp"])
def test_a_method_in_full(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    result = sat_slime_command("methods", name)
    assert result.exit_code == 0
    method = named_method(name)
    for stabilizer in method.stabilizers:
        assert " ".join(stabilizer.__doc__.split()) in " ".join(result.stdout.split())
    config = MethodConfig(**method_switches(name))
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("method.")]
    for settings in (method.clip, *method.stabilizers):
        unread = getattr(settings, "unread", ())
        for field in dataclasses.fields(settings) if settings else ():
            value = getattr(settings, field.name)
            found = [line[1] for line in lines if line[0].split(".")[-1] == field.name]
            if field.name not in unread:
                assert ("unset" if value is None else str(value)) in found, field.name
    assert build_method(config) == method
    assert ("lab, slime" in result.stdout) == (not method.top_p_replay)


def test_methods_of_a_switch_of_what_is_refused_and_of_what_is_unknown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "method.top_p_replay: true, or BASE-topp" in sat_slime_command("methods", "topp").stdout
    assert "method.tis.cap" in sat_slime_command("methods", "tis").stdout
    assert "SPO has no clip interval" in sat_slime_command("methods", "sat-spo").stdout
    unknown = sat_slime_command("methods", "dpppo")
    assert unknown.exit_code == 2 and "did you mean 'dppo'" in unknown.stderr
