import pytest
from command_line import ROOT, sat_slime_command


@pytest.mark.parametrize("command", ["logs", "stop"])
def test_folders_that_hold_no_job(command, tmp_path):
    assert "is not a run folder" in sat_slime_command(command, tmp_path).stderr
    (tmp_path / "config.yaml").write_text(f"extends: {ROOT}/configs/embedded/tiny.yaml\n")
    (tmp_path / "state.json").write_text("{}")
    result = sat_slime_command(command, tmp_path)
    assert result.exit_code == 2 and "is an embedded run" in result.stderr
