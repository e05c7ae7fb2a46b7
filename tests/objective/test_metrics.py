from __future__ import annotations

import pytest
import torch

from sat_slime.objective import MetricAccumulator


def test_metrics_reduce_by_their_name() -> None:
    accumulator = MetricAccumulator()
    accumulator.add({"loss/total": torch.tensor(1.0), "sat/q": 0.2, "sat/c_min": 0.5, "lag/max": 2.0, "lag/min": 2}, 30)
    accumulator.add({"loss/total": torch.tensor(2.0), "sat/q": 0.6, "sat/c_min": 0.3, "lag/max": 7.0, "lag/min": 1}, 10)
    assert accumulator.reduce() == pytest.approx(
        {"loss/total": 3.0, "sat/q": 0.3, "sat/c_min": 0.3, "lag/max": 7.0, "lag/min": 1.0}
    )


def test_micro_batches_without_active_tokens_say_nothing() -> None:
    accumulator = MetricAccumulator()
    accumulator.add({"sat/q": 0.2, "lag/max": 1.0, "lag/min": 1.0, "loss/total": 1.0}, torch.tensor(5))
    accumulator.add({"sat/q": 0.0, "lag/max": 9.0, "lag/min": 0.0, "loss/total": 0.5}, 0)
    assert accumulator.reduce() == pytest.approx({"sat/q": 0.2, "lag/max": 1.0, "lag/min": 1.0, "loss/total": 1.5})
    assert MetricAccumulator().reduce() == {}


def test_differing_names_are_an_error() -> None:
    accumulator = MetricAccumulator()
    accumulator.add({"a": 1.0, "b": 2.0}, 1)
    accumulator.add({"a": 1.0}, 1)
    with pytest.raises(ValueError, match="b not in all of them"):
        accumulator.reduce()
