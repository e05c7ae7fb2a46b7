"""Makes one optimizer step as slime's trainer does, around a model that is a table: a token's logits are a row of it.

Everything between the logits and the reported metrics is slime's: its loss_function, its layouts of tensor- and
context-parallel ranks, its reduction of the metrics. The table's gradient and the metrics can be compared across
layouts.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

VOCAB = 16
PATH = "sat_slime.plugin.loss.policy_loss"


@dataclass(frozen=True)
class Layout:
    """The number of ranks of each parallelism, and how their tokens are laid out."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    allgather_cp: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.cp * self.dp


@dataclass
class Problem:
    """A global batch; every list has an entry for each response, which is about the whole response."""

    tokens: list[Tensor]
    response_lengths: list[int]
    loss_masks: list[Tensor]
    rollout_log_probs: list[Tensor]
    log_probs: list[Tensor] | None
    ref_log_probs: list[Tensor]
    advantages: list[Tensor]
    table: Tensor
    nuclei: list[Tensor] | None = None
    """For each response, (response tokens, VOCAB) bool: the tokens that a top-p below 1 left to sample from."""
    lags: list[Tensor] | None = None
    """For each response, (response tokens,) lags at the first step on the batch; unset: the trainer was not told."""
    steps_before: int = 0
    """Optimizer steps made on the batch before."""
    n_microbatches: int = 2
    """Number of micro-batches of each data-parallel rank."""

    @property
    def total_lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.tokens]


def make_problem(
    seed: int = 0,
    responses: tuple[tuple[int, int], ...] = ((3, 9), (5, 4), (2, 1), (4, 12), (1, 6), (3, 3), (6, 7), (2, 5)),
    spread: float = 0.3,
    partial_masks: bool = True,
    log_probs: bool = True,
) -> Problem:
    """A random global batch. responses: (prompt tokens, response tokens) of each."""
    g = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCAB, VOCAB, generator=g)
    tokens = [torch.randint(0, VOCAB, (p + r,), generator=g) for p, r in responses]

    def noise(r: int) -> Tensor:
        return torch.randn(r, generator=g) * spread

    true = [
        table.log_softmax(-1)[t[p - 1 : -1], t[p:]] if r else torch.zeros(0)
        for t, (p, r) in zip(tokens, responses, strict=True)
    ]
    masks = [(torch.rand(r, generator=g) > 0.2 if partial_masks else torch.ones(r)).int() for _, r in responses]
    return Problem(
        tokens,
        [r for _, r in responses],
        masks,
        [x + noise(len(x)) for x in true],
        [x + noise(len(x)) for x in true] if log_probs else None,
        [x + noise(len(x)) for x in true],
        [torch.randn((), generator=g).repeat(r) for _, r in responses],
        table,
        lags=[torch.randint(0, 5, (r,), generator=g) for _, r in responses],
    )


def make_args(sat_slime: Any = "grpo", **changes: Any) -> Namespace:
    """slime's arguments, as far as slime's loss and the plugin read them."""
    unset = ("eps_clip_c", "custom_tis_function_path", "custom_pg_loss_reducer_function_path", "save_debug_train_data")
    off = (
        *("use_rollout_logprobs", "keep_old_actor", "use_rollout_routing_replay", "use_kl_loss", "use_unbiased_kl"),
        *("use_opsm", "use_tis", "get_mismatch_metrics", "calculate_per_token_loss", "recompute_loss_function"),
        *("allgather_cp", "debug_rollout_only", "debug_train_only"),
    )
    values: dict[str, Any] = dict.fromkeys(unset) | dict.fromkeys(off, False)
    values |= {
        "loss_type": "custom_loss",
        "custom_loss_function_path": PATH,
        "sat_slime": sat_slime,
        "advantage_estimator": "grpo",
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "entropy_coef": 0.0,
        "kl_loss_coef": 1e-3,
        "kl_loss_type": "low_var_kl",
        "tis_clip": 2.0,
        "tis_clip_low": 0.0,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "log_probs_chunk_size": -1,
        "qkv_format": "thd",
        "rollout_batch_size": 8,
        "n_samples_per_prompt": 1,
        "global_batch_size": 8,
        **HOOKS,
    }
    return Namespace(**values | changes)


HOOKS = {"sat_slime_driven": True, "custom_rollout_log_function_path": "sat_slime.plugin.rollout_hooks.log_rollout"}
"""Our driver, and the hook that tells the loss of lags."""


