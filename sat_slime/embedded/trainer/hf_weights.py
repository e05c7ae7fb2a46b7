"""Weights between Megatron's sharded layout and a Hugging Face folder, which is what SGLang loads.

The whole mapping is `hf_tensors` and `shard_for`: the one names and cuts, the other undoes it. Folders are safetensors
plus config.json; nothing is pickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from sat_slime.config.schema import ModelConfig

_TOP_LEVEL = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
_PER_LAYER = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_ROW_CUT = ("linear_qkv.weight", "word_embeddings.weight", "output_layer.weight")
_COLUMN_CUT = ("linear_proj.weight", "mlp.linear_fc2.weight")
_EXPERT = re.compile(r"(.*)mlp\.experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight")


def hf_config(model: ModelConfig, vocab_size: int, eos_token_id: int, dtype: str) -> dict:
    """config.json of the model: Qwen3-MoE, or Qwen3 when it has no experts."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM" if model.is_moe else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if model.is_moe else "qwen3",
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": model.max_positions,
        "num_attention_heads": model.attention_heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": vocab_size,
    }
    if model.is_moe:
        config |= {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": model.ffn_size,
            "norm_topk_prob": not model.weighs_all_experts,
            "num_experts": model.experts,
            "num_experts_per_tok": model.experts_per_token,
        }
    return config


def hf_tensors(megatron: torch.nn.Module, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face names and whole tensors of a sharded model. Collective: every rank iterates, all see the same."""
    tensor_group = parallel_state.get_tensor_model_parallel_group()
    expert_group = parallel_state.get_expert_model_parallel_group()
    expert_tensor_group = parallel_state.get_expert_tensor_parallel_group()
    heads_per_kv = config.attention_heads // config.kv_heads
    for name, parameter in megatron.named_parameters():
        weight = parameter.detach()
        if expert := _EXPERT.fullmatch(name):
            prefix, local, linear = expert.groups()
            cuts = _gather(weight, expert_tensor_group)
            if linear == "linear_fc2":
                projections = {"down_proj": torch.cat(cuts, dim=1)}
            else:
                projections = {"gate_proj": _join(cuts, 0), "up_proj": _join(cuts, 1)}
            for projection, tensor in projections.items():
                for rank, copy in enumerate(_gather(tensor, expert_group)):
                    index = int(local) + rank * (config.experts // expert_group.size())
                    yield f"{_layer(prefix)}mlp.experts.{index}.{projection}.weight", copy
        elif name.endswith("linear_qkv.weight"):
            # Megatron groups the rows by kv head: its query heads, then its key, then its value.
            whole = torch.cat(_gather(weight, tensor_group))
            groups = whole.view(config.kv_heads, heads_per_kv + 2, config.head_dim, -1)
            hf = _layer(name) + "self_attn."
            yield hf + "q_proj.weight", groups[:, :heads_per_kv].reshape(-1, whole.shape[-1])
            yield hf + "k_proj.weight", groups[:, heads_per_kv].reshape(-1, whole.shape[-1])
            yield hf + "v_proj.weight", groups[:, heads_per_kv + 1].reshape(-1, whole.shape[-1])
        elif name.endswith("mlp.linear_fc1.weight"):
            cuts = _gather(weight, tensor_group)
            yield _layer(name) + "mlp.gate_proj.weight", _join(cuts, 0)
            yield _layer(name) + "mlp.up_proj.weight", _join(cuts, 1)
        else:
            if name.endswith(_ROW_CUT):
                weight = torch.cat(_gather(weight, tensor_group))
            elif name.endswith(_COLUMN_CUT):
                weight = torch.cat(_gather(weight, tensor_group), dim=1)
            yield _TOP_LEVEL.get(name) or _layer(name) + _PER_LAYER[name.split(".", 3)[3]], weight


def load_hf(megatron: torch.nn.Module, config: ModelConfig, folder: Path) -> None:
    """Copies this rank's part of a folder's weights into the model.

    Raises:
        ValueError: a weight is missing or has another shape than the model's.
    """
    with safe_open(folder / "model.safetensors", framework="pt") as file, torch.no_grad():
        for name, parameter in megatron.named_parameters():
            try:
                weight = shard_for(name, file, config)
            except Exception as error:  # safetensors raises its own type for a missing name
                raise ValueError(f"{folder}: no weights for {name}: {error}") from error
            if weight.shape != parameter.shape:
                raise ValueError(
                    f"{folder}: {name} has shape {tuple(weight.shape)}, the model wants {tuple(parameter.shape)}; "
                    "the folder was made with another `model` section"
                )
            parameter.copy_(weight)


def shard_for(name: str, file, config: ModelConfig) -> Tensor:
    """This rank's part of one Megatron parameter, from an open safetensors file with Hugging Face names."""
    ranks, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    if expert := _EXPERT.fullmatch(name):
        prefix, local, linear = expert.groups()
        per_rank = config.experts // parallel_state.get_expert_model_parallel_world_size()
        index = int(local) + per_rank * parallel_state.get_expert_model_parallel_rank()
        hf = f"{_layer(prefix)}mlp.experts.{index}."
        ranks = parallel_state.get_expert_tensor_parallel_world_size()
        rank = parallel_state.get_expert_tensor_parallel_rank()
        if linear == "linear_fc2":
            return file.get_tensor(hf + "down_proj.weight").chunk(ranks, dim=1)[rank]
        return torch.cat([file.get_tensor(f"{hf}{part}_proj.weight").chunk(ranks)[rank] for part in ("gate", "up")])
    if name.endswith("linear_qkv.weight"):
        hf = _layer(name) + "self_attn."
        parts = [
            file.get_tensor(f"{hf}{part}_proj.weight").view(config.kv_heads, -1, config.head_dim, config.hidden_size)
            for part in "qkv"
        ]
        return torch.cat(parts, dim=1).flatten(0, 2).chunk(ranks)[rank]
    if name.endswith("mlp.linear_fc1.weight"):
        hf = _layer(name) + "mlp."
        return torch.cat([file.get_tensor(f"{hf}{part}_proj.weight").chunk(ranks)[rank] for part in ("gate", "up")])
    weight = file.get_tensor(_TOP_LEVEL.get(name) or _layer(name) + _PER_LAYER[name.split(".", 3)[3]])
    if name.endswith(_ROW_CUT):
        return weight.chunk(ranks)[rank]
    if name.endswith(_COLUMN_CUT):
        return weight.chunk(ranks, dim=1)[rank]
    return weight


def save_hf(megatron: torch.nn.Module, config: ModelConfig, vocab_size: int, eos_token_id: int, folder: Path) -> None:
    """Writes the whole model as a Hugging Face folder that is either there in full or not at all. Collective."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in hf_tensors(megatron, config)}
    if dist.get_rank() == 0:
        dtype = str(next(megatron.parameters()).dtype).removeprefix("torch.")
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        (part / "config.json").write_text(json.dumps(hf_config(config, vocab_size, eos_token_id, dtype), indent=1))
        save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    dist.barrier()


def _layer(name: str) -> str:
    return f"model.layers.{name.split('.')[2]}."


def _join(cuts: list[Tensor], half: int) -> Tensor:
    """Gate (0) or up (1) projection from the ranks' [gate; up] cuts."""
    return torch.cat([cut.chunk(2)[half] for cut in cuts])


def _gather(weight: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    if group.size() == 1:
        return [weight]
    parts = [torch.empty_like(weight) for _ in range(group.size())]
    dist.all_gather(parts, weight.contiguous(), group=group)
    return parts
