"""The tables of what a process of a run patches that is on a CPU or shares a GPU, by the module that is patched, and
what is patched in torch itself on a CPU."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from sat_slime.cpu import CARD_VARIABLE, PUSH_VARIABLE, VARIABLE, missing
from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

OPTIONAL = ("IPython", "wandb")
"""Packages that slime and SGLang import whether or not they use them."""

Patch = Callable[[ModuleType], None]


def install() -> None:
    """Arranges for every patch in this process, and imports nothing yet."""
    stand_in_for(*(name for name in OPTIONAL if importlib.util.find_spec(name) is None))
    on_cpu = os.environ.get(VARIABLE) == "cpu"
    of_modules = _on_a_cpu() if on_cpu else {}
    if CARD_VARIABLE in os.environ:
        of_modules |= _on_a_shared_gpu(on_cpu)
    shows = _patch("cpu.cuda", "show_cpu_as_cuda")
    sys.meta_path.insert(0, AfterImport(of_modules, {"slime": shows, "megatron": shows} if on_cpu else {}))


def _on_a_shared_gpu(on_cpu: bool) -> dict[str, Patch]:
    """Return the patches of a run that shares its GPU, and has NCCL put up with that: it refuses two ranks on a GPU of
    one host, and tells hosts apart by a name, so each process is a host of its own."""
    os.environ["NCCL_HOSTID"] = f"process-{os.getpid()}"
    choosing = ("utils.accelerator.base", "ray.train_actor", "backends.sglang_utils.sglang_engine")
    of_modules = {f"slime.{module}": _patch("cpu.card", "use_the_card") for module in choosing}
    of_modules["slime.ray.placement_group"] = _patch("cpu.card", "start_the_engine_first")
    if on_cpu:  # the rest is done there already
        return of_modules
    of_modules["sglang_router.launch_router"] = _patch("cpu.card", "replace_router")
    if os.environ.get("SAT_SLIME_ENGINE_ON_GPU") == "1":
        of_modules["sglang.srt.models.utils"] = _patch("cpu.card", "write_keys_apart")
    if "transformer_engine" in missing():
        of_modules |= {
            "slime.backends.megatron_utils.initialize": _patch("cpu.slime", "accept_numpy_2"),
            "megatron.core.jit": _patch("cpu.megatron", "compile_nothing"),
            "megatron.core.transformer.moe.moe_utils": _patch("cpu.megatron", "bind_te_gemm"),
            "megatron.core.optimizer.distrib_optimizer": _patch("cpu.megatron", "resume_with_torch_adam"),
            "sglang.srt.utils.common": _patch("cpu.sglang", "serve"),
        }
    if os.environ.get(PUSH_VARIABLE) == "gloo":
        of_modules["slime.utils.distributed_utils"] = _patch("cpu.slime", "push_weights_by_gloo")
        of_modules["sglang.srt.utils.common"] = _patch("cpu.sglang", "serve")
    if "flashinfer" in missing():  # SGLang imports it wherever there is a GPU
        stand_in_for("flashinfer")
    return of_modules


def _on_a_cpu() -> dict[str, Patch]:
    return {
        "torch": stand_in_for_cuda_packages,
        "torch.distributed.rendezvous": listen_on_loopback,
        "slime.utils.accelerator": _patch("cpu.slime", "register_cpu"),
        "slime.backends.megatron_utils.arguments": _patch("cpu.slime", "train_in_fp32"),
        "slime.backends.megatron_utils.initialize": _patch("cpu.slime", "accept_numpy_2"),
        "slime.utils.reloadable_process_group": _patch("cpu.slime", "forward_newer_collectives"),
        "slime.utils.distributed_utils": _patch("cpu.slime", "push_weights_by_gloo"),
        "slime.rollout.sglang_rollout": _patch("cpu.slime", "post_together"),
        "megatron.core.jit": _patch("cpu.megatron", "compile_nothing"),
        "megatron.core.tensor_parallel.random": _patch("cpu.megatron", "keep_the_cpus_random_state"),
        "megatron.core.optimizer.clip_grads": _patch("cpu.megatron", "clip_gradients_on_cpu"),
        "megatron.core.optimizer.distrib_optimizer": _patch("cpu.megatron", "optimize_on_cpu"),
        "megatron.core.transformer.moe.moe_utils": _patch("cpu.megatron", "dispatch_tokens_on_cpu"),
        "sglang_router.launch_router": _patch("cpu.router", "replace_router"),
        "sglang": _patch("cpu.sglang", "load_only_known_families"),
        "sglang.srt.utils.common": _patch("cpu.sglang", "serve"),
        "sglang.srt.configs.update_config": _patch("cpu.sglang", "keep_widths"),
        "sglang.srt.state_capturer.base": _patch("rollout.sglang_on_cpu.patches", "allocate_routed_experts_unpinned"),
        "sglang.srt.layers.sampler": _patch("rollout.sglang_on_cpu.patches", "hash_seeds_in_torch"),
        "sglang.srt.batch_invariant_ops": _patch("rollout.sglang_on_cpu.patches", "keep_torch_matmuls"),
        "sglang.srt.entrypoints.http_server": _patch("cpu.sglang", "prepare_server_process"),
    }


def _patch(file: str, function: str) -> Patch:
    """Return a patch: a function of a module of ours, which is only imported when the patch is called, since most need
    torch."""
    return lambda module: getattr(importlib.import_module(f"sat_slime.{file}"), function)(module)


def stand_in_for_cuda_packages(_: ModuleType) -> None:
    """Puts stand-ins for torchvision and Triton in place: PyPI's torchvision is a CUDA build, which does not import
    beside a CPU torch, and Triton is 1 GB that a CPU does not use. It does so only after torch is imported, which asks
    for the real Triton and would believe a stand-in."""
    importlib.import_module("torch.utils.flop_counter")
    stand_in_for("torchvision", *(["triton"] if importlib.util.find_spec("triton") is None else []))


def listen_on_loopback(rendezvous: Any) -> None:
    """Has torch's TCPStore listen on loopback. It listens on every interface of the machine, whatever address it is
    given, and anybody may read and write its keys. But it takes a socket that listens already: here one on the address
    that was given, which is loopback."""
    store = rendezvous.TCPStore

    def store_on_its_address(*, host_name: str, port: int, is_master: bool = False, **more: Any) -> Any:
        if is_master:
            # The port may be taken: by this process, whose stores share it, or by another, and then torch says so.
            with contextlib.suppress(OSError):
                more["master_listen_fd"] = socket.create_server((host_name, port)).detach()
        return store(host_name=host_name, port=port, is_master=is_master, **more)

    rendezvous.TCPStore = store_on_its_address


class AfterImport(MetaPathFinder):
    """Finds modules as Python does, and patches them once they have been executed. It imports none itself: some code
    only asks whether a package is there, and a process that never imports a module never has it patched."""

    def __init__(self, of_modules: Mapping[str, Patch], of_packages: Mapping[str, Patch]) -> None:
        """of_modules: patches by a module's full name; of_packages: patches for every module of a package, by the
        package's name, which run before the patch of the module."""
        self.of_modules, self.of_packages = of_modules, of_packages

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        patches = (self.of_packages.get(fullname.partition(".")[0]), self.of_modules.get(fullname))
        wanted = [patch for patch in patches if patch is not None]
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if wanted else None
        if spec is None or spec.loader is None:
            return None  # it is not there, or a package of several folders, or has no patch
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            for patch in wanted:
                patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec
