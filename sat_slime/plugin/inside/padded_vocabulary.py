"""Takes columns of the logits that are no tokens out of the trainer's softmax.

Megatron pads the vocabulary to a multiple of --make-vocab-size-divisible-by x TP. The padded rows of its output layer
are zero, so their logits are 0 and take part in slime's softmax, while the engine has no such rows.
docs/compatibility.md says what that costs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

NO_TOKEN = -1e30
"""The logit of a padded column: its probability is exactly 0, and so is its product with 0 in the entropy, which -inf
would make NaN."""


def padded_columns(width: int, vocabulary: int, rank: int) -> int:
    """Return the first padded column among the `width` columns of a tensor-parallel rank; `width` where it has none."""
    return min(max(vocabulary - rank * width, 0), width)


def leave_out_padding(model: Iterable[torch.nn.Module], vocabulary: int, rank: int) -> bool:
    """Gives padded columns no probability in every forward pass of the model, by a hook on its output layer.

    Args:
        model: slime's model chunks of this rank; only the last pipeline stage has an output layer.
        vocabulary: number of tokens of the checkpoint, from which the engine samples.
        rank: this process's rank in tensor parallelism.

    Returns:
        Whether this rank holds padded columns.
    """
    has_padding = False
    for chunk in model:
        for name, layer in chunk.named_modules():
            if name.split(".")[-1] != "output_layer":
                continue
            width = layer.output_size_per_partition
            first = padded_columns(width, vocabulary, rank)
            if first < width:
                layer.register_forward_hook(functools.partial(_fill, first))
                has_padding = True
    return has_padding


def _fill(first: int, layer: torch.nn.Module, inputs: Any, output: Any) -> Any:
    """A forward hook that fills the padded columns of the output layer's logits; Megatron's returns (logits, bias)."""
    logits: Tensor = output[0] if isinstance(output, tuple) else output
    logits[..., first:] = max(NO_TOKEN, torch.finfo(logits.dtype).min / 8)  # fp16 ends at -65504
    return output
