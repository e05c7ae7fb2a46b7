"""The parts of d are found again in scores that were made out of known parts, in float64."""

from __future__ import annotations

import pytest
import torch

from sat_slime.objective import mismatch_parts

N = 4000
MADE_OF = ("policy_weights", "policy_routes", "routing", "precision", "rest")


def made_up(replayed: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Scores of tokens, and the parts of which they were made: multiples of 2^-12, so that fp32 holds them exactly."""
    generator = torch.Generator().manual_seed(1)

    def some(scale: int) -> torch.Tensor:
        return torch.randint(-scale, scale + 1, (N,), generator=generator).double() / 4096

    parts = {name: some(scale) for name, scale in zip(MADE_OF, (2000, 700, 300, 90, 10), strict=True)}
    mu = -(some(4000).abs() + 1)
    in_engine_dtype = mu + parts["rest"]
    b_engine = in_engine_dtype + parts["precision"]
    b_own = b_engine + parts["routing"]
    a_engine = b_engine + parts["policy_weights"]
    a_own = b_own + parts["policy_weights"] + parts["policy_routes"]
    scores = {
        "log_probs": a_engine if replayed else a_own,
        "rollout_log_probs": mu,
        "checkpoint_log_probs": b_engine if replayed else b_own,
        "log_probs_own_routing": a_own,
        "log_probs_replayed": a_engine,
        "checkpoint_log_probs_own_routing": b_own,
        "checkpoint_log_probs_replayed": b_engine,
        "checkpoint_log_probs_engine_dtype": in_engine_dtype,
        "checkpoint_expert_flips": torch.ones(N, 2, dtype=torch.uint8),
    }
    if replayed:
        parts |= {"policy_routes": torch.zeros(N).double(), "routing": torch.zeros(N).double()}
    return {k: v.float() if v.is_floating_point() else v for k, v in scores.items()}, parts


@pytest.mark.parametrize("replayed", [False, True], ids=["free routing", "r3"])
def test_parts_are_what_the_scores_were_made_of_and_sum_to_d_exactly(replayed):
    scores, expected = made_up(replayed)
    parts = mismatch_parts(scores, replayed=replayed)
    assert list(parts) == list(MADE_OF)
    for name, values in parts.items():
        assert values.dtype == torch.float64
        assert torch.equal(values, expected[name]), name
    d = scores["log_probs"].double() - scores["rollout_log_probs"].double()
    assert torch.equal(sum(parts.values()), d)
    policy = scores["log_probs"].double() - scores["checkpoint_log_probs"].double()
    assert torch.equal(parts["policy_weights"] + parts["policy_routes"], policy)


def test_fewer_scores_tell_fewer_parts():
    scores, expected = made_up(replayed=False)
    dense = {name: scores[name] for name in scores if not name.endswith(("own_routing", "replayed", "flips"))}
    assert list(mismatch_parts(dense, replayed=False)) == ["policy", "precision", "rest"]
    split = {name: scores[name] for name in ("log_probs", "rollout_log_probs", "checkpoint_log_probs")}
    parts = mismatch_parts(split, replayed=False)
    assert list(parts) == ["policy", "implementation"]
    assert torch.equal(parts["implementation"], sum(expected[name] for name in ("routing", "precision", "rest")))
    del split["checkpoint_log_probs"]
    assert mismatch_parts(split, replayed=False) == {}
