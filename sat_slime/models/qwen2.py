"""Qwen2 and Qwen2.5, dense: query, key and value have a bias and no norm; the embedding may be the output layer."""

from __future__ import annotations

from sat_slime.models.family import ModelFamily


class Qwen2(ModelFamily):
    """Qwen2 and Qwen2.5, 0.5B to 72B."""

    name = "qwen2"
    architecture = "Qwen2ForCausalLM"
    sglang_modules = ("qwen2",)
    qkv_bias = True


FAMILY = Qwen2()
