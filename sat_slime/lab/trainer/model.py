"""megatron-core's GPTModel with the layers of a model family, on packed sequences.

Packing: the tokens of all responses of a micro-batch stand in one row (1, N). Megatron gets each token's position as
`position_ids`, so its rotary embedding is one multiplication; its own path for packed sequences loops over them in
Python, which for hundreds of short responses costs more than the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from megatron.core.models.gpt import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from sat_slime.config.schema import ModelConfig, TrainConfig
from sat_slime.lab.trainer.parallel import device
from sat_slime.models.layers import Grid, block


@dataclass
class PackedLayout(PackedSeqParams):
    """The places of the sequences in a packed row: sequence i holds the tokens [cu_seqlens[i], cu_seqlens[i + 1])."""

    grid: Grid | None = None
    """The slots of the tokens in the grid that attention is computed in."""
    position_ids: Tensor | None = None
    """(3, 1, N) position of each token in its sequence, thrice, as Megatron's multi-axis rotary embedding takes it."""

    @classmethod
    def of(cls, lengths: list[int]) -> PackedLayout:
        """Return the layout of sequences of the given lengths in tokens, each > 0."""
        edges = torch.tensor([0, *lengths]).cumsum(0).to(device(), torch.int32)
        grid = Grid.of(edges)
        return cls(
            qkv_format="packed",  # neither Megatron's "thd" nor "sbhd": PackedAttention handles it
            cu_seqlens_q=edges,
            cu_seqlens_kv=edges,
            max_seqlen_q=grid.longest,
            max_seqlen_kv=grid.longest,
            grid=grid,
            position_ids=(grid.own % grid.longest).expand(3, 1, -1),
        )


def build_model(
    model: ModelConfig, train: TrainConfig, vocab_size: int, *, routing_replay: bool = False, balance_coef: float = 0.0
) -> GPTModel:
    """The model, with Megatron's random weights.

    Args:
        routing_replay: register the MoE routers with Megatron's RouterReplay (a list global to the process, so only
            one model of a process may ask for it).
        balance_coef: coefficient of the load-balancing loss; for the warm-up, RL has none.
    """
    dtype, family = getattr(torch, train.dtype), model.resolved_family
    config = TransformerConfig(
        **family.megatron_options(model),
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.attention_heads,
        num_query_groups=model.kv_heads,
        kv_channels=model.head_dim,
        ffn_hidden_size=model.ffn_size,
        moe_router_load_balancing_type="aux_loss" if balance_coef else "none",
        moe_aux_loss_coeff=balance_coef,
        moe_token_dispatcher_type="allgather",
        moe_enable_routing_replay=routing_replay and model.is_moe,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
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
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=not torch.cuda.is_available(),
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=block(family.layer(model.experts or None, slime_names=False), config),
        vocab_size=vocab_size,
        max_sequence_length=model.max_positions,
        parallel_output=True,
        share_embeddings_and_output_weights=model.tied_embeddings,
        position_embedding_type="mrope",
        rotary_base=model.rope_base,
    ).to(device())


def forward_logits(model: torch.nn.Module, token_ids: Tensor, layout: PackedLayout) -> Tensor:
    """Return the (N, vocabulary) logits of a packed row of (N,) tokens."""
    return model(token_ids[None], layout.position_ids, None, packed_seq_params=layout)[0]
