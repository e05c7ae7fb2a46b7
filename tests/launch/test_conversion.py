import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hf_folder import write_hf
from typer.testing import CliRunner

from sat_slime.cli import app
from sat_slime.config import load_config
from sat_slime.launch.command import CONVERSION, conversion_command
from sat_slime.runs.saved import newest_iteration

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "configs" / "models" / "qwen3-4b.yaml"
STAND_IN = Path(__file__).parents[1] / "plugin" / "stand_in"


def prepare_model(tmp_path, *options):
    """Runs the command on a Hugging Face folder that fits the model, with a stand-in for slime's tool."""
    write_hf(tmp_path / "hf", config={"num_hidden_layers": 36, "hidden_size": 2560, "tie_word_embeddings": True})
    (tmp_path / "hf" / "model.safetensors").write_text("")
    arguments = ["prepare", "model", MODEL, "--hf", tmp_path / "hf", "--out", tmp_path / "out"]
    arguments += ["--set", f"cluster.slime_dir={STAND_IN}", "--set", f"cluster.megatron_dir={STAND_IN}", *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_dry_run_prints_what_a_shell_can_run(tmp_path):
    result = prepare_model(tmp_path, "--gpus", 2, "--dry-run")
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stdout)
    assert words[0] == "env" and "python3" in words and f"{STAND_IN}/tools/convert_hf_to_torch_dist.py" in words
    assert words[words.index("--nproc-per-node") + 1] == "2"
    assert words[words.index("--num-layers") + 1] == "36"
    assert words[-2:] == ["--save", str(tmp_path / "out")] and not (tmp_path / "out").exists()


@pytest.mark.engine
def test_a_conversion_is_made_once(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("FAIL", "1")
    broken = prepare_model(tmp_path)
    assert broken.exit_code == 1 and f"delete what it wrote in {tmp_path}/out" in broken.stderr.replace("\n", " ")
    assert newest_iteration(tmp_path / "out") is None, "half a conversion is never taken for a whole one"
    shutil.rmtree(tmp_path / "out")
    monkeypatch.delenv("FAIL")
    result = prepare_model(tmp_path, "--gpus", 2)
    assert result.exit_code == 0, result.output
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(capfd.readouterr().out.splitlines())
    assert newest_iteration(tmp_path / "out") == "release"
    again = prepare_model(tmp_path)
    assert again.exit_code == 2 and "holds a converted checkpoint already" in again.stderr


def test_what_stands_in_the_way(tmp_path):
    missing = tmp_path / "missing"
    for told, options in {
        "there is no such folder": ("--hf", missing),
        "no tools/convert_hf_to_torch_dist.py is in it": ("--set", f"cluster.slime_dir={missing}"),
    }.items():
        result = prepare_model(tmp_path, *options)
        assert result.exit_code == 2 and told in result.stderr, result.output


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
    command = conversion_command(config, gpus=4).command
    words = command[command.index(f"{checkout}/{CONVERSION}") :]
    program = f"import sys; sys.argv = {words!r}\n{PARSED_BY_THE_REAL_TOOL}"
    environment = {**os.environ, "WORLD_SIZE": "4"}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert f"read: {read} {config.model.megatron_checkpoint}" in result.stdout, result.stderr[-2000:]
