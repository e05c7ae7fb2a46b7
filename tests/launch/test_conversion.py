import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sat_slime.cli import app
from sat_slime.config import load_config
from sat_slime.launch import conversion, machine

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "configs" / "models" / "qwen3-4b.yaml"
STAND_IN = Path(__file__).parents[1] / "plugin" / "stand_in"


@pytest.fixture
def hf(tmp_path, monkeypatch):
    """A Hugging Face folder that fits the model, on a machine that says it has two GPUs and a large disk."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 36, "hidden_size": 2560}')
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).write_text("")
    gpus = tmp_path / "gpus"
    for index in range(2):
        (gpus / str(index)).mkdir(parents=True)
    monkeypatch.setattr(conversion, "NVIDIA_GPUS", gpus)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 2**40}))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


def prepare_model(hf, out, *options):
    arguments = ["prepare", "model", MODEL, "--hf", hf, "--out", out, "--set", f"cluster.slime_dir={STAND_IN}"]
    arguments += ["--set", f"cluster.megatron_dir={STAND_IN}", *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_dry_run_prints_what_a_shell_can_run(hf, tmp_path):
    out = tmp_path / "out"
    result = prepare_model(hf, out, "--gpus", 2, "--dry-run")
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stdout)
    assert words[0] == "env" and "python3" in words and f"{STAND_IN}/tools/convert_hf_to_torch_dist.py" in words
    assert words[words.index("--nproc-per-node") + 1] == "2"
    assert words[words.index("--num-layers") + 1] == "36"
    assert words[words.index("--save") + 1] == f"{out}.unfinished"
    assert words[-3:] == ["mv", f"{out}.unfinished", str(out)]
    assert not out.exists()


@pytest.mark.engine
def test_a_conversion_appears_when_it_is_whole(hf, tmp_path, capfd):
    out = tmp_path / "out"
    out.mkdir()  # an empty folder is as good as a missing one
    result = prepare_model(hf, out, "--gpus", 2)
    assert result.exit_code == 0, result.output
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(capfd.readouterr().out.splitlines())
    assert machine.newest_iteration(out) == "release" and (out / "release").is_dir()
    assert not Path(f"{out}.unfinished").exists()
    again = prepare_model(hf, out)
    assert again.exit_code == 2 and "holds a converted checkpoint already" in again.stderr


@pytest.mark.engine
def test_a_conversion_that_broke_off_is_none(hf, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    out = tmp_path / "out"
    result = prepare_model(hf, out)
    assert result.exit_code == 1
    assert f"what it wrote is in {out}.unfinished" in result.stderr.replace("\n", " ")
    assert not out.exists()
    again = prepare_model(hf, out)
    assert again.exit_code == 2 and "one broke off; then delete it" in again.stderr


def test_what_stands_in_the_way(hf, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    cases = {
        "exists and is no converted checkpoint": (hf, taken, "--gpus", 1),
        "has 2 NVIDIA GPUs, fewer than --gpus 8": (hf, tmp_path / "out", "--gpus", 8),
        "more than the model's 36 layers": (hf, tmp_path / "out", "--gpus", 37),
        "there is no such folder": (tmp_path / "missing", tmp_path / "out"),
        "no tools/convert_hf_to_torch_dist.py is in it": (
            hf,
            tmp_path / "out",
            "--set",
            f"cluster.slime_dir={tmp_path}",
        ),
    }
    for told, arguments in cases.items():
        result = prepare_model(*arguments)
        assert result.exit_code == 2, told
        assert told in result.stderr and all(line.startswith("error: ") for line in result.stderr.splitlines())
    assert (taken / "notes.txt").read_text() == "mine"


PARSED_BY_THE_REAL_TOOL = """
import runpy, sys
from sat_slime.cpu import without_gpu
without_gpu.prepare()
tool = runpy.run_path(sys.argv[0])
arguments = tool["get_args"]()
print("read:", arguments.num_layers, arguments.num_experts, arguments.pipeline_model_parallel_size, arguments.save)
"""


@pytest.mark.needs_slime_arguments
@pytest.mark.parametrize("file, read", [("qwen3-4b", "36 None 4"), ("qwen3-30b-a3b", "48 128 4")])
def test_slimes_own_tool_reads_the_command(file, read, tmp_path):
    checkout = Path(next(iter(importlib.util.find_spec("slime").submodule_search_locations))).parent
    config = load_config(ROOT / "configs" / "models" / f"{file}.yaml", [f"cluster.slime_dir={checkout}"])
    plan = conversion.plan_conversion(config, gpus=4)
    words = plan.command[plan.command.index(f"{checkout}/{conversion.TOOL}") :]
    program = f"import sys; sys.argv = {words!r}\n{PARSED_BY_THE_REAL_TOOL}"
    environment = {**os.environ, "WORLD_SIZE": "4"}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert f"read: {read} {plan.unfinished}" in result.stdout, result.stderr[-2000:]
