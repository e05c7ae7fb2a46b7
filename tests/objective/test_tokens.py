from __future__ import annotations

import pytest
import torch

from sat_slime.objective import TokenBatch, Tokens, named_method
from sat_slime.objective.tokens import response_mean_weights


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"advantages": torch.ones(3)}, "advantages has shape"),
        ({"lags": torch.ones(2, 1)}, "lags has shape"),
        ({"log_probs": torch.ones(1, 2)}, "N tokens in a row"),
        ({"mask": torch.ones(2)}, "mask.bool"),
        ({"entropies": torch.ones(2, dtype=torch.int64)}, "floating-point"),
        ({"lengths": [3]}, "lengths add up to 3 for 2 tokens"),
        ({"lengths": torch.tensor([1])}, "lengths add up to 1 for 2 tokens"),
    ],
)
def test_a_batch_of_other_shapes_is_refused(changed, says) -> None:
    two = torch.ones(2)
    columns = {"log_probs": -two, "rollout_log_probs": -two, "advantages": two, "mask": two.bool(), "lengths": [2]}
    with pytest.raises(ValueError, match=says):
        TokenBatch(**{**columns, **changed})


def test_means_and_sums_are_over_the_active_tokens_of_each_response() -> None:
    mask = torch.tensor([True, False, True, True, True, False])
    ones = torch.ones(6)
    t = Tokens(named_method("grpo"), TokenBatch(-ones, -ones, ones, mask, [3, 0, 2, 1]))
    values = torch.tensor([1.0, 3.0, 10.0, 20.0])
    assert t.n == 4 and t.lengths.tolist() == [2, 0, 2, 0]
    assert t.mean(values).tolist() == [2, 2, 15, 15] and t.sum(values).tolist() == [4, 4, 30, 30]
    assert t.any(values == 10).tolist() == [False, False, True, True]
    assert t.back(values).tolist() == [1, 0, 3, 10, 20, 0]
    assert t.cut(torch.arange(6.0)).tolist() == [0, 2, 3, 4]


def test_weights_of_the_mean_over_responses() -> None:
    mask = torch.tensor([True, False, True, True, False, True])
    assert response_mean_weights(mask, [3, 0, 2, 1], 4).tolist() == pytest.approx([1 / 8, 0, 1 / 8, 1 / 4, 0, 1 / 4])
    assert response_mean_weights(mask[:0], [], 4).shape == (0,)
    assert response_mean_weights(torch.zeros(2, dtype=torch.bool), [2], 1).tolist() == [0, 0]
