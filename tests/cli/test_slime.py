"""Runs of slime through the command: its plans on any machine, its jobs on a real Ray with a stand-in for slime."""

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from unittest import mock

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from sat_slime.cli import app
from sat_slime.cli.slime_run import job_start
from sat_slime.cli.slime_run.job_following import Show, follow
from sat_slime.cli.slime_run.slime_plan import plan_slime_run, saved_iterations
from sat_slime.config import load_config
from sat_slime.embedded import deaths
from sat_slime.plugin.launch import local_ray
from sat_slime.plugin.launch.job_files import JobRecord
from sat_slime.plugin.launch.local_ray import LocalRay, how_it_died, is_running, stop_ray
from sat_slime.plugin.launch.ray_jobs import JobError, JobServer, JobState
from sat_slime.runs.folder import RunFolderError
from sat_slime.runs.live_view import make_view

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "configs" / "paper" / "qwen3-30b-a3b.yaml"
DENSE = ROOT / "configs" / "models" / "qwen3-4b.yaml"
STAND_IN = Path(__file__).parents[1] / "plugin" / "stand_in"
COMMAND = [sys.executable, "-c", "from sat_slime.cli import main; main()"]
SECRETS = {"WANDB_API_KEY": "wandb-0123456789abcdef", "HF_TOKEN": "hf_0123456789abcdef"}


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def sat_slime(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})


def settings(*pairs):
    return [word for pair in pairs for word in ("--set", pair)]


# ------------------------------------------------------------------------------------------------------ the laptop

LAPTOP = ROOT / "configs" / "slime" / "laptop.yaml"
FILES = ("checkpoint", "weights", "data", "model")
"""What the lines about files are of."""


def lines_of(*arguments):
    """(mark, what, rest) of each line of `check`, those about files alone."""
    result = sat_slime("check", LAPTOP, *settings(*arguments))
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    return [tuple(row) for row in rows if len(row) == 3 and (row[1] in FILES or row[1] == "laptop")]


