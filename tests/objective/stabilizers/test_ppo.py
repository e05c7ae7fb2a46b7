from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sat_slime.objective.ratio import bounded_ratio
from sat_slime.objective.stabilizers.clips.ppo import clipped_surrogate, cut_counts, is_cut


def autograd_ppo(log_ratio: Tensor, advantages: Tensor, low: object, high: object) -> Tensor:
    """PPO's clip as everyone writes it, in the form of slime's compute_policy_loss."""
    ratio = log_ratio.exp()
    return -torch.maximum(-ratio * advantages, -ratio.clamp(low, high) * advantages)


def ours_of(log_ratio: Tensor, advantages: Tensor, below: object = 0.2, above: object = 0.2) -> Tensor:
    return clipped_surrogate(bounded_ratio(log_ratio), advantages, below, above)


def value_and_gradient(function, log_ratio: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    leaf = log_ratio.clone().requires_grad_()
    values = function(leaf)
    (values * weights).sum().backward()
    return values.detach(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tensor_radii", [False, True])
def test_value_and_gradient_are_autograds_to_the_bit(dtype: torch.dtype, tensor_radii: bool) -> None:
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
    below, above = 0.2, 0.2
    if tensor_radii:
        below, above = torch.full_like(d, 0.2), torch.full_like(d, 0.2)

    ours = value_and_gradient(lambda x: ours_of(x, advantages, below, above), d, weights)
    theirs = value_and_gradient(lambda x: autograd_ppo(x, advantages, 1 - below, 1 + above), d, weights)

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
    _, ours = value_and_gradient(lambda x: ours_of(x, advantages), d, ones)
    _, theirs = value_and_gradient(lambda x: autograd_ppo(x, advantages, 0.8, 1.2), d, ones)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[tie], (advantages * 0.5 * ratio)[tie])


def test_which_tokens_are_cut() -> None:
    ratio = torch.tensor([1.3, 1.3, 0.7, 0.7, 1.1, 1.3])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    values = clipped_surrogate(ratio, advantages, 0.2, 0.2)
    cut = is_cut(values, ratio, advantages)
    assert cut.tolist() == [True, False, False, True, False, False]
    assert values.tolist() == pytest.approx([1.2, -1.3, 0.7, -0.8, 1.1, 0.0])
    assert {name: count.item() for name, count in cut_counts(cut, advantages).items()} == {
        "clip/fraction": 2,
        "clip/upper": 1,
        "clip/lower": 1,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ratio_saturates_without_nan(dtype: torch.dtype) -> None:
    d = torch.tensor([100.0, 100.0, math.inf, math.inf, -100.0, -100.0, -math.inf, -math.inf], dtype=dtype)
    advantages = torch.tensor([1.0, -1.0] * 4, dtype=dtype)
    values, gradient = value_and_gradient(lambda x: ours_of(x, advantages), d, torch.ones_like(d))
    assert values.tolist() == pytest.approx([1.2, -math.exp(40)] * 2 + [math.exp(-100), -0.8, 0.0, -0.8], rel=1e-5)
    assert gradient.tolist() == pytest.approx([0.0, 0.0] * 2 + [math.exp(-100), 0.0, 0.0, 0.0], rel=1e-5)


def test_slimes_own_function() -> None:
    slime = pytest.importorskip("slime.utils.ppo_utils", reason="slime is not installed")
    generator = torch.Generator().manual_seed(1)
    d, advantages = torch.randn(2, 4096, generator=generator) * 0.4
    ours = value_and_gradient(lambda x: ours_of(x, advantages, 0.2, 0.28), d, torch.ones_like(d))
    eager = getattr(slime.compute_policy_loss, "_torchdynamo_orig_callable", slime.compute_policy_loss)
    theirs = value_and_gradient(lambda x: -eager(-x, advantages, 0.2, 0.28)[0], d, torch.ones_like(d))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