@dataclass
class Step:
    """The results of a step on one rank."""

    metrics: dict[str, float]
    gradient: Tensor
    """(VOCAB, VOCAB) gradient of the table, over all ranks."""
    losses: list[Tensor] = field(default_factory=list)
    """slime's scaled loss of each micro-batch."""


def steps(layout: Layout, jobs: list[tuple[Namespace, Problem]]) -> list[Step]:
    """One step for each (arguments, problem), all in one call, since it takes longer to start ranks than to step."""
    return [step(layout, args, problem) for args, problem in jobs]


def step(layout: Layout, args: Namespace, problem: Problem) -> Step:
    """The step of this rank; process groups are in place. Where the method takes a threshold over the step, the batch
    is scored before by a pass without gradient under the weights in training, as by slime's trainer."""
    from megatron.core import mpu
    from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp
    from slime.backends.megatron_utils.loss import (
        get_log_probs_and_entropy,
        get_rollout_top_p_logprob_kwargs,
        loss_function,
    )

    from sat_slime.plugin.compat import slime_function
    from sat_slime.plugin.settings import plugin_method
    from sat_slime.plugin.step import current, join_step_metrics, step_threshold
    from sat_slime.plugin.versions import tell_lags

    args.allgather_cp = layout.allgather_cp
    columns = VOCAB // layout.tp
    rank = mpu.get_tensor_model_parallel_rank()
    table = problem.table[:, rank * columns : (rank + 1) * columns].clone().requires_grad_()
    data = _rollout_data(problem, mpu.get_data_parallel_rank(), layout.dp, slice_log_prob_with_cp)
    mine = range(mpu.get_data_parallel_rank(), len(problem.tokens), layout.dp)
    current().steps_on_batch = problem.steps_before
    if problem.lags:
        tell_lags(data["tokens"], [problem.lags[i] for i in mine])
    n = len(data["tokens"])
    per = -(-n // problem.n_microbatches)
    if args.sat_slime and plugin_method(args).scope == "step":
        data["log_probs"] = []
        for start in range(0, n, per):
            batch = {key: values[start : start + per] for key, values in data.items() if values}
            with torch.no_grad():
                _, scored = get_log_probs_and_entropy(
                    table[_layout(batch["tokens"], layout)][None],
                    args=args,
                    unconcat_tokens=batch["tokens"],
                    total_lengths=batch["total_lengths"],
                    response_lengths=batch["response_lengths"],
                    **get_rollout_top_p_logprob_kwargs(args, batch),
                )
            data["log_probs"] += scored["log_probs"]
        current().threshold = step_threshold(args, data)
    logs, losses = [], []
    for start in range(0, n, per):
        batch = {key: values[start : start + per] if values else None for key, values in data.items()}
        batch["unconcat_tokens"] = batch["tokens"]
        logits = table[_layout(batch["tokens"], layout)][None]
        loss, normalizer, log = loss_function(args, batch, -(-n // per), len(problem.tokens), logits)
        # Megatron's schedule: per token the sum is divided at the end, else by the number of micro-batches at once.
        (loss if args.calculate_per_token_loss else loss / normalizer / -(-n // per)).backward()
        logs.append(log)
        losses.append(loss.detach())
    join_step_metrics()
    metrics = slime_function("reduce_train_step_metrics")(
        logs,
        calculate_per_token_loss=args.calculate_per_token_loss,
        step_global_batch_size=len(problem.tokens),
        cp_size=layout.cp,
        dp_with_cp_group=mpu.get_data_parallel_group(with_context_parallel=True),
    )
    return Step(metrics, _whole_gradient(table.grad, args, problem, layout), losses)


def _rollout_data(problem: Problem, rank: int, dp: int, cut: Callable[..., Tensor]) -> dict[str, Any]:
    mine = range(rank, len(problem.tokens), dp)
    lengths, totals = problem.response_lengths, problem.total_lengths

    def local(values: list[Tensor] | None) -> list[Tensor] | None:
        return None if values is None else [cut(values[i], totals[i], lengths[i]) for i in mine]

    nuclei = [problem.nuclei[i] for i in mine] if problem.nuclei else []
    starts = [torch.cat([torch.zeros(1, dtype=torch.int), kept.sum(1).cumsum(0).int()]) for kept in nuclei]
    return {
        "tokens": [problem.tokens[i] for i in mine],
        "total_lengths": [totals[i] for i in mine],
        "response_lengths": [lengths[i] for i in mine],
        "loss_masks": [problem.loss_masks[i] for i in mine],
        "rollout_mask_sums": [problem.loss_masks[i].sum().float() for i in mine],
        "rollout_log_probs": local(problem.rollout_log_probs),
        "log_probs": local(problem.log_probs),
        "ref_log_probs": local(problem.ref_log_probs),
        "advantages": local(problem.advantages),
        # slime's form of the nuclei: all token ids in a row, and where those of each position begin
        "rollout_top_p_token_ids": [kept.nonzero()[:, 1].int() for kept in nuclei],
        "rollout_top_p_token_offsets": starts,
    }


def _layout(tokens: list[Tensor], layout: Layout) -> Tensor:
    """This rank's row of tokens, padded as slime's get_batch pads it."""
    from megatron.core import mpu
    from slime.backends.megatron_utils.cp_utils import slice_with_cp

    pad_to = 4 * (layout.cp if layout.allgather_cp else 1)
    row = torch.cat(tokens if layout.allgather_cp else [slice_with_cp(t, 0) for t in tokens])
    row = torch.nn.functional.pad(row, (0, -len(row) % pad_to))
    if layout.allgather_cp:
        row = row.chunk(layout.cp)[mpu.get_context_parallel_rank()]
    return row


def _whole_gradient(gradient: Tensor, args: Namespace, problem: Problem, layout: Layout) -> Tensor:
    """The gradient over all ranks, reduced as Megatron does: the mean over data- and context-parallel ranks, or with a
    loss per token the sum over tokens."""
    from megatron.core import mpu

    group = mpu.get_data_parallel_group(with_context_parallel=True)
    gradient = gradient.clone()
    dist.all_reduce(gradient, group=group)
    if args.calculate_per_token_loss:
        n_tokens = sum(max(int(mask.sum()), 1) for mask in problem.loss_masks)
        gradient /= n_tokens * layout.cp
    else:
        gradient /= dist.get_world_size(group)
    parts = [torch.empty_like(gradient) for _ in range(layout.tp)]
    dist.all_gather(parts, gradient, group=mpu.get_tensor_model_parallel_group())
    return torch.cat(parts, dim=1)


def facts_of_rank(layout: Layout) -> tuple[dict[str, float], dict[str, float]]:
    """The facts of a batch on this rank, of which data-parallel rank 1 trains nothing, and of another batch, of which
    rank 0 knows no versions."""
    from megatron.core import mpu
    from slime.utils import distributed_utils

    from sat_slime.plugin.step import TrainerState
    from sat_slime.plugin.versions import Origin

    distributed_utils.init_gloo_group()
    state, rank = TrainerState(steps=10), mpu.get_data_parallel_rank()
    mine = [[10, 2], [9]][rank]
    masks = {"loss_masks": [torch.full((4,), 1 - rank)] * len(mine)}
    state.begin(masks | {"response_lengths": [4] * len(mine), "round_number": [Origin(((4, v),)) for v in mine]})
    facts = dict(state.batch_metrics)
    state.begin({"response_lengths": [4]} | ({"round_number": [Origin(((4, 0),))]} if rank else {}))
    return facts, state.batch_metrics


def start_ranks(layout: Layout, rank: int, meeting_point: str) -> None:
    """Sets up Megatron's process groups on gloo, and has slime's compiled functions run in eager mode."""
    from megatron.core import mpu

    torch.compiler.set_stance("force_eager")
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=layout.world)
    if not mpu.model_parallel_is_initialized():
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp, context_parallel_size=layout.cp, create_gloo_process_groups=True
        )


def stop_ranks() -> None:
    from megatron.core import mpu

    mpu.destroy_model_parallel()
    dist.destroy_process_group()
    torch.compiler.set_stance("default")


def on_ranks(layout: Layout, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Starts the ranks, and returns what `work(layout, *arguments)` returns on each, in rank order."""
    with tempfile.TemporaryDirectory() as folder:
        if layout.world == 1:
            start_ranks(layout, 0, os.path.join(folder, "meet"))
            try:
                return [work(layout, *arguments)]
            finally:
                stop_ranks()
        # One server process imports Megatron, the ranks of all calls fork from it.
        multiprocessing.set_forkserver_preload(["megatron.core.parallel_state", "sat_slime.plugin.step"])
        mp.start_processes(_rank, (layout, folder, work, arguments), nprocs=layout.world, start_method="forkserver")
        return [torch.load(os.path.join(folder, f"{rank}.pt"), weights_only=False) for rank in range(layout.world)]


def _rank(rank: int, layout: Layout, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import fake_slime

    fake_slime.prepare()
    start_ranks(layout, rank, os.path.join(folder, "meet"))
    result = work(layout, *arguments)
    torch.save(result, os.path.join(folder, f"{rank}.pt"))
    stop_ranks()
