"""A hook of slime's rollout that acts as if an engine reported each token's experts one row late."""

from __future__ import annotations

from typing import Any

import torch


def shift(args: Any, sample: Any, **_: Any) -> None:
    routes = sample.rollout_routed_experts
    if routes is not None:
        sample.rollout_routed_experts = torch.roll(torch.as_tensor(routes), 1, 0)
