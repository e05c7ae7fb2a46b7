"""Runs on a CPU, and those whose trainer and engine share one GPU: what is sent, what each process patches, and where
they cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sat_slime.config import load_config, slime_config_errors
from sat_slime.config.starters import CONFIGS
from sat_slime.cpu import INSTEAD
from sat_slime.launch import small_run
from sat_slime.launch.command import slime_arguments, slime_command
from sat_slime.launch.flags import flag_errors, recorded
from sat_slime.launch.machine import machine_findings
from sat_slime.launch.memory import BESIDE_BOTH, GIB, TRAINING, memory_findings, rows, sizes
from sat_slime.launch.small_run import PACKAGE, SITE, card_findings, ray_options

ROOT = CONFIGS.parents[1]
SMALL, REAL = CONFIGS / "slime" / "one-gpu.yaml", CONFIGS / "recipes" / "qwen3-0.6b-1gpu.yaml"
LAPTOP = CONFIGS / "slime" / "laptop.yaml"


@pytest.fixture
def machine(monkeypatch):
    """Makes this a machine that lacks some modules of slime's image and has some GPUs."""

    def make(lacks=(), gpus=1, named=None):
        monkeypatch.setattr(small_run, "missing", lambda: list(lacks))
        monkeypatch.setattr(small_run, "gpus_here", lambda: gpus)
        monkeypatch.delenv("SAT_SLIME_CARD", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if named is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)

    return make


@pytest.mark.parametrize("version", ["v0.3.1", "main"])
@pytest.mark.parametrize("lacks", [(), tuple(INSTEAD)], ids=["image", "bare"])
@pytest.mark.parametrize("file", [SMALL, REAL], ids=lambda file: file.stem)
def test_in_slimes_image_nothing_is_replaced_and_elsewhere_flags_make_up_for_it(file, lacks, version, machine):
    machine(lacks)
    config = load_config(file)
    sent = slime_command(config, Path("/run"))
    assert slime_config_errors(config) == [] == flag_errors(config, recorded(version))
    bare = bool(lacks)
    assert ("--transformer-impl" in sent.command) == ("--no-gradient-accumulation-fusion" in sent.command) == bare
    assert ("--sglang-sampling-backend" in sent.command) == ("SGLANG_IS_FLASHINFER_AVAILABLE" in sent.env) == bare
    # SGLang's own kernels do not take heads of 16 numbers, whatever is installed.
    assert ("triton" in sent.command) == (bare or file is SMALL)
    assert sent.command[sent.command.index("--attention-backend") + 1] == ("auto" if bare else "flash")


def test_every_python_of_the_job_begins_with_our_sitecustomize():
    folders = ("cluster.slime_dir=/slime", "cluster.megatron_dir=/megatron", "cluster.python_path=[/more]")
    for file in (SMALL, LAPTOP):
        first, *others = slime_command(load_config(file, folders), Path("/run")).env["PYTHONPATH"].split(os.pathsep)
        assert first == str(SITE) and (SITE / "sitecustomize.py").is_file()
        # Another megatron-core may be installed beside this package, and must not win.
        assert others == ["/more", "/megatron", "/slime", str(PACKAGE.parent)]


DENSE = ("slime.num-experts=0", "method=sat-gspo")
QWEN2 = ("slime.qk-layernorm=false", "slime.add-qkv-bias=true")


@pytest.mark.parametrize(
    "overrides, family", [((), "qwen3_moe"), (DENSE, "qwen3"), ((*DENSE, *QWEN2), "qwen2"), (QWEN2, None)]
)
def test_the_layers_are_those_of_the_family_that_the_flags_describe(overrides, family):
    config = load_config(LAPTOP, overrides)
    assert any(error.startswith("cluster.device is cpu") for error in slime_config_errors(config)) == (family is None)
    spec = [argument.value for argument in slime_arguments(config, Path("/run")) if argument.name == "spec"]
    assert spec == ([["sat_slime.models.families", family.upper()]] if family else [])


SHARED = ["slime.actor-num-nodes", "slime.actor-num-gpus-per-node", "slime.rollout-num-gpus", "cluster.gpus_per_node"]


@pytest.mark.parametrize("key", SHARED)
def test_what_such_a_run_cannot_have_is_refused(key):
    lines = slime_config_errors(load_config(SMALL, [f"{key}=3"]))
    assert any(line.startswith(f"{key} is 3 with cluster.share_gpu") and "set it to" in line for line in lines), lines
    (line,) = slime_config_errors(load_config(LAPTOP, ["slime.optimizer-cpu-offload=true"]))
    assert line.startswith("slime.optimizer-cpu-offload is true")


def test_an_engine_of_two_ranks_has_all_cores_for_each():
    """SGLang wants a NUMA node for each rank where nothing says otherwise."""
    config = load_config(LAPTOP, ["slime.rollout-num-gpus=2", "slime.rollout-num-gpus-per-engine=2"])
    first, second = slime_command(config, Path("/run")).env["SGLANG_CPU_OMP_THREADS_BIND"].split("|")
    assert first == second == f"0-{os.cpu_count() - 1}"
    assert ray_options(config)["gpus"] == config.train.world_size + 2


