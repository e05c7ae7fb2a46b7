"""Plans of runs of slime, on any machine."""

import re
import shlex
from dataclasses import replace

import pytest
import yaml
from command_line import PAPER, sat_slime_command, settings

from sat_slime.launch.job_files import JobRecord

SECRETS = {"WANDB_API_KEY": "wandb-0123456789abcdef", "HF_TOKEN": "hf_0123456789abcdef"}


def plan(*arguments):
    result = sat_slime_command("launch", PAPER, *arguments, "--dry-run", "--skip-checks")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_plan(tmp_path):
    """Plan, memory and time within 40 lines; in full also the command, its environment and files, as a shell takes
    them."""
    short = plan()
    assert len(short.splitlines()) <= 40 and short.startswith("method      SAT-GSPO, lag 8\n")
    assert "\nengines     2, each of 2 GPU(s), on 1 node(s)\n" in short
    assert "\nmemory  " in short and " tokens a response: generate " in short and "GPU-hours" in short
    options = ("--method", "gspo", "--sat", "--r3", "--lag", "4", "--name", "a", "--full")
    full = plan(*options, *settings(f"output_dir={tmp_path}/runs", "slime.rollout-num-gpus=8"))
    file = f"{tmp_path}/runs/a/sat_slime.yaml"
    (command,) = re.findall(r"^python3 -m sat_slime.plugin.driver(?:.*\\\n)*.*", full, re.MULTILINE)
    words = shlex.split(command)
    assert "\n# engines     4, each of 2 GPU(s), on 2 node(s)\n" in full and "pipeline 1, context 1, data 1, ex" in full
    assert words[words.index("--advantage-estimator") + 1] == "gspo" and "--use-rollout-routing-replay" in words
    assert words[words.index("--custom-config-path") + 1] == file and "\nexport PYTHONPATH=" in full
    sent = yaml.safe_load(full.partition(f"\n# {file}\n")[2])["sat_slime"]
    assert sent["method"]["sat"]["alpha"] == 0.9 and sent["driver"]["lag"] == 4
    assert not (tmp_path / "runs").exists()


def test_secrets_of_the_environment_are_in_no_plan(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    wandb = settings("slime.use-wandb=true", "slime.wandb-project=p")
    result = sat_slime_command("launch", PAPER, "--dry-run", "--skip-checks", "--full", *wandb)
    assert result.exit_code == 0 and "--use-wandb" in result.stdout
    assert not any(value in result.output for value in SECRETS.values())


@pytest.mark.parametrize(
    "arguments, told",
    [
        (settings("slime.sglang-mem-fraction=0.5"), "there is no flag --sglang-mem-fraction"),
        (settings("slime.sglang-data-parallel-size=2"), "follows from slime.sglang-dp-size: set that"),
        (settings("cluster.env.WANDB_API_KEY=wandb-0123456789abcdef"), "cluster.env.WANDB_API_KEY is a secret"),
    ],
)
def test_bad_settings_are_a_line_and_exit_code_2(tmp_path, arguments, told):
    place = settings(f"output_dir={tmp_path}/runs")
    result = sat_slime_command("launch", PAPER, *place, *arguments, "--dry-run", "--skip-checks")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    assert len(errors) == 1 and errors[0].startswith("error: ") and told in errors[0], errors
    assert "0123456789abcdef" not in result.output and not (tmp_path / "runs").exists()


def resume_plan(*arguments):
    return sat_slime_command("launch", "run", *arguments, "--dry-run", "--skip-checks")


def test_a_run_whose_job_died_after_its_last_checkpoint_can_go_on(begun):
    short = settings("pipeline.iterations=4")
    assert resume_plan("--resume", *short).exit_code == 0
    replace(JobRecord.read(begun.path), address="http://10.0.0.1:8265").write(begun.path)
    there = sat_slime_command("launch", "run", "--resume", "--dry-run")
    assert there.exit_code == 0 and "http://10.0.0.1:8265 is checked when" in there.stderr, "where it ran before"
    assert "has trained 4 iterations" in resume_plan("--resume", *settings("pipeline.iterations=3")).stderr
    begun.ended("finished")
    begun.config.write_text(begun.config.read_text().replace("iterations: 8", "iterations: 4"))
    for options in (["--resume"], ["--resume-from", 4]):
        assert "finished after 4 iterations" in resume_plan(*options, *short).stderr
    for back in (2, 0):
        assert resume_plan("--resume-from", back, *short).exit_code == 0


@pytest.mark.parametrize(
    "line, told",
    [("lr: 2.0", "slime.lr (1e-06 -> 2.0)"), ("partial-rollout: true", "(None -> True)"), ("a: false", "")],
)
def test_settings_that_were_edited_in_the_runs_folder_are_held_against_its_checkpoint(begun, line, told):
    begun.config.write_text(begun.config.read_text().replace("  lr: 1.0e-06\n", f"  {line}\n"))
    result = resume_plan("--resume")
    assert told in result.stderr and result.exit_code == (2 if told else 0)


def test_a_run_without_checkpoints_can_begin_again(begun):
    begun.config.write_text(begun.config.read_text().replace("save-interval: 8", "save-interval: 0"))
    assert "no checkpoints to go on from: --resume-from 0 starts it over" in resume_plan("--resume").stderr
    assert resume_plan("--resume-from", 0).exit_code == 0


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
    assert told in error and f"the run can go on from iteration {back}, the newest whole checkpoint" in error
    assert f"iterations {back + 1} to 5 are trained again" in error or (back == 4 and "iteration 5 is trained" in error)
    words = shlex.split(error.split("to do so: sat-slime launch ")[1])
    assert words == [str(begun.path), "--resume-from", str(back), "--set", 'cluster.env.A="b"']
    assert sat_slime_command("launch", *words, "--dry-run", "--skip-checks").exit_code == 0
