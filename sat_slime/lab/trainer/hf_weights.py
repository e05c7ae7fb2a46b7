"""Weights between Megatron's layout and a Hugging Face folder, which is what SGLang loads.

The model's family has names and shapes (sat_slime.models). Folders are safetensors plus config.json; nothing is
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
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from sat_slime.config.schema import ModelConfig
from sat_slime.models import Weight

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _in_table(name: str, table: dict[str, Weight]) -> tuple[Weight, dict[str, int]]:
    """Return a parameter's entry of the family, with the numbers of its layer and its expert."""
    numbers = dict(zip(("layer", "expert"), map(int, _NUMBER.findall(name)), strict=False))
    return table[_NUMBER.sub("*", name)], numbers


def _table(config: ModelConfig, vocab_size: int) -> dict[str, Weight]:
    return {weight.megatron: weight for weight in config.resolved_family.weights(config, vocab_size)}


def hf_tensors(megatron: torch.nn.Module, config: ModelConfig, vocab_size: int) -> Iterator[tuple[str, Tensor]]:
    """Yields Hugging Face names and tensors of a model."""
    table = _table(config, vocab_size)
    for name, parameter in megatron.named_parameters():
        weight, numbers = _in_table(name, table)
        for hf_name, tensor in zip(weight.tensors, weight.split(parameter.detach()), strict=True):
            yield hf_name.format(**numbers), tensor


def load_hf(megatron: torch.nn.Module, config: ModelConfig, vocab_size: int, folder: Path) -> None:
    """Copies a folder's weights into the model.

    Raises:
        ValueError: a weight is missing or has another shape than the model's.
    """
    table = _table(config, vocab_size)
    with safe_open(folder / "model.safetensors", framework="pt") as file, torch.no_grad():
        for name, parameter in megatron.named_parameters():
            try:
                weight = _parameter(name, file, table)
            except Exception as error:  # safetensors raises its own type for a missing name
                raise ValueError(f"{folder}: no weights for {name}: {error}") from error
            if weight.shape != parameter.shape:
                raise ValueError(
                    f"{folder}: {name} has shape {tuple(weight.shape)}, the model wants {tuple(parameter.shape)}; "
                    "the folder was made with another `model` section"
                )
            parameter.copy_(weight)


def _parameter(name: str, file, table: dict[str, Weight]) -> Tensor:
    """One Megatron parameter, from an open safetensors file with Hugging Face names."""
    weight, numbers = _in_table(name, table)
    tensors = [file.get_tensor(hf_name.format(**numbers)) for hf_name in weight.tensors]
    return weight.join(tensors)


def save_hf(megatron: torch.nn.Module, config: ModelConfig, vocab_size: int, eos_token_id: int, folder: Path) -> None:
    """Writes the whole model as a Hugging Face folder that is either there in full or not at all."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in hf_tensors(megatron, config, vocab_size)}
    dtype = str(next(megatron.parameters()).dtype).removeprefix("torch.")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    hf_config = config.resolved_family.hf_config(config, vocab_size, eos_token_id, dtype)
    (part / "config.json").write_text(json.dumps(hf_config, indent=1))
    save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)
