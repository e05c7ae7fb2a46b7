"""megatron-core's GPTModel in the layout of Qwen3 and Qwen3-MoE, on packed sequences.

Packing: the tokens of all responses of a micro-batch stand in one row (1, N). Megatron gets each token's position as
`position_ids`, so its rotary embedding is one multiplication; its own path for packed sequences loops over them in
Python, which for hundreds of short responses costs more than the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor

from sat_slime.config.schema import ModelConfig, TrainConfig
from sat_slime.embedded.trainer.parallel import device, expert_tensor_parallel


@dataclass
class PackedLayout(PackedSeqParams):
    """Where the sequences of a packed row stand: sequence i holds the tokens [cu_seqlens[i], cu_seqlens[i + 1])."""

    slots: Tensor | None = None
    """(N,) place of each token in a (sequences x longest) grid, row by row."""
    position_ids: Tensor | None = None
    """(3, 1, N) position of each token in its sequence, thrice, as Megatron's multi-axis rotary embedding takes it."""

    @classmethod
    def of(cls, lengths: list[int]) -> PackedLayout:
        """The layout of sequences of the given lengths in tokens, each > 0."""
        longest, count = max(lengths), len(lengths)
        sizes = torch.tensor(lengths)
        starts = sizes.cumsum(0) - sizes
        sequence = torch.repeat_interleave(torch.arange(count), sizes)
        position = torch.arange(int(sizes.sum())) - starts[sequence]
        edges = torch.cat([starts, sizes.sum()[None]]).to(device(), torch.int32)
        return cls(
            qkv_format="packed",  # neither Megatron's "thd" nor "sbhd": PackedAttention handles it
            cu_seqlens_q=edges,
            cu_seqlens_kv=edges,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
            slots=(sequence * longest + position).to(device()),
            position_ids=position.to(device()).expand(3, 1, -1),
        )


class PackedAttention(torch.nn.Module):
    """Causal attention within each sequence of a packed row, by PyTorch's scaled_dot_product_attention.

    The row is laid into a grid padded on the right, where the causal mask alone keeps padding out of every sum.
    """

    def __init__(self, config, layer_number, attn_mask_type, attention_type, softmax_scale=None, **_):
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query, key, value, attention_mask=None, *, packed_seq_params: PackedLayout, **_) -> Tensor:
        """(N, 1, heads, head_dim) each, kv with its own number of heads -> (N, 1, heads * head_dim)."""
        slots, longest = packed_seq_params.slots, packed_seq_params.max_seqlen_q
        assert slots is not None, "PackedLayout.of fills every field"
        count = packed_seq_params.cu_seqlens_q.numel() - 1

        def to_grid(row: Tensor) -> Tensor:
            grid = row.new_zeros(count * longest, *row.shape[2:]).index_copy(0, slots, row[:, 0])
            return grid.view(count, longest, *row.shape[2:]).transpose(1, 2)

        out = F.scaled_dot_product_attention(
            to_grid(query), to_grid(key), to_grid(value), is_causal=True, scale=self.scale, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(count * longest, -1)[slots][:, None]


class RMSNorm(torch.nn.RMSNorm):
    """PyTorch's RMSNorm with the mark by which Megatron sums its gradient over sequence-parallel ranks."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_):
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=device())
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010


def build_model(
    model: ModelConfig, train: TrainConfig, vocab_size: int, *, routing_replay: bool = False, balance_coef: float = 0.0
) -> GPTModel:
    """This rank's part of the model, with Megatron's random weights.

    Args:
        routing_replay: register the MoE routers with Megatron's RouterReplay (a list global to the process, so only
            one model of a process may ask for it).
        balance_coef: coefficient of the load-balancing loss; for the warm-up, RL has none.
    """
    dtype = getattr(torch, train.dtype)
    config = TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.attention_heads,
        num_query_groups=model.kv_heads,
        kv_channels=model.head_dim,
        ffn_hidden_size=model.ffn_size,
        num_moe_experts=model.experts or None,
        moe_ffn_hidden_size=model.ffn_size if model.is_moe else None,
        moe_router_topk=model.experts_per_token,
        moe_router_load_balancing_type="aux_loss" if balance_coef else "none",
        moe_aux_loss_coeff=balance_coef,
        moe_router_score_function="softmax",
        moe_router_pre_softmax=model.weighs_all_experts,
        moe_token_dispatcher_type="allgather",
        moe_enable_routing_replay=routing_replay and model.is_moe,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        qk_layernorm=True,
        init_method_std=model.hidden_size**-0.5,  # narrow models learn slowly from Megatron's 0.02
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        mrope_section=[model.head_dim // 2, 0, 0],
        tensor_model_parallel_size=train.tensor_parallel,
        sequence_parallel=train.tensor_parallel > 1,
        expert_model_parallel_size=train.expert_parallel,
        expert_tensor_parallel_size=expert_tensor_parallel(train),
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=not torch.cuda.is_available(),
    )
    layer = get_gpt_layer_local_spec(num_experts=model.experts or None, qk_layernorm=True, normalization="RMSNorm")
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    attention.q_layernorm = attention.k_layernorm = RMSNorm
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    return GPTModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules([layer] * model.layers, layer_norm=RMSNorm),
        vocab_size=vocab_size,
        max_sequence_length=model.max_positions,
        parallel_output=True,
        share_embeddings_and_output_weights=False,
        position_embedding_type="mrope",
        rotary_base=model.rope_base,
    ).to(device())


def forward_logits(model: torch.nn.Module, token_ids: Tensor, layout: PackedLayout) -> Tensor:
    """Logits of a packed row.

    Args:
        token_ids: (N,) tokens; N is divisible by the tensor-parallel size.

    Returns:
        (N, vocabulary / tensor-parallel size), this rank's part of the vocabulary.
    """
    return model(token_ids[None], layout.position_ids, None, packed_seq_params=layout)[0]
