"""Qwen3, dense: query and key are normalized by head; the embedding may be the output layer, as in its small models."""

from __future__ import annotations

from typing import Any

from sat_slime.models.family import ModelFamily, ModelSizes


class Qwen3(ModelFamily):
    """Qwen3-0.6B to Qwen3-32B."""

    name = "qwen3"
    architecture = "Qwen3ForCausalLM"
    sglang_modules = ("qwen3",)
    qk_norm = True

    def hf_config(self, sizes: ModelSizes, vocab_size: int, eos_token_id: int, dtype: str) -> dict[str, Any]:
        return {**super().hf_config(sizes, vocab_size, eos_token_id, dtype), "attention_bias": False}


FAMILY = Qwen3()
