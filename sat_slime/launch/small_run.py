"""Adds what a run needs outside of slime's image: on a CPU, or where trainer and engine share the one GPU of this
machine, which slime counts twice. Flags, environment, the Ray that is started for it, and checks of this machine.
Patches in every process of the job (sat_slime.cpu) do without what the image has and this machine lacks."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sat_slime.config.finding import Finding, fail, ok, warn
from sat_slime.cpu import CARD_VARIABLE, INSTEAD, VARIABLE, missing

if TYPE_CHECKING:
    from sat_slime.config.slime_schema import SlimeConfig

PACKAGE = Path(__file__).parents[1]
SITE = PACKAGE / "cpu" / "site"
"""Folder of the sitecustomize.py that every Python of the job runs as it starts."""
OBJECT_STORE_BYTES = 300 * 2**20
"""Size of the object store of a Ray for a run on a CPU; a batch of a tiny model is some megabytes."""
RAY_ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # with Ray's 15 any other program on the machine would starve the run
}
"""Environment of that Ray."""
HEADS = (64, 128, 256, 512)
"""Widths of heads for which SGLang has a kernel that rotates keys and writes them to its cache."""


def is_small(config: SlimeConfig) -> bool:
    return config.cluster.device == "cpu" or config.cluster.share_gpu


def ray_options(config: SlimeConfig) -> dict[str, Any]:
    """Return what the Ray that is started for a run is told, beyond what this machine has. A run on a CPU has one node
    for all ranks: slime asks for a CPU with each GPU, and for some more for other actors."""
    if config.cluster.device == "cpu":
        gpus = config.train.world_size + config.rollout.gpus
        store = {"store_bytes": OBJECT_STORE_BYTES, "variables": RAY_ENVIRONMENT}
        return {"gpus": gpus, "cpus": 4 + 2 * gpus, **store}
    return {"gpus": config.cluster.gpus_per_node} if config.cluster.share_gpu else {}


def small_environment(config: SlimeConfig) -> dict[str, str]:
    """Return what the environment of the job and its workers has beside that of other runs. All are on this machine."""
    alone = {"GLOO_SOCKET_IFNAME": "lo", "SLIME_HOST_IP": "127.0.0.1"}
    if config.cluster.device != "cpu":
        return alone | {
            CARD_VARIABLE: os.environ.get(CARD_VARIABLE) or os.environ.get("CUDA_VISIBLE_DEVICES") or "0",
            "NCCL_SOCKET_IFNAME": "lo",  # each process is a host for NCCL
            "NCCL_IB_DISABLE": "1",
            **({"SGLANG_IS_FLASHINFER_AVAILABLE": "false"} if "flashinfer" in missing() else {}),
            **({} if config.model.head_dim in HEADS else {"SAT_SLIME_ENGINE_ON_GPU": "1"}),
        }
    cores, ranks = f"0-{(os.cpu_count() or 1) - 1}", config.rollout.gpus_per_engine
    return alone | {
        VARIABLE: "cpu",
        "OMP_NUM_THREADS": "1",  # several processes share the cores, and two threads each are far slower than one
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",  # compiled functions would need a C++ compiler
        "SGLANG_USE_CPU_ENGINE": "1",
        # An engine may have more ranks than the machine has NUMA nodes: all cores for each of them.
        **({"SGLANG_CPU_OMP_THREADS_BIND": "|".join([cores] * ranks)} if ranks > 1 else {}),
        "HF_HUB_OFFLINE": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONWARNINGS": "ignore",  # every package that finds no Apex would warn
    }


def small_flags(config: SlimeConfig) -> dict[str, Any]:
    """Return the flags that such a run needs."""
    on_cpu = config.cluster.device == "cpu"
    lacks = [*INSTEAD] if on_cpu else missing()
    flags: dict[str, Any] = {}
    if "flash_attn" in lacks:
        flags["attention-backend"] = "auto"
    if "transformer_engine" in lacks:
        family = config.model.resolved_family
        flags |= {
            "transformer-impl": "local",
            **({"spec": ["sat_slime.models.families", family.name.upper()]} if family else {}),
            "attention-backend": "auto",
            "cp-comm-type": "all_gather",  # what the attention of models/layers does; Megatron allows no other
            "moe-token-dispatcher-type": "alltoall",
            # its fusions, or CUDA's
            **dict.fromkeys(("no-masked-softmax-fusion", "no-bias-swiglu-fusion", "no-bias-dropout-fusion"), True),
            **dict.fromkeys(("no-rope-fusion", "no-persist-layer-norm"), True),
        }
    if "fused_weight_gradient_mlp_cuda" in lacks:
        flags["no-gradient-accumulation-fusion"] = True
    if on_cpu:
        flags |= {
            "distributed-backend": "gloo",
            "data-pad-size-multiplier": 8,  # a GPU's memory wants 128; here each padded token is computed
            # SGLang does without its kernels. Without --sglang-sleep-on-idle an idle scheduler takes most of a core.
            "sglang-device": "cpu",
            "sglang-dtype": "float32",
            "sglang-attention-backend": "torch_native",
            "sglang-sampling-backend": "pytorch",
            "sglang-grammar-backend": "none",
            **dict.fromkeys(("sglang-disable-cuda-graph", "sglang-disable-overlap-schedule"), True),
            "sglang-sleep-on-idle": True,
            "sglang-max-running-requests": config.rollout.concurrent_requests,
            "sglang-max-total-tokens": 2**15,
            "sglang-log-level": "warning",  # otherwise it writes a line for every few tokens of a tiny model
            "sglang-log-level-http": "warning",
        }
    elif "flashinfer" in lacks:
        flags |= dict.fromkeys((f"sglang-cuda-graph-backend-{phase}" for phase in ("decode", "prefill")), "disabled")
        flags |= {"sglang-sampling-backend": "pytorch", "sglang-moe-runner-backend": "triton"}
        flags |= {"sglang-grammar-backend": "none", "sglang-attention-backend": "triton"}
    elif config.model.head_dim not in HEADS:
        flags["sglang-attention-backend"] = "triton"
    return flags


SGLANG = "0.5.15.post1"
"""The version with which slime was run: another one is likely to fail."""
LATE = {
    "aiohttp_cors": "pip install '.[lab,slime]' in a checkout",
    **dict.fromkeys(("omegaconf", "pylatexenc"), "scripts/get-slime.sh FOLDER in a checkout"),
}
"""Packages that slime imports when the job has begun, each with what installs it. slime's parser misses the others."""
MEGATRON_PATCH = ("megatron/core/transformer/moe/router.py", "slime.utils.routing_replay")
"""A file of Megatron-LM, and a text in it that only slime's patch brings."""
DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""The files of a GPU's driver: NVIDIA's, that of Windows, AMD's."""


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield findings on packages that slime's parser does not miss, and Megatron's checkout."""
    for package, install in LATE.items():
        if importlib.util.find_spec(package) is None:
            yield fail("package", f"{package} not installed: {install}")
    installed = installed_version("sglang") or "not installed"
    fault = f"is {installed}, and slime was run with {SGLANG}: scripts/setup.sh in a checkout"
    yield ok("sglang", installed) if installed == SGLANG else fail("sglang", fault)
    file, mark = MEGATRON_PATCH
    path = Path(config.cluster.megatron_dir) / file
    if os.path.isfile(path) and mark not in path.read_text(encoding="utf-8"):
        patch = Path(config.cluster.slime_dir) / "docker" / "patch" / "latest" / "megatron.patch"
        yield fail("megatron", f"slime's patch is not in it: git -C {config.cluster.megatron_dir} apply {patch}")


def gpus_here() -> int:
    """Return the GPUs that torch sees. Where there is no driver, torch is not imported to ask, which takes seconds."""
    if not any(map(os.path.exists, DEVICES)):
        return 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # without it CUDA starts here, and cannot be forked
    return int(importlib.import_module("torch").cuda.device_count())


def card_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield what this machine has for a run that shares its GPU: the GPU, and what stands in for missing modules."""
    named, gpus, key = os.environ.get("CUDA_VISIBLE_DEVICES"), gpus_here(), "cluster.share_gpu"
    # A process of the job sees all GPUs, and was told which one is shared.
    if CARD_VARIABLE not in os.environ and (gpus != 1 or not (named or "0").isdigit()):
        fault = f"{key} is true with {gpus} GPUs here (CUDA_VISIBLE_DEVICES {named or 'unset'})"
        remedy = f"set CUDA_VISIBLE_DEVICES to the number of the one to share, or {key} to false"
        yield fail("GPUs", f"{fault}: {remedy}")
    if importlib.util.find_spec("sglang_router") is None:
        yield fail("router", "sglang-router is not installed: pip install --no-deps sglang-router")
    lacks = missing()
    if "transformer_engine" in lacks and config.model.resolved_family is None:
        fault = "is not installed, and the flags describe no family that has layers without it"
        yield fail("transformer engine", f"{fault}: run in slime's image")
    elif lacks:
        yield warn("one GPU", "; ".join(f"without {module}: {INSTEAD[module]}" for module in lacks))
