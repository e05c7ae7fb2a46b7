"""Checks of a run of slime: of this machine, and of a real Ray."""

import importlib.util
from pathlib import Path

import pytest
from command_line import PAPER, STAND_IN, sat_slime_command, settings


def test_a_machine_without_slime_prints_the_command_and_remarks(tmp_path):
    result = sat_slime_command("launch", PAPER, "--dry-run", *settings(f"model.hf_checkpoint={tmp_path}/none"))
    assert result.exit_code == 0 and "python3 -m sat_slime.plugin.driver" in result.stdout
    told = result.stderr.partition("slime is not on this machine, which lacks for the run:\n")[2]
    assert "  slime: cluster.slime_dir is /root/slime: no train.py is in it" in told
    assert f"  checkpoint: model.hf_checkpoint is {tmp_path}/none: there is no such folder" in told
    assert "error:" not in result.stderr


def test_a_machine_with_slime_and_without_the_checkpoint(tmp_path):
    (tmp_path / "train.py").write_text("")
    lacking = settings(f"model.hf_checkpoint={tmp_path}/none", f"cluster.slime_dir={tmp_path}")
    result = sat_slime_command("launch", PAPER, "--dry-run", *lacking)
    assert result.exit_code == 2 and "python3 -m sat_slime.plugin.driver" in result.stdout
    assert f"error: checkpoint: model.hf_checkpoint is {tmp_path}/none: there is no such folder" in result.stderr


def test_a_slime_that_is_too_old(tmp_path):
    for file in ("train.py", "slime/backends/megatron_utils/actor.py", "slime/ray/rollout.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    result = sat_slime_command("launch", PAPER, "--dry-run", *settings(f"cluster.slime_dir={tmp_path}"))
    assert result.exit_code == 2
    assert f"error: slime: slime at {tmp_path}/slime is too old" in result.stderr


def test_a_remote_cluster_is_not_taken_for_this_machine():
    result = sat_slime_command("launch", PAPER, "--dry-run", "--address", "http://10.0.0.1:8265")
    assert result.exit_code == 0
    assert "warning: cluster: http://10.0.0.1:8265 is checked when the run is launched" in result.stderr


def test_check_lists_what_it_found(tmp_path):
    result = sat_slime_command("check", PAPER, *settings(f"output_dir={tmp_path}"))
    assert result.exit_code == 1
    assert "OK    settings" in result.stdout and "FAIL  checkpoint" in result.stdout
    bad = sat_slime_command("check", PAPER, *settings("train.gpus_per_node=6"))
    assert bad.exit_code == 2 and "FAIL  settings" in bad.stdout


@pytest.mark.engine
def test_checks_of_a_cluster_come_before_the_run(file, tmp_path):
    result = sat_slime_command("launch", file)
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
    result = sat_slime_command("launch", file, *places)
    assert result.exit_code == 0, result.output
    assert "step 8/8" in result.stdout
