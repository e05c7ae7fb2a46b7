"""Qwen2 and Qwen2.5, dense: query, key and value have a bias and no norm; the embedding may be the output layer."""

from __future__ import annotations

from sat_slime.models.family import (
    ModelFamily,
    ModelSizes,
    Weight,
    attention_weights,
    feed_forward_weights,
    norm_weights,
    qkv_biases,
)


class Qwen2(ModelFamily):
    """Qwen2 and Qwen2.5, 0.5B to 72B."""

    name = "qwen2"
    architecture = "Qwen2ForCausalLM"
    sglang_modules = ("qwen2",)
    qkv_bias = True

    def layer_weights(self, sizes: ModelSizes, moe: bool) -> list[Weight]:
        return [
            *norm_weights(sizes),
            *attention_weights(sizes),
            *qkv_biases(sizes),
            *feed_forward_weights(sizes),
        ]


FAMILY = Qwen2()
