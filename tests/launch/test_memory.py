"""Memory of a run: elements by Megatron's own models, bytes by hand and by measurements, and what is said of a fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.config.slime_schema import SlimeModelConfig
from sat_slime.launch.memory import (
    ENGINE,
    GIB,
    HOST,
    MIB,
    STORE,
    TRAINING,
    active_parameters,
    cut_of,
    elements,
    engine_kv_tokens,
    engine_weights_bytes,
    gpu_memory,
    host_memory,
    host_need,
    kv_bytes_per_token,
    machine_sizes,
    memory_findings,
    moe_layers,
    optimizer_elements,
    parameters,
    rank_tensors,
    routes_bytes,
    rows,
    sizes,
    sizes_of_nodes,
    stage_layers,
    store_need,
    table,
    training_need,
    weight_copies,
)
from sat_slime.rehearsal.thin import Sizes, thin_settings

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER = CONFIGS / "paper" / "qwen3-30b-a3b.yaml"
EXPERTS = 48 * 128 * 3 * 2048 * 768
ATTENTION = 48 * 2048 * 128 * (32 + 2 * 4 + 32)
ON_EVERY_RANK = 48 * (128 * 2048 + 2 * 2048 + 2 * 128) + 2048  # router and norms
BATCH = 4096 * 32768


def paper(*overrides):
    return load_config(PAPER, overrides)


def cluster(gpu=79.1, host=2048, shm=1024, store=186):
    keys = {"gpu_memory_gib": gpu, "host_memory_gib": host, "shm_gib": shm, "object_store_gib": store}
    return [f"cluster.{key}={value}" for key, value in keys.items()]


def r3(*overrides, **there):
    return paper("method=sat-gspo-r3", "pipeline.lag=8", *cluster(**there), *overrides)


def parts(need):
    return {part.name: part.size for part in need.parts}


def findings(config, what):
    return [one for one in memory_findings(config, sizes(config)) if one.what == what]


# --------------------------------------------------------------------------------------------------------- elements

DENSE = "recipes/qwen3-4b-8gpus", "recipes/qwen2.5-7b-8gpus", "recipes/qwen3-0.6b-2gpus"
LARGE = "recipes/qwen3-30b-a3b-16gpus"
SMALL = ("num-layers=4", "hidden-size=32", "ffn-hidden-size=96", "num-attention-heads=8", "vocab-size=500")
MOE = ("num-experts=8", "moe-ffn-hidden-size=16", "moe-router-topk=2", "moe-layer-freq='[1]*4'")
SHARED = ("moe-shared-expert-intermediate-size=24", "moe-shared-expert-gate=true", "moe-layer-freq='[0]*1+[1]*3'")
LATENT = ("multi-latent-attention=true", "q-lora-rank=16", "kv-lora-rank=12", "qk-head-dim=8", "qk-pos-emb-head-dim=4")
RANKS = {
    "the paper's": ("paper/qwen3-30b-a3b", MOE, (), 0),
    "two share what is no expert's": (LARGE, MOE, ("optimizer-cpu-offload=false",), 7),
    "experts, two stages": (LARGE, MOE, ("pipeline-model-parallel-size=2", "expert-model-parallel-size=2"), 7),
    "context": (LARGE, MOE, ("context-parallel-size=2", "expert-model-parallel-size=4"), 6),
    "dense": (DENSE[0], (), (), 3),
    "biases": (DENSE[1], ("num-query-groups=4",), (), 2),
    "tied, two stages": (DENSE[2], (), ("pipeline-model-parallel-size=2", "actor-num-gpus-per-node=4"), 3),
    "shared experts, cut": (LARGE, MOE + SHARED, ("expert-tensor-parallel-size=2", "expert-model-parallel-size=4"), 0),
    "latent attention": (LARGE, (*MOE, *LATENT, "v-head-dim=6"), ("tensor-model-parallel-size=1",), 0),
}
"""Ranks of small models: the run's file, what is changed in its model and in its trainer, and the rank's number."""


def rank_config(name):
    file, flags, train, rank = RANKS[name]
    overrides = [f"slime.{flag}" for flag in (*SMALL, *flags, *train)]
    return load_config(CONFIGS / f"{file}.yaml", overrides), rank


def megatron_case(config, rank):
    """What real_models.py takes."""
    flags, train, cut = config.model.architecture, config.train, cut_of(config)
    same = "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels normalization"
    same += " qk_layernorm add_qkv_bias moe_ffn_hidden_size moe_router_topk moe_shared_expert_intermediate_size"
    same += " moe_shared_expert_gate multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim"
    own = {name: flags[flag] for name in f"{same} v_head_dim".split() if (flag := name.replace("_", "-")) in flags}
    if "multi_latent_attention" in own:
        own = {name: value for name, value in own.items() if name not in ("kv_channels", "num_query_groups")}
    if config.model.is_moe:
        own |= {"num_moe_experts": config.model.experts, "moe_layer_freq": [int(e) for e in moe_layers(config.model)]}
    vocabulary = 128 * cut.tensor
    return {
        "world": train.world_size,
        "rank": rank,
        "context": train.context_parallel,
        **cut._asdict(),
        "swiglu": bool(flags.get("swiglu")),
        "vocabulary": -(-config.model.vocab_size // vocabulary) * vocabulary,
        "tied": not flags.get("untie-embeddings-and-output-weights"),
        "offload": train.optimizer_offload,
        "config": {**own, "add_bias_linear": not flags.get("disable-bias-linear", False)},
    }


@pytest.mark.engine
def test_elements_of_ranks_are_those_of_megatrons_own_models_and_optimizers():
    pytest.importorskip("megatron.core", reason="Megatron is not installed")
    cases = {name: rank_config(name) for name in RANKS}
    script = Path(__file__).with_name("real_models.py")
    asked = json.dumps([megatron_case(*case) for case in cases.values()])
    run = subprocess.run([sys.executable, str(script), asked], capture_output=True, text=True)
    answer = [line for line in run.stdout.splitlines() if line.startswith("RANKS ")]
    assert answer, run.stderr[-2000:]
    for (name, (config, rank)), real in zip(cases.items(), json.loads(answer[0].removeprefix("RANKS ")), strict=True):
        tensors = rank_tensors(config, rank // (config.train.world_size // config.train.pipeline_parallel))
        assert elements(tensors) == real["weights"], name
        for state in ("master", "exp_avg", "exp_avg_sq"):  # Megatron pads what ranks share
            assert real[state] == pytest.approx(optimizer_elements(config, tensors), rel=0.02), (name, state)


@pytest.mark.parametrize(
    "file, published",
    [
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-0.6b", 596_049_920),
        ("qwen2.5-7b", 7_615_616_512),
    ],
)
def test_models_have_the_parameters_of_their_checkpoints(file, published):
    """The numbers are those of the safetensors on the models' pages."""
    model = load_config(CONFIGS / f"models/{file}.yaml").model
    assert parameters(model) == published
    unused = EXPERTS * 120 // 128 if model.is_moe else 0
    assert active_parameters(model) == published - unused
    assert parameters(SlimeModelConfig()) == 0


