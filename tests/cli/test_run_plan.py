"""What the command line asks for, and its faults."""

import pytest
from command_line import TINY, sat_slime_command

from sat_slime.cli.lab_run import engine_packages


def test_options_that_say_what_the_method_says_are_no_contradiction(runtime):
    arguments = ["--method", "sat-gspo-r3", "--sat", "--r3", "--no-tis"]
    assert sat_slime_command("launch", TINY, *arguments, "--dry-run").exit_code == 0


@pytest.mark.parametrize("command", [["launch"], ["check"]])
def test_all_faults_are_told_at_once(runtime, monkeypatch, command):
    monkeypatch.setattr(engine_packages, "ENGINES", ())
    overrides = ["--set", "train.lr=1e400", "--set", "model.kv_heads=3", "--set", "pipline.lag=1"]
    result = sat_slime_command(*command, TINY, *overrides)
    assert result.exit_code == 2
    for fault in ("train.lr is inf", "model.kv_heads is 3", "unknown key 'pipline.lag'"):
        assert fault in result.output


def test_a_grid_is_no_run(runtime, tmp_path):
    (tmp_path / "grid.yaml").write_text(f"name: g\nrun: {TINY}\nmethods: [gspo]\n")
    for command in ("launch", "check"):
        result = sat_slime_command(command, "grid.yaml")
        assert result.exit_code == 2
        assert "grid.yaml: this is a grid, not a run: sat-slime grid grid.yaml" in result.output
    folder = sat_slime_command("launch", ".", "--resume")
    assert folder.exit_code == 2 and "is a grid, not a run: sat-slime grid . goes on with it" in folder.stderr
