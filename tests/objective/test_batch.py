from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sat_slime.objective import TokenBatch


def make_batch(**changes: object) -> TokenBatch:
    batch = TokenBatch(
        log_probs=torch.zeros(5),
        rollout_log_probs=torch.zeros(5),
        advantages=torch.zeros(5),
        mask=torch.tensor([True, False, True, True, False]),
        lengths=[2, 0, 3],
    )
    return replace(batch, **changes)


def test_responses_of_the_tokens() -> None:
    batch = make_batch()
    assert batch.active_lengths.tolist() == [1, 0, 2]
    assert batch.n_active == 3


@pytest.mark.parametrize("lengths", [[2, 0, 3], (2, 0, 3), torch.tensor([2, 0, 3]), torch.tensor([2, 0, 3]).int()])
def test_lengths_in_any_form(lengths: object) -> None:
    assert make_batch(lengths=lengths).active_lengths.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"log_probs": torch.zeros(1, 5)}, r"log_probs has shape \(1, 5\)"),
        ({"advantages": torch.zeros(4)}, r"advantages has shape \(4,\)"),
        ({"proximal_log_probs": torch.zeros(6)}, "proximal_log_probs has shape"),
        ({"mask": torch.ones(5)}, r"mask has dtype torch.float32: pass mask.bool\(\)"),
        ({"rollout_log_probs": torch.zeros(5, dtype=torch.long)}, "rollout_log_probs has dtype torch.int64"),
        ({"lengths": [2, 2]}, "lengths add up to 4 for 5 tokens"),
    ],
)
def test_misfits_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_batch(**changes)


@pytest.mark.parametrize(
    "dtypes, expected",
    [
        ((torch.bfloat16, torch.bfloat16), torch.float32),
        ((torch.float16, torch.float32), torch.float32),
        ((torch.float32, torch.float64), torch.float64),
    ],
)
def test_dtype_of_the_computation(dtypes: tuple[torch.dtype, torch.dtype], expected: torch.dtype) -> None:
    batch = make_batch(log_probs=torch.zeros(5, dtype=dtypes[0]), rollout_log_probs=torch.zeros(5, dtype=dtypes[1]))
    promoted = batch.promoted()
    assert promoted.log_probs.dtype == promoted.rollout_log_probs.dtype == promoted.advantages.dtype == expected
    assert make_batch().promoted().log_probs.dtype == torch.float32
