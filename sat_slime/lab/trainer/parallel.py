"""Process groups for Megatron, and what megatron-core 0.16 needs to run without a GPU.

Three of Megatron's assumptions fail without CUDA or Transformer Engine. Each is answered by one named function, applied
only where it is needed; nothing else of Megatron is patched. Two more functions save time on a CPU.
"""

from __future__ import annotations

import ctypes
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def device() -> torch.device:
    """The trainer's device: the current GPU if there is one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _allocate_on_cpu() -> None:
    # Megatron allocates with `device=torch.cuda.current_device()`, which raises without CUDA.
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]


def _define_te_gemm() -> None:
    # megatron-core 0.16.1 binds this name only if Transformer Engine can be imported, and then reads it unguarded.
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def _use_plain_rng() -> None:
    # Megatron's own tracker for inference: dropout is off, so no per-rank CUDA generator states are needed.
    from megatron.core.tensor_parallel.random import initialize_rng_tracker

    initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt."""


def _keep_freed_memory() -> None:
    # By default the memory of a step's tensors goes back to the system, which clears it for the next ones: 4,000 page
    # faults a step of the tiny model.
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)  # the most that glibc takes
        libc.mallopt(_M_TRIM_THRESHOLD, 512 * 2**20)


@contextmanager
def _one_gloo_device() -> Iterator[None]:
    """Groups made within share one device. Each of Megatron's twenty would have one of its own, whose thread looks for
    work a hundred times a second."""
    original = distributed_c10d.ProcessGroupGloo
    device = original.create_default_device()

    class ProcessGroupGloo(original):  # type: ignore[misc, valid-type]
        def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
            options = original._Options()  # type: ignore[attr-defined]
            options._devices, options._timeout = [device], timeout
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = ProcessGroupGloo  # type: ignore[misc]
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = original  # type: ignore[misc]


def initialize() -> None:
    """Makes the process groups that Megatron asks for, of this process alone: NCCL with a GPU, gloo without."""
    warnings.filterwarnings("ignore", module="megatron")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # more are slower where the engines share the cores
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"  # neither asks who connects
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        _allocate_on_cpu()
        _keep_freed_memory()
    from megatron.core import parallel_state

    with nullcontext() if on_gpu else _one_gloo_device():
        dist.init_process_group("nccl" if on_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
    _define_te_gemm()
    if on_gpu:
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(0)
    else:
        _use_plain_rng()


def shutdown() -> None:
    """Leaves the process groups."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
