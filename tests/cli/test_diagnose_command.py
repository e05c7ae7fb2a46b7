from pathlib import Path

from command_line import sat_slime_command

TRACKERS = Path(__file__).parents[1] / "runs" / "trackers" / "recorded"


def test_a_log_of_slime_is_read_in_one_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = sat_slime_command("diagnose", TRACKERS / "job.log")
    assert result.exit_code == 0
    for text in ("Read: 3 optimizer steps of a tracker", "What this cannot tell", "page: diagnosis/report.html"):
        assert text in result.output
    assert (tmp_path / "diagnosis" / "report.html").exists()


def test_bad_input_is_a_line(tmp_path):
    result = sat_slime_command("diagnose", tmp_path / "gone")
    assert result.exit_code == 2 and "it is not there. What can be read is" in result.output
