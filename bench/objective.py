"""Measures what the objective costs: kernels and waits of a micro-batch; on one CPU core SAT against PPO's clip, each
kind of stabilizer against SAT-GRPO, and the tail quantile against a sort.

    python bench/objective.py [--tokens 32768] [--repeats 300]

Each repeat times every candidate once, in turn, so that whatever else the machine does slows all of them alike; figures
are medians, ratios are medians of the per-repeat ratios. One process is timed in CPU seconds of its thread, ranks by
the wall clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sat_slime.objective import TokenBatch, contraction_factors, named_method, policy_surrogate, tail_quantile
from sat_slime.objective.terms import bounded_exp


class Kernels(TorchDispatchMode):
    """Counts the operations that a GPU would run a kernel for, views left out, and the waits for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.waits = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        aliases = [result.alias_info for result in function._schema.returns]
        waits = "_local_scalar_dense" in str(function)
        self.waits += waits
        self.kernels += not waits and not any(alias is not None and not alias.is_write for alias in aliases)
        return function(*args, **(kwargs or {}))


def show_kernels(n: int) -> None:
    """Kernels of policy_surrogate with all its metrics, and of its backward pass."""
    print(f"\nKernels of a micro-batch with all metrics{'forward':>30}{'backward':>10}{'numbers waited for':>20}")
    for name in ("grpo", "gspo", "sat-grpo", "sat-gspo"):
        for masked in (False, True):
            for threshold in (None, torch.tensor(0.05)) if "sat" in name else (None,):
                batch, forward, backward = random_batch(n, masked), Kernels(), Kernels()
                with forward:
                    values = policy_surrogate(named_method(name), replace(batch), threshold=threshold).values
                ones = torch.ones_like(values)
                with backward:
                    values.backward(ones)
                scope = "" if "sat" not in name else ", q of the step" if threshold is not None else ", own q"
                title = f"{name}{scope}, {'an eighth inactive' if masked else 'all active'}"
                print(f"  {title:<58}{forward.kernels:>11}{backward.kernels:>10}{forward.waits + backward.waits:>20}")