@pytest.mark.parametrize("text, patched", [("import torch\n", False), ("import slime.utils.routing_replay\n", True)])
def test_what_a_machine_lacks_is_a_line_with_its_remedy(tmp_path, monkeypatch, text, patched):
    monkeypatch.setattr(small_run, "SGLANG", "0.1")
    path = tmp_path / "megatron" / small_run.MEGATRON_PATCH[0]
    path.parent.mkdir(parents=True)
    path.write_text(text)
    config = load_config(LAPTOP, [f"cluster.slime_dir={tmp_path}/slime", f"cluster.megatron_dir={tmp_path}/megatron"])
    failed = [f.detail for f in machine_findings(config, tmp_path / "run") if f.mark == "FAIL"]
    assert any(line.endswith("slime was run with 0.1: scripts/setup.sh in a checkout") for line in failed)
    told = [line for line in failed if "slime's patch is not in it" in line]
    assert bool(told) is not patched and all("megatron.patch" in line for line in told)


@pytest.mark.parametrize(
    "gpus, named, card", [(1, None, "0"), (1, "3", "3"), (2, None, None), (0, None, None), (1, "GPU-8f", None)]
)
def test_one_gpu_is_shared_the_one_that_is_there_or_named(gpus, named, card, machine):
    machine(gpus=gpus, named=named)
    failed = [finding.detail for finding in card_findings(load_config(SMALL)) if finding.what == "GPUs"]
    if card is None:
        assert failed and "set CUDA_VISIBLE_DEVICES to the number" in failed[0]
    else:
        assert failed == [] and slime_command(load_config(SMALL), Path("/run")).env["SAT_SLIME_CARD"] == card


def test_what_is_replaced_is_told_and_a_family_without_layers_refused(machine):
    machine(["transformer_engine", "flashinfer"])
    (told,) = [f for f in card_findings(load_config(SMALL)) if f.what == "one GPU"]
    assert told.mark == "WARN" and "sat_slime/models/layers.py" in told.detail and "without flashinfer" in told.detail
    other = load_config(SMALL, ["slime.qk-layernorm=false"])
    assert [f.what for f in card_findings(other) if f.mark == "FAIL"][-1:] == ["transformer engine"]


def test_memory_is_divided_between_engine_and_trainer():
    config = load_config(REAL)
    trainer, engine, *_ = rows(config, sizes(config))
    assert trainer.usable == pytest.approx(0.75 * 23.6 * GIB - BESIDE_BOTH)
    assert engine.usable == pytest.approx(0.25 * 23.6 * GIB)
    greedy = load_config(REAL, ["slime.sglang-mem-fraction-static=0.5"])
    (told,) = [f for f in memory_findings(greedy, sizes(greedy)) if f.what == TRAINING]
    assert told.mark == "FAIL" and "less slime.sglang-mem-fraction-static" in told.detail


def python(program, *path, **variables):
    """Lines that a program prints in a process of such a run, on a GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "SAT_SLIME_DEVICE"}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, [SITE, *path, ROOT])), "SAT_SLIME_CARD": "3", **variables}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_process_is_a_host_of_its_own_for_nccl():
    """Ray's workers and SGLang's scheduler are Pythons that start; none is forked."""
    program = "import os, sys; print(os.environ['NCCL_HOSTID'], 'torch' in sys.modules)"
    child = f"import subprocess, sys; {program}; subprocess.run([sys.executable, '-c', {program!r}])"
    one, other = python(child + "; sys.stdout.flush()")
    assert one != other and one.endswith(" False")


REAL_MODULES = """
import sys, torch.utils.flop_counter
from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for
stand_in_for("triton", "torchvision")  # there is no GPU here
import slime.ray.train_actor, slime.ray.placement_group as placed, slime.backends.sglang_utils.sglang_engine as engine
import slime.utils.distributed_utils as pushes
import slime.backends.megatron_utils.initialize as initialize
import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.optimizer.distrib_optimizer as optimizers
import sglang_router.launch_router as router, sglang.srt.utils.common as common
accelerators = sys.modules.get("slime.utils.accelerator.base")
card = accelerators.Accelerator.resolve_visible_device_id(None, 1) if accelerators else engine._to_local_gpu_id(1)
optimizer = optimizers.DistributedOptimizer
print(
    card, slime.ray.train_actor.get_local_gpu_id(), initialize.np.__version__[:2], moe_utils.te_general_gemm,
    *(f.__module__ for f in (pushes.init_process_group, common.init_custom_process_group, router.launch_router)),
    optimizer.state_dict.__module__, placed.create_rollout_manager.__code__.co_name,
)
"""


@pytest.mark.needs_slime_arguments
def test_every_patch_meets_the_module_that_it_is_for():
    import megatron.core
    import slime

    checkouts = Path(slime.__path__[0]).parent, Path(megatron.core.__file__).parents[2]
    *_, found = python(REAL_MODULES, *checkouts, SAT_SLIME_PUSH="gloo", CUDA_VISIBLE_DEVICES="")
    *numbers, pushes, pushed, routes, optimizes, starts = found.split()
    assert numbers == ["3", "3", "1.", "None"] and starts == "create_and_wait"
    modules = [f"sat_slime.cpu.{name}" for name in ("slime", "slime", "router", "megatron")]
    assert [pushes, pushed, routes, optimizes] == modules
