"""A plugin of SGLang: what our engines on a GPU need so that float32 is float32, and heads of any size are served.

SGLang finds it by the entry point `sglang.srt.plugins` of this package, in each of its processes. It does something
only where VARIABLE is set, as for the engines of the lab runtime.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "SAT_SLIME_ENGINE_ON_GPU"
"""Environment variable of the engines, which lab/engine.py sets on a GPU."""
ENVIRONMENT = {VARIABLE: "1", "TRITON_F32_DEFAULT": "ieee"}
"""What an engine on a GPU has in its environment. Without the second, Triton rounds products of float32 to TF32."""
DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""The files of a GPU's driver: NVIDIA's, that of Windows, AMD's."""


def gpu_available() -> bool:
    """Tells whether torch sees a GPU. Where there is no driver, torch is not imported to ask, which takes seconds."""
    if not any(map(os.path.exists, DEVICES)):
        return False
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # without it CUDA starts here, and cannot be forked
    import torch

    return torch.cuda.is_available()


def install() -> None:
    """Installs both patches into this process, if the environment asks for it."""
    if os.environ.get(VARIABLE) == "1":
        keep_float32_experts()
        write_keys_apart()


def keep_float32_experts() -> None:
    """SGLang's fused experts round what is not bf16 to fp16, and write that into float32."""
    import torch
    import triton.language
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe

    launch = fused_moe.invoke_fused_moe_kernel

    def invoke(tokens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tokens.dtype == torch.float32:
            kwargs["compute_type"] = triton.language.float32
        return launch(tokens, *args, **kwargs)

    fused_moe.invoke_fused_moe_kernel = invoke


def write_keys_apart() -> None:
    """SGLang writes keys in bf16 to its cache as it rotates them, by a kernel for heads of 64, 128, 256 or 512 numbers,
    and fails with others. Without that its attention writes them."""
    from sglang.srt.models import utils  # models take it from there, and are imported after plugins

    utils.enable_fused_set_kv_buffer = lambda forward_batch: False
