"""Checks of a run of slime: of this machine, and of a real Ray."""

import importlib.util
import json
from pathlib import Path

import pytest
from command_line import LAPTOP, PAPER, ROOT, STAND_IN, sat_slime_command, settings

MEASURED = ROOT / "tests" / "launch" / "laptop_times.jsonl"
"""What a real run measured."""


def test_a_machine_without_slime_prints_the_command_and_remarks(tmp_path):
    result = sat_slime_command("launch", PAPER, "--dry-run", *settings(f"slime.hf-checkpoint={tmp_path}/none"))
    assert result.exit_code == 0 and "GPU-hours" in result.stdout
    told = result.stderr.partition("slime is not on this machine, which lacks for the run:\n")[2]
    assert "  slime: cluster.slime_dir is /root/slime: no train.py is in it" in told
    assert f"  checkpoint: slime.hf-checkpoint is {tmp_path}/none: there is no such folder" in told
    assert "error:" not in result.stderr


def test_memory_that_the_settings_give_is_judged_on_a_machine_without_slime(tmp_path):
    lacking = settings(f"slime.hf-checkpoint={tmp_path}/none", "cluster.gpu_memory_gib=39.6")
    result = sat_slime_command("launch", PAPER, "--dry-run", *lacking)
    assert result.exit_code == 2
    assert "error: training GPU: needs 57 of 40 GiB, 144 % (cluster.gpu_memory_gib):" in result.stderr
    assert "more slime.tensor-model-parallel-size" in result.stderr


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
    bad = sat_slime_command("check", PAPER, *settings("slime.actor-num-gpus-per-node=6"))
    assert bad.exit_code == 2 and "FAIL  settings" in bad.stdout


def test_check_tells_time_and_cost_and_of_a_run_what_it_has_measured(tmp_path):
    first = sat_slime_command("check", PAPER, *settings(f"output_dir={tmp_path}"))
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
    assert result.exit_code == 2
    assert "error: checkpoint: slime.hf-checkpoint is" in result.stderr
    assert f"error: data: slime.prompt-data is {tmp_path}/data.jsonl: there is no such file" in result.stderr
    assert not (tmp_path / "runs").exists()


def package(name):
    """The folder of a package."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # of the package above it
        spec = None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"needs the real slime and its Megatron-LM: {name} is not importable")
    return Path(next(iter(spec.submodule_search_locations)))


def slime_checkout(folder):
    """A checkout with the real slime's package, and the stand-in for what it does on GPUs."""
    folder.mkdir()
    (folder / "slime").symlink_to(package("slime.backends").parent)
    for file in ("train.py", "sitecustomize.py"):
        (folder / file).symlink_to(STAND_IN / file)
    return folder


QWEN3_4B = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
"""What slime compares with the flags of the architecture."""


@pytest.mark.engine
def test_a_cluster_with_the_real_slime_passes_the_checks(file, tmp_path):
    slime = slime_checkout(tmp_path / "slime")
    hf, release = tmp_path / "hf", tmp_path / "megatron" / "release"
    for folder in (hf, release):
        folder.mkdir(parents=True)
    (release.parent / "latest_checkpointed_iteration.txt").write_text("release")
    (hf / "config.json").write_text(json.dumps(QWEN3_4B))
    for name in ("tokenizer.json", "model.safetensors"):
        (hf / name).write_text("")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n')
    places = settings(
        f"cluster.slime_dir={slime}",
        f"cluster.megatron_dir={package('megatron.training').parents[1]}",
        "slime.tensor-model-parallel-size=1",  # with more Megatron asks for a GPU as it parses
        f"slime.hf-checkpoint={hf}",
        f"slime.ref-load={release.parent}",
        f"slime.prompt-data={tmp_path}/data.jsonl",
        f"slime.eval-prompt-data=[aime24, {tmp_path}/data.jsonl]",
        "slime.no-save-optim=true",
        "slime.apply-chat-template=false",
    )
    result = sat_slime_command("launch", file, *places)
    assert result.exit_code == 0, result.output
    assert "step 8/8" in result.stdout
