"""Several gloo processes give the same as one. A single spawn runs every check; each test looks at its own results."""

from __future__ import annotations

import math
import os
from dataclasses import replace
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
    supply_proximal,
    tail_quantile,
    threshold_scores,
    token_mean_weights,
)
from sat_slime.objective.quantile import longest_prefix_end
from sat_slime.objective.ratio import log_ratio
from sat_slime.objective.stabilizers.runtime.vcpo import VCPO

WORLD = 3
LENGTHS = [6, 1, 9, 4, 2, 8, 5, 7, 3, 6, 11, 2]
SETTINGS: dict[str, dict[str, Any]] = {
    "mis-geo": {"low": 0.9, "high": 1.1},
    "opsm": {"delta": 0.02},
    "trm-max": {"delta": 0.05},
    "trm-mean": {"delta": 0.02},
    "veto": {"low": 0.7, "high": 1.4},
    "seq-tis": {"cap": 1.2},
    "seq-mask-tis": {"low": 0.9, "high": 1.1},
    "decoupled": {"cap": 1.2},
    "flash": {"delta": 0.03},
    "gmpo": {"eps_low": 0.1, "eps_high": 0.1},
    "m2po": {"threshold": 0.01},
    "m2po-lag": {"threshold": 0.004},
    "bapo": {"share": 0.593},
}
"""Bounds that some of the random responses keep and some do not."""
SPLIT_METHODS = [
    "sat-grpo",
    "sat-gspo",
    "gspo",
    "seqclip",
    "gspo-tis",
    "dppo",
    *(f"grpo-{name}" for name in ("mis-geo", "opsm", "trm-max", "trm-mean", "veto", "seq-tis", "seq-mask-tis")),
    "grpo-lag-power",
    "sat-gspo-lag-power",
    "m2po-lag",
    "grpo-decoupled-a3po",
    "gspo-decoupled-a3po",
    "sat-gspo-mis-geo",
    "flash",
    "vespo",
    "gmpo",
    "m2po",
    "topr",
    "score-centering",
    "tv",
]
STEP_METHODS = ["sat-grpo", "sat-gspo", "sat-grpo-lag-power", "m2po", "m2po-lag", "grpo-bapo", "tv"]
MEANS = (0.0, 1e-40, 0.011, 0.03, 0.3)
SHARES = ("mis_geo", "opsm", "trm_max", "trm_mean", "veto", "flash", "m2po")
"""Prefixes of those whose metric `masked` has to be between 0 and 1, or the test would see nothing."""


def method_of(name: str) -> Method:
    """The method of that name, with the settings above; `tv` is SAT's other score on the sequence ratio."""
    method = named_method("sat-gspo" if name == "tv" else name)
    settings = {**SETTINGS, "sat": {"score": "tv"}} if name == "tv" else SETTINGS
    stabilizers = tuple(replace(one, **settings.get(one.name, {})) for one in method.stabilizers)
    return replace(method, stabilizers=stabilizers)


