"""Qwen3-MoE: as Qwen3, but experts in place of the dense feed-forward layer, some of which a softmax router chooses."""

from __future__ import annotations

from typing import Any

from sat_slime.models.family import ModelFamily, ModelSizes


class Qwen3Moe(ModelFamily):
    """Qwen3-30B-A3B and Qwen3-235B-A22B."""

    name = "qwen3_moe"
    architecture = "Qwen3MoeForCausalLM"
    sglang_modules = ("qwen3_moe", "qwen2_moe")
    has_experts = True
    qk_norm = True
    may_tie_embeddings = False

    def hf_config(self, sizes: ModelSizes, vocab_size: int, eos_token_id: int, dtype: str) -> dict[str, Any]:
        return {
            **super().hf_config(sizes, vocab_size, eos_token_id, dtype),
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": sizes.expert_ffn_size,
            "norm_topk_prob": not _weighs_all_experts(sizes),
            "num_experts": sizes.experts,
            "num_experts_per_tok": sizes.experts_per_token,
        }

    def megatron_options(self, sizes: ModelSizes) -> dict[str, Any]:
        return {
            **super().megatron_options(sizes),
            "num_moe_experts": sizes.experts,
            "moe_ffn_hidden_size": sizes.expert_ffn_size,
            "moe_router_topk": sizes.experts_per_token,
            "moe_router_score_function": "softmax",
            "moe_router_pre_softmax": _weighs_all_experts(sizes),
        }


def _weighs_all_experts(sizes: ModelSizes) -> bool:
    """Return whether the softmax that weighs an expert is over all of them, not over the chosen ones: a single one
    would have weight 1 of itself, and the router no gradient, which Megatron refuses."""
    return sizes.experts_per_token == 1


FAMILY = Qwen3Moe()
