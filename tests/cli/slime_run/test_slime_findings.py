"""Checks of a run of slime: of this machine, and of a real Ray."""

import json

import pytest
from command_line import LAPTOP, PAPER, ROOT, sat_slime_command, settings

MEASURED = ROOT / "tests" / "launch" / "laptop_times.jsonl"
"""What a real run measured."""


def test_a_machine_without_slime_prints_the_command_and_remarks(tmp_path):
    result = sat_slime_command("launch", PAPER, "--dry-run", *settings(f"slime.hf-checkpoint={tmp_path}/none"))
    assert result.exit_code == 0 and "GPU-hours" in result.stdout
    told = result.stderr.partition("slime is not on this machine, which lacks for the run:\n")[2]
    assert "  slime: cluster.slime_dir is /root/slime: no train.py is in it" in told
    assert f"  checkpoint: slime.hf-checkpoint is {tmp_path}/none: there is no such folder" in told
    assert "error:" not in result.stderr
    result = sat_slime_command("launch", PAPER, "--dry-run", *settings("cluster.gpu_memory_gib=39.6"))
    assert result.exit_code == 2, "memory that the settings give is judged"
    assert "error: training GPU: needs 57 of 40 GiB, 144 % (cluster.gpu_memory_gib):" in result.stderr
    assert "more slime.tensor-model-parallel-size" in result.stderr
    remote = sat_slime_command("launch", PAPER, "--dry-run", "--address", "http://10.0.0.1:8265")
    assert remote.exit_code == 0
    assert "warning: cluster: http://10.0.0.1:8265 is checked when the run is launched" in remote.stderr


def test_check_lists_what_it_found_with_time_and_cost_and_of_a_run_what_it_has_measured(tmp_path):
    bad = sat_slime_command("check", PAPER, *settings("pipeline.lag=-1"))
    assert bad.exit_code == 2 and "FAIL  settings" in bad.stdout
    first = sat_slime_command("check", PAPER, *settings(f"output_dir={tmp_path}"))
    assert first.exit_code == 1 and "OK    settings" in first.stdout and "FAIL  checkpoint" in first.stdout
    assert "GPU-hours at 2,048 tokens a response" in first.stdout and "an estimate from given speeds" in first.stdout
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    for name in ("metrics.jsonl", "times.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows if row["of"] == name))
    (tmp_path / "config.yaml").write_text(f"extends: {LAPTOP}\npipeline: {{iterations: 48}}\n")
    again = sat_slime_command("check", tmp_path)
    assert "OK    time            measured: " in again.stdout
    assert " an iteration, responses of 12 tokens, over 23" in again.stdout


@pytest.mark.engine
def test_checks_of_a_cluster_come_before_the_run(file, tmp_path):
    result = sat_slime_command("launch", file)
    assert result.exit_code == 2 and "error: checkpoint: slime.hf-checkpoint is" in result.stderr
    assert f"error: data: slime.prompt-data is {tmp_path}/data.jsonl: there is no such file" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_laptop_model_that_is_not_made_yet_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # a run on a CPU has a Ray of its own
    told = sat_slime_command("check", LAPTOP).stdout
    model = tmp_path / ".cache" / "sat_slime" / "laptop" / "model"
    assert f"slime.hf-checkpoint is {model}: there is no such folder. Make it, and the prompts, with sat-slime" in told