@pytest.mark.parametrize(
    "frequency, layers",
    [(1, "1111"), ("2", "1010"), ("[0]*1+[1]*3", "0111"), ("[0,1]*2", "0101"), ([0, 1, 1, 0], "0110")],
)
def test_layers_with_experts(frequency, layers):
    flags = {"num-layers": 4, "moe-layer-freq": frequency}
    assert moe_layers(SlimeModelConfig({**flags, "num-experts": 8})) == [one == "1" for one in layers]
    assert moe_layers(SlimeModelConfig(flags)) == [False] * 4


def test_stages_that_are_cut_unevenly():
    settings = ["slime.pipeline-model-parallel-size=4", "slime.decoder-last-pipeline-num-layers=6"]
    config = load_config(CONFIGS / "models/qwen3-4b.yaml", settings)
    assert [len(stage) for stage in stage_layers(config)] == [10, 10, 10, 6]


# ------------------------------------------------------------------------------------------------------------ bytes


def test_the_papers_rank_is_within_3_percent_of_what_was_measured():
    """On an H100 and an H200 a rank peaked at 54.0 GiB, with one micro-batch of 32,768 tokens in place of the batch and
    without NCCL (bench/rank.py); one of qwen3-4b-8gpus at 33.4."""
    for config, measured in ((paper(), 54.0), (load_config(CONFIGS / f"{DENSE[0]}.yaml"), 33.4)):
        need = parts(training_need(config))
        assert sum(need.values()) - need["batch"] == pytest.approx(measured * GIB, rel=0.03)


