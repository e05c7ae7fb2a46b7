"""Elements of a rank, held to the element against Megatron's own model, and against published numbers."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.config.slime_schema import SlimeModelConfig
from sat_slime.plugin.launch.memory.elements import (
    Cut,
    active_parameters,
    elements,
    moe_layers,
    parameters,
    rank_tensors,
    stage_layers,
    stage_tensors,
)

CONFIGS = Path(__file__).parents[4] / "configs"

DENSE = {
    "num-layers": 4,
    "hidden-size": 32,
    "ffn-hidden-size": 96,
    "num-attention-heads": 8,
    "num-query-groups": 4,
    "kv-channels": 8,
    "vocab-size": 500,
    "normalization": "RMSNorm",
    "swiglu": True,
    "disable-bias-linear": True,
}
QWEN3 = {**DENSE, "qk-layernorm": True}
QWEN2 = {**DENSE, "add-qkv-bias": True, "untie-embeddings-and-output-weights": True}
BIASES = {**{k: v for k, v in DENSE.items() if k not in ("swiglu", "disable-bias-linear", "normalization")}}
MOE = {
    **QWEN3,
    "untie-embeddings-and-output-weights": True,
    "num-experts": 8,
    "moe-ffn-hidden-size": 16,
    "moe-router-topk": 2,
    "moe-layer-freq": "[1]*4",
}
GLM = {
    **MOE,
    "add-qkv-bias": True,
    "moe-layer-freq": "[0]*1+[1]*3",
    "moe-shared-expert-intermediate-size": 24,
    "moe-shared-expert-gate": True,
}
MLA = {
    **{k: v for k, v in MOE.items() if k not in ("kv-channels", "num-query-groups")},
    "multi-latent-attention": True,
    "q-lora-rank": 16,
    "kv-lora-rank": 12,
    "qk-head-dim": 8,
    "qk-pos-emb-head-dim": 4,
    "v-head-dim": 6,
}
CASES = {
    "qwen3": (QWEN3, Cut()),
    "qwen3, tensor 2": (QWEN3, Cut(tensor=2)),
    "qwen2, tensor 4": (QWEN2, Cut(tensor=4)),
    "biases and layer norms, tensor 2": (BIASES, Cut(tensor=2)),
    "tied, two stages": (QWEN3, Cut(pipeline=2)),
    "experts, expert 4, tensor 2": (MOE, Cut(tensor=2, expert=4)),
    "experts cut, expert 2, tensor 2": (MOE, Cut(tensor=2, expert=2, expert_tensor=2)),
    "shared experts, two stages": (GLM, Cut(tensor=2, expert=2, pipeline=2)),
    "latent attention": (MLA, Cut(expert=2)),  # without Transformer Engine tensor parallelism cuts more of it
    "latent attention without a query's": ({k: v for k, v in MLA.items() if k != "q-lora-rank"}, Cut()),
}


def megatron_case(flags, cut, stage):
    """What real_models.py takes: a rank of the stage, of as many as the cut needs."""
    per_stage = max(cut.tensor, cut.expert * cut.expert_tensor)
    names = {
        "num-layers": "num_layers",
        "hidden-size": "hidden_size",
        "ffn-hidden-size": "ffn_hidden_size",
        "num-attention-heads": "num_attention_heads",
        "num-query-groups": "num_query_groups",
        "kv-channels": "kv_channels",
        "normalization": "normalization",
        "qk-layernorm": "qk_layernorm",
        "add-qkv-bias": "add_qkv_bias",
        "num-experts": "num_moe_experts",
        "moe-ffn-hidden-size": "moe_ffn_hidden_size",
        "moe-router-topk": "moe_router_topk",
        "moe-shared-expert-intermediate-size": "moe_shared_expert_intermediate_size",
        "moe-shared-expert-gate": "moe_shared_expert_gate",
        "multi-latent-attention": "multi_latent_attention",
        "q-lora-rank": "q_lora_rank",
        "kv-lora-rank": "kv_lora_rank",
        "qk-head-dim": "qk_head_dim",
        "qk-pos-emb-head-dim": "qk_pos_emb_head_dim",
        "v-head-dim": "v_head_dim",
    }
    config = {names[flag]: value for flag, value in flags.items() if flag in names}
    if "multi-latent-attention" in flags:
        config.setdefault("q_lora_rank", None)  # as Megatron's flag; its class would have 512
    config["add_bias_linear"] = not flags.get("disable-bias-linear", False)
    if "moe-layer-freq" in flags:
        config["moe_layer_freq"] = [int(one) for one in moe_layers(SlimeModelConfig(architecture=flags))]
    return {
        "world": per_stage * cut.pipeline,
        "rank": stage * per_stage,
        "tensor": cut.tensor,
        "pipeline": cut.pipeline,
        "expert": cut.expert,
        "expert_tensor": cut.expert_tensor,
        "swiglu": bool(flags.get("swiglu")),
        "vocabulary": -(-flags["vocab-size"] // (128 * cut.tensor)) * 128 * cut.tensor,
        "tied": not flags.get("untie-embeddings-and-output-weights"),
        "config": config,
    }


@pytest.fixture(scope="module")
def megatrons():
    """For each case and stage, how often Megatron's model has a parameter of a size: {(elements, expert's): count}."""
    pytest.importorskip("megatron.core", reason="Megatron is not installed")
    stages = [(name, stage) for name, (_, cut) in CASES.items() for stage in range(cut.pipeline)]
    cases = [megatron_case(*CASES[name], stage) for name, stage in stages]
    script = Path(__file__).parent / "real_models.py"
    run = subprocess.run([sys.executable, str(script), json.dumps(cases)], capture_output=True, text=True, timeout=300)
    answer = [line for line in run.stdout.splitlines() if line.startswith("SIZES ")]
    assert answer, run.stderr[-2000:]
    found = json.loads(answer[0].removeprefix("SIZES "))
    return {key: Counter((size, expert) for size, expert in one) for key, one in zip(stages, found, strict=True)}


@pytest.mark.engine
@pytest.mark.parametrize("name", CASES)
def test_a_rank_has_the_parameters_of_megatrons_model(megatrons, name):
    flags, cut = CASES[name]
    model = SlimeModelConfig(architecture=flags)
    layers = moe_layers(model)
    each = len(layers) // cut.pipeline
    for stage in range(cut.pipeline):
        counted = Counter()
        for one in stage_tensors(model, cut, stage, layers[stage * each : (stage + 1) * each]):
            counted[one.elements, one.expert] += one.count
        assert counted == megatrons[name, stage], stage


@pytest.mark.parametrize(
    "file, published",
    [
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-0.6b", 596_049_920),
        ("qwen2.5-7b", 7_615_616_512),
    ],
)
def test_the_models_have_the_parameters_of_their_checkpoints(file, published):
    """The numbers are those of the safetensors on the models' pages."""
    assert parameters(load_config(CONFIGS / f"models/{file}.yaml").model) == published


