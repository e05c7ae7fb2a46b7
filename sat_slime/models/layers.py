"""Megatron's layers without Transformer Engine: norms, attention and the experts' matrix products are torch's.

GPTModel, TransformerLayer, SelfAttention, MLP, MoELayer, TopKRouter, its dispatcher and TEGroupedMLP, which holds the
experts of a run on slime, are Megatron's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor


def decoder_layer(experts: int | None, qk_norm: bool, slime_names: bool) -> ModuleSpec:
    """Return Megatron's decoder layer with the modules of this file.

    Args:
        experts: experts of the layer; None: its feed-forward layer is dense.
        qk_norm: whether query and key are normalized by head.
        slime_names: give parameters the names that they have with Transformer Engine, which slime's mapping of weights
            knows, else those of `ModelFamily.weights`: norms are then part of the product after them, and the experts
            of a rank one module.
    """
    layer = get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=qk_norm, normalization="RMSNorm")
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    if qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    if not slime_names:
        return layer
    attention.linear_qkv = NormedColumnParallelLinear
    layer.submodules.input_layernorm = IdentityOp
    if experts:
        layer.submodules.mlp.submodules.experts = ModuleSpec(
            module=TEGroupedMLP, submodules=MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedRowLinear)
        )
    else:
        layer.submodules.mlp.submodules.linear_fc1 = NormedColumnParallelLinear
        layer.submodules.pre_mlp_layernorm = IdentityOp
    return layer


def block(layer: ModuleSpec, config: Any, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """Return the layers of a pipeline stage, and the norm after the last one. config: Megatron's TransformerConfig."""
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=RMSNorm)


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm, with the mark by which Megatron sums its gradient over sequence-parallel ranks."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010


class NormedColumnParallelLinear(ColumnParallelLinear):
    """Stands for TELayerNormColumnParallelLinear: a norm before the product, with `layer_norm_weight`."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
        setattr(self.layer_norm_weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010

    def forward(self, input_: Tensor, *args: Any, **kwargs: Any) -> Any:
        normed = F.rms_norm(input_, input_.shape[-1:], self.layer_norm_weight, self.config.layernorm_epsilon)
        return super().forward(normed, *args, **kwargs)


class GroupedLinear(torch.nn.Module):
    """Stands for TEGroupedLinear, with `weight0`, `weight1`, ... of this rank's experts."""

    cut = 0
    """The dimension that expert tensor parallelism cuts."""

    def __init__(
        self,
        count: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Any,
        pg_collection: Any,
        **_: Any,
    ) -> None:
        super().__init__()
        shape = [output_size, input_size]
        shape[self.cut] //= pg_collection.expt_tp.size()
        self.count, self.groups = count, pg_collection
        for index in range(count):
            weight = torch.nn.Parameter(torch.empty(*shape, dtype=config.params_dtype))
            init_method(weight.data)
            set_tensor_model_parallel_attributes(weight, True, self.cut, 1)
            setattr(weight, "allreduce", pg_collection.ep.size() == 1)  # noqa: B010
            self.register_parameter(f"weight{index}", weight)

    def forward(self, tokens: Tensor, tokens_per_expert: list[int]) -> tuple[Tensor, None]:
        parts = tokens.split(tokens_per_expert)
        return torch.cat([F.linear(part, getattr(self, f"weight{i}")) for i, part in enumerate(parts)]), None

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: tuple = (), metadata: Any = None) -> dict[str, Any]:
        """Return the state for checkpoints, in TEGroupedLinear's form: the experts of all ranks side by side."""
        ep, sharded = self.groups.ep, {}
        for index in range(self.count):
            expert = (len(sharded_offsets), ep.rank() * self.count + index, ep.size() * self.count)
            part = make_sharded_tensors_for_checkpoint(
                {"weight": getattr(self, f"weight{index}")},
                prefix,
                {"weight": self.cut},
                (*sharded_offsets, expert),
                tp_group=self.groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )[f"{prefix}weight"]
            part.replica_id = (*part.replica_id[:2], self.groups.expt_dp.rank())
            sharded[f"{prefix}weight{index}"] = part
        return sharded