def test_a_training_gpu_of_the_papers_run_by_hand():
    """Tensor and expert parallel 4 on four GPUs, so that nothing is divided among data-parallel ranks; 152,064 rows are
    151,936 padded to 128 x 4."""
    rank = EXPERTS / 4 + ATTENTION / 4 + 2 * 152064 * 2048 / 4 + ON_EVERY_RANK
    found = parts(training_need(paper("slime.optimizer-cpu-offload=false")))
    assert found == {
        "weights": 2 * rank,
        "gradients": 4 * rank,
        "optimizer": 12 * rank,
        # tokens, loss masks; log-probs of engine and reference, zeros for the reward's KL, returns
        "batch": BATCH * (8 + 4 + 4 * 4),
        "layer inputs": 2 * 48 * 32768 * 2048 / 4,
        "logits": 8 * 32768 * 152064 / 4,
    }
    per_token = 2 * (4 * 2048 + 128 * (32 + 2 * 4 + 36 + 32) + 8 * (4 * 2048 + 3 * 768)) / 4 + 3 * 4 * 128 / 4
    kept = parts(training_need(paper("slime.recompute-granularity=false")))["activations"]
    assert kept == pytest.approx(48 * 32768 * per_token)
    less = parts(training_need(paper("slime.recompute-granularity=selective")))["activations"]
    assert kept - less == pytest.approx(48 * 32768 * 2 * 32 * 128 / 4)


@pytest.mark.parametrize(
    "part, overrides, factor",
    [
        ("gradients", ["slime.accumulate-allreduce-grads-in-fp32=false"], 1 / 2),
        ("batch", ["loss.kl_coef=0"], 24 / 28),
        ("batch", ["method.tis=true", "pipeline.optimizer_steps_per_rollout=2"], 32 / 28),
        ("batch", ["slime.actor-num-gpus-per-node=8"], 1 / 2),
        ("logits", ["slime.rollout-temperature=0.9"], 12 / 8),
        ("logits", ["loss.entropy_coef=0.1"], 12 / 8),
        ("logits", ["slime.max-tokens-per-gpu=16384"], 1),  # the longest sample is 32,768
        # the last stage
        ("layer inputs", ["slime.pipeline-model-parallel-size=2", "slime.actor-num-gpus-per-node=8"], 1 / 2),
    ],
)
def test_what_settings_change_on_a_training_gpu(part, overrides, factor):
    assert parts(training_need(paper(*overrides)))[part] == parts(training_need(paper()))[part] * factor


def test_an_engine():
    config = paper()
    by_hand = 2 * (EXPERTS / 2 + ATTENTION / 2 + 2 * 151936 * 2048 / 2 + ON_EVERY_RANK)
    assert engine_weights_bytes(config) == pytest.approx(by_hand, rel=1e-4)  # SGLang pads the vocabulary less
    assert kv_bytes_per_token(config) == 2 * 2 * 48 * 2 * 128
    assert engine_kv_tokens(config, 79.1 * GIB) == pytest.approx(848_000, rel=0.01)
    eight = paper("slime.rollout-num-gpus-per-engine=8", "slime.rollout-num-gpus=8")
    assert kv_bytes_per_token(eight) == 2 * 2 * 48 * 1 * 128
    assert engine_kv_tokens(config, 20 * GIB) == 0


