"""Several gloo processes give the same as one. A single spawn runs every check; each test looks at its own results."""

from __future__ import annotations

import math
import multiprocessing
import os
from pathlib import Path
from typing import Any

import equations as paper
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from methods_under_test import METHODS

from sat_slime.objective import (
    Method,
    MetricAccumulator,
    mismatch_metrics,
    policy_surrogate,
    tail_quantile,
    threshold_scores,
)
from sat_slime.objective.quantile import longest_prefix_end

WORLD = 3
LENGTHS = [6, 1, 9, 4, 2, 8, 5, 7, 3, 6, 11, 2]
MEANS = (0.0, 1e-40, 0.011, 0.03, 0.3)
SPLIT = {f"{i}-{method.name}": method for i, method in enumerate(METHODS) if "form='suffix'" not in repr(method)}


def cases() -> dict[str, torch.Tensor]:
    normal = torch.randn(3000, generator=torch.Generator().manual_seed(0)).abs() * 0.05
    return {
        "float32": normal,
        "float64": normal.double() * 1.7,
        "bfloat16": normal.bfloat16(),
        "ties": (normal * 20).round() / 20,
        "float64 ties": ((normal * 20).round() / 20).double(),
        "zeros": torch.zeros(30),
        "subnormal": normal * 1e-38,
        "infinite": torch.cat([normal[:10], torch.full((20,), math.inf)]),
        "one": torch.tensor([0.25]),
        "none": torch.zeros(0),
    }


def held_by(rank: int) -> tuple[list[int], list[int]]:
    """Positions of the tokens that a context-parallel rank holds, a contiguous third of each response, and how many of
    each: none where a response is short."""
    positions, lengths, start = [], [], 0
    for length in LENGTHS:
        ends = [start + length * r // WORLD for r in range(WORLD + 1)]
        positions += range(ends[rank], ends[rank + 1])
        lengths.append(ends[rank + 1] - ends[rank])
        start += length
    return positions, lengths


def tokens_of() -> paper.Tokens:
    return paper.random_tokens(seed=7, lengths=LENGTHS, spread=0.3)


def split(method: Method, rank: int | None, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Values, gradient, clipped and metrics of a method on a rank's part of every response; None: on all of them."""
    tokens = tokens_of()
    positions, lengths = (list(range(sum(LENGTHS))), LENGTHS) if rank is None else held_by(rank)
    batch = tokens.part(positions, lengths).batch()
    result = policy_surrogate(method, batch, group=group)
    (gradient,) = torch.autograd.grad(result.values.sum(), batch.log_probs)
    metrics = {name: float(value) for name, value in result.metrics.items()}
    return {
        "positions": positions,
        "values": result.values.tolist(),
        "gradient": gradient.tolist(),
        "clipped": result.clipped.tolist(),
        "metrics": (metrics, result.n),
    }


def check(rank: int, group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Everything that a rank finds; with no group, what one process finds of the whole."""

    def mine(values: torch.Tensor) -> torch.Tensor:
        cut = len(values) // 3
        return values if group is None else (values[:cut], values[cut:], values[:0])[rank]

    found: dict[str, Any] = {}
    for name, values in cases().items():
        for alpha in (0.07, 0.5, 0.9, 1.0):
            found[f"quantile {name} {alpha}"] = float(tail_quantile(mine(values), alpha, group))
        if values.dtype.itemsize >= 4:
            for mean in MEANS:
                found[f"prefix {name} {mean}"] = float(longest_prefix_end(mine(values), mean, group))
    tokens = tokens_of()
    columns = (tokens.log_pi, tokens.log_mu, tokens.mask, tokens.log_proximal)
    pi, mu, mask, pi_l = (mine(torch.tensor(column)) for column in columns)
    found["mismatch"] = mismatch_metrics(pi, mu, mask, checkpoint_log_probs=pi_l, group=group)
    accumulator = MetricAccumulator()
    if rank < 2:
        for part in [rank] if group is not None else [0, 1]:
            accumulator.add({"sat/q": 0.1 + part, "lag/max": float(part), "loss/total": torch.tensor(1.0)}, 10 + part)
    found["reduced"] = accumulator.reduce(group)
    return found


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    group = dist.group.WORLD
    found = check(rank, group) | {"split": {name: split(method, rank, group) for name, method in SPLIT.items()}}
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.set_forkserver_preload(["sat_slime.objective"])
    mp.start_processes(run, args=(str(folder),), nprocs=WORLD, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def test_thresholds_are_those_of_one_process_to_the_bit_on_every_rank(ranks) -> None:
    alone = check(0, None)
    keys = [key for key in alone if key.startswith(("quantile", "prefix"))]
    assert len(keys) > 80
    for found in ranks:
        assert {key: found[key] for key in keys} == {key: alone[key] for key in keys}


def test_metrics_are_those_of_one_process_on_every_rank(ranks) -> None:
    alone = check(0, None)
    for found in ranks:
        assert found["mismatch"] == pytest.approx(alone["mismatch"], rel=1e-12)
        assert found["reduced"] == pytest.approx(alone["reduced"])


@pytest.mark.parametrize("name", SPLIT)
def test_responses_that_are_split_over_ranks_give_the_same(ranks, name: str) -> None:
    whole = split(SPLIT[name], None, None)
    names = whole["metrics"][0].keys()
    for found in ranks:
        mine = found["split"][name]
        for what in ("values", "gradient"):
            of_whole = [whole[what][t] for t in mine["positions"]]
            assert mine[what] == pytest.approx(of_whole, rel=1e-12, abs=1e-15), what
        assert mine["clipped"] == [whole["clipped"][t] for t in mine["positions"]]
        assert mine["metrics"][0].keys() == names
    accumulator = MetricAccumulator()
    for found in ranks:
        accumulator.add(*found["split"][name]["metrics"])
    assert accumulator.reduce() == pytest.approx(whole["metrics"][0], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", [name for name, method in SPLIT.items() if method.judge])
def test_a_threshold_of_the_step_is_over_the_scores_of_all_micro_batches(name: str) -> None:
    method, tokens = SPLIT[name], tokens_of()
    whole = method.judge.threshold_of(threshold_scores(method, tokens.batch()))
    cut = sum(LENGTHS[:5])
    halves = [tokens.part(list(range(cut)), LENGTHS[:5]), tokens.part(list(range(cut, sum(LENGTHS))), LENGTHS[5:])]
    scores = torch.cat([threshold_scores(method, half.batch()) for half in halves])
    assert torch.equal(method.judge.threshold_of(scores), whole)
    values = torch.cat([policy_surrogate(method, half.batch(), threshold=whole).values for half in halves])
    assert torch.equal(values, policy_surrogate(method, tokens.batch()).values)
