from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sat_slime.objective.clip import clipped_surrogate


def autograd_ppo(log_ratio: Tensor, advantages: Tensor, low: object, high: object) -> Tensor:
    """PPO's clip as everyone writes it, in the form of slime's compute_policy_loss."""
    ratio = log_ratio.exp()
    return -torch.maximum(-ratio * advantages, -ratio.clamp(low, high) * advantages)


def value_and_gradient(function, log_ratio: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    leaf = log_ratio.clone().requires_grad_()
    values = function(leaf)
    (values * weights).sum().backward()
    return values.detach(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tensor_ends", [False, True])
def test_value_and_gradient_are_autograds_to_the_bit(dtype: torch.dtype, tensor_ends: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    n = 20_000
    d = torch.randn(n, generator=generator, dtype=dtype) * 0.4
    advantages = torch.randn(n, generator=generator, dtype=dtype).round(decimals=1)
    weights = torch.rand(n, generator=generator, dtype=dtype)
    # These ratios are within a few units in the last place of the ends: r A and clip(r) A round to the same number.
    near = torch.tensor([0.8, 1.2], dtype=dtype).log()
    for i, shift in enumerate(range(-8, 9)):
        d[2 * i : 2 * i + 2] = near * (1 + shift * torch.finfo(dtype).eps)
    d[100:120] = 0.0
    low, high = 0.8, 1.2
    if tensor_ends:
        low, high = torch.full_like(d, 0.8), torch.full_like(d, 1.2)

    ours = value_and_gradient(lambda x: clipped_surrogate(x, advantages, low, high).values, d, weights)
    theirs = value_and_gradient(lambda x: autograd_ppo(x, advantages, low, high), d, weights)

    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


def test_half_the_gradient_where_rounding_ties_outside_the_interval() -> None:
    shifts = torch.arange(64, dtype=torch.float32) * torch.finfo(torch.float32).eps
    d = (torch.tensor(1.2).log() * (1 + shifts)).repeat(200)
    advantages = 0.5 + torch.rand(len(d), generator=torch.Generator().manual_seed(2))
    ratio = d.exp()
    tie = (ratio > torch.tensor(1.2)) & (ratio * advantages == 1.2 * advantages)
    assert tie.sum() > 10
    ones = torch.ones_like(d)
    _, ours = value_and_gradient(lambda x: clipped_surrogate(x, advantages, 0.8, 1.2).values, d, ones)
    _, theirs = value_and_gradient(lambda x: autograd_ppo(x, advantages, 0.8, 1.2), d, ones)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[tie], (advantages * 0.5 * ratio)[tie])


def test_which_tokens_are_cut() -> None:
    ratio = torch.tensor([1.3, 1.3, 0.7, 0.7, 1.1, 1.3])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    result = clipped_surrogate(ratio.log(), advantages, 0.8, 1.2)
    assert result.cut.tolist() == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert result.values.tolist() == pytest.approx([1.2, -1.3, 0.7, -0.8, 1.1, 0.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ratio_saturates_without_nan(dtype: torch.dtype) -> None:
    d = torch.tensor([100.0, 100.0, math.inf, math.inf, -100.0, -100.0, -math.inf, -math.inf], dtype=dtype)
    advantages = torch.tensor([1.0, -1.0] * 4, dtype=dtype)
    values, gradient = value_and_gradient(
        lambda x: clipped_surrogate(x, advantages, 0.8, 1.2).values, d, torch.ones_like(d)
    )
    assert values.tolist() == pytest.approx([1.2, -math.exp(40)] * 2 + [math.exp(-100), -0.8, 0.0, -0.8], rel=1e-5)
    assert gradient.tolist() == pytest.approx([0.0, 0.0] * 2 + [math.exp(-100), 0.0, 0.0, 0.0], rel=1e-5)


def test_slimes_own_function() -> None:
    slime = pytest.importorskip("slime.utils.ppo_utils", reason="slime is not installed")
    generator = torch.Generator().manual_seed(1)
    d, advantages = torch.randn(2, 4096, generator=generator) * 0.4
    ours = value_and_gradient(
        lambda x: clipped_surrogate(x, advantages, 1 - 0.2, 1 + 0.28).values, d, torch.ones_like(d)
    )
    eager = getattr(slime.compute_policy_loss, "_torchdynamo_orig_callable", slime.compute_policy_loss)
    theirs = value_and_gradient(lambda x: -eager(-x, advantages, 0.2, 0.28)[0], d, torch.ones_like(d))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