def test_parameters_that_a_token_meets():
    model = load_config(CONFIGS / "models/qwen3-30b-a3b.yaml").model
    experts = 48 * 128 * 3 * 2048 * 768
    assert active_parameters(model) == parameters(model) - experts + experts * 8 // 128
    dense = load_config(CONFIGS / "models/qwen3-4b.yaml").model
    assert active_parameters(dense) == parameters(dense)
    assert parameters(SlimeModelConfig()) == active_parameters(SlimeModelConfig()) == 0


@pytest.mark.parametrize(
    "frequency, layers",
    [
        (1, [True] * 4),
        (2, [True, False, True, False]),
        ("2", [True, False, True, False]),
        ("[0]*1+[1]*3", [False, True, True, True]),
        ("[0,1]*2", [False, True, False, True]),
        ([0, 1, 1, 0], [False, True, True, False]),
    ],
)
def test_layers_with_experts(frequency, layers):
    assert moe_layers(SlimeModelConfig(architecture={**MOE, "moe-layer-freq": frequency})) == layers
    assert moe_layers(SlimeModelConfig(architecture={**QWEN3, "moe-layer-freq": frequency})) == [False] * 4


def test_stages_that_are_cut_unevenly():
    settings = ["train.pipeline_parallel=4", "extra_args.decoder-last-pipeline-num-layers=6"]
    config = load_config(CONFIGS / "models/qwen3-4b.yaml", settings)
    assert [len(stage) for stage in stage_layers(config)] == [10, 10, 10, 6]
    assert elements(rank_tensors(config, 3)) < elements(rank_tensors(config, 0))  # its tied output layer is no smaller
