"""Counts what a rank of Megatron's real model, its gradients and its optimizer hold, and lets all three be built
without storage: their tensors have shapes and types, but no numbers."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}
"""Norms that Transformer Engine has as part of the product after them, by the names that they have apart."""


def plain_name(name: str) -> str:
    """Return a parameter's name as `elements.Tensors` has it: without Transformer Engine and without numbers."""
    for fused, apart in FUSED_NORMS.items():
        name = name.replace(fused, apart)
    name = re.sub(r"^(module\.)+", "", name)
    name = re.sub(r"experts\.(linear_fc\d)\.(weight|bias)\d+$", r"experts.local_experts.*.\1.\2", name)
    return re.sub(r"\.\d+\.", ".*.", name)


def rank_parameters(model: Iterable[Any]) -> Counter[tuple[str, tuple[int, ...], str]]:
    """Return how many parameters of a rank have a plain name, shape and type (`bfloat16`). model: Megatron's parts of
    it, wrapped in its DistributedDataParallel or not."""
    return Counter(
        (plain_name(name), tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."))
        for part in model
        for name, parameter in part.named_parameters()
    )


def rank_elements(model: Sequence[Any], optimizer: Any) -> dict[str, int]:
    """Return the elements that a rank holds, as `elements.expected_elements` counts them.

    Args:
        model: the parts of the model, each in Megatron's DistributedDataParallel.
        optimizer: Megatron's, with distributed optimizers in it whose state is there.

    Returns:
        `weights`, `buffers`, and `master`, `exp_avg` and `exp_avg_sq`, each of which is expected as `optimizer`.
        Parameters in fp32 need no `master`. `gradients_on_host`, as many, where the optimizer is offloaded.
    """
    buffers = [buffer for part in model for buffer in (*part.buffers, *part.expert_parallel_buffers)]
    counts = {
        "weights": sum(parameter.numel() for part in model for parameter in part.parameters()),
        "buffers": sum(buffer.numel for buffer in buffers),
        "master": 0,
        "exp_avg": 0,
        "exp_avg_sq": 0,
    }
    for distributed in getattr(optimizer, "chained_optimizers", [optimizer]):
        masters = [
            *(copy for group in distributed.shard_fp32_from_float16_groups for copy in group if copy is not None),
            *getattr(distributed.optimizer, "param_to_fp32_param", {}).values(),  # offloaded
        ]
        counts["master"] += sum(copy.numel() for copy in masters)
        if on_host := getattr(distributed.optimizer, "cpu_copy_map_grad", None):
            copies = sum(gradient.numel() for gradient in on_host.values())
            counts["gradients_on_host"] = counts.get("gradients_on_host", 0) + copies
        for state in distributed.optimizer.state.values():
            for moment in ("exp_avg", "exp_avg_sq"):
                counts[moment] += state[moment].numel() if moment in state else 0
    return counts


def make_state(optimizer: Any) -> None:
    """Makes the moments, and of an offloaded optimizer the gradients on the host, as the first step would."""
    for distributed in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = distributed.optimizer
        if distributed.init_state_fn is not None:
            distributed.init_state_fn(inner, distributed.config)
            continue
        # Megatron's HybridDeviceOptimizer over torch's AdamW, whose step itself would need numbers
        for group in inner.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.new_empty(parameter.shape)
        inner._set_sub_optimizer_grads()
        with _fakes():
            for adam in inner.sub_optimizers:
                for group in adam.param_groups:
                    adam._init_group(group, *([] for _ in range(6)))
        inner._sync_sub_optimizers_state_to_hdo()


@contextlib.contextmanager
def without_storage() -> Iterator[None]:
    """Inside, the GPU is torch's meta device, whose tensors have no storage, and Megatron takes it for one; what an
    offloaded optimizer has on the host are torch's fake tensors. For a process of its own: it changes torch."""
    import torch
    from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
    from torch.utils._device import DeviceContext

    from sat_slime.plugin.cpu.cuda import Stream, is_gpu

    class MetaInPlaceOfCuda(DeviceContext):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if is_gpu(kwargs.get("device")):
                kwargs["device"] = meta
            return super().__torch_function__(func, types, args, kwargs)

    meta, stream = torch.device("meta"), Stream()
    real_type = torch.Tensor.type

    def type_on_gpu(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        answer = real_type(tensor, *args, **kwargs)
        return answer.replace("torch.meta.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    replaced: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "type", type_on_gpu),
        (torch.Tensor, "is_cuda", property(lambda tensor: tensor.device == meta)),
        (torch.Tensor, "pin_memory", lambda tensor, *_: tensor),
        (torch.Tensor, "cuda", lambda tensor, *_, **__: tensor.to(meta)),
        (torch.nn.Module, "cuda", lambda module, *_, **__: module.to(meta)),
        (torch.cuda, "current_device", lambda: meta),
        (torch.cuda, "current_stream", lambda *_: stream),
        (torch.cuda, "stream", lambda *_: contextlib.nullcontext()),
        (torch.cuda, "Stream", Stream),
        (torch.cuda, "Event", Stream),
        *(
            (HybridDeviceOptimizer, name, _fakes()(vars(HybridDeviceOptimizer)[name]))
            for name in ("_init_sub_optimizers", "_set_sub_optimizer_grads")
        ),
    ]
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        with MetaInPlaceOfCuda(meta):
            yield
    finally:
        for owner, name, value in before:
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextlib.contextmanager
def _fakes() -> Iterator[None]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        yield
