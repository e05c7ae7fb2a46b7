"""Patches slime for a machine without a GPU: the CPU becomes an accelerator, and a newer torch and NumPy will do."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any

from sat_slime.cpu import DTYPE_VARIABLE
from sat_slime.cpu.cuda import CPU, MEMORY, shown_torch

NEWER_COLLECTIVES = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
)
"""Names by which torch 2.13 calls the collectives of a group."""


def register_cpu(accelerator: Any) -> None:
    """Makes the CPU an accelerator, by slime's own registry. v0.3.1 has no registry and asks torch.cuda."""
    from slime.utils.accelerator.base import Accelerator

    class CPUAccelerator(Accelerator):
        name = device_type = "cpu"
        communication_backend_name = "gloo"

        def is_available(self) -> bool:
            return True

        def device(self, index: Any = None) -> Any:
            return CPU

        def device_name(self, index: Any = None) -> str:
            return "cpu"

        def set_device(self, index: Any) -> None: ...

        def current_device(self) -> str:
            return "cpu"

        def device_count(self) -> int:
            return 1

        def synchronize(self, device: Any = None) -> None: ...

        def current_stream(self, device: Any = None) -> Any:
            return shown_torch().cuda.current_stream()

        def stream(self, stream: Any) -> Any:
            return contextlib.nullcontext()

        def empty_cache(self) -> None: ...

        def mem_get_info(self, device: Any = None) -> tuple[int, int]:
            return MEMORY, MEMORY

        def memory_allocated(self, device: Any = None) -> int:
            return 0

        def memory_reserved(self, device: Any = None) -> int:
            return 0

        def autocast(self, *args: Any, **kwargs: Any) -> Any:
            return shown_torch().autocast("cpu", *args, **kwargs)

    # The backend is not just `gloo`: by these names slime knows the groups that it may have to end to free GPU memory.
    accelerator.register_accelerator("cpu", CPUAccelerator, priority=1000, communication_backends=("cpu:gloo",))
    accelerator.set_accelerator(CPUAccelerator())


def choose_dtype(arguments: Any) -> None:
    """Makes Megatron's parameters fp32 where cluster.cpu_dtype asks for that, as without Megatron's flag --bf16: slime
    sets `bf16 = not fp16` whatever the flags say."""
    if os.environ.get(DTYPE_VARIABLE) != "float32":
        return
    set_defaults = arguments._set_default_megatron_args

    def set_defaults_in_fp32(args: Any) -> Any:
        args = set_defaults(args)
        args.bf16 = False
        return args

    arguments._set_default_megatron_args = set_defaults_in_fp32
    if hasattr(arguments, "set_default_megatron_args"):
        arguments.set_default_megatron_args = set_defaults_in_fp32


def accept_numpy_2(initialize: Any) -> None:
    """Lets slime start with NumPy 2: a module that uses one function of NumPy asserts version 1."""
    initialize.np = SimpleNamespace(__version__="1.", random=initialize.np.random)


def forward_newer_collectives(groups: Any) -> None:
    """Has slime's wrapper of process groups forward the collectives that torch 2.13 calls by new names. Without them a
    second training rank fails: `No backend type associated with device type cpu`."""

    def forwarding(name: str) -> Any:
        return lambda self, *args, **kwargs: self._fwd(name, *args, **kwargs)

    for name in NEWER_COLLECTIVES:
        if name not in vars(groups.ReloadableProcessGroup):
            setattr(groups.ReloadableProcessGroup, name, forwarding(name))


def push_weights_by_gloo(distributed_utils: Any) -> None:
    """Has slime push weights by Gloo: v0.3.1 makes the group of a push with `nccl`, whatever --distributed-backend
    says."""
    distributed_utils.init_process_group = with_gloo(distributed_utils.init_process_group)


def with_gloo(make_group: Any) -> Any:
    """Return a function that makes process groups like `make_group`, but with Gloo where NCCL is asked for."""

    def make(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return make_group("gloo" if backend == "nccl" else backend, *args, **kwargs)

    return make