def test_check_does_not_miss_what_the_first_launch_makes(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".cache" / "sat_slime" / "laptop"
    made = ("OK", "laptop", f"{folder}, with model and prompts, is made at the first launch")
    assert lines_of() == [made]
    dry = sat_slime("launch", LAPTOP, "--dry-run")
    assert "cluster.slime_dir" in dry.stderr, "it looked at this machine"
    assert "download" not in dry.stderr and "prepare model" not in dry.stderr and str(folder) not in dry.stderr
    # what it does not make has to be there
    (mark, what, rest), *more = lines_of(f"eval.prompts.mine={folder}/mine.jsonl")[1:]
    assert (mark, what, more) == ("FAIL", "data", []) and f"eval.prompts.mine is {folder}/mine.jsonl" in rest
    # and once something is there, nothing is made
    (folder / "model").mkdir(parents=True)
    assert made not in (told := lines_of()) and [what for mark, what, _ in told if mark == "FAIL"].count("data") == 2


@pytest.mark.parametrize("own", ["model.hf_checkpoint=/mine/qwen", "data.prompts=/mine/p.jsonl", "data.reward=math"])
def test_paths_of_ones_own_are_looked_for(monkeypatch, tmp_path, own):
    monkeypatch.setenv("HOME", str(tmp_path))
    told = lines_of(own)
    assert not any(what == "laptop" for _, what, _ in told)
    assert {what for mark, what, _ in told if mark == "FAIL"} == {"checkpoint", "weights", "data"}


# ---------------------------------------------------------------------------------------------------------- plans


def plan(*arguments, file=PAPER):
    result = sat_slime("launch", file, *arguments, "--dry-run", "--skip-checks", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def flag(sent, name):
    return sent["command"][sent["command"].index(name) + 1]


def test_a_plan_as_json_is_all_there_is_on_stdout(tmp_path):
    sent = plan(
        "--base", "gspo", "--sat", "--r3", "--lag", "8", "--name", "a", *settings(f"output_dir={tmp_path}/runs")
    )
    assert set(sent) == {"command", "env", "files"}
    assert sent["command"][:3] == ["python3", "-m", "sat_slime.plugin.driver"]
    assert flag(sent, "--advantage-estimator") == "gspo"
    assert "--use-rollout-routing-replay" in sent["command"]
    (path,) = sent["files"]
    assert path == flag(sent, "--custom-config-path") == f"{tmp_path}/runs/a/sat_slime.yaml"
    settings_of_plugin = yaml.safe_load(sent["files"][path])["sat_slime"]
    assert settings_of_plugin["method"]["sat"]["enabled"] is True
    assert settings_of_plugin["driver"]["lag"] == 8
    assert not (tmp_path / "runs").exists()


def test_a_method_by_name_is_the_one_by_switches():
    assert plan("--method", "sat-gspo-r3") == plan("--base", "gspo", "--sat", "--r3", "--no-tis")


def test_a_plan_for_people_says_the_same(tmp_path):
    result = sat_slime("launch", PAPER, "--dry-run", "--skip-checks")
    assert result.exit_code == 0
    sent = plan()
    words = result.stdout.replace(" \\\n", " ").splitlines()
    assert [line for line in words if line.startswith("python3 ")] == [
        line for line in words if "sat_slime.plugin.driver" in line
    ]
    for name, value in sent["env"].items():
        assert f"export {name}={value}" in result.stdout
    for text in sent["files"].values():
        assert text in result.stdout
    assert "# method      GSPO, lag 8" in result.stdout


def test_secrets_of_the_environment_are_in_no_plan(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    result = sat_slime("launch", PAPER, "--dry-run", "--skip-checks", *settings("logging.wandb_project=p"))
    assert result.exit_code == 0 and "--use-wandb" in result.stdout
    assert not any(value in result.output for value in SECRETS.values())


@pytest.mark.parametrize(
    "arguments, told",
    [
        (settings("trian.lr=1"), "unknown key 'trian.lr'; did you mean 'train.lr'?"),
        (["--method", "sat-gsp"], "did you mean 'sat-gspo'"),
        (["--sat", *settings("method.denominator=trainer")], "method: "),
        (["--tis", *settings("method.denominator=rollout")], "method: "),
        (settings("extra_args.sglang-mem-fraction=0.5"), "there is no flag --sglang-mem-fraction"),
        (settings("extra_args.lr=1"), "extra_args.lr: --lr follows from train.lr: set that, and leave this out"),
        (settings("cluster.env.WANDB_API_KEY=wandb-0123456789abcdef"), "cluster.env.WANDB_API_KEY is a secret"),
        (["--resume"], "there is no run"),
    ],
)
def test_bad_settings_are_a_line_and_exit_code_2(tmp_path, arguments, told):
    place = settings(f"output_dir={tmp_path}/runs")
    result = sat_slime("launch", PAPER, *place, *arguments, "--dry-run", "--skip-checks")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    assert len(errors) == 1 and errors[0].startswith("error: ") and told in errors[0], errors
    assert "0123456789abcdef" not in result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--r3"], "method.r3 is true, but model.architecture has no num-experts"),
        (
            settings("train.gpus_per_node=6", "train.tensor_parallel=4"),
            "train.nodes x train.gpus_per_node is 6 GPUs, which train.tensor_parallel 4 x",
        ),
        (settings("rollout.max_response_tokens=40000"), "rollout.max_response_tokens 40000 and a prompt is more than"),
    ],
)
def test_bad_settings_of_a_dense_model(arguments, told):
    needed = settings("data.prompts=x.jsonl", "data.reward=math", "eval.every_n_iterations=0")
    result = sat_slime("launch", DENSE, *needed, *arguments, "--dry-run", "--skip-checks")
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert told in line


def test_a_machine_without_the_checkpoint(tmp_path):
    result = sat_slime("launch", PAPER, "--dry-run", *settings(f"model.hf_checkpoint={tmp_path}/none"))
    assert result.exit_code == 2 and result.stdout == ""
    assert f"error: checkpoint: model.hf_checkpoint is {tmp_path}/none: there is no such folder" in result.stderr


def test_a_slime_that_is_too_old(tmp_path):
    for file in ("train.py", "slime/backends/megatron_utils/actor.py", "slime/ray/rollout.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    result = sat_slime("launch", PAPER, "--dry-run", *settings(f"cluster.slime_dir={tmp_path}"))
    assert result.exit_code == 2
    assert f"error: slime: slime at {tmp_path}/slime is too old" in result.stderr


def test_no_ray(tmp_path):
    result = sat_slime("launch", PAPER, "--address", "http://127.0.0.1:1", *settings(f"output_dir={tmp_path}"))
    assert result.exit_code == 2
    assert "error: no Ray answers at http://127.0.0.1:1: start one" in result.stderr
    assert not (tmp_path / "paper").exists()


def test_a_remote_cluster_is_not_taken_for_this_machine():
    result = sat_slime("launch", PAPER, "--dry-run", "--address", "http://10.0.0.1:8265")
    assert result.exit_code == 0
    assert "warning: cluster: http://10.0.0.1:8265 is checked when the run is launched" in result.stderr


@pytest.mark.parametrize("option", [["--detach"], ["--json"], ["--start-ray"], ["--skip-checks"], ["--address", "x"]])
def test_options_that_an_embedded_run_has_not(option):
    result = sat_slime("launch", ROOT / "configs" / "embedded" / "tiny.yaml", *option)
    assert result.exit_code == 2
    assert f"{option[0]} is for runs of slime" in result.stderr


@pytest.mark.parametrize("command", ["logs", "stop"])
def test_folders_that_hold_no_job(command, tmp_path):
    assert "is not a run folder" in sat_slime(command, tmp_path).stderr
    (tmp_path / "config.yaml").write_text(f"extends: {ROOT}/configs/embedded/tiny.yaml\n")
    (tmp_path / "state.json").write_text("{}")
    result = sat_slime(command, tmp_path)
    assert result.exit_code == 2 and "is an embedded run" in result.stderr


def test_check_lists_what_it_found(tmp_path):
    result = sat_slime("check", PAPER, *settings(f"output_dir={tmp_path}"))
    assert result.exit_code == 1
    assert "OK    settings" in result.stdout and "FAIL  checkpoint" in result.stdout
    bad = sat_slime("check", PAPER, *settings("train.gpus_per_node=6"))
    assert bad.exit_code == 2 and "FAIL  settings" in bad.stdout


# ----------------------------------------------------------------------------------------------------------- jobs


@pytest.fixture
def file(tmp_path, ray_server):
    """A run of eight iterations with a checkpoint every second one."""
    path = tmp_path / "run.yaml"
    values = {
        "extends": str(DENSE),
        "name": "run",
        "data": {"prompts": "data.jsonl", "reward": "math"},
        "pipeline": {"iterations": 8, "lag": 1},
        "rollout": {"prompts_per_iteration": 4, "samples_per_prompt": 4, "max_prompt_tokens": 128},
        "train": {"tensor_parallel": 4, "max_tokens_per_gpu": 16384},
        "eval": {"every_n_iterations": 4, "prompts": {"aime24": "data.jsonl"}},
        "checkpoint": {"every_n_iterations": 2},
        "cluster": {
            "address": ray_server.address,
            "slime_dir": str(STAND_IN),
            "megatron_dir": str(STAND_IN),
            "env": {"WAIT_FOR": str(tmp_path / "go")},
        },
    }
    path.write_text(yaml.safe_dump(values))
    return path


def launch(file, *arguments):
    return sat_slime("launch", file, "--skip-checks", *arguments)


def state(folder):
    return json.loads((Path(folder) / "state.json").read_text())


def waits(before):
    return settings(f'cluster.env.WAIT_BEFORE="{before}"')


def wait_for_line(folder, text):
    """Until the run's job has written a line with `text`."""
    job = json.loads((Path(folder) / "job.json").read_text())
    assert any(text in piece for piece in JobServer(job["address"]).follow(job["job"]))


def test_an_evaluation_is_told_with_what_was_trained_before_it():
    told = StringIO()
    config = load_config(PAPER)
    show, view = Show(config), make_view("run", 8, Console(file=told, width=200), live=False)
    for line in ("eval 0: {'eval/aime24': 0.1}", "step 0: {'train/step': 0}", "eval 0: {'eval/aime24': 0.2}"):
        show.read(line, view)
    evaluations = [line for line in told.getvalue().splitlines() if line.startswith("eval")]
    assert evaluations == ["eval before training: aime24 0.100", "eval after iteration 1: aime24 0.200"]


@pytest.mark.engine
def test_a_run_from_start_to_end(file, tmp_path, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    result = launch(file)
    assert result.exit_code == 0, result.output
    run = tmp_path / "runs" / "run"
    assert "step 1/8  reward 0.100  d_pi 0.0120  lag 1" in result.stdout
    assert "step 8/8" in result.stdout and "eval after iteration 4: aime24 0.250" in result.stdout
    assert state(run)["status"] == "finished"
    assert {"config.yaml", "job.json", "log.txt", "sat_slime.yaml"} <= {path.name for path in run.iterdir()}
    job = json.loads((run / "job.json").read_text())
    log = (run / "log.txt").read_text()
    assert log.startswith(f"--- job {job['job']}\n") and "step 7: {" in log
    assert (
        sat_slime("logs", "runs/run", "-n", "1").stdout
        == log.splitlines()[-1].replace("\x1b[36m", "").replace("\x1b[0m", "") + "\n"
    )
    shown = sat_slime("status", run).stdout
    assert "state       finished" in shown and "step 8 of 8, reward 0.8, d_pi 0.012" in shown
    assert "checkpoint  after 8 iterations" in shown
    again = launch(file)
    assert again.exit_code == 2 and all(word in again.stderr for word in ("--resume", "--name", "--overwrite"))
    done = launch(run, "--resume")
    assert done.exit_code == 2 and "finished after 8 iterations; to go on, name more" in done.stderr
    assert "has ended already (finished)" in sat_slime("stop", run).stdout
    texts = [path.read_text() for path in run.rglob("*") if path.is_file()]
    assert not any(value in text for value in SECRETS.values() for text in [*texts, result.output, shown])


@pytest.mark.engine
def test_a_failure_has_its_exit_code_and_last_lines_and_goes_on(file, tmp_path):
    run = tmp_path / "runs" / "run"
    result = launch(file, *settings('cluster.env.FAIL_AT="5"'))
    assert result.exit_code == 1
    first, second, *rest = result.stderr.splitlines()
    job = json.loads((run / "job.json").read_text())["job"]
    assert (
        first == f"error: job {job} failed with exit code 1; last in its log: RuntimeError: CUDA out of memory, or so"
    )
    assert second == "Its log ends with:" and rest[-1] == "    RuntimeError: CUDA out of memory, or so"
    assert "go on with: sat-slime launch runs/run --resume" in result.stdout
    assert state(run)["error"] == first.removeprefix("error: ")
    assert "error       job" in sat_slime("status", run).stdout
    changed = launch(run, "--resume", *settings("train.lr=1e-3"))
    assert changed.exit_code == 2 and "train.lr" in changed.stderr
    (run / "metrics.jsonl").write_text('{"step": 4}\n{"step": 5}\n')
    resumed = launch("runs/run", "--resume", *settings("cluster.env.FAIL_AT=never"))
    assert resumed.exit_code == 0, resumed.output
    assert "starts at rollout 4" in (run / "log.txt").read_text()
    assert "step 5/8" in resumed.stdout and "step 4/8" not in resumed.stdout
    assert (run / "metrics.jsonl").read_text() == '{"step": 4}\n'  # step 5 came after the checkpoint
    assert json.loads((run / "job.json").read_text())["earlier"] == [job]
    assert state(run)["status"] == "finished"


@pytest.mark.engine
def test_detached_runs_side_by_side(file, tmp_path):
    for name in ("a", "b"):
        result = launch(file, "--detach", "--name", name, *waits(before=3))
        assert result.exit_code == 0, result.output
        assert f"follow it with: sat-slime logs runs/{name} -f" in result.stdout
        wait_for_line(f"runs/{name}", "waits before rollout 3")
    shown = sat_slime("status", "runs/a").stdout
    assert "state       running (job a-" in shown and "step 3 of 8" in shown and "after 2 iterations" in shown
    for arguments in (["--overwrite"], ["--resume"]):
        refused = launch(file, "--name", "a", *waits(before=3), *arguments)
        assert refused.exit_code == 2 and "is running: follow it (sat-slime logs runs/a -f)" in refused.stderr
    stopped = sat_slime("stop", "runs/a")
    assert stopped.exit_code == 0, stopped.output
    assert "stopped; its newest checkpoint is after 2 iterations" in stopped.stdout
    assert "state       interrupted" in sat_slime("status", "runs/a").stdout
    assert "state       running (job b-" in sat_slime("status", "runs/b").stdout
    (tmp_path / "go").touch()
    assert any("step 7: " in line for line in sat_slime("logs", "runs/b", "-f").stdout.splitlines())
    assert "state       finished" in sat_slime("status", "runs/b").stdout
    resumed = launch("runs/a", "--resume")
    assert resumed.exit_code == 0 and "step 3/8" in resumed.stdout and "step 8/8" in resumed.stdout


@pytest.mark.engine
def test_ctrl_c_ends_the_view_and_not_the_job(file, tmp_path):
    command = [*COMMAND, "launch", str(file), "--skip-checks", *waits(before=3)]
    environment = {**os.environ, "COLUMNS": "300"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as launching:
        assert any("step 3/8" in line for line in launching.stdout)
        launching.send_signal(signal.SIGINT)
        rest = launching.stdout.read()
    assert launching.returncode == 130
    command = [*COMMAND, "logs", "runs/run", "-f", "-n", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert "step 2: " in next(following.stdout)
        assert next(following.stdout) == "waits before rollout 3\n"
        following.send_signal(signal.SIGINT)
    assert following.returncode == 130
    assert "the job goes on" in rest and "sat-slime stop runs/run" in rest
    assert "state       running" in sat_slime("status", "runs/run").stdout
    (tmp_path / "go").touch()
    followed = sat_slime("logs", "runs/run", "-f")
    assert followed.exit_code == 0 and "step 7: " in followed.stdout
    assert "state       finished" in sat_slime("status", "runs/run").stdout
    log = (tmp_path / "runs" / "run" / "log.txt").read_text()
    assert log.count("step 2: ") == log.count("step 7: ") == 1


@pytest.mark.engine
def test_a_run_whose_cluster_is_gone_goes_on_in_another(file, tmp_path):
    assert launch(file, "--detach", *settings('cluster.env.FAIL_AT="3"')).exit_code == 0
    run = tmp_path / "runs" / "run"
    assert "RuntimeError" in sat_slime("logs", run, "-f").stdout
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps({**job, "address": "http://127.0.0.1:1"}))
    shown = sat_slime("status", run).stdout
    assert "state       lost" in shown and "which does not answer" in shown and "step 3 of 8" in shown
    stopped = sat_slime("stop", run)
    assert stopped.exit_code == 2 and "the cluster at http://127.0.0.1:1 does not answer" in stopped.stderr
    resumed = launch(run, "--resume", "--detach", *settings('cluster.env.FAIL_AT="never"'))
    assert resumed.exit_code == 0, resumed.output
    assert "step 7: " in sat_slime("logs", run, "-f").stdout


@pytest.mark.engine
def test_a_ray_of_the_runs_own_ends_with_it(file, tmp_path):
    own = settings("cluster.address=null")
    try:
        result = launch(file, "--start-ray", *own)
        assert result.exit_code == 0, result.output
        ray = LocalRay(**json.loads((tmp_path / "runs" / "run" / "job.json").read_text())["ray"])
        assert not is_running(ray) and not Path(ray.folder).exists()
        assert JobServer(yaml.safe_load(file.read_text())["cluster"]["address"])  # the other Ray is there still
    finally:
        sat_slime("stop", "runs/run")


def test_a_ray_that_does_not_end_hides_no_error(monkeypatch, tmp_path):
    """The first error is of the folder, which another process has."""
    server, ray = mock.create_autospec(JobServer, instance=True), LocalRay("http://127.0.0.1:1", 1, "folder")
    monkeypatch.setattr(job_start, "_cluster", mock.create_autospec(job_start._cluster, return_value=(server, ray)))
    monkeypatch.setattr(
        job_start, "_claim", mock.create_autospec(job_start._claim, side_effect=RunFolderError("it is in use"))
    )
    monkeypatch.setattr(local_ray, "stop_ray", mock.create_autospec(stop_ray, side_effect=JobError("it does not end")))
    result = sat_slime("launch", PAPER, "--skip-checks", *settings(f"output_dir={tmp_path}/runs"))
    assert result.exit_code == 2 and result.stderr.endswith("error: it is in use\n")
    assert "warning: it does not end" in result.stdout


@pytest.mark.engine
@pytest.mark.parametrize(
    "word, name, followed",
    [("gcs_server", "gcs_server", True), ("raylet/raylet", "raylet", False)],
)
def test_the_death_of_a_ray_of_the_runs_own_is_told(file, tmp_path, word, name, followed):
    """By who follows the job, or by the next command."""
    run = tmp_path / "runs" / "run"
    own = settings("cluster.address=null")
    command = [*COMMAND, "launch", str(file), "--skip-checks", "--start-ray", *own, *waits(before=3)]
    command += [] if followed else ["--detach"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launching:
        shown = any("step 3/8" in line or "follow it with" in line for line in launching.stdout)
        assert shown
        if not followed:
            assert launching.wait() == 0
        ray = LocalRay(**json.loads((run / "job.json").read_text())["ray"])
        children = Path(f"/proc/{ray.pid}/task/{ray.pid}/children").read_text().split()
        (victim,) = (pid for pid in children if word in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0])
        os.kill(int(victim), signal.SIGKILL)
        rest = launching.stdout.read()
    died = f"the Ray that was started for it ended: its {name} was killed by SIGKILL"
    if followed:
        assert launching.returncode == 1 and died in rest and "sat-slime launch runs/run --resume" in rest
    else:
        assert how_it_died(ray, timeout_s=120)
    shown = sat_slime("status", run).stdout
    assert "state       failed" in shown and died in shown
    assert state(run)["status"] == "failed" and died in state(run)["error"]
    assert not is_running(ray)
    if not followed:
        assert not stop_ray(ray)
    assert processes_of(ray) == []


def processes_of(ray):
    """What has its folder in its environment, and is no zombie, whose environment is empty."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"RAY_TMPDIR={ray.folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
    return found


@pytest.mark.engine
def test_checks_of_a_cluster_come_before_the_run(file, tmp_path):
    result = sat_slime("launch", file)
    assert result.exit_code == 2
    assert "error: checkpoint: model.hf_checkpoint is" in result.stderr
    assert "error: data: data.prompts is data.jsonl: there is no such file" in result.stderr
    assert not (tmp_path / "runs").exists()


def slime_checkout(folder):
    """A checkout with the real slime's package, and the stand-in for what it does on GPUs."""
    try:
        spec = importlib.util.find_spec("slime.backends")
    except ModuleNotFoundError:  # of slime itself
        spec = None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the real slime: slime.backends is not importable")
    folder.mkdir()
    (folder / "slime").symlink_to(Path(next(iter(spec.submodule_search_locations))).parent)
    for file in ("train.py", "sitecustomize.py"):
        (folder / file).symlink_to(STAND_IN / file)
    return folder


@pytest.mark.engine
def test_a_cluster_with_the_real_slime_passes_the_checks(file, tmp_path):
    slime = slime_checkout(tmp_path / "slime")
    hf, release = tmp_path / "hf", tmp_path / "megatron" / "release"
    for folder in (hf, release):
        folder.mkdir(parents=True)
    (release.parent / "latest_checkpointed_iteration.txt").write_text("release")
    (hf / "config.json").write_text('{"num_hidden_layers": 36}')
    for name in ("tokenizer.json", "model.safetensors"):
        (hf / name).write_text("")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n')
    places = settings(
        f"cluster.slime_dir={slime}",
        f"model.hf_checkpoint={hf}",
        f"model.megatron_checkpoint={release.parent}",
        f"data.prompts={tmp_path}/data.jsonl",
        f"eval.prompts.aime24={tmp_path}/data.jsonl",
        "checkpoint.optimizer=false",
    )
    result = sat_slime("launch", file, *places)
    assert result.exit_code == 0, result.output
    assert "step 8/8" in result.stdout


# -------------------------------------------------------------------------------------------- damaged checkpoints


@pytest.fixture
def begun(tmp_path):
    """A run of slime with checkpoints after two and four of eight iterations, and rows of five."""
    made = plan_slime_run(
        load_config(PAPER, [], {"pipeline.iterations": 8, "output_dir": str(tmp_path), "name": "run"}),
        PAPER,
        None,
        resume=False,
        look_for_slime=False,
    )
    folder = job_start._claim(made, overwrite=False)
    folder.started("job-1")
    folder.ended("failed", "the node went away")
    folder.unlock()
    folder.metrics.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 6)))
    for rollout in (1, 3):
        saved = folder.checkpoints / f"iter_{rollout:07d}"
        saved.mkdir()
        for name in ("__0_0.distcp", "metadata.json", ".metadata"):
            (saved / name).write_text("{}")
        (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(rollout))
    return folder


@pytest.mark.parametrize(
    ("ends", "status"),
    [(JobState("STOPPED"), "interrupted"), (KeyboardInterrupt(), "interrupted"), (JobError("gone"), "failed")],
)
def test_who_has_followed_a_job_leaves_no_file_open(begun, monkeypatch, ends, status):
    """That of the kernel's log, of which a pipe takes the place."""
    log, other = os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(deaths, "_kernel_log", lambda: log)
    server = mock.create_autospec(JobServer, instance=True)
    server.follow.return_value = iter(["all well\n"])
    server.state.side_effect = [ends]
    record = JobRecord("job-1", "http://127.0.0.1:1")
    ending = follow(begun, load_config(begun.config), record, server, False, Console(file=StringIO()))
    assert ending.status == status
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(log)
    os.close(other)


def resume_plan(*arguments):
    return sat_slime("launch", "run", *arguments, "--dry-run", "--skip-checks")


@pytest.mark.parametrize(
    ("damage", "told", "back"),
    [
        (lambda f: (f / "iter_0000003" / ".metadata").unlink(), "iter_0000003 is damaged: .metadata is missing", 2),
        (
            lambda f: (f / "latest_checkpointed_iteration.txt").write_text("x"),
            "slime would not go on from iter_NNNNNNN",
            4,
        ),
    ],
)
def test_a_damaged_checkpoint_is_told_before_a_job_is_sent(begun, damage, told, back):
    assert resume_plan("--resume").exit_code == 0
    damage(begun.checkpoints)
    result = resume_plan("--resume", *settings("cluster.env.A=b"))
    assert result.exit_code == 2
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert told in error and f"the run can go on from iteration {back}, its newest whole checkpoint" in error
    assert f"iterations {back + 1} to 5 are trained again" in error or (back == 4 and "iteration 5 is trained" in error)
    words = shlex.split(error.split("to do so: sat-slime launch ")[1])
    assert words == [str(begun.path), "--resume-from", str(back), "--set", 'cluster.env.A="b"']
    assert sat_slime("launch", *words, "--dry-run", "--skip-checks").exit_code == 0


def test_in_place_of_a_damaged_older_one_the_one_before_it_is_offered(begun):
    for rollout in (2, 5):
        shutil.copytree(begun.checkpoints / "iter_0000003", begun.checkpoints / f"iter_{rollout:07d}")
    (begun.checkpoints / "latest_checkpointed_iteration.txt").write_text("5")
    (begun.checkpoints / "iter_0000003" / ".metadata").unlink()
    error = resume_plan("--resume-from", 4).stderr
    assert "can go on from iteration 3, its newest whole checkpoint before iteration 4, which costs" in error


def test_resume_from_points_slime_to_the_older_checkpoint_and_drops_the_rows(begun):
    config = load_config(begun.config)
    plan = plan_slime_run(config, begun.config, begun.path, resume=True, look_for_slime=False, resume_from=2)
    job_start._claim(plan, overwrite=False).unlock()
    assert saved_iterations(config, begun.path) == 2
    assert begun.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert (begun.checkpoints / "iter_0000003.aside" / ".metadata").exists()
    missing = resume_plan("--resume-from", 3)
    assert missing.exit_code == 2 and "has no checkpoint of that iteration, but: 2" in missing.stderr
