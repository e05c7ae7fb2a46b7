"""Which runs may be resumed, and from where."""

import json

import pytest
import yaml
from command_line import TINY, sat_slime_command, state


@pytest.mark.parametrize("target", [TINY, "runs/tiny", "runs/tiny/", "runs/tiny/config.yaml"])
def test_resume_by_file_or_folder(runtime, tmp_path, target):
    runtime.end, runtime.stop_after = KeyboardInterrupt(), 3
    sat_slime_command("launch", TINY)
    runtime.end, runtime.stop_after = None, 10**9
    result = sat_slime_command("launch", target, "--resume")
    assert result.exit_code == 0, result.output
    (first, _, _), (second, folder, resume) = runtime.calls
    assert (second, folder, resume) == (first, tmp_path / "runs" / "tiny", True)
    steps = [json.loads(line)["step"] for line in (tmp_path / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert state(tmp_path / "runs" / "tiny")["status"] == "finished"


def test_a_moved_run_resumes_where_it_is(runtime, tmp_path):
    runtime.end = KeyboardInterrupt()
    sat_slime_command("launch", TINY)
    (tmp_path / "runs" / "tiny").rename(tmp_path / "elsewhere")
    runtime.end = None
    assert sat_slime_command("launch", "elsewhere", "--resume").exit_code == 0
    assert runtime.calls[-1][1] == tmp_path / "elsewhere"
    assert not (tmp_path / "runs" / "tiny").exists()


def test_resume_refuses_changed_settings(runtime):
    runtime.end = KeyboardInterrupt()
    sat_slime_command("launch", TINY)
    result = sat_slime_command("launch", "runs/tiny", "--resume", "--no-sat", "--set", "train.lr=1e-3")
    assert result.exit_code == 2
    assert "method.sat ({'alpha': 0.9" in result.stderr and "train.lr (0.0005 -> 0.001)" in result.stderr
    assert len(runtime.calls) == 1


def test_resume_may_grow_and_change_what_does_not_matter(runtime, tmp_path):
    sat_slime_command("launch", TINY)
    finished = sat_slime_command("launch", "runs/tiny", "--resume")
    assert finished.exit_code == 2
    assert "is finished after 6 iterations" in finished.stderr
    shrunk = sat_slime_command("launch", "runs/tiny", "--resume", "--set", "pipeline.iterations=5")
    assert shrunk.exit_code == 2
    more = ["--set", "pipeline.iterations=9", "--set", "checkpoint.keep=1", "--set", "rollout.max_restarts=9"]
    assert sat_slime_command("launch", "runs/tiny", "--resume", *more).exit_code == 0
    assert yaml.safe_load((tmp_path / "runs/tiny/config.yaml").read_text())["pipeline"]["iterations"] == 9
    assert sat_slime_command("launch", "runs/tiny").exit_code == 2
