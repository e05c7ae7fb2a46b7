"""Memory of a run: elements and bytes by hand and by measurements, and what is said of a fit."""

import json
import os
from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.config.slime_schema import SlimeModelConfig
from sat_slime.launch import memory
from sat_slime.launch.memory import ENGINE, GIB, HOST, MIB, ROWS, TRAINING

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER = CONFIGS / "paper" / "qwen3-30b-a3b.yaml"
EXPERTS = 48 * 128 * 3 * 2048 * 768
ATTENTION = 48 * 2048 * 128 * (32 + 2 * 4 + 32)
ON_EVERY_RANK = 48 * (128 * 2048 + 2 * 2048 + 2 * 128) + 2048  # router and norms
BATCH = 4096 * 32768


def paper(*overrides):
    return load_config(PAPER, overrides)


def r3(*overrides, gpu=79.1, host=2048):
    keys = {"gpu_memory_gib": gpu, "host_memory_gib": host}
    there = [f"cluster.{key}={value}" for key, value in keys.items()]
    return paper("method=sat-gspo-r3", "pipeline.lag=8", *there, *overrides)


def findings(config, what):
    return [one for one in memory.memory_findings(config, memory.sizes(config)) if one.what == what]


# --------------------------------------------------------------------------------------------------------- elements

LARGE = "recipes/qwen3-30b-a3b-16gpus"
SHARED = (
    "slime.moe-shared-expert-intermediate-size=1024",
    "slime.moe-shared-expert-gate=true",
    "slime.moe-layer-freq='[0]*2+[1]*46'",
)


@pytest.mark.parametrize(
    ("file", "more"), [(LARGE, ()), (LARGE, SHARED), ("recipes/qwen2.5-7b-8gpus", ()), ("recipes/qwen3-0.6b-2gpus", ())]
)
def test_ranks_hold_the_model_together(file, more):
    """However it is cut: experts once each, embeddings on both ends of a pipeline, the optimizer's state once."""
    config = load_config(CONFIGS / f"{file}.yaml", more)
    whole = memory.parameters(config.model)
    cut = {"slime.pipeline-model-parallel-size": 2, "slime.actor-num-gpus-per-node": 8, "slime.actor-num-nodes": 1}
    cut |= {"slime.tensor-model-parallel-size": 1, "slime.expert-tensor-parallel-size": 1}
    cut |= {"slime.expert-model-parallel-size": 4} if config.model.is_moe else {}
    thin = load_config(CONFIGS / f"{file}.yaml", more, cut)
    stages = memory.stages_of(thin)
    tied = thin.model.tied_embeddings
    twice = memory.padded_vocabulary(thin.model, 1) * thin.model.hidden_size if tied else 0
    experts = memory.parameters(thin.model) - memory.elements(thin.model, thin.model.moe_layers)[0]
    others = experts - experts // thin.train.expert_parallel  # on ranks beside the first
    assert sum(own.elements for own in stages) == whole + twice - others
    # four ranks of each stage share its state
    assert sum(4 * own.optimizer for own in stages) == pytest.approx(whole + twice)


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
    assert memory.parameters(model) == published
    unused = EXPERTS * 120 // 128 if model.is_moe else 0
    assert memory.parameters(model, active=True) == published - unused


@pytest.mark.parametrize(
    "frequency, layers",
    [(1, "1111"), ("2", "1010"), ("[0]*1+3*[1]", "0111"), ("[0,1]*2", "0101"), ("([1]+[0]*1)*2", "1010")],
)
def test_layers_with_experts(frequency, layers):
    flags = {"num-layers": 4, "moe-layer-freq": frequency}
    assert SlimeModelConfig({**flags, "num-experts": 8}).moe_layers == [one == "1" for one in layers]
    assert SlimeModelConfig(flags).moe_layers == [False] * 4


# ------------------------------------------------------------------------------------------------------------ bytes


def test_the_papers_rank_is_within_3_percent_of_what_was_measured():
    """On an H100 and an H200 a rank peaked at 54.0 GiB, with one micro-batch of 32,768 tokens in place of the batch and
    without NCCL (bench/rank.py); one of qwen3-4b-8gpus at 33.4."""
    for config, measured in ((paper(), 54.0), (load_config(CONFIGS / "recipes/qwen3-4b-8gpus.yaml"), 33.4)):
        need = memory.training_need(config)
        assert sum(need.values()) - need["batch"] == pytest.approx(measured * GIB, rel=0.03)


