"""Patches for a run whose trainer and engine share one GPU. The first two are what sharing needs; the others are for a
machine that is not slime's image, or where NCCL does not work between the two."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

from sat_slime.cpu import CARD_VARIABLE, INSTEAD, VARIABLE, missing, router


def use_the_card(module: Any) -> None:
    """Has slime's trainer and engine take the GPU that is there, whichever of Ray's two they were given."""

    def card(*_: Any) -> int:
        return int(os.environ[CARD_VARIABLE])

    if hasattr(module, "Accelerator"):
        module.Accelerator.resolve_visible_device_id = card
    for name in ("get_local_gpu_id", "_to_local_gpu_id"):  # the second is v0.3.1's
        if hasattr(module, name):
            setattr(module, name, card)


def start_the_engine_first(placement_group: Any) -> None:
    """Has the engine, which takes its share of what is free, find a GPU that the trainer has not begun to use. The
    job's log then names what stands in for what is missing."""
    create = placement_group.create_rollout_manager

    @functools.wraps(create)
    def create_and_wait(*args: Any, **kwargs: Any) -> Any:
        import ray

        created = create(*args, **kwargs)
        manager = created[0] if isinstance(created, tuple) else created.manager
        ray.get(manager.__ray_ready__.remote())
        for module in missing() if os.environ.get(VARIABLE) != "cpu" else ():
            print(f"sat_slime: one GPU, without {module}: {INSTEAD[module]}", flush=True)
        return created

    placement_group.create_rollout_manager = create_and_wait


def replace_router(launch_router: Any) -> None:
    """Has a router in Python hand routed experts on, which of sglang-router's builds only slime's does."""
    if "slime" not in str(getattr(importlib.import_module("sglang_router"), "__version__", "")):
        router.replace_router(launch_router)


def write_keys_apart(utils: Any) -> None:
    """SGLang writes keys in bf16 to its cache as it rotates them, by a kernel for heads of 64, 128, 256 or 512 numbers,
    and fails with others. Without that its attention writes them."""
    utils.enable_fused_set_kv_buffer = lambda forward_batch: False