def alternate(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every candidate in every repeat."""
    for function in candidates.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, function in candidates.items():
            start = time.thread_time()
            function()
            seconds[name].append(time.thread_time() - start)
    return seconds


def show(title: str, seconds: dict[str, list[float]], baseline: str, unit: str = "us") -> None:
    scale = {"us": 1e6, "ms": 1e3}[unit]
    print(f"\n{title}")
    print(f"  {'':<58}{'median ' + unit:>12}{'ratio':>8}")
    for name, times in seconds.items():
        ratio = statistics.median(t / b for t, b in zip(times, seconds[baseline], strict=True))
        print(f"  {name:<58}{statistics.median(times) * scale:>12.1f}{ratio:>8.2f}")


KINDS = {
    "gate on a response, by a mean": "grpo-mis-geo",
    "gate on a response, by its worst token": "grpo-veto",
    "threshold of a batch, no clip": "m2po",
    "weight of a token": "grpo-decoupled",
    "weight of a response": "grpo-seq-tis",
    "proximal policy made up": "grpo-decoupled-a3po",
    "clip inside a mean": "gmpo",
    "clip of log pi": "cpgd",
    "score form of a token": "cispo",
    "score form of a response": "vespo",
    "penalty": "ipo",
    "smooth in place of the clip": "sapo",
    "SAT with two gates": "sat-gspo-mis-geo-veto",
}
"""A method of each kind."""


def random_batch(n: int, masked: bool) -> TokenBatch:
    """64 responses with all that a method may read."""
    generator = torch.Generator().manual_seed(0)
    log_probs = (-torch.rand(n, generator=generator)).requires_grad_()
    rollout = log_probs.detach() - torch.randn(n, generator=generator) * 0.05
    advantages = torch.randn(n, generator=generator)
    mask = torch.ones(n, dtype=torch.bool)
    if masked:  # the last eighth of each response, like tool output
        mask.view(64, -1)[:, -(n // 512) :] = False
    return TokenBatch(
        log_probs,
        rollout,
        advantages,
        mask,
        [n // 64] * 64,
        proximal_log_probs=(log_probs.detach() + rollout) / 2,
        lags=torch.full((n,), 4.0),
    )


def whole(name: str, batch: TokenBatch) -> Callable[[], None]:
    """A method, from the TokenBatch and its checks to the gradient in log pi."""
    method = named_method(name)

    def run() -> None:
        made_anew = replace(batch)
        step(made_anew, policy_surrogate(method, made_anew).values)

    return run


def step(batch: TokenBatch, values: Tensor) -> None:
    batch.log_probs.grad = None
    values.sum().backward()


def kind_candidates(n: int) -> dict[str, Callable[[], object]]:
    """A method of each kind, the first to compare with."""
    batch = random_batch(n, masked=False)
    methods = {"sat-grpo": "sat-grpo", "grpo": "grpo"} | {f"{name}: {kind}": name for kind, name in KINDS.items()}
    return {title: whole(name, batch) for title, name in methods.items()}


def surrogate_candidates(n: int, masked: bool) -> dict[str, Callable[[], object]]:
    """Surrogates to time, each forward and backward to d loss / d log pi, where the loss is a plain sum over tokens."""
    batch = random_batch(n, masked)
    log_probs, rollout, advantages = batch.log_probs, batch.rollout_log_probs, batch.advantages

    def ppo_autograd() -> None:
        """PPO's elementwise part as slime writes it, without mask and metrics."""
        log_ratio = log_probs - rollout
        ratio = log_ratio.exp()
        values = -torch.maximum(-ratio * advantages, -ratio.clamp(1 - 0.2, 1 + 0.2) * advantages)
        step(batch, values)

    def clip(d: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
        r = bounded_exp(d)
        return torch.minimum(r * advantages, r.clamp(1 - low, 1 + high) * advantages)

    def ppo_ours() -> None:
        """Our clip alone, without mask and metrics."""
        step(batch, clip(log_probs - rollout, 0.2, 0.2))

    def sat_ours() -> None:
        """SAT alone (quantile, factors, radii, clip), without mask and metrics."""
        d = log_probs - rollout
        c_low, c_high = contraction_factors(d.detach(), tail_quantile(d.detach().abs(), 0.9))
        step(batch, clip(d, 0.2 * c_low, 0.2 * c_high))

    return {
        "PPO clip under autograd (elementwise part alone)": ppo_autograd,
        "our PPO clip (elementwise part alone)": ppo_ours,
        "our SAT: quantile, factors, clip (no metrics)": sat_ours,
        "policy_surrogate(grpo): checks, mask, metrics": whole("grpo", batch),
        "policy_surrogate(sat-grpo): checks, mask, metrics": whole("sat-grpo", batch),
        "policy_surrogate(gspo): checks, mask, metrics": whole("gspo", batch),
        "policy_surrogate(sat-gspo): checks, mask, metrics": whole("sat-gspo", batch),
    }


def quantile_candidates(n: int) -> dict[str, Callable[[], object]]:
    values = torch.randn(n, generator=torch.Generator().manual_seed(0)).abs()
    k = -(-9 * n // 10)
    return {
        "torch.sort, then index": lambda: values.sort().values[k - 1],
        "torch.topk of the tail": lambda: values.topk(n - k + 1, sorted=False).values.min(),
        "torch.kthvalue": lambda: values.kthvalue(k).values,
        "tail_quantile: torch.kthvalue and its checks": lambda: tail_quantile(values, 0.9),
    }


def _rank(rank: int, world: int, sizes: list[int], repeats: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    moved = [0]
    all_reduce = dist.all_reduce

    def counted(tensor: Tensor, *args: object, **kwargs: object) -> object:
        moved[0] += tensor.nbytes
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = counted
    for n in sizes:
        values = torch.randn(n // world, generator=torch.Generator().manual_seed(rank)).abs()
        tail_quantile(values, 0.9, dist.group.WORLD)
        moved[0] = 0
        start = time.perf_counter()
        for _ in range(repeats):
            tail_quantile(values, 0.9, dist.group.WORLD)
        seconds = (time.perf_counter() - start) / repeats
        if rank == 0:
            print(f"  {n:>9} tokens on {world} ranks {seconds * 1e3:>34.2f} ms {moved[0] // repeats:>10} bytes a rank")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of the micro-batch, a multiple of 512")
    parser.add_argument("--repeats", type=int, default=300, help="repeats of each measurement")
    parser.add_argument("--large", type=int, default=4_000_000, help="tokens of the large quantile; 0: leave it out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, float32, {arguments.repeats} alternating repeats")

    show_kernels(arguments.tokens)
    for masked in (False, True):
        seconds = alternate(surrogate_candidates(arguments.tokens, masked), arguments.repeats)
        state = "an eighth inactive" if masked else "all active"
        baseline = next(iter(seconds))
        show(f"Forward + backward, {arguments.tokens} tokens in 64 responses, {state}", seconds, baseline)
    seconds = alternate(kind_candidates(arguments.tokens), arguments.repeats)
    show(f"policy_surrogate of each kind, {arguments.tokens} tokens in 64 responses, all active", seconds, "sat-grpo")
    sizes = [arguments.tokens] + ([arguments.large] if arguments.large else [])
    for n in sizes:
        repeats = arguments.repeats if n <= 100_000 else 5
        show(f"The 0.9 quantile of {n} tokens", alternate(quantile_candidates(n), repeats), "torch.sort, then index")
    print("\nThe 0.9 quantile across gloo ranks (each gathers all values; the ranks share the machine)")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, args=(2, sizes, 20, folder), nprocs=2)


if __name__ == "__main__":
    main()
