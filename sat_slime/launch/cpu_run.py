"""Adds what only a run on a CPU needs: flags, environment, and the settings of the Ray that it is started on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sat_slime.cpu import DTYPE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from sat_slime.config.slime_schema import SlimeConfig

KEY = "cluster.device"
PACKAGE = Path(__file__).parents[1]
SITE = PACKAGE / "cpu" / "site"
"""Folder of the sitecustomize.py that every Python of the job runs as it starts."""

RAY_ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # with Ray's 15 any other program on the machine would starve the run
}
"""Environment of the Ray that is started for such a run."""
OBJECT_STORE_BYTES = 300 * 2**20
"""Size of that Ray's object store; a batch of a tiny model is some megabytes."""


def cpu_python_path(folders: Sequence[str]) -> list[str]:
    """Return the PYTHONPATH of the job. This package comes last: a megatron-core may be installed beside it, and must
    not be found before Megatron-LM's checkout."""
    return [str(SITE), *folders, str(PACKAGE.parent)]


def cpu_environment(config: SlimeConfig) -> dict[str, str]:
    """Return the environment of the job and all its workers, in addition to the one that a run on GPUs has."""
    cores, ranks = f"0-{(os.cpu_count() or 1) - 1}", config.rollout.gpus_per_engine
    return {
        VARIABLE: "cpu",
        DTYPE_VARIABLE: config.cluster.cpu_dtype,
        "OMP_NUM_THREADS": "1",  # several processes share the cores, and two threads each are far slower than one
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",  # compiled functions would need a C++ compiler
        "SGLANG_USE_CPU_ENGINE": "1",
        # An engine may have more ranks than the machine has NUMA nodes: all cores for each of them.
        **({"SGLANG_CPU_OMP_THREADS_BIND": "|".join([cores] * ranks)} if ranks > 1 else {}),
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "SLIME_HOST_IP": "127.0.0.1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONWARNINGS": "ignore",  # every package that finds no Apex would warn
    }


def cpu_ray(config: SlimeConfig) -> tuple[int, int]:
    """Return the GPUs and CPUs of the Ray of such a run, which has one node for all ranks: slime asks for a CPU
    with each GPU, and for some more for other actors."""
    gpus = config.train.world_size + config.rollout.gpus
    return gpus, 4 + 2 * gpus


def without_transformer_engine(config: SlimeConfig) -> dict[str, Any]:
    """Return the flags with which Megatron does without it and without fusions, which are its or CUDA's."""
    family = config.model.resolved_family
    return {
        "transformer-impl": "local",
        **({"spec": ["sat_slime.models.families", family.name.upper()]} if family else {}),
        "attention-backend": "auto",
        "cp-comm-type": "all_gather",  # what the attention of models/layers does; Megatron allows no other
        "moe-token-dispatcher-type": "alltoall",
        "no-masked-softmax-fusion": True,
        "no-bias-swiglu-fusion": True,
        "no-bias-dropout-fusion": True,
        "no-rope-fusion": True,
        "no-persist-layer-norm": True,
    }


def cpu_arguments(config: SlimeConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield the flags of a run on a CPU, with their values and the setting that they come from."""
    flags: dict[str, Any] = {
        **without_transformer_engine(config),
        "distributed-backend": "gloo",
        "no-gradient-accumulation-fusion": True,  # Apex's
        "data-pad-size-multiplier": 8,  # a GPU's memory wants 128; here each padded token is computed
        # SGLang does without its kernels. Without --sglang-sleep-on-idle an idle scheduler takes most of a core.
        "sglang-device": "cpu",
        "sglang-dtype": config.cluster.cpu_dtype,
        "sglang-attention-backend": "torch_native",
        "sglang-sampling-backend": "pytorch",
        "sglang-grammar-backend": "none",
        "sglang-disable-cuda-graph": True,
        "sglang-disable-overlap-schedule": True,
        "sglang-sleep-on-idle": True,
        "sglang-max-running-requests": config.rollout.concurrent_requests,
        "sglang-max-total-tokens": 2**15,
        "sglang-log-level": "warning",  # otherwise it writes a line for every few tokens of a tiny model
        "sglang-log-level-http": "warning",
    }
    yield from ((name, value, KEY) for name, value in flags.items())


# ---------------------------------------------------------------------------------------------------------- checks

INSTALL = "pip install '.[lab,slime]' in a checkout"
PREPARE = "scripts/get-slime.sh FOLDER in a checkout"
SGLANG = "0.5.15.post1"
"""The version with which slime was run: another one is likely to fail."""
PACKAGES = {
    **dict.fromkeys(("ray", "transformers", "httpx", "aiohttp", "aiohttp_cors", "tensorboard"), INSTALL),
    **dict.fromkeys(("sglang-router", "torch_memory_saver", "pylatexenc", "omegaconf"), PREPARE),
    "sglang": "scripts/setup.sh in a checkout",
}
"""Packages that slime imports, each with what installs it."""
MEGATRON_PATCH = ("megatron/core/transformer/moe/router.py", "slime.utils.routing_replay")
"""A file of Megatron-LM, and a text in it that only slime's patch brings."""


def missing_packages() -> Iterator[tuple[str, str]]:
    """Yields, for each package that a run on this machine lacks, its name and what is wrong, with the remedy."""
    for package, install in PACKAGES.items():
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, f"not installed: {install}"
            continue
        if package == "sglang" and installed != SGLANG:
            yield package, f"is {installed}, and slime was run with {SGLANG}: {install}"
