"""The objective on a GPU is the objective on a CPU: skipped where there is no GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace

import paper_equations as paper
import pytest
import torch
from methods_under_test import LENGTHS, METHODS

from sat_slime.objective import (
    Method,
    TokenBatch,
    mismatch_metrics,
    named_method,
    policy_loss,
    policy_surrogate,
    response_mean_weights,
    tail_quantile,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def on_gpu(batch: TokenBatch) -> TokenBatch:
    """The batch on a GPU, with leaves of its own."""
    columns = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {name: column for name, column in columns.items() if isinstance(column, torch.Tensor)}
    moved = {name: column.detach().cuda().requires_grad_(column.requires_grad) for name, column in tensors.items()}
    return replace(batch, **moved)


def values_and_gradients(method: Method, batch: TokenBatch) -> list[torch.Tensor]:
    """The surrogate, its sum's gradients in log-probs and heads, and the metrics in the order of their names."""
    surrogate = policy_surrogate(method, batch)
    surrogate.values.sum().backward()
    metrics = [torch.as_tensor(value) for _, value in sorted(surrogate.metrics.items())]
    gradients = [x.grad for x in (batch.log_probs, batch.policy_head) if x is not None and x.grad is not None]
    return [x.detach().cpu() for x in (surrogate.values, *gradients, *metrics)]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_values_gradients_and_metrics_are_those_of_a_cpu(method: Method, spread: float) -> None:
    batch = paper.random_tokens(seed=3, lengths=LENGTHS, spread=spread).batch()
    expected = values_and_gradients(method, batch)
    found = values_and_gradients(method, on_gpu(batch))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_of_narrow_numbers_too_and_the_same_bits_again(method: Method, dtype: torch.dtype) -> None:
    batch = paper.random_tokens(seed=4, lengths=LENGTHS, spread=0.3).batch(dtype)
    expected = values_and_gradients(method, batch)
    found, again = (values_and_gradients(method, on_gpu(batch)) for _ in range(2))
    for mine, theirs, repeated in zip(found, expected, again, strict=True):
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=2e-4, atol=1e-5)
        assert torch.equal(mine, repeated)


@pytest.mark.parametrize("name", ["grpo", "sat-grpo", "gspo", "sat-gspo", "m2po", "dppo"])
def test_a_batch_without_tokens_and_one_of_single_tokens(name: str) -> None:
    for lengths in ([0, 0], [1], [1, 1, 1]):
        batch = paper.random_tokens(seed=5, lengths=lengths).batch()
        expected = values_and_gradients(named_method(name), batch)
        for mine, theirs in zip(values_and_gradients(named_method(name), on_gpu(batch)), expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["spread", "ties", "zero"])
def test_quantiles_of_a_long_micro_batch_are_exact(kind: str) -> None:
    values = torch.randn(200_003, generator=torch.Generator().manual_seed(1)).abs()
    values = {"spread": values, "ties": (values * 4).round(), "zero": torch.zeros_like(values)}[kind]
    for alpha in (0.5, 0.9, 0.999):
        expected = values.sort().values[math.ceil(alpha * len(values)) - 1]
        assert float(tail_quantile(values.cuda(), alpha)) == float(expected)


def test_the_whole_loss_and_the_mismatch_are_those_of_a_cpu() -> None:
    batch = paper.random_tokens(seed=6, lengths=[300, 1, 7, 512], spread=0.4).batch()
    moved = on_gpu(batch)
    for method in map(named_method, ("sat-gspo", "sat-grpo", "grpo-tis")):
        losses = []
        for one in (batch, moved):
            weights = response_mean_weights(one.mask, one.lengths_tensor, len(one.lengths))
            losses.append(policy_loss(method, one, weights, kl_coef=1e-3, ref_log_probs=one.rollout_log_probs).total)
        torch.testing.assert_close(losses[1].cpu(), losses[0], rtol=1e-12, atol=1e-12)
    expected, found = (mismatch_metrics(one.log_probs, one.rollout_log_probs, one.mask) for one in (batch, moved))
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)
