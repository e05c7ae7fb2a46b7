"""Adds what only a run needs whose trainer and engine share the one GPU of this machine: flags, environment, checks.

slime counts the GPU twice: the Ray that is started for the run offers two, and all processes take the one
(`sat_slime.cpu.card`). What slime's image has and this machine lacks is done without.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sat_slime.config.finding import Finding, fail, warn
from sat_slime.cpu import CARD_VARIABLE, INSTEAD, missing
from sat_slime.launch.cpu_run import without_transformer_engine

if TYPE_CHECKING:
    from sat_slime.config.slime_schema import SlimeConfig

KEY = "cluster.share_gpu"
DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""The files of a GPU's driver: NVIDIA's, that of Windows, AMD's."""
HEADS = (64, 128, 256, 512)
"""Widths of heads for which SGLang has a kernel that rotates keys and writes them to its cache."""


def card_arguments(config: SlimeConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield the flags that make up for what is missing, with their values and the setting that they come from."""
    lacks = missing()
    flags: dict[str, Any] = {}
    if "flash_attn" in lacks:
        flags["attention-backend"] = "auto"
    if "transformer_engine" in lacks:
        flags |= without_transformer_engine(config)
    if "fused_weight_gradient_mlp_cuda" in lacks:
        flags["no-gradient-accumulation-fusion"] = True
    if "flashinfer" in lacks or config.model.head_dim not in HEADS:
        flags["sglang-attention-backend"] = "triton"
    if "flashinfer" in lacks:
        flags |= dict.fromkeys((f"sglang-cuda-graph-backend-{phase}" for phase in ("decode", "prefill")), "disabled")
        flags |= {"sglang-sampling-backend": "pytorch", "sglang-moe-runner-backend": "triton"}
        flags["sglang-grammar-backend"] = "none"
    yield from ((name, value, KEY) for name, value in flags.items())


def card_environment(config: SlimeConfig) -> dict[str, str]:
    """Return the environment of the job and all its workers, in addition to the one that other runs have. They are all
    on this machine, and NCCL, for which each is a host, finds the others on loopback."""
    return {
        CARD_VARIABLE: os.environ.get(CARD_VARIABLE) or os.environ.get("CUDA_VISIBLE_DEVICES") or "0",
        **dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), "lo"),
        "NCCL_IB_DISABLE": "1",
        "SLIME_HOST_IP": "127.0.0.1",
        **({"SGLANG_IS_FLASHINFER_AVAILABLE": "false"} if "flashinfer" in missing() else {}),
        **({} if config.model.head_dim in HEADS else {"SAT_SLIME_ENGINE_ON_GPU": "1"}),
    }


def gpu_available() -> bool:
    """Tells whether torch sees a GPU. Where there is no driver, torch is not imported to ask, which takes seconds."""
    if not any(map(os.path.exists, DEVICES)):
        return False
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # without it CUDA starts here, and cannot be forked
    return importlib.import_module("torch").cuda.is_available()


def card_findings(config: SlimeConfig) -> Iterator[Finding]:
    """Yield what this machine has for such a run: its GPU, and what stands in for missing modules."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = importlib.import_module("torch").cuda.device_count() if gpu_available() else 0
    # A process of the job sees all GPUs, and was told which one is shared.
    if CARD_VARIABLE not in os.environ and (gpus != 1 or not (named or "0").isdigit()):
        yield fail(
            "GPUs",
            f"{KEY} is true with {gpus} GPUs here (CUDA_VISIBLE_DEVICES {named or 'unset'}): set CUDA_VISIBLE_DEVICES "
            f"to the number of the one to share, or {KEY} to false",
        )
    if importlib.util.find_spec("sglang_router") is None:
        yield fail("router", "sglang-router is not installed: pip install --no-deps sglang-router")
    lacks = missing()
    if "transformer_engine" in lacks and config.model.resolved_family is None:
        yield fail(
            "transformer engine",
            "is not installed, and the flags describe no family that has layers without it: run in slime's image",
        )
    elif lacks:
        yield warn("one GPU", "; ".join(f"without {module}: {INSTEAD[module]}" for module in lacks))
