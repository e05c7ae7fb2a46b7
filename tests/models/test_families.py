"""Each family against transformers' own class of it, and the errors of a family that nobody knows."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest
import torch

from sat_slime.config.schema import ModelConfig
from sat_slime.models import (
    FAMILIES,
    family_by_flags,
    family_environment,
    find_family,
    module_of,
    served_modules,
)
from sat_slime.models.family import Weight

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
        ({"qk-layernorm": True}, "qwen3"),
        ({"add-qkv-bias": True}, "qwen2"),
        ({}, None),
        ({"qk-layernorm": True, "add-qkv-bias": True}, None),
        ({"qk-layernorm": True, "normalization": "LayerNorm"}, None),
        ({"qk-layernorm": True, "num-experts": 8, "moe-shared-expert-intermediate-size": 8}, None),
        ({"qk-layernorm": True, "multi-latent-attention": True}, None),
    ],
)
def test_the_family_that_flags_describe(flags, family):
    found = family_by_flags({**FLAGS, **flags})
    assert (found and found.name) == family


def test_sglang_imports_the_models_of_all_families():
    assert served_modules() == {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}


@pytest.mark.parametrize("name", ["llama", "no.such_module"])
def test_an_unknown_family_is_one_line_that_says_what_a_file_holds(name):
    with pytest.raises(ValueError, match=re.escape(name)) as told:
        find_family(name)
    message = str(told.value)
    assert "\n" not in message and "weights in both formats" in message and "docs/extend.md" in message
    assert all(known in message for known in FAMILIES) or "." in name


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A package with a family, and a module that has none."""
    package = tmp_path / "my_models"
    package.mkdir()
    (package / "mine.py").write_text(
        "from sat_slime.models.qwen3 import Qwen3\n\n\n"
        "class Mine(Qwen3):\n    name = 'mine'\n    sglang_modules = ('mine',)\n\n\nFAMILY = Mine()\n"
    )
    (package / "number.py").write_text("FAMILY = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("my_models")]:
        del sys.modules[name]


def test_a_family_by_dotted_path(outside, monkeypatch):
    sizes = ModelConfig(family="my_models.mine", experts=0)
    assert sizes.resolved_family.name == "mine" and module_of(sizes.resolved_family) == "my_models.mine"
    assert family_environment("qwen3") == {} == family_environment(None)
    for name, value in family_environment("my_models.mine").items():
        monkeypatch.setenv(name, value)
    assert "mine" in served_modules()


def test_a_module_without_a_family(outside):
    with pytest.raises(ValueError, match=r"my_models\.number is no ModelFamily"):
        find_family("my_models.number")


def test_slime_reads_the_layers_by_its_flag(monkeypatch):
    """Megatron calls what `--spec MODULE FAMILY` names with its arguments, configuration and stage."""
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
