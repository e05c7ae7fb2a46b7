"""The objective on a GPU is the objective on a CPU: skipped where there is no GPU (`bench/gpu.sh`)."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from equations import random_tokens
from methods_under_test import LENGTHS, METHODS

from sat_slime.objective import Method, TokenBatch, policy_surrogate, tail_quantile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def on_gpu(batch: TokenBatch) -> TokenBatch:
    """The batch on a GPU, with leaves of its own."""
    columns = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {name: column for name, column in columns.items() if isinstance(column, torch.Tensor)}
    moved = {name: column.detach().cuda().requires_grad_(column.requires_grad) for name, column in tensors.items()}
    return replace(batch, **moved)


def values_and_gradients(method: Method, batch: TokenBatch) -> list[torch.Tensor]:
    """The surrogate, its sum's gradient, and the metrics in the order of their names."""
    surrogate = policy_surrogate(method, batch)
    surrogate.values.sum().backward()
    metrics = [torch.as_tensor(value) for _, value in sorted(surrogate.metrics.items())]
    return [x.detach().cpu() for x in (surrogate.values, batch.log_probs.grad, *metrics)]


@pytest.mark.parametrize("dtype, rtol, atol", [(None, 1e-12, 1e-12), (torch.float32, 2e-4, 1e-5)])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_values_gradients_and_metrics_are_those_of_a_cpu_each_time(method, dtype, rtol, atol):
    batch = random_tokens(3, LENGTHS, 0.3).batch(*[dtype] if dtype else [])
    expected = values_and_gradients(method, batch)
    found, again = (values_and_gradients(method, on_gpu(batch)) for _ in range(2))
    for mine, theirs, repeated in zip(found, expected, again, strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=rtol, atol=atol)
        assert torch.equal(mine, repeated)


@pytest.mark.parametrize("alpha", [0.5, 0.9, 0.999])
def test_the_quantile_of_a_long_micro_batch_is_exact(alpha):
    values = torch.randn(200_003, generator=torch.Generator().manual_seed(1)).abs()
    assert float(tail_quantile(values.cuda(), alpha)) == float(tail_quantile(values, alpha))
