"""Which runs of the lab runtime may be resumed, and how they end, on a stand-in for the runtime."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import yaml
from command_line import TINY, sat_slime_command, state

from sat_slime.cli import lab_run
from sat_slime.runs.folder import RunFolder


@pytest.mark.parametrize("target", [TINY, "runs/tiny", "runs/tiny/", "runs/tiny/config.yaml", "moved"])
def test_resume_by_file_or_folder(runtime, tmp_path, target):
    runtime.end, runtime.stop_after = KeyboardInterrupt(), 3
    sat_slime_command("launch", TINY)
    runtime.end, runtime.stop_after = None, 10**9
    run = tmp_path / "runs" / "tiny"
    if target == "moved":  # and goes on where it is
        run = run.rename(tmp_path / "moved")
    result = sat_slime_command("launch", target, "--resume")
    assert result.exit_code == 0, result.output
    (first, _, _), (second, folder, resume) = runtime.calls
    assert (second, folder, resume) == (first, run, True)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6] and state(run)["status"] == "finished"
    assert (tmp_path / "runs" / "tiny").exists() == (target != "moved")


def test_resume_may_grow_and_change_what_does_not_matter_alone(runtime, tmp_path, monkeypatch):
    sat_slime_command("launch", TINY)
    changed = sat_slime_command("launch", "runs/tiny", "--resume", "--no-sat", "--set", "train.lr=1e-3")
    assert changed.exit_code == 2 and len(runtime.calls) == 1
    assert "method.sat.alpha (0.9 -> None)" in changed.stderr and "train.lr (0.0005 -> 0.001)" in changed.stderr
    finished = sat_slime_command("launch", "runs/tiny", "--resume")
    assert finished.exit_code == 2 and "is finished after 6 iterations" in finished.stderr
    shrunk = sat_slime_command("launch", "runs/tiny", "--resume", "--set", "pipeline.iterations=5")
    assert shrunk.exit_code == 2
    more = ["--set", "pipeline.iterations=9", "--set", "checkpoint.keep=1", "--set", "rollout.request_timeout_s=9"]
    with monkeypatch.context() as full:
        full.setattr(RunFolder, "started", mock.Mock(side_effect=OSError(28, "No space left on device")))
        assert sat_slime_command("launch", "runs/tiny", "--resume", *more).exit_code == 2
    assert sat_slime_command("launch", "runs/tiny", "--resume", *more).exit_code == 0
    assert yaml.safe_load((tmp_path / "runs/tiny/config.yaml").read_text())["pipeline"]["iterations"] == 9
    assert "is finished after 9" in sat_slime_command("launch", "runs/tiny", "--resume-from", 9).stderr
    assert sat_slime_command("launch", "runs/tiny", "--resume-from", 0).exit_code == 0
    assert [json.loads(row)["step"] for row in (tmp_path / "runs/tiny/metrics.jsonl").open()] == [*range(1, 10)]
    assert sat_slime_command("launch", "runs/tiny").exit_code == 2


def test_missing_engines_say_what_to_install(runtime, monkeypatch, tmp_path):
    monkeypatch.setattr(lab_run, "missing_engines", lambda: ["megatron-core", "sglang"])
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 2 and "megatron-core, sglang" in result.stderr and "scripts/setup.sh" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_failure_is_one_line_kept_and_reported(runtime, tmp_path):
    runtime.end = RuntimeError("engine 0 died 4 times; see its log\nand more")
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 1 and result.stderr == "error: engine 0 died 4 times; see its log\nand more\n"
    assert "sat-slime launch runs/tiny --resume" in result.stdout
    run = tmp_path / "runs" / "tiny"
    assert (state(run)["status"], state(run)["error"]) == ("failed", "engine 0 died 4 times; see its log")
    assert "engine 0 died 4 times" in (run / "report.html").read_text()
    assert "Traceback" in (run / "log.txt").read_text()


def test_a_report_that_cannot_be_drawn_hides_no_ending(runtime, without_vl_convert, monkeypatch, tmp_path):
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("no report: ")]
    assert "vl_convert" in line and line.endswith("when that is fixed: sat-slime report runs/tiny")
    assert state(tmp_path / "runs" / "tiny")["status"] == "finished"
    runtime.end = RuntimeError("the real error")
    failed = sat_slime_command("launch", TINY, "--overwrite")
    assert (failed.exit_code, failed.stderr) == (1, "error: the real error\n") and "no report: " in failed.stdout
    monkeypatch.setattr(lab_run.RunFolder, "ended", mock.Mock(side_effect=OSError(28, "full")))
    assert "its end is not noted: [Errno 28] full" in sat_slime_command("launch", TINY, "--overwrite").stdout


def test_an_interrupt_before_the_runtime_runs(runtime, monkeypatch, tmp_path):
    interrupted = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(lab_run, "RunLog", interrupted)
    result = sat_slime_command("launch", TINY, "--set", "output_dir=my runs")
    assert result.exit_code == 130
    assert "go on with: sat-slime launch 'my runs/tiny' --resume" in result.stdout
    assert state(tmp_path / "my runs" / "tiny")["status"] == "interrupted"
    monkeypatch.setattr(lab_run, "plan_lab_run", interrupted)
    result = sat_slime_command("launch", TINY)
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")


@pytest.mark.parametrize("error, status", [(None, "interrupted"), (RuntimeError("the real error"), "failed")])
def test_an_interrupt_while_the_report_is_written(runtime, monkeypatch, tmp_path, error, status):
    runtime.end = error
    monkeypatch.setattr("sat_slime.report.run.write_report", mock.Mock(side_effect=KeyboardInterrupt))
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 130 and "writing the report ..." in result.stdout
    assert "no report: interrupted; write it with: sat-slime report runs/tiny\n" in result.stdout
    assert result.stderr == ("error: the real error\n" if error else "")
    assert state(tmp_path / "runs" / "tiny")["status"] == status
    assert sat_slime_command("report", "runs/tiny").exit_code == 130


def test_sigterm_is_an_interrupt(runtime, tmp_path):
    previous = signal.signal(signal.SIGTERM, lambda *_: None)  # unhandled, it would end the tests
    try:
        runtime.at_end = lambda log: signal.raise_signal(signal.SIGTERM)
        assert sat_slime_command("launch", TINY).exit_code == 130
        assert state(tmp_path / "runs" / "tiny")["status"] == "interrupted"
        assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_run_outlives_the_pipe_behind_it(tmp_path):
    stand_in = "FakeRuntime().stand_in(pytest.MonkeyPatch())"
    program = f"import pytest; from stand_in_runtime import *; {stand_in}; from sat_slime.cli.app import main; main()"
    command = f'"{sys.executable}" -c "{program}" launch {TINY} | true'  # as Ctrl-C ends `| tee`
    subprocess.run(["sh", "-c", command], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, cwd=tmp_path)
    assert state(tmp_path / "runs" / "tiny")["status"] == "finished"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_a_line_and_the_run_ends_as_failed(runtime, tmp_path, monkeypatch):
    def fill_disk(log):
        monkeypatch.setattr("sat_slime.runs.log.append_line", lambda path, line: Path("/dev/full").write_text(line))
        log.step({"step": 7})

    runtime.at_end = fill_disk
    result = sat_slime_command("launch", TINY)
    assert result.exit_code == 1
    path = tmp_path / "runs" / "tiny" / "metrics.jsonl"
    assert result.stderr == (
        f"error: cannot write {path.relative_to(tmp_path)}: No space left on device: free space and go on with "
        "--resume\n"
    )
    assert state(path.parent)["status"] == "failed" and "metrics.jsonl" in state(path.parent)["error"]
    assert (path.parent / "report.html").exists()
