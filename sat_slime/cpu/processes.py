"""The table of what a process of a run on a CPU patches, by the module that is patched, and what is patched in torch
itself."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.machinery
import importlib.util
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

OPTIONAL = ("IPython", "wandb")
"""Packages that slime and SGLang import whether or not they use them."""

Patch = Callable[[ModuleType], None]


def install() -> None:
    """Arranges for every patch in this process, and imports nothing yet."""
    stand_in_for(*(name for name in OPTIONAL if importlib.util.find_spec(name) is None))
    of_modules: dict[str, Patch] = {
        "torch": stand_in_for_cuda_packages,
        "torch.distributed.rendezvous": listen_on_loopback,
        "transformers.models.auto.tokenization_auto": give_back_memory,
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
        "sglang": _patch("sglang", "load_only_known_families"),
        "sglang.srt.utils.hf_transformers.tokenizer": give_back_memory,
        "sglang.srt.utils.common": _patch("sglang", "serve_on_cpu"),
        "sglang.srt.configs.update_config": _patch("sglang", "keep_widths"),
        "sglang.srt.state_capturer.base": _patch("sglang", "allocate_routed_experts_unpinned"),
        "sglang.srt.layers.sampler": _patch("sglang", "hash_seeds_in_torch"),
        "sglang.srt.entrypoints.http_server": _patch("sglang", "prepare_server_process"),
    }
    of_packages = {"slime": _patch("cuda", "show_cpu_as_cuda"), "megatron": _patch("cuda", "show_cpu_as_cuda")}
    sys.meta_path.insert(0, AfterImport(of_modules, of_packages))


def _patch(file: str, function: str) -> Patch:
    """Return a patch: a function of a file beside this one, which is only imported when the patch is called, since most
    files need torch."""

    def call(module: ModuleType) -> None:
        getattr(importlib.import_module(f"sat_slime.cpu.{file}"), function)(module)

    return call


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


def give_back_memory(tokenizers: Any) -> None:
    """Has what slime and SGLang load tokenizers with, transformers' class or SGLang's function around it, give memory
    back afterwards: a vocabulary of 152,000 words leaves 190 MiB free in the heap, and SGLang's function, which loads
    it twice, 285. glibc keeps that, in each of a run's many processes; another libc has no function to change it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    of_sglang = hasattr(tokenizers, "get_tokenizer")
    owner, name = (tokenizers, "get_tokenizer") if of_sglang else (tokenizers.AutoTokenizer, "from_pretrained")
    load: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(load)
    def load_and_give_back(*args: Any, **kwargs: Any) -> Any:
        tokenizer = load(*args, **kwargs)
        trim(0)
        return tokenizer

    setattr(owner, name, load_and_give_back)


# ---------------------------------------------------------------------------------------------------- after an import


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
