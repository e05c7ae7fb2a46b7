"""Runs of slime as jobs on a real Ray, with a stand-in for slime."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import yaml
from command_line import LAPTOP, PAPER, STAND_IN, sat_slime_command, settings, state
from waiting import until

from sat_slime.cli import slime_run
from sat_slime.cli.slime_run import plan_slime_run, saved_iterations
from sat_slime.config import finding, load_config
from sat_slime.config.jsonl import read_rows
from sat_slime.launch import local_ray, machine
from sat_slime.launch.local_ray import LocalRay, _processes_of, how_it_died, is_running, stop_ray
from sat_slime.launch.ray_jobs import JobServer

SECRETS = {"WANDB_API_KEY": "wandb-0123456789abcdef", "HF_TOKEN": "hf_0123456789abcdef"}


def launch(file, *arguments):
    return sat_slime_command("launch", file, "--skip-checks", *arguments)


COMMAND = [sys.executable, "-c", "from sat_slime.cli import main; main()"]


def test_what_slime_refuses_ends_a_launch_before_its_ray_is_started(tmp_path, monkeypatch):
    refusal = finding.fail("flags", "slime.lr is 0.0005: slime refuses the command: too slow")
    monkeypatch.setattr(machine, "machine_findings", lambda *_: ())
    monkeypatch.setattr(slime_run, "parser_findings", lambda *_: [refusal])
    monkeypatch.setattr(local_ray, "start_ray", mock.Mock(side_effect=AssertionError))
    told = sat_slime_command("launch", LAPTOP, *settings(f"output_dir={tmp_path}", f"cluster.slime_dir={STAND_IN}"))
    assert told.exit_code == 2 and f"error: flags: {refusal.detail}" in told.stderr


def waits(before):
    return settings(f'cluster.env.WAIT_BEFORE="{before}"')


def wait_for_line(folder, text):
    """Until the run's job has written a line with `text`."""
    until(lambda: text in (Path(folder) / "log.txt").read_text())


@pytest.mark.engine
def test_a_run_from_start_to_end(file, tmp_path, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    result = launch(file)
    assert result.exit_code == 0, result.output
    run = tmp_path / "runs" / "run"
    assert "step 1/8  reward 0.100  d_pi 0.0120  lag 1" in result.stdout
    assert "step 8/8" in result.stdout and "eval at step 4: aime24 accuracy 0.250" in result.stdout
    assert state(run)["status"] == "finished"
    assert {"config.yaml", "job.json", "log.txt", "sat_slime.yaml"} <= {path.name for path in run.iterdir()}
    job = json.loads((run / "job.json").read_text())
    log = (run / "log.txt").read_text()
    assert log.startswith(f"--- job {job['job']}\n") and "step 7: {" in log
    shown = sat_slime_command("status", run).stdout
    assert "state       finished" in shown and "step 8 of 8, reward 0.8, d_pi 0.012" in shown
    assert "checkpoint  after 8 iterations" in shown
    again = launch(file)
    assert again.exit_code == 2 and all(word in again.stderr for word in ("--resume", "--name", "--overwrite"))
    done = launch(run, "--resume")
    assert done.exit_code == 2 and "finished after 8 iterations; to go on, name more" in done.stderr
    assert "has ended already (finished)" in sat_slime_command("stop", run).stdout
    texts = [path.read_text() for path in run.rglob("*") if path.is_file()]
    assert not any(value in text for value in SECRETS.values() for text in [*texts, result.output, shown])


@pytest.mark.engine
def test_a_failure_has_its_exit_code_and_last_lines_and_goes_on(file, tmp_path):
    run = tmp_path / "runs" / "run"
    result = launch(file, *settings('cluster.env.FAIL_AT="5"'))
    assert result.exit_code == 1
    first, second, *rest = result.stderr.splitlines()
    job = json.loads((run / "job.json").read_text())["job"]
    failure = "failed with exit code 1; last in its log: RuntimeError: CUDA out of memory, or so"
    assert first == f"error: job {job} {failure}"
    assert second == "Its log ends with:" and rest[-1] == "    RuntimeError: CUDA out of memory, or so"
    assert "go on with: sat-slime launch runs/run --resume" in result.stdout
    assert state(run)["error"] == first.removeprefix("error: ")
    assert "error       job" in sat_slime_command("status", run).stdout
    changed = launch(run, "--resume", *settings("slime.lr=1e-3"))
    assert changed.exit_code == 2 and "slime.lr" in changed.stderr
    resumed = launch("runs/run", "--resume", *settings("cluster.env.FAIL_AT=never"))
    assert resumed.exit_code == 0, resumed.output
    assert "starts at rollout 4" in (run / "log.txt").read_text()
    assert "step 5/8" in resumed.stdout and "step 4/8" not in resumed.stdout
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [*range(1, 9)]  # 5 came after the checkpoint
    assert (run / "log.txt").read_text().count("--- job ") == 2 and state(run)["status"] == "finished"


@pytest.mark.engine
def test_detached_runs_side_by_side(file, tmp_path):
    for name in ("a", "b"):
        result = launch(file, "--detach", "--name", name, *waits(before=3))
        assert result.exit_code == 0, result.output
        assert f"follow it with: sat-slime status runs/{name} -f" in result.stdout
        wait_for_line(f"runs/{name}", "waits before rollout 3")
    shown = sat_slime_command("status", "runs/a").stdout
    assert "state       running (job a-" in shown and "step 3 of 8" in shown and "after 2 iterations" in shown
    for arguments in (["--overwrite"], ["--resume"]):
        refused = launch(file, "--name", "a", *waits(before=3), *arguments)
        assert refused.exit_code == 2 and "is running: follow it (sat-slime status runs/a -f)" in refused.stderr
    stopped = sat_slime_command("stop", "runs/a")
    assert stopped.exit_code == 0, stopped.output
    assert "stopped; its newest checkpoint is after 2 iterations" in stopped.stdout
    assert "state       interrupted" in sat_slime_command("status", "runs/a").stdout
    assert "state       running (job b-" in sat_slime_command("status", "runs/b").stdout
    (tmp_path / "go").touch()
    assert "state       finished" in sat_slime_command("status", "runs/b", "-f").stdout
    resumed = launch("runs/a", "--resume")
    assert resumed.exit_code == 0 and "step 3/8" in resumed.stdout and "step 8/8" in resumed.stdout


@pytest.mark.engine
def test_ctrl_c_ends_the_view_and_not_the_job(file, tmp_path):
    command = [*COMMAND, "launch", str(file), "--skip-checks", *waits(before=3), *settings("cluster.restarts=9")]
    environment = {**os.environ, "COLUMNS": "300"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as launching:
        assert any("step 3/8" in line for line in launching.stdout)
        launching.send_signal(signal.SIGINT)
        rest = launching.stdout.read()
    assert launching.returncode == 130
    with subprocess.Popen([*COMMAND, "status", "runs/run", "-f"], stdout=subprocess.PIPE, text=True) as following:
        assert any("step 3/8" in line for line in following.stdout)
        following.send_signal(signal.SIGINT)
        told = following.stdout.read()
    assert following.returncode == 130, told
    assert "the job goes on" in rest and "sat-slime stop runs/run" in rest
    assert "state       running" in sat_slime_command("status", "runs/run").stdout
    (tmp_path / "go").touch()
    followed = sat_slime_command("status", "runs/run", "-f")
    assert followed.exit_code == 0 and re.search("step 8(/| of )8", followed.stdout)  # the job may have ended before
    assert "state       finished" in sat_slime_command("status", "runs/run").stdout
    log = (tmp_path / "runs" / "run" / "log.txt").read_text()
    assert log.count("step 2: ") == log.count("step 7: ") == 1


@pytest.mark.engine
def test_a_job_that_dies_is_sent_again_from_the_newest_whole_checkpoint(file, tmp_path, monkeypatch):
    monkeypatch.setattr(slime_run, "FIRST_PAUSE_S", 0.0)
    run = tmp_path / "runs" / "run"
    dies = ('cluster.env.FAIL_AT="5"', 'cluster.env.FAIL_STARTS="1"', 'cluster.env.DAMAGE="3"', "cluster.restarts=3")
    result = launch(file, *settings(*dies))
    assert result.exit_code == 0, result.output
    assert "restart 1 of 3, from iteration 2, in 0 s: after iteration 5 job run-" in result.stdout
    assert "step 8/8" in result.stdout and state(run)["status"] == "finished"
    (row,) = read_rows(run / "restarts.jsonl")
    assert (row["from"], row["died_at"]) == (2, 5) and "CUDA out of memory, or so" in row["reason"]
    job = json.loads((run / "job.json").read_text())
    assert row["job"] != job["job"] and (run / "checkpoints" / "iter_0000003.aside").is_dir()
    log = (run / "log.txt").read_text()
    first, second = log.index(f"--- job {row['job']}\n"), log.index(f"--- job {job['job']}\n")
    assert first < log.index("--- restart 1 of 3, from iteration 2") < second < log.index("starts at rollout 2")
    assert "restarts    after iteration 5\n" in sat_slime_command("status", run).stdout


@pytest.mark.engine
def test_a_job_that_is_stopped_while_it_is_followed_is_not_sent_again(file, tmp_path):
    run = tmp_path / "runs" / "run"
    command = [*COMMAND, "launch", str(file), "--skip-checks", *waits(before=3), *settings("cluster.restarts=9")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launching:
        assert any("step 3/8" in line for line in launching.stdout)
        assert sat_slime_command("stop", run).exit_code == 0
        rest = launching.stdout.read()
    assert launching.returncode == 130, rest
    assert read_rows(run / "restarts.jsonl") == [] and state(run)["status"] == "interrupted"


def child_of(ray, name):
    """The pid of a process of a Ray's."""
    children = Path(f"/proc/{ray.pid}/task/{ray.pid}/children").read_text().split()
    (found,) = (pid for pid in children if name in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0])
    return int(found)


@pytest.mark.engine
def test_a_ray_of_the_runs_own_is_started_anew_when_it_dies_and_ends_with_the_run(file, tmp_path):
    run = tmp_path / "runs" / "run"
    words = [*settings("cluster.address=null", "cluster.restarts=1"), *waits(before=3)]
    at_once = "from sat_slime.cli import main, slime_run; slime_run.FIRST_PAUSE_S = 0.0; main()"
    command = [sys.executable, "-c", at_once, "launch", str(file), "--skip-checks", "--start-ray", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launching:
        assert any("step 3/8" in line for line in launching.stdout)
        first = LocalRay(**json.loads((run / "job.json").read_text())["ray"])
        os.kill(child_of(first, "gcs_server"), signal.SIGKILL)
        told = next(line for line in launching.stdout if "restart 1 of 1" in line)
        (tmp_path / "go").touch()
        rest = launching.stdout.read()
    died = "the Ray that was started for it ended: its gcs_server was killed by SIGKILL"
    assert "from iteration 2, " in told and died in told
    assert launching.returncode == 0, rest
    second = LocalRay(**json.loads((run / "job.json").read_text())["ray"])
    assert second.folder != first.folder and not Path(second.folder).exists()
    assert _processes_of(first) == _processes_of(second) == [] and state(run)["status"] == "finished"
    assert JobServer(yaml.safe_load(file.read_text())["cluster"]["address"])  # the other Ray is there still


@pytest.mark.engine
def test_the_death_of_a_ray_of_the_runs_own_is_told_by_the_next_command(file, tmp_path):
    run = tmp_path / "runs" / "run"
    own = [*settings("cluster.address=null"), *waits(before=3)]
    assert "follow it with" in launch(file, "--start-ray", "--detach", *own).stdout
    ray = LocalRay(**json.loads((run / "job.json").read_text())["ray"])
    os.kill(child_of(ray, "raylet/raylet"), signal.SIGKILL)
    died = "the Ray that was started for it ended: its raylet was killed by SIGKILL"
    assert how_it_died(ray, timeout_s=120)
    shown = sat_slime_command("status", run).stdout
    assert "state       failed" in shown and died in shown and died in state(run)["error"]
    assert not is_running(ray) and not stop_ray(ray) and _processes_of(ray) == []


@pytest.mark.engine
def test_a_killed_grid_takes_up_the_job_that_goes_on(file, tmp_path):
    grid = {"name": "small", "run": "run.yaml", "methods": ["gspo"], "lags": [1], "seeds": [7]}
    Path("grid.yaml").write_text(yaml.safe_dump(grid))
    arguments = ["grid", "grid.yaml", "--skip-checks", *waits(before=3)]
    run, log = Path("grids/small/runs/gspo-lag1-seed7"), Path("grids/small/runs/gspo-lag1-seed7/log.txt")
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as killed:
        until(lambda: log.exists() and "waits before rollout 3" in log.read_text(), killed)
        killed.kill()
    job = json.loads((run / "job.json").read_text())
    (tmp_path / "go").touch()
    result = sat_slime_command(*arguments)
    assert result.exit_code == 0, result.output
    assert json.loads((run / "job.json").read_text()) == job  # the same, followed to its end
    assert state(run)["status"] == "finished" and log.read_text().count("step 7: ") == 1


def test_resume_from_points_slime_to_the_older_checkpoint_and_drops_the_rows(begun):
    config = load_config(begun.config)
    plan = plan_slime_run(config, begun.config, begun.path, resume=True, look_for_slime=False, resume_from=2)
    slime_run.claim(plan, overwrite=False).lock.release()
    assert saved_iterations(config, begun.path) == 2
    assert begun.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (begun.checkpoints / "iter_0000003.aside" / ".metadata").exists()
    missing = sat_slime_command("launch", "run", "--resume-from", 3, "--dry-run", "--skip-checks")
    assert missing.exit_code == 2 and "has no checkpoint of that iteration, but: 2" in missing.stderr
    elsewhere = sat_slime_command("launch", "run", "--resume", "--dry-run", *settings("output_dir=x"))
    assert elsewhere.exit_code == 2 and "--set output_dir=x: a run goes on where it is, run: " in elsewhere.stderr
    assert plan_slime_run(config, begun.config, begun.checkpoints / "..", resume=True).folder == begun.path
    moved = begun.path.rename(begun.path.with_name("run (1)"))
    refused = sat_slime_command("launch", moved, "--resume", "--dry-run", "--skip-checks")
    assert refused.exit_code == 2 and f"{moved}: name is 'run (1)': it takes letters" in refused.stderr


def test_a_run_does_not_begin_in_another_ones_checkpoints(begun, tmp_path):
    other = settings(f"slime.save={begun.checkpoints}", f"output_dir={tmp_path}", "pipeline.iterations=8")
    refused = sat_slime_command("launch", PAPER, "--skip-checks", "--address", "http://127.0.0.1:1", *other)
    assert refused.exit_code == 2 and "with a run's checkpoint of iteration 4" in refused.stderr
