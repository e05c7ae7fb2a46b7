"""Lets slime's argument parser be imported, and parse, on a machine without a GPU and without packages that only a GPU
needs."""

from __future__ import annotations

import importlib.util
import os
import types
import warnings
from typing import Any

from sat_slime.cpu import VARIABLE


def prepare() -> None:
    """Has slime, SGLang and Megatron see a GPU in this process from now on, where there is none.

    A run on a CPU has patches of its own, with which its job parses too, so nothing is done for one.
    """
    if os.environ.get(VARIABLE) == "cpu":
        return
    warnings.simplefilter("ignore")  # about packages that are missing here
    import torch

    if torch.cuda.is_available():
        return
    import torch.utils.flop_counter  # it asks the real Triton for a class

    from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

    like_an_h100 = types.SimpleNamespace(major=9, minor=0, total_memory=80 * 2**30)
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: like_an_h100  # type: ignore[assignment]
    absent = [
        name for name in ("triton", "IPython", "wandb", "sglang_router") if importlib.util.find_spec(name) is None
    ]
    if "triton" in absent:
        # Megatron compiles its fusions as it is imported, and Inductor takes the stand-in for Triton.
        torch.compile = _not_compiled
    # PyPI's torchvision is a CUDA build, which does not import beside a CPU torch.
    stand_in_for(*absent, *(["torchvision"] if torch.version.cuda is None else []))


def _not_compiled(model: Any = None, **_: Any) -> Any:
    return model if model is not None else lambda function: function
