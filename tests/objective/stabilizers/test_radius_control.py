"""Radius policies with a state: how each moves, by hand, and what the surrogate makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import paper_equations as paper
import pytest
import torch

from sat_slime.objective import Clip, RadiusControl, check_method, named_method, policy_surrogate
from sat_slime.objective.stabilizers.clips.anneal import Anneal
from sat_slime.objective.stabilizers.clips.kl_budget import KLBudget
from sat_slime.objective.stabilizers.clips.target_clip import TargetClip

NAMES = ["target-clip", "kl-budget", "anneal"]


def measured(lag: float, clipped: float = 0.12, kl: float = 0.001, entropy: float = 1.0) -> dict[str, float]:
    return {"lag/max": lag, "clip/fraction": clipped, "mismatch/k3_kl": kl, "loss/entropy": entropy}


def scales(one: RadiusControl, steps: list[Mapping[str, float]]) -> list[float]:
    """The factor after each step."""
    state, found = one.start(), []
    for step in steps:
        state = one.advance(state, step)
        found.append(state["scale"])
    return found


def test_target_clip_moves_by_how_far_the_average_is_off() -> None:
    found = scales(TargetClip(), [measured(1, 0.12), measured(1, 0.36), measured(1, 0.0)])
    # averages over 8 steps: 0.12, 0.15, 0.13125
    assert found == pytest.approx([1.0, math.exp(0.05 * 0.25), math.exp(0.05 * (0.25 + 0.09375))])


def test_target_clip_is_bounded_in_its_step_and_its_range() -> None:
    wide, narrow = (scales(TargetClip(), [measured(1, clipped)] * 200) for clipped in (1.0, 0.0))
    assert max(wide) == wide[-1] == 12.0 and min(narrow) == narrow[-1] == 0.06
    assert max(b / a for a, b in pairwise(wide)) == pytest.approx(math.exp(0.05 * 1.5))
    assert min(b / a for a, b in pairwise(narrow)) >= math.exp(-0.05)


def test_target_clip_averages_over_as_many_steps_as_the_lag() -> None:
    assert scales(TargetClip(), [measured(32, 0.24)]) == pytest.approx([math.exp(0.05 / 32)])


def test_kl_budget_acts_after_each_lag_cycle_on_its_oldest_batch() -> None:
    cycle = [measured(1, kl=9.0), measured(2, kl=9.0), measured(3, kl=9.0), measured(4, kl=4 * 0.0014 * 4**1.2)]
    found = scales(KLBudget(), [*cycle, *cycle, measured(1)])
    assert found == pytest.approx([1.0] * 4 + [0.5] * 4 + [0.25])


def test_kl_budget_at_lag_1_acts_at_every_step_within_its_bounds() -> None:
    found = scales(KLBudget(), [measured(1, kl=1e-9)] * 6)
    assert found == pytest.approx([1, 2, 4, 8, 12, 12])


def test_kl_budget_in_a_stream_whose_lag_stays_acts_once_in_as_many_steps() -> None:
    found = scales(KLBudget(power=0.0), [measured(4, kl=0.0014 * 4)] * 10)
    assert found == pytest.approx([1.0] * 4 + [0.5] * 4 + [0.25] * 2)


def test_anneal_scales_by_the_entropy_that_is_left_once_lags_are_long() -> None:
    steps = [measured(1, entropy=2.0), measured(15, entropy=1.0), measured(16, entropy=1.5), measured(1, entropy=0.5)]
    assert scales(Anneal(), steps) == [1.0, 1.0, 0.75, 0.25]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("base", ["grpo", "gspo", "sat-grpo", "sat-gspo"])
def test_the_surrogate_is_the_bases_at_the_scaled_radius(name: str, base: str) -> None:
    tokens = paper.random_tokens(seed=5, lengths=[5, 1, 0, 9, 30], spread=0.5)
    controlled, batch = named_method(f"{base}-{name}"), tokens.batch()
    ours = policy_surrogate(controlled, batch, radius_scale=0.5)
    ours.values.sum().backward()
    fixed, plain_batch = replace(named_method(base), trust_region=Clip(0.1, 0.1)), tokens.batch()
    plain = policy_surrogate(fixed, plain_batch)
    plain.values.sum().backward()
    assert torch.equal(ours.values, plain.values) and torch.equal(batch.log_probs.grad, plain_batch.log_probs.grad)
    assert float(ours.metrics["radius/low"]) == pytest.approx(0.1) == float(ours.metrics["radius/high"])
    rest = policy_surrogate(controlled, tokens.batch())
    assert torch.equal(rest.values, policy_surrogate(named_method(base), tokens.batch()).values)


def test_two_of_them_are_refused() -> None:
    with pytest.raises(ValueError, match="Target clip and KL budget both set the radii"):
        check_method(named_method("grpo-target-clip-kl-budget"))
