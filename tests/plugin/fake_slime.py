"""The real slime made importable on a CPU; samples and arguments as its rollout process hands them to the hooks, of its
Sample or of what stands in for it where slime is not installed."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import slime_step
import torch
from slime_marks import MISSING


def prepare() -> None:
    """Makes slime's loss importable where there is no GPU."""
    if importlib.util.find_spec("slime.observability") is None:
        import torch._inductor.select_algorithm  # noqa: F401  it asks Triton for classes, which goes now

        from sat_slime.cpu.slimes_parser import see_a_gpu

        see_a_gpu()  # in v0.3.1 the reduction of metrics is in the module of the model


def import_slime(*names: str) -> list[ModuleType]:
    """Imports modules of the real slime that need something which a CPU machine lacks. Stand-ins for that are removed
    afterwards."""
    import torch._inductor.select_algorithm
    import torch.utils.flop_counter  # noqa: F401  both ask Triton for classes

    from sat_slime.rollout.sglang_on_cpu.absent import Absent, stand_in_for

    absent = ["torch_memory_saver", "triton", "pylatexenc", "IPython", "wandb", "torchvision", "zstandard"]
    absent.append("megatron.training")  # which is not part of the megatron-core on PyPI
    before = list(sys.meta_path)
    stand_in_for(*(name for name in absent if importlib.util.find_spec(name) is None))
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.meta_path[:] = before
        for name in [name for name, module in sys.modules.items() if isinstance(module, Absent)]:
            del sys.modules[name]


@dataclass
class Sample:
    """The fields of slime's Sample that the plugin reads."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
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
    if MISSING["needs_slime"]:
        return Sample
    from slime.utils.types import Sample as theirs

    return theirs


def make_args(**other: Any) -> Namespace:
    settings = {
        "sat_slime": {"method": {"r3": True}},
        "custom_rollout_log_function_path": None,
        "use_rollout_routing_replay": True,
        "num_layers": 3,
        "moe_router_topk": 4,
        "num_experts": 32,
        "moe_layer_freq": 1,
        "use_rollout_logprobs": True,
        "n_samples_per_prompt": 4,
        "global_batch_size": 32,
    }
    return slime_step.make_args(**(settings | other))


def make_sample(sample_class, index: int = 0, response: int = 10, version: str = "3", **other: Any):
    """A response to prompt `index // 4`, which has 10 tokens, with good routes."""
    group = index // 4
    routes = torch.cat([make_routes(11, seed=group), make_routes(response, seed=1000 + index)])
    fields = {
        "index": index,
        "group_index": group,
        "rollout_id": index,
        "tokens": [group] * 10 + [50 + index] * response,
        "response_length": response,
        "reward": float(index % 2),
        "status": sample_class.Status.COMPLETED,
        "rollout_routed_experts": routes,
        "rollout_log_probs": [-0.5] * response,
        "weight_versions": [version],
    }
    return sample_class(**(fields | other))


ROUTED = Namespace(num_layers=3, moe_router_topk=4, num_experts=32)


def make_routes(n_tokens: int, args: Namespace = ROUTED, seed: int = 0) -> torch.Tensor:
    """(tokens - 1, layers, top-k) int32 routes without a fault."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n_tokens - 1, args.num_layers, args.num_experts, generator=generator)
    return scores.topk(args.moe_router_topk, -1).indices.int()
