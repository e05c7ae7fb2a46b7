"""megatron-core's GPTModel with the layers of a model family, on packed sequences.

Packing: the tokens of all responses of a micro-batch stand in one row (1, N). Megatron gets each token's position as
`position_ids`, so its rotary embedding is one multiplication; its own path for packed sequences loops over them in
Python, which for hundreds of short responses costs more than the model.
"""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the groups that do nothing

from sat_slime.config.schema import LabConfig
from sat_slime.lab.initial_model import cached_model
from sat_slime.models.families import Weight
from sat_slime.models.layers import Grid, block, decoder_layer

# ------------------------------------------------------------------------------------------ Megatron in one process


def initialize() -> None:
    """Makes the process groups that Megatron asks for, of this process alone and torch's that do nothing, and answers
    what of megatron-core 0.16 fails without CUDA or Transformer Engine. A GPU that is there is left alone."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    warnings.filterwarnings("ignore", module="megatron")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # more are slower where the engine shares the cores
    # Megatron allocates with `device=torch.cuda.current_device()`, which raises without CUDA.
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    # Gloo would give each of Megatron's twenty groups a thread that looks for work a hundred times a second.
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    if not hasattr(moe_utils, "te_general_gemm"):  # bound only where Transformer Engine is, and read unguarded
        moe_utils.te_general_gemm = None
    # Megatron's own tracker for inference: dropout is off, so no CUDA generator states are needed
    initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)


@dataclass
class PackedLayout(PackedSeqParams):
    """The places of the sequences in a packed row."""

    grid: Grid | None = None
    """The slots of the tokens in the grid that attention is computed in."""
    position_ids: Tensor | None = None
    """(3, 1, N) position of each token in its sequence, thrice, as Megatron's multi-axis rotary embedding takes it."""

    @classmethod
    def of(cls, lengths: list[int]) -> PackedLayout:
        """Return the layout of sequences of the given lengths in tokens, each > 0."""
        grid = Grid.of(torch.tensor([0, *lengths]).cumsum(0))
        position_ids = (grid.own % grid.longest).expand(3, 1, -1)
        # Neither Megatron's "thd" nor "sbhd": PackedAttention handles it.
        return cls(qkv_format="packed", grid=grid, position_ids=position_ids)


def build_model(config: LabConfig, dtype: str, *, routing_replay: bool = False, balance_coef: float = 0.0) -> GPTModel:
    """Return the model, with Megatron's random weights.

    Args:
        dtype: that of its weights and its arithmetic.
        routing_replay: register the MoE routers with Megatron's RouterReplay (a list global to the process, so only
            one model of a process may ask for it).
        balance_coef: coefficient of the load-balancing loss; for the warm-up, RL has none.
    """
    model, family = config.model, config.model.resolved_family
    transformer = TransformerConfig(
        **family.megatron_options(model),
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.attention_heads,
        num_query_groups=model.kv_heads,
        kv_channels=model.head_dim,
        ffn_hidden_size=model.ffn_size,
        moe_router_load_balancing_type="aux_loss" if balance_coef else "none",
        moe_aux_loss_coeff=balance_coef,
        moe_enable_routing_replay=routing_replay and model.is_moe,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        init_method_std=model.hidden_size**-0.5,  # narrow models learn slowly from Megatron's 0.02
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        mrope_section=[model.head_dim // 2, 0, 0],
        params_dtype=getattr(torch, dtype),
        bf16=dtype == "bfloat16",
        use_cpu_initialization=True,
    )
    layer = decoder_layer(model.experts or None, family.qk_norm, slime_names=False)
    return GPTModel(
        config=transformer,
        transformer_layer_spec=block(layer, transformer),
        vocab_size=config.task.vocab_size,
        max_sequence_length=model.max_positions,
        share_embeddings_and_output_weights=model.tied_embeddings,
        position_embedding_type="mrope",
        rotary_base=model.rope_base,
    )


def forward_logits(model: Callable[..., Tensor], token_ids: Tensor, layout: PackedLayout) -> Tensor:
    """Return the (N, vocabulary) logits of a packed row of (N,) tokens."""
    return model(token_ids[None], layout.position_ids, None, packed_seq_params=layout)[0]


@contextmanager
def replay(routed_experts: Tensor) -> Iterator[None]:
    """Forward passes inside use these (N, layers, top-k) int64 experts (Eq. r3), by Megatron's own RouterReplay: it
    gathers the current scores at them, so that the softmax is over their logits and gradients reach the router."""
    RouterReplay.set_replay_data(list(routed_experts.unbind(1)))
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    try:
        yield
    finally:
        RouterReplay.clear_global_router_replay_action()
        RouterReplay.clear_global_indices()


# ------------------------------------------------------------------------------------------------ Hugging Face folders


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _weights(megatron: torch.nn.Module, config: LabConfig) -> Iterator[tuple[torch.nn.Parameter, Weight, list[str]]]:
    """Yields each parameter of a model with its entry of the family's table and its Hugging Face names."""
    weights = config.model.resolved_family.weights(config.model, config.task.vocab_size)
    table = {weight.megatron: weight for weight in weights}
    for name, parameter in megatron.named_parameters():
        numbers = dict(zip(("layer", "expert"), map(int, _NUMBER.findall(name)), strict=False))
        weight = table[_NUMBER.sub("*", name)]
        yield parameter, weight, [hf_name.format(**numbers) for hf_name in weight.tensors]


def load_hf(megatron: torch.nn.Module, config: LabConfig, folder: Path) -> None:
    """Copies the weights of a folder of this model into it. Raises ValueError where they are damaged or another's."""
    path = folder / "model.safetensors"
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for parameter, weight, hf_names in _weights(megatron, config):
                tensors = [file.get_tensor(hf_name) for hf_name in hf_names]
                for hf_name, tensor, shape in zip(hf_names, tensors, weight.tensors.values(), strict=True):
                    if tensor.shape != shape:  # which `copy_` may broadcast
                        raise ValueError(f"{hf_name} has shape {tuple(tensor.shape)}, the model wants {shape}")
                parameter.copy_(weight.join(tensors))
    except (SafetensorError, ValueError) as error:
        remedy = f"delete {cached_model(config)}, from which a run has its first model, and start another run"
        raise ValueError(f"{path} is damaged or of another model ({error}): {remedy}") from error


def save_hf(megatron: torch.nn.Module, config: LabConfig, folder: Path) -> None:
    """Writes the whole model as a Hugging Face folder."""
    tensors: dict[str, torch.Tensor] = {}
    for parameter, weight, names in _weights(megatron, config):
        parts = weight.split(parameter.detach())
        tensors |= {name: part.cpu().contiguous() for name, part in zip(names, parts, strict=True)}
    dtype = str(next(megatron.parameters()).dtype).removeprefix("torch.")
    folder.mkdir(parents=True, exist_ok=True)
    model, task = config.model, config.task
    hf_config = model.resolved_family.hf_config(model, task.vocab_size, task.eos_id, dtype)
    (folder / "config.json").write_text(json.dumps(hf_config, indent=1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
