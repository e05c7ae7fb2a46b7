import os
from pathlib import Path

import pytest
from command_line import TINY, sat_slime_command

from sat_slime.cli import lab_run


def test_check_tells_settings_and_machine_apart(runtime, monkeypatch, tmp_path):
    cache = f"cache_dir={tmp_path}/cache"
    monkeypatch.setattr(lab_run, "ENGINES", {"json": "json"})
    good = sat_slime_command("check", TINY, "--set", cache)
    assert good.exit_code == 0, good.output
    assert "OK    settings" in good.stdout
    assert "OK json version unknown" in " ".join(good.stdout.split())
    bad = sat_slime_command("check", TINY, "--set", "model.experts=0", "--set", "model.max_positions=9")
    assert bad.exit_code == 2
    assert bad.stdout.count("FAIL  settings") >= 2
    monkeypatch.setattr(lab_run, "ENGINES", {"gone": "no_such_module"})
    monkeypatch.setattr(lab_run, "missing_engines", lambda: ["gone"])
    lacking = sat_slime_command("check", TINY, "--set", cache)
    assert lacking.exit_code == 1 and "FAIL gone not installed: run" in " ".join(lacking.stdout.split())


@pytest.mark.parametrize("key", ["output_dir", "cache_dir"])
def test_check_finds_folders_that_cannot_be_made(runtime, monkeypatch, tmp_path, key):
    monkeypatch.setattr(lab_run, "ENGINES", {})
    (tmp_path / "file").write_text("")
    result = sat_slime_command("check", TINY, "--set", f"{key}={tmp_path}/file/x")
    assert result.exit_code == 1
    assert f"{tmp_path}/file cannot be written: choose another {key}" in result.stdout
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "closed")
    result = sat_slime_command("check", TINY, "--set", f"{key}={tmp_path}/closed/x")
    assert f"{tmp_path}/closed cannot be written: choose another {key}" in result.stdout
