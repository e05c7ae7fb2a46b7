from command_line import TINY, sat_slime_command


def test_report_of_a_run_and_of_nothing(runtime, tmp_path):
    sat_slime_command("launch", TINY)
    (tmp_path / "runs/tiny/report.html").unlink()
    assert sat_slime_command("report", "runs/tiny").stdout.strip() == "runs/tiny/report.html"
    assert (tmp_path / "runs/tiny/report.html").exists()
    assert sat_slime_command("report", tmp_path).exit_code == 2


def test_report_tells_on_the_terminal_what_is_wrong_with_the_rows(runtime, tmp_path):
    sat_slime_command("launch", TINY, "--set", "eval.every_n_iterations=0")
    assert sat_slime_command("report", "runs/tiny").stderr == ""
    metrics = tmp_path / "runs/tiny/metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:2] + lines[3:]))
    told = sat_slime_command("report", "runs/tiny")
    assert told.exit_code == 0
    assert told.stderr.startswith("warning: runs/tiny: metrics.jsonl lacks step 3")
