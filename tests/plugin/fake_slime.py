"""The real slime where it can be imported, else a stand-in, without parallelism, for the few functions of it around a
loss and for its sample: what holds the plugin on machines that have no slime.

test_loss.py and test_rollout_hooks.py hold the stand-in against the real slime where that is installed.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from slime_marks import MISSING
from torch import Tensor


def is_real() -> bool:
    """Whether the real slime can be imported with all that it needs; otherwise the stand-in serves."""
    return not MISSING["needs_slime"]


def install_where_missing() -> None:
    """Puts the stand-in into sys.modules, or makes the real slime importable on this machine where it is installed."""
    if is_real() and importlib.util.find_spec("slime.observability") is None:
        from sat_slime.cpu import without_gpu

        without_gpu.prepare()  # in v0.3.1 the reduction of metrics is in the module of the model
    if is_real() or "slime.backends.megatron_utils.loss" in sys.modules:
        return
    for name, contents in MODULES.items():
        module = ModuleType(name)
        module.__dict__.update({function.__name__: function for function in contents}, is_fake=True, __path__=[])
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def remove() -> None:
    """Takes the stand-in out of sys.modules again, with the modules that were imported on top of it."""
    from sat_slime.plugin import compat

    if not is_real():
        for name in [*MODULES, "sat_slime.plugin.batch", "sat_slime.plugin.loss"]:
            sys.modules.pop(name, None)
        compat.locate.cache_clear()


def import_slime(*names: str) -> list[ModuleType]:
    """Imports modules of the real slime that need something which a CPU machine lacks. Stand-ins for that are removed
    afterwards."""
    import torch._inductor.select_algorithm
    import torch.utils.flop_counter  # noqa: F401  both ask Triton for classes

    from sat_slime.rollout.sglang_on_cpu.absent import Absent, stand_in_for

    absent = ("torch_memory_saver", "triton", "pylatexenc", "IPython", "wandb", "torchvision", "zstandard")
    before = list(sys.meta_path)
    stand_in_for(*(name for name in absent if importlib.util.find_spec(name) is None))
    sys.meta_path.append(_MegatronTraining())
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.meta_path[:] = before
        for name in [name for name, module in sys.modules.items() if isinstance(module, Absent)]:
            del sys.modules[name]


class _MegatronTraining:
    """Stands for megatron.training, which is not part of the megatron-core on PyPI."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True) if name.startswith("megatron.training") else None

    def create_module(self, spec: Any) -> Any:
        from sat_slime.rollout.sglang_on_cpu.absent import Absent

        return Absent(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


@dataclass
class Sample:
    """The fields of slime's Sample that the plugin reads."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    index: int | None = None
    group_index: int | None = None
    rollout_id: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_routed_experts: Any = None
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "status": self.status.value}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Sample:
        return cls(**{**fields, "status": cls.Status(fields["status"])})


def slimes_sample() -> type:
    """slime's class of a sample, or what stands in for it."""
    if not is_real():
        return Sample
    from slime.utils.types import Sample as theirs

    return theirs


# slime.utils


def load_function(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def compute_approx_kl(log_probs, log_probs_base, kl_loss_type, importance_ratio=None):
    assert kl_loss_type == "low_var_kl"
    x = log_probs_base - log_probs
    kl = x.exp() - 1 - x
    return (kl if importance_ratio is None else importance_ratio * kl).clamp(-10, 10)


def compute_gspo_kl(full_log_probs, full_old_log_probs, local_log_probs, loss_masks):
    means = [
        ((old - new) * mask).sum() / mask.sum().clamp(min=1)
        for new, old, mask in zip(full_log_probs, full_old_log_probs, loss_masks, strict=True)
    ]
    return torch.cat([mean.expand_as(local) for mean, local in zip(means, local_log_probs, strict=True)])


# slime.backends.megatron_utils


def slice_with_cp(tokens, pad_value):
    return tokens


def slice_log_prob_with_cp(log_prob, total_length, response_length):
    return log_prob


def all_gather_with_cp(tensor, total_length, response_length):
    return tensor


def get_sum_of_sample_mean(
    total_lengths, response_lengths, loss_masks, sample_denoms=None, calculate_per_token_loss=False
):
    denominators = sample_denoms if sample_denoms is not None else [mask.sum() for mask in loss_masks]

    def reduce(x: Tensor) -> Tensor:
        parts = zip(x.split(response_lengths), loss_masks, denominators, strict=True)
        scale = (lambda n: 1) if calculate_per_token_loss else (lambda n: n.clamp(min=1))
        return torch.stack([(part * mask).sum() / scale(n) for part, mask, n in parts]).sum()

    return reduce


def get_rollout_top_p_logprob_kwargs(args, batch):
    if args.rollout_top_p == 1.0:
        return {}
    return {key: batch[f"rollout_{key}"] for key in ("top_p_token_ids", "top_p_token_offsets")}


def get_log_probs_and_entropy(
    logits,
    *,
    args,
    unconcat_tokens,
    total_lengths,
    response_lengths,
    with_entropy=False,
    non_loss_data=True,
    top_p_token_ids=None,
    top_p_token_offsets=None,
):
    rows = logits[0] / args.rollout_temperature
    log_probs, entropy, end = [], [], 0
    for i, (tokens, total, response) in enumerate(zip(unconcat_tokens, total_lengths, response_lengths, strict=True)):
        end += total
        scores = rows[end - response - 1 : end - 1]
        mine = sampled = scores.log_softmax(-1)
        if top_p_token_ids:
            kept = torch.zeros_like(mine, dtype=torch.bool)
            counts = top_p_token_offsets[i].diff()
            kept[torch.repeat_interleave(torch.arange(response), counts), top_p_token_ids[i].long()] = True
            sampled = torch.where(kept, scores, -torch.inf).log_softmax(-1)
        log_probs.append(sampled.gather(1, tokens[total - response :, None])[:, 0])
        entropy.append(-(mine.exp() * mine).sum(-1))
    return torch.empty(0), {"log_probs": log_probs, "entropy": entropy}


def loss_function(args, batch, num_microbatches, step_global_batch_size, logits):
    from megatron.core import mpu

    reduce = get_sum_of_sample_mean(
        batch["total_lengths"],
        batch["response_lengths"],
        batch["loss_masks"],
        batch["rollout_mask_sums"],
        args.calculate_per_token_loss,
    )
    function = load_function(args.custom_loss_function_path)
    if args.recompute_loss_function:
        loss, log = torch.utils.checkpoint.checkpoint(function, args, batch, logits, reduce, use_reentrant=False)
    else:
        loss, log = function(args, batch, logits, reduce)
    n_tokens = sum(mask.sum().clamp(min=1) for mask in batch["loss_masks"])
    if not args.calculate_per_token_loss:
        ranks = mpu.get_data_parallel_world_size(with_context_parallel=True)
        loss = loss * num_microbatches / step_global_batch_size * ranks
    values = torch.tensor([n_tokens if args.calculate_per_token_loss else 0, *log.values()])
    return (
        loss,
        n_tokens if args.calculate_per_token_loss else torch.tensor(1),
        {"keys": list(log), "values": values},
    )


def reduce_train_step_metrics(
    losses_reduced, *, calculate_per_token_loss, step_global_batch_size, cp_size, dp_with_cp_group
):
    values = torch.stack([item["values"] for item in losses_reduced]).sum(0)
    dist.all_reduce(values, group=dp_with_cp_group)
    count = values[0] if calculate_per_token_loss else step_global_batch_size
    return {key: float(value / count) for key, value in zip(losses_reduced[0]["keys"], values[1:], strict=True)}


def get_data_iterator(rollout_data):
    return [rollout_data]


MODULES = {
    "slime": [],
    "slime.utils": [],
    "slime.utils.misc": [load_function],
    "slime.utils.ppo_utils": [compute_approx_kl, compute_gspo_kl],
    "slime.observability": [],
    "slime.observability.train_metric_utils": [reduce_train_step_metrics],
    "slime.backends": [],
    "slime.backends.megatron_utils": [],
    "slime.backends.megatron_utils.cp_utils": [
        all_gather_with_cp,
        get_sum_of_sample_mean,
        slice_log_prob_with_cp,
        slice_with_cp,
    ],
    "slime.backends.megatron_utils.data": [get_data_iterator],
    "slime.backends.megatron_utils.loss": [
        get_log_probs_and_entropy,
        get_rollout_top_p_logprob_kwargs,
        loss_function,
    ],
}