def test_a_training_gpu_of_the_papers_run_by_hand():
    """Tensor and expert parallel 4 on four GPUs, so that nothing is divided among data-parallel ranks; 152,064 rows are
    151,936 padded to 128 x 4."""
    rank = EXPERTS / 4 + ATTENTION / 4 + 2 * 152064 * 2048 / 4 + ON_EVERY_RANK
    stateless = ("slime.use-stateless-adam=true", "slime.optimizer-cpu-offload=false")
    for keys, size in ((["slime.optimizer-offload-fraction=0.25"], 9), (stateless, 4)):
        assert memory.training_need(paper(*keys))["optimizer"] == size * rank
    assert memory.training_need(paper("slime.optimizer-cpu-offload=false")) == {
        "weights": 2 * rank,
        "gradients": 4 * rank,
        "optimizer": 12 * rank,
        # tokens, loss masks; log-probs of engine and reference, zeros for the reward's KL, returns
        "batch": BATCH * (8 + 4 + 4 * 4),
        "layer inputs": 2 * 48 * 32768 * 2048 / 4,
        "logits": 8 * 32768 * 152064 / 4,
    }
    per_token = 2 * (4 * 2048 + 128 * (32 + 2 * 4 + 36 + 32) + 8 * (4 * 2048 + 3 * 768)) / 4 + 3 * 4 * 128 / 4
    kept = memory.training_need(paper("slime.recompute-granularity=false"))["activations"]
    assert kept == pytest.approx(48 * 32768 * per_token)


@pytest.mark.parametrize(
    "part, overrides, factor",
    [
        ("gradients", ["slime.accumulate-allreduce-grads-in-fp32=false"], 1 / 2),
        ("logits", ["slime.rollout-temperature=0.9"], 12 / 8),
        ("logits", ["slime.max-tokens-per-gpu=16384"], 1),  # the longest sample is 32,768
        ("logits", ["slime.use-dynamic-batch-size=false", "slime.micro-batch-size=2"], 2),
        # the last stage
        ("layer inputs", ["slime.pipeline-model-parallel-size=2", "slime.actor-num-gpus-per-node=8"], 1 / 2),
    ],
)
def test_what_settings_change_on_a_training_gpu(part, overrides, factor):
    assert memory.training_need(paper(*overrides))[part] == memory.training_need(paper())[part] * factor


@pytest.mark.parametrize("quantization, size", [({}, 2), ({"quant_method": "fp8"}, 1), ({"w": {"num_bits": 4}}, 0.5)])
def test_an_engine(tmp_path, quantization, size):
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    embeddings = 2 * 151936 * 2048
    config = paper(f"slime.hf-checkpoint={tmp_path}")
    by_hand = size * (EXPERTS / 2 + ATTENTION / 2 + ON_EVERY_RANK) + 2 * embeddings / 2
    assert memory.engine_need(config)["weights"] == pytest.approx(by_hand, rel=1e-4)  # SGLang pads the vocabulary less
    kv = 2 * 2 * 48 * 128 * 32768  # of a head
    assert memory.engine_need(paper())["KV of the longest response"] == 2 * kv
    engines = ("slime.rollout-num-gpus-per-engine=8", "slime.rollout-num-gpus=8")
    eight = memory.engine_need(paper(*engines))
    assert eight["KV of the longest response"] == kv
    # two groups of four GPUs, in each of which are all heads of attention
    groups = memory.engine_need(paper(*engines, "slime.sglang-dp-size=2"))
    assert groups["weights"] - eight["weights"] == pytest.approx(2 * (ATTENTION + embeddings) / 8, rel=2e-3)
    assert memory.engine_need(paper(*engines, "slime.sglang-pp-size=2"))["KV of the longest response"] == kv / 2


def test_host_memory_of_the_papers_run():
    """Pinned tensors are rounded up to powers of two: an expert's matrices of 6 and 3 MiB take blocks of 8 and 4, and
    gradients twice as much. Nodes share the optimizer, and not the weights."""
    found = memory.host_need(paper())
    assert found["2 copies of the weights"] / GIB == pytest.approx(114 + 36 + 3, abs=2)
    whole = EXPERTS + ATTENTION + 2 * 152064 * 2048 + 4 * ON_EVERY_RANK
    assert found["optimizer"] - 12 * whole == pytest.approx(found["2 copies of the weights"], rel=1e-3)
    eight = ("slime.actor-num-gpus-per-node=8", "slime.expert-model-parallel-size=8")
    one, two = (memory.host_need(paper(*eight, f"slime.actor-num-nodes={n}")) for n in (1, 2))
    assert two["2 copies of the weights"] == one["2 copies of the weights"]
    assert two["optimizer"] == pytest.approx(one["optimizer"] / 2)
    for settings, copies in ((["loss.kl_coef=0"], 1), (["method.tis=true", "pipeline.lag=1"], 4)):
        assert f"{copies} copies of the weights" in memory.host_need(paper("method=sat-gspo", *settings))


