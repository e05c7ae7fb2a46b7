"""What a training GPU has to hold, as far as the settings tell: a lower bound, and what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping

from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.plugin.launch.machine import BF16, FP32, GIB


def training_memory(config: SlimeConfig) -> Mapping[str, float]:
    """Bytes on one training GPU by part, at `train.max_tokens_per_gpu` tokens.

    Weights are bf16. Gradients are fp32 with `train.fp32_gradients`. The optimizer, master weights and two moments in
    fp32, is divided among the data-parallel ranks (slime sets Megatron's distributed optimizer), or in host memory with
    `train.optimizer_offload`. Activations are the layers' inputs, which full recomputation keeps, cut by sequence
    parallelism. Logits are those of all tokens: bf16, and fp32 for the loss and for its gradient.

    Left out: the layer that is being recomputed, buffers of NCCL and of kernels, and the allocator's gaps.
    """
    model, train = config.model, config.train
    experts = 3 * model.layers * model.hidden_size * model.expert_ffn_size * model.experts
    dense_ranks = train.tensor_parallel * train.pipeline_parallel
    expert_ranks = train.expert_tensor_parallel * train.expert_parallel * train.pipeline_parallel
    dense = (model.parameters - experts) / dense_ranks
    own_experts = experts / expert_ranks
    # context-parallel ranks hold the same weights, and share the optimizer too
    shares = train.world_size / dense_ranks, train.world_size / expert_ranks
    optimizer = 3 * FP32 * (dense / shares[0] + own_experts / shares[1])
    tokens = train.max_tokens_per_gpu
    layers = model.layers / train.pipeline_parallel
    return {
        "weights": BF16 * (dense + own_experts),
        "gradients": (FP32 if train.fp32_gradients else BF16) * (dense + own_experts),
        "optimizer": 0.0 if train.optimizer_offload else optimizer,
        "activations": BF16 * layers * tokens * model.hidden_size / train.tensor_parallel,
        "logits": (BF16 + 2 * FP32) * tokens * model.vocab_size / train.tensor_parallel,
    }


def training_memory_text(config: SlimeConfig) -> str:
    """`at least 41 GiB: weights 4, gradients 8, ...`."""
    parts = training_memory(config)
    told = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size)
    at = f"on a training GPU at {config.train.max_tokens_per_gpu:,} tokens"
    return f"at least {sum(parts.values()) / GIB:.0f} GiB {at}: {told}"
