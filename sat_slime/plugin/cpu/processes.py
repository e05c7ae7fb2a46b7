"""The table of what a process of a run on a CPU patches, by the module that is patched."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from sat_slime.plugin.cpu.after_import import Patch, patch_after_import
from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

OPTIONAL = ("IPython", "wandb")
"""Packages that slime and SGLang import whether or not they use them."""


def install() -> None:
    """Arranges for every patch in this process, and imports nothing yet."""
    stand_in_for(*(name for name in OPTIONAL if importlib.util.find_spec(name) is None))
    patch_after_import(
        {
            "torch": stand_in_for_cuda_packages,
            "torch.distributed.rendezvous": _patch("loopback", "listen_on_loopback"),
            "slime.utils.accelerator": _patch("slime", "register_cpu"),
            "slime.backends.megatron_utils.arguments": _patch("slime", "choose_dtype"),
            "slime.backends.megatron_utils.initialize": _patch("slime", "accept_numpy_2"),
            "slime.utils.reloadable_process_group": _patch("slime", "forward_newer_collectives"),
            "slime.utils.distributed_utils": _patch("slime", "push_weights_by_gloo"),
            "megatron.core.jit": _patch("megatron", "compile_nothing"),
            "megatron.core.tensor_parallel.random": _patch("megatron", "keep_the_cpus_random_state"),
            "megatron.core.optimizer.clip_grads": _patch("megatron", "clip_gradients_on_cpu"),
            "megatron.core.optimizer.distrib_optimizer": _patch("megatron", "optimize_on_cpu"),
            "megatron.core.transformer.moe.moe_utils": _patch("megatron", "dispatch_tokens_on_cpu"),
            "sglang_router.launch_router": _patch("router", "replace_router"),
            "sglang": _patch("sglang", "load_only_qwen3"),
            "sglang.srt.utils.common": _patch("sglang", "serve_on_cpu"),
            "sglang.srt.state_capturer.base": _patch("sglang", "allocate_routed_experts_unpinned"),
            "sglang.srt.layers.sampler": _patch("sglang", "hash_seeds_in_torch"),
            "sglang.srt.entrypoints.http_server": _patch("sglang", "prepare_server_process"),
        },
        {"slime": _patch("cuda", "show_cpu_as_cuda"), "megatron": _patch("cuda", "show_cpu_as_cuda")},
    )


def _patch(file: str, function: str) -> Patch:
    """A patch: a function of a file beside this one, which is only imported when the patch is called, since most files
    need torch."""

    def call(module: ModuleType) -> None:
        getattr(importlib.import_module(f"sat_slime.plugin.cpu.{file}"), function)(module)

    return call


def stand_in_for_cuda_packages(_: ModuleType) -> None:
    """Puts stand-ins for torchvision and Triton in place: PyPI's torchvision is a CUDA build, which does not import
    beside a CPU torch, and Triton is 1 GB that a CPU does not use. It does so only after torch is imported, which asks
    for the real Triton and would believe a stand-in."""
    importlib.import_module("torch.utils.flop_counter")
    stand_in_for("torchvision", *(["triton"] if importlib.util.find_spec("triton") is None else []))