def test_routes():
    """384 bytes a token; prompt and response end where the context of 32,768 tokens does."""
    config = paper("method.r3=true")
    assert BATCH * 48 * 8 == 48 * GIB and memory.host_need(paper())["routed experts"] == 0
    # the batch in training and the one in flight in the object store; the rollout process; four ranks, twice each
    assert memory.host_need(config)["routed experts"] == (2 + 1 + 8) * 48 * GIB
    assert memory.host_need(paper("method.r3=true", "pipeline.lag=0"))["routed experts"] == 10 * 48 * GIB


# ------------------------------------------------------------------------------------------------------------- a fit


def test_the_papers_run_fits_eight_gpus_of_80_gb_and_not_of_40():
    config = r3()
    training, *others = map(str, memory.rows(config, memory.sizes(config)))
    assert len(others) == 2 and training.startswith("57 of 79 GiB, 72 % (cluster.gpu_memory_gib): weights 14.2, gradie")
    assert {row.what: row.mark for row in memory.rows(config, memory.sizes(config))} == dict.fromkeys(ROWS, "OK")
    assert [one.mark for one in findings(r3(gpu=39.4), TRAINING)] == ["FAIL"]


@pytest.mark.parametrize(
    "what, overrides, there, mark, said",
    [
        (TRAINING, ["slime.optimizer-cpu-offload=false"], {}, "FAIL", "needs 142 of 79 GiB"),
        (TRAINING, ["slime.tensor-model-parallel-size=1"], {}, "FAIL", "needs 93 of 79 GiB"),
        (TRAINING, ["slime.max-tokens-per-gpu=131072"], {}, "FAIL", "needs 89 of 79 GiB"),
        (TRAINING, ["slime.recompute-granularity=false"], {}, "FAIL", "needs 134 of 79 GiB"),
        (HOST, [], {"host": 640}, "FAIL", "slime.optimizer-cpu-offload false where the GPUs have room"),
        (HOST, [], {"host": 800}, "WARN", "needs up to 1,195 of 760 GiB"),
        (ENGINE, ["slime.rollout-num-gpus-per-engine=1"], {"gpu": 39.4}, "FAIL", "more slime.rollout-num-gpus-"),
        (ENGINE, ["slime.sglang-mem-fraction-static=1e-320"], {"gpu": "1e-20"}, "FAIL", "sglang-mem-fraction-static"),
    ],
)
def test_what_does_not_fit_is_told_with_what_helps(what, overrides, there, mark, said):
    found = [one for one in findings(r3(*overrides, **there), what) if one.mark != "OK"]
    assert any(one.mark == mark and said in one.detail for one in found), found
    assert any("granularity full" in one.detail for one in found) == ("slime.recompute-granularity=false" in overrides)


def test_what_is_given_wins_over_what_machines_say():
    told = {"node a": {"gpu": 90 * GIB, "host": 2000 * GIB}, "node b": {"gpu": 40 * GIB, "host": None}}
    assert (memory.sizes(paper(), told)["gpu"][1], memory.sizes(paper(), told)["host"][1]) == ("node b", "node a")
    assert memory.sizes(paper("cluster.gpu_memory_gib=24"), told)["gpu"][0] == 24 * GIB
    assert memory.sizes(paper())["gpu"][1] == "assumed: an 80 GB card" and "host" not in memory.sizes(paper())


@pytest.mark.parametrize(
    "file, flags, why",
    [
        ("slime/base", [], "slime has no flags for the model's size"),
        ("paper/qwen3-30b-a3b", ["vocab-size=null"], "slime has no flags for the model's size"),
        ("paper/qwen3-30b-a3b", ["multi-latent-attention=true"], "slime.multi-latent-attention is not counted"),
        ("paper/qwen3-30b-a3b", ["decoder-last-pipeline-num-layers=6"], "-num-layers is not counted"),
    ],
)
def test_a_model_that_is_not_counted_is_not_judged(file, flags, why):
    config = load_config(CONFIGS / f"{file}.yaml", [f"slime.{flag}" for flag in flags])
    (finding,) = memory.memory_findings(config, memory.sizes(config))
    assert finding.mark == "WARN" and why in finding.detail and "memory is not checked" in finding.detail


# --------------------------------------------------------------------------------------------------------- machines


@pytest.mark.parametrize(
    "script, expected",
    [
        ('echo "81559, 560"; echo "40960, 500"', (40960 - 500) * MIB),
        ('echo "NVIDIA-SMI has failed"; exit 9', None),
        ("exit 0", None),
    ],
)
def test_the_smallest_gpu_without_what_the_driver_keeps(tmp_path, monkeypatch, script, expected):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert memory.machine_sizes()["gpu"] == expected


def test_of_a_container_its_own_memory_counts(tmp_path):
    machine = memory.machine_sizes(tmp_path)["host"]
    assert machine > GIB // 4
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.machine_sizes(tmp_path)["host"] == machine
    (tmp_path / "memory.max").write_text("9000\n")
    assert memory.machine_sizes(tmp_path)["host"] == 9000
