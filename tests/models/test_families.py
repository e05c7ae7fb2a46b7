"""Each family against transformers' own class of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sat_slime.config.schema import ModelConfig
from sat_slime.models.families import FAMILIES, Weight, family_by_flags

VOCAB_SIZE = 16
SIZES = {
    "qwen3_moe": ModelConfig(hidden_size=32, ffn_size=48, experts=4),
    "qwen3": ModelConfig(hidden_size=32, ffn_size=48, experts=0),
    "qwen3 tied": ModelConfig(hidden_size=32, ffn_size=48, experts=0, tied_embeddings=True),
    "qwen2": ModelConfig(family="qwen2", hidden_size=32, ffn_size=48, experts=0),
    "qwen2 tied": ModelConfig(family="qwen2", hidden_size=32, ffn_size=48, experts=0, tied_embeddings=True),
}


def whole_tensors(sizes: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes by Hugging Face's names, of every layer and expert."""
    shapes = {}
    for weight in sizes.resolved_family.weights(sizes, VOCAB_SIZE):
        for name, shape in weight.tensors.items():
            for layer in range(sizes.layers if "{layer}" in name else 1):
                for expert in range(max(weight.experts, 1)):
                    shapes[name.format(layer=layer, expert=expert)] = shape
    return shapes


def transformers_shapes(sizes: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the class that config.json names; fused experts as their files have them, one by one."""
    from sat_slime.rollout.sglang_on_cpu.absent import stand_in_for

    stand_in_for("torchvision")  # transformers imports it where it is installed, and PyPI's needs CUDA
    import transformers

    values = sizes.resolved_family.hf_config(sizes, VOCAB_SIZE, 0, "float32")
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = getattr(transformers, values["architectures"][0])(config)
    shapes = {}
    for name, tensor in model.named_parameters():
        prefix, _, fused = name.partition(".experts.")
        if fused == "gate_up_proj":
            for expert, (rows, columns) in enumerate(tuple(x.shape) for x in tensor):
                for half in ("gate", "up"):
                    shapes[f"{prefix}.experts.{expert}.{half}_proj.weight"] = (rows // 2, columns)
        elif fused == "down_proj":
            shapes |= {f"{prefix}.experts.{e}.down_proj.weight": tuple(x.shape) for e, x in enumerate(tensor)}
        else:
            shapes[name] = tuple(tensor.shape)
    return shapes


@pytest.mark.parametrize("name", SIZES)
def test_names_and_shapes_are_those_of_transformers(name):
    pytest.importorskip("transformers")
    sizes = SIZES[name]
    assert whole_tensors(sizes) == transformers_shapes(sizes)


@pytest.mark.parametrize("name", SIZES)
def test_a_parameter_is_its_tensors_joined(name):
    sizes = SIZES[name]
    for weight in sizes.resolved_family.weights(sizes, VOCAB_SIZE):
        tensors = [torch.randn(shape) for shape in weight.tensors.values()]
        parameter = weight.join(tensors)
        assert all(torch.equal(a, b) for a, b in zip(weight.split(parameter), tensors, strict=True)), weight.megatron


def test_heads_alternate_by_group_and_gate_stands_before_up():
    """As Megatron has them: the heads of a group, its key, its value."""
    qkv = Weight("", {"q": (8, 1), "k": (4, 1), "v": (4, 1)}, groups=2)
    q, k, v = torch.arange(8.0)[:, None], 10 + torch.arange(4.0)[:, None], 20 + torch.arange(4.0)[:, None]
    joined = [0, 1, 2, 3, 10, 11, 20, 21, 4, 5, 6, 7, 12, 13, 22, 23]
    assert qkv.join([q, k, v]).flatten().tolist() == joined
    fc1 = Weight("", {"gate": (4, 1), "up": (4, 1)})
    assert fc1.join([k, v]).flatten().tolist() == [10, 11, 12, 13, 20, 21, 22, 23]


FLAGS = {"swiglu": True, "disable-bias-linear": True, "normalization": "RMSNorm"}


@pytest.mark.parametrize(
    "flags, family",
    [
        ({"qk-layernorm": True, "num-experts": 8}, "qwen3_moe"),
        ({"qk-layernorm": True, "moe-router-score-function": False}, "qwen3"),  # as a file leaves a flag out
        ({"add-qkv-bias": True}, "qwen2"),
        ({}, None),
        ({"qk-layernorm": True, "add-qkv-bias": True}, None),
        ({"qk-layernorm": True, "normalization": "LayerNorm"}, None),
        ({"qk-layernorm": True, "num-experts": 8, "moe-shared-expert-intermediate-size": 8}, None),
        ({"qk-layernorm": True, "multi-latent-attention": True}, None),
        ({"add-qkv-bias": True, "post-mlp-layernorm": True}, None),  # GLM-4, which also turns half of a head
        ({"add-qkv-bias": True, "rotary-percent": 0.5}, None),
        ({"qk-layernorm": True, "num-experts": 8, "moe-router-score-function": "sigmoid"}, None),  # MiniMax-M2
    ],
)
def test_the_family_that_flags_describe(flags, family):
    found = family_by_flags({**FLAGS, **flags})
    assert (found and found.name) == family


def test_slime_reads_the_layers_by_its_flag(monkeypatch):
    """Megatron calls what `--spec MODULE QWEN3` names with its arguments, configuration and stage."""
    pytest.importorskip("megatron.core")
    from sat_slime.models import layers

    monkeypatch.setattr(layers, "get_num_layers_to_build", lambda config, vp_stage: 3)
    for name, experts in (("qwen3_moe", 8), ("qwen3", None), ("qwen2", None)):
        stage = FAMILIES[name](SimpleNamespace(num_experts=experts), None, None)
        submodules = stage.layer_specs[0].submodules
        attention = submodules.self_attention.submodules
        assert len(stage.layer_specs) == 3
        assert (attention.q_layernorm is layers.RMSNorm) == FAMILIES[name].qk_norm
        assert (submodules.pre_mlp_layernorm is layers.RMSNorm) == bool(experts)
