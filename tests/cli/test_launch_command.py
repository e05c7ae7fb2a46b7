"""`sat-slime launch` of lab runs, on a stand-in for the runtime."""

import pytest
import yaml
from command_line import TINY, sat_slime_command, state

from sat_slime.cli import lab_run
from sat_slime.config import build_method


def test_a_run_leaves_everything_in_its_folder_and_its_resolved_file_runs_again(runtime, tmp_path):
    result, run = sat_slime_command("launch", TINY, "--lag", 1), tmp_path / "runs" / "tiny"
    assert result.exit_code == 0, result.output
    assert (run / "metrics.jsonl").read_text().count("\n") == 6 and state(run)["status"] == "finished"
    assert "step 6/6" in result.stdout and "report: runs/tiny/report.html" in result.stdout
    assert (run / "report.html").exists()
    assert sat_slime_command("launch", "runs/tiny/config.yaml", "--name", "again").exit_code == 0
    (first, _, _), (second, folder, _) = runtime.calls
    assert second == first.model_copy(update={"name": "again"})
    assert folder == tmp_path / "runs" / "again"


def test_options_change_the_file(runtime, tmp_path):
    arguments = ["--method", "gspo-tis", "--sat", "--r3", "--lag", "1", "--set", "train.lr=1e-3", "--name", "7"]
    assert sat_slime_command("launch", TINY, *arguments).exit_code == 0
    ((config, folder, resume),) = runtime.calls
    assert build_method(config.method).name == "sat-gspo-tis-r3"
    assert (config.pipeline.lag, config.train.lr, folder, resume) == (1, 1e-3, tmp_path / "runs" / "7", False)


def test_dry_run_starts_nothing(runtime, tmp_path):
    result = sat_slime_command("launch", TINY, "--dry-run")
    assert result.exit_code == 0 and not (tmp_path / "runs").exists() and runtime.calls == []
    assert yaml.safe_load(result.stdout)["pipeline"]["lag"] == 2 and "16 responses" in result.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--resume", "--overwrite"], "--resume goes on with a run and --overwrite deletes it"),
        (["--start-ray", "--address", "http://10.0.0.1:8265"], "starts a Ray on this machine, and --address is"),
        (["--set", f"output_dir={TINY}/x"], "cannot be written (Not a directory)"),
    ],
)
def test_bad_input_is_a_line_before_anything_starts(runtime, tmp_path, arguments, message):
    """test_mistakes.py has more."""
    result = sat_slime_command("launch", TINY, *arguments)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output
    assert all(line.startswith("error: ") for line in result.stderr.splitlines())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", [["launch"], ["check"]])
def test_all_faults_are_told_at_once(runtime, monkeypatch, command):
    monkeypatch.setattr(lab_run, "ENGINES", {})
    overrides = ["--set", "train.lr=1e400", "--set", "model.kv_heads=x", "--set", "pipline.lag=1"]
    result = sat_slime_command(*command, TINY, *overrides)
    faults = ("train.lr is inf", "model.kv_heads is 'x'", "unknown key 'pipline.lag'")
    assert result.exit_code == 2 and all(fault in result.output for fault in faults), result.output


@pytest.mark.parametrize("option", [["--detach"], ["--full"], ["--start-ray"], ["--skip-checks"], ["--address", "x"]])
def test_options_that_a_lab_run_has_not(option):
    result = sat_slime_command("launch", TINY, *option)
    assert result.exit_code == 2 and f"{option[0]} is for runs of slime" in result.stderr
