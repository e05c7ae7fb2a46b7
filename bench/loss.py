"""Measures what the plugin's loss costs in slime's step, against slime's own policy loss, on equal tensors in one run.

    PYTHONPATH=SLIME python bench/loss.py [--tokens 32768] [--vocabulary 151936] [--shards 4] [--rounds 5]

A candidate goes forward from the logits of one tensor-parallel rank, (tokens, vocabulary / shards) fp32, to the loss,
and back to their gradient, log-probs and entropy included. Candidates alternate; ratios are medians of the rounds'
ratios. Peak memory is what the candidate adds to the logits. Without a GPU and at full size this takes 40 GB: scale
--tokens down.

On a GPU the elementwise part (the surrogate of 32,768 tokens) is also timed alone, with the bytes that it must move,
and what reads a whole iteration of the paper's size, 134 million tokens: the mismatch and SAT's quantile.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from argparse import Namespace
from collections.abc import Callable

import torch
import torch.distributed as dist

CANDIDATES = {
    "slime's policy loss, GRPO": (None, "grpo"),
    "ours, GRPO": ("grpo", "grpo"),
    "ours, SAT-GRPO": ("sat-grpo", "grpo"),
    "slime's policy loss, GSPO": (None, "gspo"),
    "ours, GSPO": ("gspo", "gspo"),
    "ours, SAT-GSPO": ("sat-gspo", "gspo"),
}
OF_A_MICROBATCH = {"sat-gspo": {"method": {"base": "gspo", "sat": {"scope": "microbatch"}}}}
"""Methods whose threshold is over the step, which nobody takes here, with one of their micro-batch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=None, help="32,768 on a GPU, 4,096 without one")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--shards", type=int, default=4, help="tensor-parallel ranks that share the vocabulary")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--response", type=int, default=512, help="tokens of a response")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    tokens = options.tokens or (32_768 if gpu else 4_096)

    from megatron.core import mpu

    from sat_slime.plugin.step import current

    dist.init_process_group("nccl" if gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    mpu.initialize_model_parallel(create_gloo_process_groups=True)
    if not gpu:
        torch.compiler.set_stance("force_eager")

    batch = make_batch(tokens, options.response, options.vocabulary // options.shards, device)
    logits = torch.randn(1, tokens, options.vocabulary // options.shards, device=device)
    times: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    peaks, ends = dict.fromkeys(CANDIDATES, 0.0), []
    for round_ in range(options.rounds + 1):
        for name, (method, estimator) in CANDIDATES.items():
            seconds, peak = timed(lambda: loss_and_gradient(method, estimator, batch, logits), gpu)  # noqa: B023
            metrics, _ = timed(lambda: current().end_step(None), gpu)
            if round_:  # the first round warms up
                times[name].append(seconds)
                ends.append(metrics)
                peaks[name] = max(peaks[name], peak)

    width = options.vocabulary // options.shards
    print(f"{device}, {tokens:,} tokens, vocabulary {width:,} ({options.vocabulary:,} / {options.shards}), "
          f"{options.rounds} rounds, logits {logits.numel() * 4 / 2**30:.2f} GiB")  # fmt: skip
    print(f"{'':30}{'median s':>10}{'ratio':>8}{'peak GiB':>10}")
    for name, (_, estimator) in CANDIDATES.items():
        base = times[f"slime's policy loss, {estimator.upper()}"]
        ratio = statistics.median(mine / theirs for mine, theirs in zip(times[name], base, strict=True))
        print(f"{name:30}{statistics.median(times[name]):10.4f}{ratio:8.3f}{peaks[name]:10.2f}")
    print(f"the metrics of a step of these tokens, on the host: {max(ends):.4f} s at most")
    if gpu:
        elementwise(tokens, device)
        iteration(2**27, device)


def make_batch(tokens: int, response: int, width: int, device: torch.device) -> dict:
    """A batch of responses of equal length that fill the row; the prompt of each is the one token before it."""
    generator = torch.Generator().manual_seed(0)
    lengths = [response - 1] * (tokens // response)
    masks = [torch.ones(n, dtype=torch.int, device=device) for n in lengths]

    def noise() -> list[torch.Tensor]:
        return [torch.randn(n, generator=generator).to(device) * 0.02 for n in lengths]

    ids = [torch.randint(0, width, (response,), generator=generator).to(device) for _ in lengths]
    return {
        "unconcat_tokens": ids,
        "tokens": ids,
        "total_lengths": [response] * len(lengths),
        "response_lengths": lengths,
        "loss_masks": masks,
        "rollout_mask_sums": torch.stack([mask.sum() for mask in masks]).float(),
        "noise": noise(),
        "advantages": [x.sign() for x in noise()],
    }


def loss_and_gradient(method: str | None, estimator: str, batch: dict, logits: torch.Tensor) -> None:
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy, loss_function

    args = arguments(method, estimator)
    if "rollout_log_probs" not in batch:
        with torch.no_grad():
            _, scored = get_log_probs_and_entropy(
                logits,
                args=args,
                unconcat_tokens=batch["tokens"],
                total_lengths=batch["total_lengths"],
                response_lengths=batch["response_lengths"],
            )
        batch["rollout_log_probs"] = [x + noise for x, noise in zip(scored["log_probs"], batch["noise"], strict=True)]
    leaf = logits.detach().requires_grad_()
    loss, _, _ = loss_function(args, dict(batch), 1, len(batch["tokens"]), leaf)
    loss.backward()


def arguments(method: str | None, estimator: str) -> Namespace:
    """slime's arguments for slime's loss (method None) or ours; both clip against the rollout's log-probs, as the paper
    does."""
    return Namespace(
        loss_type="custom_loss" if method else "policy_loss",
        custom_loss_function_path="sat_slime.plugin.loss.policy_loss",
        sat_slime=OF_A_MICROBATCH.get(method, method),
        use_rollout_logprobs=True,
        keep_old_actor=False,
        use_rollout_routing_replay=False,
        advantage_estimator=estimator,
        eps_clip=0.2,
        eps_clip_high=0.2,
        eps_clip_c=None,
        entropy_coef=0.0,
        use_kl_loss=False,
        use_unbiased_kl=False,
        use_opsm=False,
        use_tis=False,
        get_mismatch_metrics=False,
        custom_tis_function_path=None,
        custom_pg_loss_reducer_function_path=None,
        calculate_per_token_loss=False,
        recompute_loss_function=False,
        allgather_cp=False,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        log_probs_chunk_size=-1,
        rollout_batch_size=1,
        n_samples_per_prompt=1,
        global_batch_size=1,
    )


def timed(work: Callable[[], None], gpu: bool) -> tuple[float, float]:
    """Runs the work, and returns its seconds and the GiB that it took at most."""
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = reset_peak()
    started = time.perf_counter()
    work()
    if gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    after = torch.cuda.max_memory_allocated() if gpu else peak_bytes()
    return seconds, (after - before) / 2**30


def reset_peak() -> int:
    """Resets this process's high-water mark of memory, where the kernel allows it. Returns its resident bytes."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")
    except OSError:
        pass
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def peak_bytes() -> int:
    with open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def elementwise(tokens: int, device: torch.device) -> None:
    """Times the surrogate alone, forward and backward, and prints it beside the least time for its reads and writes."""
    from sat_slime.objective import TokenBatch, named_method, policy_surrogate

    log_probs = (torch.randn(tokens, device=device) - 2).requires_grad_()
    batch = TokenBatch(
        log_probs,
        log_probs.detach() + 0.02 * torch.randn(tokens, device=device),
        torch.randn(tokens, device=device),
        torch.ones(tokens, dtype=torch.bool, device=device),
        [512] * (tokens // 512),
    )
    copied = torch.empty(2**28, device=device)
    seconds = min(timed(lambda: copied.copy_(copied.flip(0)), True)[0] for _ in range(3))
    bandwidth = 4 * copied.numel() * 4 / seconds
    must_move = tokens * (3 * 4 + 4 + 1)  # log-probs, mu, advantages; gradient; mask
    print(f"\nelementwise part, {tokens:,} tokens: {must_move / 2**20:.2f} MiB must move, "
          f"{must_move / bandwidth * 1e6:.1f} us at {bandwidth / 1e12:.2f} TB/s measured")  # fmt: skip
    for name in ("grpo", "sat-grpo", "gspo", "sat-gspo"):
        method = named_method(name)
        runs = [timed(lambda: policy_surrogate(method, batch).values.sum().backward(), True)[0] for _ in range(30)]  # noqa: B023
        print(f"{name:10} {statistics.median(runs) * 1e6:8.0f} us")


def iteration(tokens: int, device: torch.device) -> None:
    """Times what reads the tokens of an iteration at once."""
    from sat_slime.objective import mismatch_metrics, tail_quantile

    mu = torch.randn(tokens, device=device) - 2
    pi = mu + 0.02 * torch.randn(tokens, device=device)
    mask = torch.ones(tokens, dtype=torch.bool, device=device)
    print(f"\n{tokens:,} tokens")
    for name, work in {
        "mismatch metrics": lambda: mismatch_metrics(pi, mu, mask),
        "SAT's quantile": lambda: tail_quantile((pi - mu).abs(), 0.9),
    }.items():
        runs = [timed(work, True) for _ in range(4)][1:]
        seconds = statistics.median(seconds for seconds, _ in runs)
        print(f"{name:20} {seconds:8.3f} s, {max(peak for _, peak in runs):.2f} GiB beside them")


if __name__ == "__main__":
    main()
