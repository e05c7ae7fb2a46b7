"""What a GPU of an engine holds: SGLang's weights, its KV cache, and what it leaves free."""

from __future__ import annotations

from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.plugin.launch.memory.elements import Cut, elements, moe_layers, stage_tensors

BF16, FP32 = 2, 4
"""Bytes of a number."""
GIB = 2**30
MIB = 2**20


def engine_weights_bytes(config: SlimeConfig) -> int:
    """Bytes of the weights on one GPU of an engine: tensor parallelism cuts the experts, too."""
    model, gpus = config.model, config.rollout.gpus_per_engine
    shared = stage_tensors(model, Cut(tensor=gpus, expert_tensor=gpus), 0, moe_layers(model))
    return _width(config) * elements(shared)


def kv_bytes_per_token(config: SlimeConfig) -> int:
    """Bytes of a token's keys and values on one GPU of an engine. A head is not cut: with more GPUs than heads each
    holds one (sglang/srt/configs/model_config.py, get_num_kv_heads). Latent attention keeps one vector, on every GPU.
    """
    model = config.model
    if model.architecture.get("multi-latent-attention"):
        sizes = (model.architecture.get(flag) for flag in ("kv-lora-rank", "qk-pos-emb-head-dim"))
        latent = sum(size if isinstance(size, int) else default for size, default in zip(sizes, (512, 64), strict=True))
        return _width(config) * model.layers * latent
    heads = max(1, model.kv_heads // config.rollout.gpus_per_engine)
    return _width(config) * 2 * model.layers * heads * model.head_dim


def engine_kv_tokens(config: SlimeConfig, gpu_bytes: float) -> int:
    """Tokens that an engine's KV cache holds on GPUs of `gpu_bytes`: what `rollout.memory_fraction` leaves beside the
    weights (sglang/srt/model_executor/model_runner_kv_cache_mixin.py, _profile_available_bytes). 0: the weights alone
    are too large."""
    room = config.rollout.memory_fraction * gpu_bytes - engine_weights_bytes(config)
    return max(0, int(room / max(kv_bytes_per_token(config), 1)))


def _width(config: SlimeConfig) -> int:
    return FP32 if config.cluster.device == "cpu" and config.cluster.cpu_dtype == "float32" else BF16
