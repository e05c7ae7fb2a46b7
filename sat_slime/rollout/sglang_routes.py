"""A plugin of SGLang: its engines keep and send a response's routes (R3) in a byte each, not in four.

SGLang finds it by the entry point `sglang.srt.plugins` of this package. It does something only where VARIABLE is set,
as our driver does: only slime's rollout process with our hooks can read such routes. What runs on the GPU is unchanged;
experts are narrowed as they enter the host's buffer, out of which a reply takes them.
"""

from __future__ import annotations

import os
from typing import Any

import torch

VARIABLE = "SAT_SLIME_NARROW_ROUTES"
"""Environment variable of the engines. plugin/driver.py sets it for models with at most MOST_EXPERTS experts."""
MOST_EXPERTS = 255
"""One less than a byte can number: 255 stands for whatever is no expert, and is found as that on arrival."""


def install() -> None:
    """Has this process's host buffer of routed experts be one byte wide, if the environment asks for it."""
    if os.environ.get(VARIABLE) != "1":
        return
    from sglang.srt.state_capturer import base

    allocate = base.BaseHostCache.__init__
    if getattr(allocate, "is_narrow", False):
        return

    def init(self: Any, num_tokens: int, num_layers: int, topk_size: int, name: str) -> None:
        if name != "routed_experts":
            return allocate(self, num_tokens, num_layers, topk_size, name)
        self.buffer = NarrowBuffer((num_tokens, num_layers, topk_size), pin_memory=torch.cuda.is_available())
        self.num_tokens, self.num_layers, self.topk_size, self.name = num_tokens, num_layers, topk_size, name
        return None

    init.is_narrow = True  # type: ignore[attr-defined]
    base.BaseHostCache.__init__ = init


class NarrowBuffer:
    """A buffer of bytes that is written and read by index, as SGLang does with its own of int32."""

    def __init__(self, shape: tuple[int, ...], pin_memory: bool) -> None:
        self.bytes = torch.zeros(shape, dtype=torch.uint8, pin_memory=pin_memory)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.bytes[index]

    def __setitem__(self, index: Any, experts: torch.Tensor) -> None:
        self.bytes[index] = torch.where((experts >= 0) & (experts < 255), experts, 255).to(torch.uint8)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bytes, name)
