import pytest
from command_line import DENSE, sat_slime_command


@pytest.mark.parametrize("command", ["logs", "stop"])
def test_folders_that_hold_no_job(command, tmp_path):
    assert "is not a run folder" in sat_slime_command(command, tmp_path).stderr
    (tmp_path / "config.yaml").write_text(f"extends: {DENSE}\n")
    (tmp_path / "state.json").write_text("{}")
    result = sat_slime_command(command, tmp_path)
    assert result.exit_code == 2 and "the run was never sent to a cluster" in result.stderr


def test_the_view_of_a_run_on_slime_is_its_log(tmp_path):
    (tmp_path / "config.yaml").write_text(f"extends: {DENSE}\n")
    (tmp_path / "state.json").write_text("{}")
    result = sat_slime_command("status", tmp_path, "--follow")
    assert result.exit_code == 2 and f"of a run on slime: sat-slime logs {tmp_path} --follow" in result.stderr
