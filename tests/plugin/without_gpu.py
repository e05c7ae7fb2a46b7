"""Runs a module that imports slime's argument parser, on a machine without a GPU and without packages that only a GPU
needs.

PYTHONPATH=SLIME:MEGATRON python tests/plugin/without_gpu.py sat_slime.plugin.launch.flags --record FILE ...
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import types
import warnings


def prepare() -> None:
    """Makes slime.utils.arguments importable, and its parser work, from now on."""
    warnings.simplefilter("ignore")  # about packages that are missing here
    import torch
    import torch.utils.flop_counter  # it asks the real Triton for a class

    from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

    # Megatron compiles its fusions as it is imported, and Inductor takes the stand-in for Triton.
    torch.compile = lambda model=None, **_: model if model is not None else lambda function: function
    # SGLang and Megatron ask which GPU they are on.
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0, total_memory=80 * 2**30)
    absent = ("triton", "IPython", "wandb", "sglang_router")
    stand_in_for("torchvision", *(name for name in absent if importlib.util.find_spec(name) is None))


if __name__ == "__main__":
    module = sys.argv.pop(1)
    prepare()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
