"""Functions whose derivative is written out, in place of the one that autograd would record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class SelfAdjoint(torch.autograd.Function):
    """A linear map that is its own transpose, as averaging within responses is: backward maps the gradients."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, linear: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.linear = linear
        return linear(values)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, None]:
        return ctx.linear(grads[0]), None


class GivenSlope(torch.autograd.Function):
    """Values of a function of the log-ratio, with their derivative slope * ratio given."""

    @staticmethod
    def forward(
        ctx: Any, log_ratio: torch.Tensor, values: torch.Tensor, slope: torch.Tensor, ratio: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(slope, ratio)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, None, None, None]:
        slope, ratio = ctx.saved_tensors
        return grads[0] * slope * ratio, None, None, None
