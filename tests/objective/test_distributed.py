"""Several gloo processes give the same as one. A single spawn runs every check; each test looks at its own results."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import paper_equations as paper
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from sat_slime.objective import (
    Method,
    MetricAccumulator,
    TokenBatch,
    mismatch_histogram,
    mismatch_metrics,
    named_method,
    policy_loss,
    response_mean_weights,
    tail_quantile,
)
from sat_slime.objective.ratio import log_ratio

WORLD = 3
LENGTHS = [6, 1, 9, 4, 2, 8, 5, 7, 3, 6, 11, 2]
SPLIT_METHODS = ["sat-grpo", "sat-gspo", "gspo", "seqclip", "gspo-tis", "dppo"]


def method_log_ratio(method: Method, batch: TokenBatch, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    return log_ratio(method.ratio, method.denominator, batch.promoted(), group).detach()


def quantile_cases() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(3000, generator=generator).abs() * 0.05
    return {
        "float32": normal,
        "float64": normal.double() * 1.7,
        "bfloat16": normal.bfloat16(),
        "float16": normal.half(),
        "ties": (normal * 20).round() / 20,
        "zeros": torch.zeros(30),
        "subnormal": normal * 1e-38,
        "infinite": torch.cat([normal[:10], torch.full((20,), math.inf)]),
        "one": torch.tensor([0.25]),
        "none": torch.zeros(0),
    }


def parts_of(values: torch.Tensor) -> list[torch.Tensor]:
    """The values in unequal parts, of which the last is empty."""
    cut = len(values) // 3
    return [values[:cut], values[cut:], values[:0]]


def context_parallel_part(tokens: paper.Tokens, rank: int) -> tuple[paper.Tokens, list[int]]:
    """The tokens that a rank holds of every response, and their positions: a contiguous third, empty where the response
    is short."""
    positions, lengths, start = [], [], 0
    for length in tokens.lengths:
        ends = [start + length * r // WORLD for r in range(WORLD + 1)]
        held = list(range(ends[rank], ends[rank + 1]))
        positions += held
        lengths.append(len(held))
        start += length
    columns = (tokens.log_pi, tokens.log_mu, tokens.advantages, tokens.mask)
    part = paper.Tokens(
        *([column[t] for t in positions] for column in columns),
        lengths=lengths,
        log_proximal=[tokens.log_proximal[t] for t in positions],
    )
    return part, positions


def step_metrics(rank: int | None) -> MetricAccumulator:
    """Metrics of the micro-batches of one rank, or of all ranks; the last rank has none."""
    rows = [
        ({"loss/total": 0.5, "sat/q": 0.1, "sat/c_min": 0.4, "lag/max": 3.0}, 100),
        ({"loss/total": 0.25, "sat/q": 0.3, "sat/c_min": 0.2, "lag/max": 1.0}, 50),
        ({"loss/total": 1.0, "sat/q": 0.7, "sat/c_min": 0.9, "lag/max": 8.0}, 10),
    ]
    owners = [0, 1, 1]
    accumulator = MetricAccumulator()
    for owner, (metrics, weight) in zip(owners, rows, strict=True):
        if rank is None or rank == owner:
            accumulator.add({name: torch.tensor(value) for name, value in metrics.items()}, weight)
    return accumulator


def mismatch_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    mu = -torch.rand(900, generator=generator)
    checkpoint = mu + torch.randn(900, generator=generator) * 0.05
    pi = checkpoint + torch.randn(900, generator=generator) * 0.1
    return pi, mu, torch.rand(900, generator=generator) > 0.1, checkpoint


def error_of(function: Any) -> str:
    try:
        function()
    except ValueError as error:
        return str(error)
    return ""


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    group = dist.group.WORLD
    results: dict[str, Any] = {}
    for name, values in quantile_cases().items():
        results[f"quantile/{name}"] = [tail_quantile(parts_of(values)[rank], a, group) for a in (0.5, 0.9, 1.0)]

    moved: list[int] = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, *a, **k: (moved.append(tensor.nbytes), all_reduce(tensor, *a, **k))[1]
    for n in (10, 100_000):
        moved.clear()
        tail_quantile(torch.rand(n), 0.9, group)
        results[f"bytes/{n}"] = sum(moved)
    dist.all_reduce = all_reduce

    tokens = paper.random_tokens(seed=31, lengths=LENGTHS, spread=0.2)
    part, positions = context_parallel_part(tokens, rank)
    results["positions"] = positions
    for name in SPLIT_METHODS:
        batch = part.batch()
        weights = response_mean_weights(batch.mask, batch.lengths, len(LENGTHS), group)
        loss = policy_loss(named_method(name), batch, weights, group=group)
        loss.total.backward()
        results[f"split/{name}"] = (
            loss.total.detach(),
            loss.surrogate.values.detach(),
            batch.log_probs.grad,
            loss.metrics,
            method_log_ratio(named_method(name), batch, group),
        )

    results["metrics"] = step_metrics(rank).reduce(group)
    results["no metrics"] = MetricAccumulator().reduce(group)
    odd = MetricAccumulator()
    odd.add({"a": 1.0} if rank else {"b": 1.0}, 1)
    results["odd metrics"] = error_of(lambda: odd.reduce(group))
    with_nan = torch.tensor([1.0, math.nan]) if rank == 1 else torch.ones(2)
    results["nan"] = error_of(lambda: tail_quantile(with_nan, 0.9, group))

    pi, mu, mask, checkpoint = (parts_of(tensor)[rank] for tensor in mismatch_inputs())
    results["mismatch"] = mismatch_metrics(pi, mu, mask, checkpoint_log_probs=checkpoint, group=group)
    results["histogram"] = mismatch_histogram((pi - mu).abs()[mask], group)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gloo")
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        mp.spawn(worker, args=(str(folder),), nprocs=WORLD)
    finally:
        os.environ.pop("OMP_NUM_THREADS") if threads is None else os.environ.update(OMP_NUM_THREADS=threads)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]


@pytest.mark.parametrize("name", list(quantile_cases()))
def test_quantile_is_that_of_one_process_to_the_bit(ranks: list[dict[str, Any]], name: str) -> None:
    values = quantile_cases()[name]
    for results in ranks:
        for q, alpha in zip(results[f"quantile/{name}"], (0.5, 0.9, 1.0), strict=True):
            alone = tail_quantile(values, alpha)
            assert torch.equal(q, alone) and q.dtype == alone.dtype


def test_bytes_moved_do_not_grow_with_the_tokens(ranks: list[dict[str, Any]]) -> None:
    for results in ranks:
        assert 0 < results["bytes/10"] == results["bytes/100000"] < 64 * 1024


@pytest.mark.parametrize("name", SPLIT_METHODS)
def test_responses_split_over_context_parallel_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    tokens = paper.random_tokens(seed=31, lengths=LENGTHS, spread=0.2)
    batch: TokenBatch = tokens.batch()
    weights = response_mean_weights(batch.mask, batch.lengths, len(LENGTHS))
    whole = policy_loss(named_method(name), batch, weights)
    whole.total.backward()
    score = method_log_ratio(named_method(name), batch)

    assert sum(results[f"split/{name}"][0].item() for results in ranks) == pytest.approx(whole.total.item(), rel=1e-12)
    for results in ranks:
        _, values, gradient, metrics, part_score = results[f"split/{name}"]
        positions = results["positions"]
        torch.testing.assert_close(values, whole.surrogate.values[positions].detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradient, batch.log_probs.grad[positions], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(part_score, score[positions], rtol=1e-12, atol=1e-14)
        for key in ("sat/q", "sat/scope_too_small"):
            if key in metrics:
                torch.testing.assert_close(metrics[key], whole.metrics[key], rtol=1e-12, atol=0)
    if name == "sat-gspo":
        assert whole.metrics["sat/scope_too_small"] == 1.0
    if name == "sat-grpo":
        assert whole.metrics["sat/gate_rate"] > 0


def test_metrics_over_ranks(ranks: list[dict[str, Any]]) -> None:
    alone = step_metrics(None).reduce()
    for results in ranks:
        assert results["metrics"] == alone
        assert results["no metrics"] == {}
        assert "a, b not in all of them" in results["odd metrics"]


def test_nan_on_one_rank_is_an_error_on_all(ranks: list[dict[str, Any]]) -> None:
    for results in ranks:
        assert "1 of 6 log-ratios are NaN" in results["nan"]


def test_mismatch_over_ranks(ranks: list[dict[str, Any]]) -> None:
    pi, mu, mask, checkpoint = mismatch_inputs()
    alone = mismatch_metrics(pi, mu, mask, checkpoint_log_probs=checkpoint)
    for results in ranks:
        assert results["mismatch"] == pytest.approx(alone, rel=1e-12)
        assert results["mismatch"] == ranks[0]["mismatch"]
        for exact in ("q50", "q90", "q99", "max"):
            assert results["mismatch"][f"mismatch/{exact}"] == alone[f"mismatch/{exact}"]
        assert results["histogram"] == mismatch_histogram((pi - mu).abs()[mask])