def test_host_memory_of_the_papers_run():
    """Pinned tensors are rounded up to powers of two: an expert's matrices of 6 and 3 MiB take blocks of 8 and 4, and
    gradients twice as much. Nodes share the optimizer, and not the weights."""
    found = parts(host_need(paper()))
    assert found["2 copies of the weights"] / GIB == pytest.approx(114 + 36 + 3, abs=1)
    whole = EXPERTS + ATTENTION + 2 * 152064 * 2048 + 4 * ON_EVERY_RANK
    assert found["optimizer"] - 12 * whole == pytest.approx(found["2 copies of the weights"], rel=1e-3)
    eight = ("slime.actor-num-gpus-per-node=8", "slime.expert-model-parallel-size=8")
    one, two = (parts(host_need(paper(*eight, f"slime.actor-num-nodes={n}"))) for n in (1, 2))
    assert two["2 copies of the weights"] == one["2 copies of the weights"]
    assert two["optimizer"] == pytest.approx(one["optimizer"] / 2)


@pytest.mark.parametrize(
    "overrides, copies",
    [
        (["loss.kl_coef=0"], 1),
        (["method=sat-gspo", "method.tis=true", "pipeline.lag=1"], 4),
        (["method=sat-gspo", "method.tis=true", "pipeline.lag=8"], 3),
    ],
)
def test_copies_of_the_weights(overrides, copies):
    assert weight_copies(paper(*overrides)) == copies


def test_routes():
    """384 bytes a token; prompt and response end where the context of 32,768 tokens does."""
    config = paper("method.r3=true")
    assert routes_bytes(config) == BATCH * 48 * 8 == 48 * GIB and routes_bytes(paper()) == 0
    # those of the batch in training and of the one in flight are in the object store, once each
    assert parts(host_need(config))["routed experts"] == 2 * 48 * GIB
    assert parts(host_need(paper("method.r3=true", "pipeline.lag=0")))["routed experts"] == 48 * GIB
    # slime's own way: four ranks of one data-parallel group, the store, the pinned slices, and the next batch's samples
    own = paper("method.r3=true", "slime.custom-convert-samples-to-train-data-path=mine.convert")
    assert parts(host_need(own))["routed experts"] == 7 * 48 * GIB
    assert store_need(config).total == 2 * (48 * GIB + 16 * BATCH)
    assert store_need(paper()).certain == 0


REHEARSED = {"qwen3-0.6b-2gpus": 5.4, "qwen3-4b-8gpus": 10.9, "qwen2.5-7b-8gpus": 12.1, "qwen3-30b-a3b-8gpus": 15.0}
"""GiB that rehearsals of recipes held at most."""


@pytest.mark.parametrize("name", REHEARSED)
def test_a_rehearsals_estimate_is_near_what_it_took(name):
    """Rather above it: a peak of logits lasts less than the five seconds between two looks."""
    config = load_config(CONFIGS / "recipes" / f"{name}.yaml")
    thin = thin_settings(config, Path("/nowhere"), Sizes()).config
    thin = thin.with_flags({"rollout-max-prompt-len": 24})
    assert 0.95 < host_need(thin).total / GIB / REHEARSED[name] < 1.2


# ------------------------------------------------------------------------------------------------------------- a fit


def test_the_papers_run_fits_eight_gpus_of_80_gb_and_not_of_40():
    config = r3()
    lines = table(rows(config, sizes(config)))
    assert len(lines) == 5 and lines[1].split()[2:5] == ["57", "79", "72"]
    assert {row.what: row.mark for row in rows(config, sizes(config))} == dict.fromkeys(
        (TRAINING, ENGINE, HOST, STORE), "OK"
    )
    assert [one.mark for one in findings(r3(gpu=39.4), TRAINING)] == ["FAIL"]


SIZES = {
    "num-layers": 46, "hidden-size": 4096, "ffn-hidden-size": 10944, "vocab-size": 151552, "moe-ffn-hidden-size": 1408,
    "num-attention-heads": 96, "num-query-groups": 8, "moe-shared-expert-intermediate-size": 1408,
}  # fmt: skip
GLM_AIR = [f"slime.{flag}={value}" for flag, value in SIZES.items()]