class GroupedRowLinear(GroupedLinear):
    """Stands for TERowParallelGroupedLinear."""

    cut = 1


@dataclass(frozen=True)
class Grid:
    """The slots of packed sequences' rows in a grid of (sequences x longest), row by row of the grid."""

    slots: Tensor
    """(rows of all context-parallel ranks,) slot of each row, rank after rank."""
    own: Tensor
    """(rows of this rank,) slot of each of its rows."""
    sequences: int
    longest: int
    """Tokens of the longest sequence."""

    @classmethod
    def of(cls, edges: Tensor, ranks: int = 1, rank: int = 0) -> Grid:
        """Return the grid of packed sequences.

        Args:
            edges: (sequences + 1,) cumulative lengths of whole sequences.
            ranks: ranks of context parallelism, which cuts each sequence into 2 x ranks pieces; rank r holds the pieces
                r and 2 x ranks - 1 - r of each sequence, one sequence after another.
        """
        edges = edges.to(torch.long)
        lengths = edges[1:] - edges[:-1]
        count, longest = len(lengths), int(lengths.max())
        own = lengths // ranks  # the number of rows that each rank has of each sequence
        sequence = torch.repeat_interleave(torch.arange(count, device=edges.device), own)
        row = torch.arange(int(own.sum()), device=edges.device) - (own.cumsum(0) - own)[sequence]
        piece = own[sequence] // 2
        slots = []
        for r in range(ranks):
            position = torch.where(row < piece, r * piece + row, (2 * ranks - 1 - r) * piece + row - piece)
            slots.append(sequence * longest + position)
        return cls(torch.cat(slots), slots[rank], count, longest)


class PackedAttention(torch.nn.Module):
    """Causal attention within each sequence of a packed row, all sequences in one call of torch's SDPA.

    The row is laid into a grid that is padded on the right, where the causal mask already keeps padding out of every
    sum. With context parallelism each rank has two pieces of every sequence, one from its first and one from its second
    half: here every rank gathers all pieces, computes attention for all, and keeps its own rows.
    """

    def __init__(self, *_: Any, softmax_scale: Any = None, pg_collection: Any = None, **__: Any) -> None:
        super().__init__()
        self.scale = softmax_scale
        self.group = pg_collection.cp if pg_collection is not None else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any, **__: Any) -> Tensor:
        """query, key and value of (rows, heads, dim), where key and value may have fewer heads -> (rows, heads * dim)
        with the heads of the query; or each with a dimension 1 after the rows.

        packed_seq_params: Megatron's; one with a `grid` has the Grid already, which is the same for all layers.
        """
        ranks = self.group.size() if self.group is not None else 1
        rank = self.group.rank() if self.group is not None else 0
        grid: Grid = getattr(packed_seq_params, "grid", None) or Grid.of(packed_seq_params.cu_seqlens_q, ranks, rank)

        def to_grid(row: Tensor) -> Tensor:
            row = row.reshape(len(row), *row.shape[-2:])
            if ranks > 1:
                row = gather_from_sequence_parallel_region(row.contiguous(), group=self.group)
            cells = row.new_zeros(grid.sequences * grid.longest, *row.shape[1:]).index_copy(0, grid.slots, row)
            return cells.view(grid.sequences, grid.longest, *row.shape[1:]).transpose(1, 2)

        out = F.scaled_dot_product_attention(
            to_grid(query), to_grid(key), to_grid(value), is_causal=True, scale=self.scale, enable_gqa=True
        )
        rows = out.transpose(1, 2).reshape(grid.sequences * grid.longest, -1)[grid.own]
        return rows.reshape(*query.shape[:-2], -1)