def method_log_ratio(method: Method, batch: TokenBatch, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    return log_ratio(method.ratio, method.denominator, supply_proximal(method, batch.promoted()), group).detach()


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


def prefix_cases() -> dict[str, torch.Tensor]:
    cases = {name: values for name, values in quantile_cases().items() if values.dtype.itemsize >= 4}
    return cases | {"float64 ties": cases["ties"].double()}


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
    return tokens.part(positions, lengths), positions


def data_parallel_part(tokens: paper.Tokens, rank: int) -> tuple[paper.Tokens, list[int]]:
    """The responses that a rank holds, and the positions of their tokens: the last rank has none."""
    first, last = ((0, 5), (5, len(LENGTHS)), (0, 0))[rank]
    held = list(range(sum(LENGTHS[:first]), sum(LENGTHS[:last])))
    return tokens.part(held, LENGTHS[first:last]), held


def response_weights() -> torch.Tensor:
    """log of the product of ratios of each response: huge and tiny ones, as of long responses."""
    generator = torch.Generator().manual_seed(9)
    return torch.randn(40, generator=generator, dtype=torch.float64) * 0.4 - 800.0


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
    for name, values in prefix_cases().items():
        results[f"prefix/{name}"] = [longest_prefix_end(parts_of(values)[rank], mean, group) for mean in MEANS]

    moved: list[int] = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, *a, **k: (moved.append(tensor.nbytes), all_reduce(tensor, *a, **k))[1]
    for n in (10, 100_000):
        moved.clear()
        tail_quantile(torch.rand(n), 0.9, group)
        results[f"bytes/{n}"] = sum(moved)
        moved.clear()
        longest_prefix_end(torch.rand(n), 0.3, group)
        results[f"prefix bytes/{n}"] = sum(moved)
    dist.all_reduce = all_reduce

    tokens = paper.random_tokens(seed=31, lengths=LENGTHS, spread=0.2)
    part, positions = context_parallel_part(tokens, rank)
    results["positions"] = positions
    for name in SPLIT_METHODS:
        batch = part.batch()
        weights = response_mean_weights(batch.mask, batch.lengths, len(LENGTHS), group)
        loss = policy_loss(method_of(name), batch, weights, group=group)
        loss.total.backward()
        step = MetricAccumulator()
        step.add(loss.metrics, batch.n_active)
        results[f"split/{name}"] = (
            loss.total.detach(),
            loss.surrogate.values.detach(),
            batch.log_probs.grad,
            loss.metrics,
            method_log_ratio(method_of(name), batch, group),
            None if batch.policy_head is None else batch.policy_head.grad,
            step.reduce(group),
        )

    part, positions = data_parallel_part(tokens, rank)
    results["data-parallel positions"] = positions
    for name in STEP_METHODS:
        method, batch = method_of(name), part.batch()
        threshold = method.judge.threshold_of(threshold_scores(method, batch), group)
        weights = token_mean_weights(batch.mask, len(tokens.active))
        loss = policy_loss(method, batch, weights, quantile=threshold)
        loss.total.backward()
        results[f"step/{name}"] = threshold, loss.surrogate.values.detach(), batch.log_probs.grad
    results["scale"] = VCPO().scale(parts_of(response_weights())[rank], group)

    results["metrics"] = step_metrics(rank).reduce(group)
    results["no metrics"] = MetricAccumulator().reduce(group)
    odd = MetricAccumulator()
    odd.add({"a": 1.0} if rank else {"b": 1.0}, 1)
    results["odd metrics"] = error_of(lambda: odd.reduce(group))
    with_nan = torch.tensor([1.0, math.nan]) if rank == 1 else torch.ones(2)
    results["nan"] = error_of(lambda: tail_quantile(with_nan, 0.9, group))
    results["prefix nan"] = error_of(lambda: longest_prefix_end(with_nan, 0.9, group))

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


@pytest.mark.parametrize("name", list(prefix_cases()))
def test_prefix_end_is_that_of_one_process(ranks: list[dict[str, Any]], name: str) -> None:
    values = prefix_cases()[name]
    for results in ranks:
        for end, mean in zip(results[f"prefix/{name}"], MEANS, strict=True):
            alone = longest_prefix_end(values, mean)
            assert torch.equal(end, alone) and end.dtype == alone.dtype


def test_bytes_moved_do_not_grow_with_the_tokens(ranks: list[dict[str, Any]]) -> None:
    for results in ranks:
        assert 0 < results["bytes/10"] == results["bytes/100000"] < 64 * 1024
        assert 0 < results["prefix bytes/10"] == results["prefix bytes/100000"] < 128 * 1024


@pytest.mark.parametrize("name", SPLIT_METHODS)
def test_responses_split_over_context_parallel_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    tokens = paper.random_tokens(seed=31, lengths=LENGTHS, spread=0.2)
    batch: TokenBatch = tokens.batch()
    weights = response_mean_weights(batch.mask, batch.lengths, len(LENGTHS))
    whole = policy_loss(method_of(name), batch, weights)
    whole.total.backward()
    score = method_log_ratio(method_of(name), batch)
    step = MetricAccumulator()
    step.add(whole.metrics, batch.n_active)

    assert sum(results[f"split/{name}"][0].item() for results in ranks) == pytest.approx(whole.total.item(), rel=1e-12)
    for results in ranks:
        _, values, gradient, metrics, part_score, head_gradient, step_metrics = results[f"split/{name}"]
        positions = results["positions"]
        torch.testing.assert_close(values, whole.surrogate.values[positions].detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradient, batch.log_probs.grad[positions], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(part_score, score[positions], rtol=1e-12, atol=1e-14)
        for key in ("sat/q", "sat/scope_too_small"):
            if key in metrics:
                torch.testing.assert_close(metrics[key], whole.metrics[key], rtol=1e-12, atol=0)
        if head_gradient is not None:
            torch.testing.assert_close(head_gradient, batch.policy_head.grad[positions], rtol=1e-12, atol=1e-14)
        assert drop_losses(step_metrics) == pytest.approx(drop_losses(step.reduce()), rel=1e-6)  # shares are float32
    for prefix in SHARES:
        if f"{prefix}/masked" in whole.metrics:
            assert 0 < whole.metrics[f"{prefix}/masked"] < 1
    if name == "sat-gspo":
        assert whole.metrics["sat/scope_too_small"] == 1.0
    if name == "sat-grpo":
        assert whole.metrics["sat/gate_rate"] > 0


def drop_losses(metrics: dict[str, float]) -> dict[str, float]:
    """Without loss/*, which are shares of a sum over the ranks and not means over tokens."""
    return {name: value for name, value in metrics.items() if not name.startswith("loss/")}


@pytest.mark.parametrize("name", STEP_METHODS)
def test_threshold_of_a_step_over_data_parallel_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    tokens = paper.random_tokens(seed=31, lengths=LENGTHS, spread=0.2)
    method, batch = method_of(name), tokens.batch()
    threshold = method.judge.threshold_of(threshold_scores(method, batch))
    whole = policy_loss(method, batch, token_mean_weights(batch.mask, len(tokens.active)))
    whole.total.backward()
    assert threshold > 0
    for results in ranks:
        part_threshold, values, gradient = results[f"step/{name}"]
        positions = results["data-parallel positions"]
        assert torch.equal(part_threshold, threshold)
        torch.testing.assert_close(values, whole.surrogate.values[positions].detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradient, batch.log_probs.grad[positions], rtol=1e-12, atol=1e-14)


def test_learning_rate_scale_over_ranks(ranks: list[dict[str, Any]]) -> None:
    alone = VCPO().scale(response_weights())
    assert 0 < alone["vcpo/scale"] < 1
    for results in ranks:
        assert results["scale"] == pytest.approx(alone, rel=1e-12) and results["scale"] == ranks[0]["scale"]


def test_metrics_over_ranks(ranks: list[dict[str, Any]]) -> None:
    alone = step_metrics(None).reduce()
    for results in ranks:
        assert results["metrics"] == alone
        assert results["no metrics"] == {}
        assert "a, b not in all of them" in results["odd metrics"]


def test_nan_on_one_rank_is_an_error_on_all(ranks: list[dict[str, Any]]) -> None:
    for results in ranks:
        assert "1 of 6 log-ratios are NaN" in results["nan"]
        assert "1 of 6 values are NaN" in results["prefix nan"]


def test_mismatch_over_ranks(ranks: list[dict[str, Any]]) -> None:
    pi, mu, mask, checkpoint = mismatch_inputs()
    alone = mismatch_metrics(pi, mu, mask, checkpoint_log_probs=checkpoint)
    for results in ranks:
        assert results["mismatch"] == pytest.approx(alone, rel=1e-12)
        assert results["mismatch"] == ranks[0]["mismatch"]
        for exact in ("q50", "q90", "q99", "max"):
            assert results["mismatch"][f"mismatch/{exact}"] == alone[f"mismatch/{exact}"]
        assert results["histogram"] == mismatch_histogram((pi - mu).abs()[mask])
