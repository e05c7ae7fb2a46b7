"""What is sent for a run on a CPU, and what is said of a machine on which it cannot run."""

import os
from pathlib import Path

import pytest

from sat_slime.config import load_config, slime_config_errors
from sat_slime.launch import cpu_run
from sat_slime.launch.command import slime_command
from sat_slime.launch.machine import machine_findings

LAPTOP = Path(__file__).parents[2] / "configs" / "slime" / "laptop.yaml"


def laptop(*overrides):
    return load_config(LAPTOP, overrides)


def words_after(command, flag):
    """Values of a flag of the command."""
    start = command.index(flag) + 1
    end = next((i for i in range(start, len(command)) if command[i].startswith("--")), len(command))
    return command[start:end]


def test_every_python_of_the_job_begins_with_our_sitecustomize():
    config = laptop("cluster.slime_dir=/slime", "cluster.megatron_dir=/megatron", "cluster.python_path=[/more]")
    first, *others = slime_command(config).env["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").is_file()
    # Another megatron-core may be installed beside this package, and must not win.
    assert others == ["/more", "/megatron", "/slime", str(cpu_run.PACKAGE.parent)]


def test_all_ranks_are_on_one_node_of_loopback():
    """Whatever the nodes that the run has on GPUs."""
    for config in (laptop(), laptop("cluster.gpus_per_node=1")):
        assert cpu_run.cpu_ray(config)[0] == config.train.world_size + config.rollout.gpus
        assert slime_command(config).env["SLIME_HOST_IP"] == "127.0.0.1"


DENSE = ("slime.num-experts=0", "method=sat-gspo")
QWEN2 = ("slime.qk-layernorm=false", "slime.add-qkv-bias=true")


@pytest.mark.parametrize(
    "overrides, family", [((), "qwen3_moe"), (DENSE, "qwen3"), ((*DENSE, *QWEN2), "qwen2"), (QWEN2, None)]
)
def test_the_layers_are_those_of_the_family_that_the_flags_describe(overrides, family):
    config = laptop(*overrides)
    assert any(error.startswith("cluster.device is cpu") for error in slime_config_errors(config)) == (family is None)
    command = slime_command(config).command
    spec = words_after(command, "--spec") if "--spec" in command else None
    assert spec == (family and ["sat_slime.models.families", family.upper()])


@pytest.mark.parametrize(
    "overrides, key",
    [
        (["slime.qk-layernorm=false", "method=sat-gspo"], "cluster.device is cpu"),
        (["slime.optimizer-cpu-offload=true"], "slime.optimizer-cpu-offload is true"),
    ],
)
def test_what_has_no_stand_in_is_an_error(overrides, key):
    (error,) = slime_config_errors(laptop(*overrides))
    assert error.startswith(key)


def findings(tmp_path):
    """Details of the checks that fail with checkouts in tmp_path."""
    config = laptop(f"cluster.slime_dir={tmp_path}/slime", f"cluster.megatron_dir={tmp_path}/megatron")
    return [f.detail for f in machine_findings(config, tmp_path / "run") if f.mark == "FAIL"]


def test_a_missing_package_is_a_line_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_run, "SGLANG", "0.1")
    monkeypatch.setitem(cpu_run.PACKAGES, "ray-of-nobody", cpu_run.INSTALL)
    failed = findings(tmp_path)
    assert f"ray-of-nobody not installed: {cpu_run.INSTALL}" in failed
    assert any(line.startswith("sglang ") and line.endswith(": scripts/setup.sh in a checkout") for line in failed)


@pytest.mark.parametrize("text, patched", [("import torch\n", False), ("import slime.utils.routing_replay\n", True)])
def test_a_megatron_without_slimes_patch_is_told(tmp_path, text, patched):
    path = tmp_path / "megatron" / cpu_run.MEGATRON_PATCH[0]
    path.parent.mkdir(parents=True)
    path.write_text(text)
    told = [line for line in findings(tmp_path) if "slime's patch is not in it" in line]
    assert bool(told) is not patched
    assert all("megatron.patch" in line for line in told)


def test_an_engine_of_two_ranks_has_all_cores_for_each():
    """SGLang wants a NUMA node for each rank where nothing says otherwise."""
    config = laptop("slime.rollout-num-gpus=2", "slime.rollout-num-gpus-per-engine=2")
    first, second = slime_command(config).env["SGLANG_CPU_OMP_THREADS_BIND"].split("|")
    assert first == second == f"0-{os.cpu_count() - 1}"
