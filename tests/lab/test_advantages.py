from __future__ import annotations

import numpy as np
import torch

from sat_slime.lab.rollout_batch import group_advantages


def test_advantages_are_those_of_torch_std():
    rewards = np.array([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]], np.float32)
    expected = torch.tensor(rewards)
    expected = (expected - expected.mean(1, keepdim=True)) / (expected.std(1, keepdim=True) + 1e-6)
    np.testing.assert_allclose(group_advantages(rewards), expected, rtol=1e-6)
    assert not group_advantages(rewards)[1:3].any()
