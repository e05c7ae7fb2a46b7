"""Elements of a rank, held to the element against Megatron's own model, buffers and optimizer, and against published
numbers."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.config.slime_schema import SlimeModelConfig
from sat_slime.launch.memory.elements import (
    Cut,
    active_parameters,
    cut_of,
    elements,
    expected_elements,
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


PAPER, LARGE = "paper/qwen3-30b-a3b", "recipes/qwen3-30b-a3b-16gpus"
BIASED, DENSER, TIED = "recipes/qwen2.5-7b-8gpus", "recipes/qwen3-4b-8gpus", "recipes/qwen3-0.6b-2gpus"
THIN = ("model.architecture.kv-channels=24", "model.architecture.hidden-size=96", "model.architecture.vocab-size=5000")
ON_GPUS = "train.optimizer_offload=false"
RANKS = {
    "the paper's": (PAPER, (), (0,)),  # its optimizer is offloaded
    "the paper's, on GPUs": (PAPER, (ON_GPUS,), (3,)),
    "8 GPUs": ("recipes/qwen3-30b-a3b-8gpus", (), (2,)),
    "16 GPUs": (LARGE, (), (7,)),  # two ranks share what is no expert's
    "16 GPUs, on GPUs": (LARGE, (ON_GPUS,), (0, 7)),
    "dense with biases": (BIASED, (), (0, 2)),
    "dense": (DENSER, (), (0, 3)),
    "tied": (TIED, (), (0,)),
    "two stages": (DENSER, ("train.pipeline_parallel=2",), (0, 3)),
    "tied, two stages, two copies": (TIED, ("train.pipeline_parallel=2", "train.gpus_per_node=4"), (0, 1, 2, 3)),
    "experts, two stages": (LARGE, (ON_GPUS, "train.pipeline_parallel=2", "train.expert_parallel=2"), (0, 7)),
    "context": (DENSER, ("train.context_parallel=2",), (0, 3)),
    "experts, context": (LARGE, (ON_GPUS, "train.context_parallel=2", "train.expert_parallel=4"), (1, 6)),
    "bf16 gradients": (DENSER, ("slime.accumulate-allreduce-grads-in-fp32=false",), (1,)),
    "padded, three copies": (DENSER, (*THIN, "train.tensor_parallel=1", "train.gpus_per_node=3"), (0, 1, 2)),
    "padded, tied, two stages": (
        TIED,
        (*THIN, "train.pipeline_parallel=2", "train.gpus_per_node=6"),
        (0, 1, 2, 3, 4, 5),
    ),
}
"""Ranks at full width, by the run's file, what is changed in it, and their numbers."""


def config_of(name):
    file, overrides, _ = RANKS[name]
    return load_config(CONFIGS / f"{file}.yaml", overrides)


def full_case(name, rank):
    config = config_of(name)
    case = megatron_case(config.model.architecture, cut_of(config), 0)
    train = config.train
    layout = {"world": train.world_size, "rank": rank, "context": train.context_parallel}
    in_fp32 = config.flag("accumulate-allreduce-grads-in-fp32")
    return {**case, **layout, "offload": train.optimizer_offload, "fp32_gradients": in_fp32}


def parameters_of(tensors):
    """{(name, shape, type): how many} as real_models has it."""
    counted = Counter()
    for some in tensors:
        counted[some.name, some.shape, "bfloat16"] += some.count
    return counted


@pytest.fixture(scope="module")
def megatrons():
    """What ranks of Megatron's own models hold, by (case, stage) and by (case, rank)."""
    pytest.importorskip("megatron.core", reason="Megatron is not installed")
    keys = [(name, stage) for name, (_, cut) in CASES.items() for stage in range(cut.pipeline)]
    cases = [megatron_case(*CASES[name], stage) for name, stage in keys]
    full = [(name, rank) for name, (*_, ranks) in RANKS.items() for rank in ranks]
    cases += [full_case(*key) for key in full]
    script = Path(__file__).parent / "real_models.py"
    run = subprocess.run([sys.executable, str(script), json.dumps(cases)], capture_output=True, text=True)
    answer = [line for line in run.stdout.splitlines() if line.startswith("RANKS ")]
    assert answer, run.stderr[-2000:]
    found = json.loads(answer[0].removeprefix("RANKS "))
    for rank in found:
        rank["parameters"] = {(name, tuple(shape), dtype): n for name, shape, dtype, n in rank["parameters"]}
    return dict(zip([*keys, *full], found, strict=True))


@pytest.mark.engine
@pytest.mark.parametrize("name", CASES)
def test_a_rank_has_the_parameters_of_megatrons_model(megatrons, name):
    flags, cut = CASES[name]
    model = SlimeModelConfig(architecture=flags)
    layers = moe_layers(model)
    each = len(layers) // cut.pipeline
    for stage in range(cut.pipeline):
        counted = parameters_of(stage_tensors(model, cut, stage, layers[stage * each : (stage + 1) * each]))
        assert counted == megatrons[name, stage]["parameters"], stage


@pytest.mark.engine
@pytest.mark.parametrize("name", RANKS)
def test_weights_buffers_and_optimizer_of_a_rank_are_megatrons_to_the_element(megatrons, name):
    config = config_of(name)
    for rank in RANKS[name][2]:
        stage = rank // (config.train.world_size // config.train.pipeline_parallel)
        real = megatrons[name, rank]
        assert parameters_of(rank_tensors(config, stage)) == real["parameters"], rank
        expected = expected_elements(config, rank)
        as_real = {key: expected[key] for key in ("weights", "buffers")}
        state = ("master", "exp_avg", "exp_avg_sq", *(["gradients_on_host"] if config.train.optimizer_offload else []))
        as_real |= dict.fromkeys(state, expected["optimizer"])
        assert as_real == real["elements"], rank
        assert real["devices"] == ["cpu" if config.train.optimizer_offload else "meta"]
        assert real["gradients"] == [
            "torch.float32" if config.flag("accumulate-allreduce-grads-in-fp32") else "torch.bfloat16"
        ]


@pytest.mark.parametrize("name", RANKS)
def test_ranks_with_the_same_weights_hold_all_of_the_optimizer_together(name):
    config = config_of(name)
    world, stages = config.train.world_size, config.train.pipeline_parallel
    held = sum(expected_elements(config, rank)["optimizer"] for rank in range(world))
    cut = cut_of(config)
    whole = 0
    for stage in range(stages):
        tensors = rank_tensors(config, stage)
        whole += elements(tensors, expert=False) * cut.tensor
        whole += elements(tensors, expert=True) * cut.expert * cut.expert_tensor
    assert held == whole


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
    settings = ["train.pipeline_parallel=4", "slime.decoder-last-pipeline-num-layers=6"]
    config = load_config(CONFIGS / "models/qwen3-4b.yaml", settings)
    assert [len(stage) for stage in stage_layers(config)] == [10, 10, 10, 6]
    assert elements(rank_tensors(config, 3)) < elements(rank_tensors(config, 0))  # its tied output layer is no smaller