@pytest.mark.parametrize(
    "what, overrides, there, mark, said",
    [
        (TRAINING, ["slime.optimizer-cpu-offload=false"], {}, "FAIL", "needs 142 of 79 GiB"),
        (TRAINING, ["slime.tensor-model-parallel-size=1"], {}, "FAIL", "needs 93 of 79 GiB"),
        (TRAINING, ["slime.max-tokens-per-gpu=131072"], {}, "FAIL", "needs 89 of 79 GiB"),
        (TRAINING, ["slime.recompute-granularity=false"], {}, "FAIL", "needs 134 of 79 GiB"),
        (TRAINING, GLM_AIR, {}, "FAIL", "more slime.tensor-model-parallel-size"),
        (HOST, [], {"host": 640}, "FAIL", "slime.optimizer-cpu-offload false where the GPUs have room"),
        (HOST, ["slime.rollout-data-transport=disk"], {"host": 1024}, "WARN", "needs up to 1,005 of 973 GiB"),
        (ENGINE, ["slime.sglang-mem-fraction-static=0.93"], {}, "WARN", "slime.sglang-mem-fraction-static is 0.93"),
        (ENGINE, ["slime.sglang-mem-fraction-static=0.99"], {}, "FAIL", "slime.sglang-mem-fraction-static is 0.99"),
        (ENGINE, ["slime.rollout-num-gpus-per-engine=1"], {"gpu": 39.4}, "FAIL", "more slime.rollout-num-gpus-"),
        (ENGINE, ["slime.sglang-server-concurrency=100000"], {}, "WARN", "set it to 25 to 413"),
        (STORE, [], {"store": 64}, "WARN", "100 of 64 GiB"),
        ("/dev/shm", [], {"shm": 128}, "WARN", "less than Ray's object store of 186"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_what_helps(what, overrides, there, mark, said):
    found = [one for one in findings(r3(*overrides, **there), what) if one.mark != "OK"]
    assert any(one.mark == mark and said in one.detail for one in found), found


def test_what_is_given_wins_over_what_machines_say():
    told = {"node a": {"gpu": 90 * GIB, "host": 2000 * GIB}, "node b": {"gpu": 40 * GIB, "host": None}}
    config = load_config(PAPER)
    assert sizes(config, told).gpu.source == "node b" and sizes(config, told).host.source == "node a"
    assert sizes(paper(*cluster(gpu=24)), told).gpu.bytes == 24 * GIB
    assert sizes(config).gpu.source == "assumed: an 80 GB card" and sizes(config).host is None
    nodes = [{"name": "head", "gpus": 0, "sizes": {"host": 1}}, {"name": "a", "gpus": 8.0, "sizes": {"host": 4}}]
    assert sizes_of_nodes(nodes) == {"node a": {"host": 4}}


def test_a_model_without_sizes_is_not_judged():
    config = load_config(CONFIGS / "slime" / "base.yaml")
    (finding,) = memory_findings(config, sizes(config))
    assert finding.mark == "WARN" and "no flags for the model's size" in finding.detail


@pytest.mark.parametrize("gib, mark", [(16, "OK"), (2, "FAIL")])
def test_a_run_on_a_cpu_is_judged_by_the_hosts_memory_alone(gib, mark):
    config = load_config(CONFIGS / "slime" / "laptop.yaml", [f"cluster.host_memory_gib={gib}"])
    assert [(one.mark, one.what) for one in memory_findings(config, sizes(config))] == [(mark, HOST)]


# --------------------------------------------------------------------------------------------------------- machines


@pytest.mark.parametrize(
    "script, expected",
    [
        ("echo '81559, 551'; echo '40960, 400'", (40960 - 400) * MIB),
        ('case "$*" in *reserved*) echo "not a valid field"; exit 2;; esac; echo 81920', 81920 * MIB),
        ('case "$*" in *reserved*) echo "81920, [N/A]";; *) echo 81920;; esac', 81920 * MIB),
        ('echo "NVIDIA-SMI has failed"; exit 9', None),
        ("exit 0", None),
    ],
)
def test_the_smallest_gpu_without_what_the_driver_keeps(tmp_path, monkeypatch, script, expected):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpu_memory() == expected


def test_of_a_container_its_own_memory_counts(tmp_path):
    """Files that can be dropped are not held."""
    machine, taken = host_memory(tmp_path)
    assert machine > GIB // 4 and 0 < taken < machine and machine_sizes()["shm"]
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory(tmp_path)[0] == machine
    (tmp_path / "memory.max").write_text("9000\n")
    assert host_memory(tmp_path) == (9000, 3500)
