"""Weights between Megatron's sharded layout and a Hugging Face folder, which is what SGLang loads.

The model's family has names, shapes and cuts (sat_slime.models). Folders are safetensors plus config.json; nothing is
pickled.
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
from sat_slime.embedded.trainer.parallel import gathered
from sat_slime.models import Weight

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _in_table(name: str, table: dict[str, Weight]) -> tuple[Weight, dict[str, int]]:
    """Return a parameter's entry of the family, with the number of its layer and this rank's number of its expert."""
    numbers = dict(zip(("layer", "expert"), map(int, _NUMBER.findall(name)), strict=False))
    return table[_NUMBER.sub("*", name)], numbers


def _table(config: ModelConfig, vocab_size: int) -> dict[str, Weight]:
    return {weight.megatron: weight for weight in config.resolved_family.weights(config, vocab_size)}


def hf_tensors(megatron: torch.nn.Module, config: ModelConfig, vocab_size: int) -> Iterator[tuple[str, Tensor]]:
    """Yields Hugging Face names and whole tensors of a sharded model. Collective: every rank iterates, all see the
    same."""
    expert_group = parallel_state.get_expert_model_parallel_group()
    table = _table(config, vocab_size)
    for name, parameter in megatron.named_parameters():
        weight, numbers = _in_table(name, table)
        shards = [parameter.detach()] if weight.cut is None else gathered(parameter.detach(), _cutting_group(weight))
        for hf_name, tensor in zip(weight.tensors, weight.whole(shards), strict=True):
            if not weight.experts:
                yield hf_name.format(**numbers), tensor
                continue
            per_rank = weight.experts // expert_group.size()
            for rank, copy in enumerate(gathered(tensor, expert_group)):
                yield hf_name.format(layer=numbers["layer"], expert=numbers["expert"] + rank * per_rank), copy


def load_hf(megatron: torch.nn.Module, config: ModelConfig, vocab_size: int, folder: Path) -> None:
    """Copies this rank's part of a folder's weights into the model.

    Raises:
        ValueError: a weight is missing or has another shape than the model's.
    """
    table = _table(config, vocab_size)
    with safe_open(folder / "model.safetensors", framework="pt") as file, torch.no_grad():
        for name, parameter in megatron.named_parameters():
            try:
                weight = _shard_for(name, file, table)
            except Exception as error:  # safetensors raises its own type for a missing name
                raise ValueError(f"{folder}: no weights for {name}: {error}") from error
            if weight.shape != parameter.shape:
                raise ValueError(
                    f"{folder}: {name} has shape {tuple(weight.shape)}, the model wants {tuple(parameter.shape)}; "
                    "the folder was made with another `model` section"
                )
            parameter.copy_(weight)


def _shard_for(name: str, file, table: dict[str, Weight]) -> Tensor:
    """This rank's part of one Megatron parameter, from an open safetensors file with Hugging Face names."""
    weight, numbers = _in_table(name, table)
    if weight.experts:
        per_rank = weight.experts // parallel_state.get_expert_model_parallel_world_size()
        numbers["expert"] += per_rank * parallel_state.get_expert_model_parallel_rank()
    tensors = [file.get_tensor(hf_name.format(**numbers)) for hf_name in weight.tensors]
    group = _cutting_group(weight)
    return weight.shard(tensors, group.rank(), group.size())


def _cutting_group(weight: Weight) -> dist.ProcessGroup:
    """Return the ranks among which a weight is cut."""
    if weight.experts:
        return parallel_state.get_expert_tensor_parallel_group()
    return parallel_state.get_tensor_model_parallel_group()


def save_hf(megatron: torch.nn.Module, config: ModelConfig, vocab_size: int, eos_token_id: int, folder: Path) -> None:
    """Writes the whole model as a Hugging Face folder that is either there in full or not at all. Collective."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in hf_tensors(megatron, config, vocab_size)}
    if dist.get_rank() == 0:
        dtype = str(next(megatron.parameters()).dtype).removeprefix("torch.")
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        (part / "config.json").write_text(
            json.dumps(config.resolved_family.hf_config(config, vocab_size, eos_token_id, dtype), indent=1)
        )
        save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    dist.barrier()
