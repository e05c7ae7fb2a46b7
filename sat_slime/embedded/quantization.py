"""Weights as a quantized rollout has them: projections rounded to FP8 or INT8, with a scale for each output channel.

FP8 and INT8 rollouts keep a weight w as a code and a scale, w = code * scale, and multiply by both. SGLang has no such
kernels on a CPU, so what is broadcast here are the products: the engine computes with exactly the weights that a
quantized one would have, in its own arithmetic. Activations are not quantized. As in practice, embedding, output layer,
norms and routers stay as they are.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

PROJECTION = re.compile(r".*\.(q|k|v|o|gate|up|down)_proj\.weight")
"""Hugging Face names of the matrices that are quantized; a router's is `mlp.gate.weight`."""


def _scaled(weight: Tensor, largest: float, code: Callable[[Tensor], Tensor]) -> Tensor:
    """Return code(weight / scale) * scale, where the scale of a row takes its largest magnitude to `largest`."""
    magnitude = weight.abs().amax(1, keepdim=True)
    scale = torch.where(magnitude > 0, magnitude / largest, 1.0)
    return code(weight / scale) * scale


def _float8_e4m3(weight: Tensor) -> Tensor:
    kind = torch.float8_e4m3fn
    return _scaled(weight, torch.finfo(kind).max, lambda scaled: scaled.to(kind).float())


ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "bfloat16": lambda weight: weight.to(torch.bfloat16).float(),
    "float8_e4m3": _float8_e4m3,
    "int8": lambda weight: _scaled(weight, 127.0, lambda scaled: scaled.round().to(torch.int8).float()),
}
"""By the values of `rollout.weights`: (rows, columns) fp32 to the same shape, rounded."""


def quantize_folder(source: Path, target: Path, to: str) -> float:
    """Writes a Hugging Face folder with the projections of another one rounded; the rest is copied.

    Args:
        to: a value of `rollout.weights`.

    Returns:
        The relative error, |rounded - weight| / |weight| in the Frobenius norm over all projections.
    """
    weights = load_file(source / "model.safetensors")
    errors, norms = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for name in filter(PROJECTION.fullmatch, list(weights)):
        weight = weights[name].float()
        rounded = ROUNDED[to](weight)
        errors += (rounded - weight).double().square().sum()
        norms += weight.double().square().sum()
        weights[name] = rounded.to(weights[name].dtype)
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    shutil.copy(source / "config.json", part)
    save_file(weights, part / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)
    return float((errors / norms.clamp(min=1e-300)).sqrt())
