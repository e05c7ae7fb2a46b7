"""Qwen3, dense: query and key are normalized by head; the embedding may be the output layer, as in its small models."""

from __future__ import annotations

from typing import Any

from sat_slime.models.family import (
    ModelFamily,
    ModelSizes,
    TinySizes,
    Weight,
    attention_weights,
    feed_forward_weights,
    norm_weights,
    qk_norm_weights,
)


class Qwen3(ModelFamily):
    """Qwen3-0.6B to Qwen3-32B."""

    name = "qwen3"
    architecture = "Qwen3ForCausalLM"
    sglang_modules = ("qwen3",)
    qk_norm = True

    def layer_weights(self, sizes: ModelSizes, moe: bool) -> list[Weight]:
        return [
            *norm_weights(sizes),
            *attention_weights(sizes),
            *qk_norm_weights(sizes),
            *feed_forward_weights(sizes),
        ]

    def hf_config(self, sizes: TinySizes, vocab_size: int, eos_token_id: int, dtype: str) -> dict[str, Any]:
        return {**super().hf_config(sizes, vocab_size, eos_token_id, dtype), "attention_bias": False}


FAMILY = Qwen3()
