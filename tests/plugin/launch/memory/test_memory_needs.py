"""Bytes of each part, by numbers worked out by hand for the paper's model."""

from pathlib import Path

import pytest

from sat_slime.config import load_config
from sat_slime.launch.memory.memory_needs import (
    GIB,
    engine_kv_tokens,
    engine_weights_bytes,
    host_need,
    kv_bytes_per_token,
    routes_bytes,
    store_need,
    training_need,
    weight_copies,
)
from sat_slime.rehearsal.thin import Sizes, thin_settings

CONFIGS = Path(__file__).parents[4] / "configs"
EXPERTS = 48 * 128 * 3 * 2048 * 768
ATTENTION = 48 * 2048 * 128 * (32 + 2 * 4 + 32)
WHOLE = 48 * (128 * 2048 + 2 * 2048 + 2 * 128) + 2048  # router and norms, on every rank
BATCH = 4096 * 32768
BF16_GRADIENTS = "slime.accumulate-allreduce-grads-in-fp32=false"


def paper(*overrides):
    return load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", overrides)


def parts(need):
    return {part.name: part.size for part in need.parts}


def rank(experts=4, tensor=4, vocabulary=152064):
    """Elements of a rank by hand; 152,064 rows are 151,936 padded to 128 x 4."""
    return EXPERTS / experts, ATTENTION / tensor + 2 * vocabulary * 2048 / tensor + WHOLE


def test_a_training_gpu_of_the_papers_run():
    """Tensor and expert parallel 4 on four GPUs, so that nothing is divided among data-parallel ranks."""
    found = parts(training_need(paper("train.optimizer_offload=false")))
    assert found["weights"] == 2 * sum(rank())
    assert found["gradients"] == 4 * sum(rank())
    assert found["optimizer"] == 12 * sum(rank())
    assert found["layer inputs"] == 2 * 48 * 32768 * 2048 / 4
    assert found["logits"] == 8 * 32768 * 152064 / 4
    # tokens, loss masks; log-probs of engine and reference, zeros for the reward's KL, returns
    assert found["batch"] == BATCH * (8 + 4 + 4 * 4)


def test_what_settings_change_on_a_training_gpu():
    before = parts(training_need(paper()))
    assert "optimizer" not in before
    assert parts(training_need(paper(BF16_GRADIENTS)))["gradients"] == before["gradients"] / 2
    assert parts(training_need(paper("loss.kl_coef=0")))["batch"] == BATCH * (8 + 4 + 3 * 4)
    scored = paper("method.tis=true", "pipeline.optimizer_steps_per_rollout=2")  # the trainer scores the batch first
    assert parts(training_need(scored))["batch"] == BATCH * (8 + 4 + 5 * 4)
    assert parts(training_need(paper("rollout.temperature=0.9")))["logits"] == before["logits"] * 12 / 8
    assert parts(training_need(paper("loss.entropy_coef=0.1")))["logits"] == before["logits"] * 12 / 8
    assert parts(training_need(paper("train.max_tokens_per_gpu=16384"))) == before  # the longest sample is 32,768
    cut = paper("train.max_tokens_per_gpu=16384", "train.context_parallel=2", "train.tensor_parallel=2")
    assert parts(training_need(cut))["logits"] == 8 * 16384 * 152064 / 2  # 151,936 padded to 128 x 2
    assert parts(training_need(cut))["batch"] == BATCH * (8 + 4 + 4 * 4 / 2)


def test_ranks_with_the_same_weights_share_the_optimizer():
    cut = ("train.gpus_per_node=8", "train.expert_parallel=8", "train.optimizer_offload=false")
    experts, others = rank(experts=8)
    found = parts(training_need(paper(*cut)))
    assert found["optimizer"] == 12 * (experts + others / 2)
    assert found["batch"] == BATCH / 2 * (8 + 4 + 4 * 4)
    bf16 = parts(training_need(paper(*cut, BF16_GRADIENTS)))
    assert bf16["optimizer"] == 16 * (experts + others / 2)  # gradients in bf16 are copied into fp32


def test_activations_that_are_kept():
    """Per token and layer of the paper's rank: norms, attention with normed queries and keys, router, eight experts."""
    attention = 4 * 2048 + 128 * (32 + 2 * 4 + 36 + 32)
    per_token = 2 * (attention + 8 * (4 * 2048 + 3 * 768)) / 4 + 3 * 4 * 128 / 4
    found = parts(training_need(paper("train.recompute=none")))
    assert found["activations"] == pytest.approx(48 * 32768 * per_token)
    less = parts(training_need(paper("train.recompute=selective")))["activations"]
    assert found["activations"] - less == pytest.approx(48 * 32768 * 2 * 32 * 128 / 4)
    narrow = paper("train.tensor_parallel=4", "train.max_tokens_per_gpu=32768", "model.architecture.vocab-size=1000")
    assert parts(training_need(narrow))["a layer"] == pytest.approx(32768 * per_token)  # larger than its logits


def test_stages_of_a_pipeline_hold_several_micro_batches():
    config = paper("train.pipeline_parallel=2", "train.nodes=2", "train.gpus_per_node=8", "train.expert_parallel=8")
    found = parts(training_need(config))
    # the first stage: two micro-batches of half the layers, no logits; the last: one, and logits
    assert found["layer inputs"] == 2 * 24 * 32768 * 2048 / 4 and "logits" in found


def test_an_engine():
    config = paper()
    by_hand = 2 * (EXPERTS / 2 + ATTENTION / 2 + 2 * 151936 * 2048 / 2 + WHOLE)
    assert engine_weights_bytes(config) == pytest.approx(by_hand, rel=1e-4)  # SGLang pads the vocabulary less
    assert kv_bytes_per_token(config) == 2 * 2 * 48 * 2 * 128
    tokens = engine_kv_tokens(config, 79.1 * GIB)
    assert tokens == int((0.85 * 79.1 * GIB - engine_weights_bytes(config)) / kv_bytes_per_token(config))
    assert tokens == pytest.approx(848_000, rel=0.01)
    assert kv_bytes_per_token(paper("rollout.gpus_per_engine=8", "rollout.gpus_per_node=8")) == 2 * 2 * 48 * 1 * 128
    assert engine_kv_tokens(config, 20 * GIB) == 0
    latent = {"multi-latent-attention": True, "kv-lora-rank": 512, "qk-pos-emb-head-dim": 64}
    mla = paper(*(f"model.architecture.{flag}={value}" for flag, value in latent.items()))
    assert kv_bytes_per_token(mla) == 2 * 48 * 576


def test_pinned_tensors_are_rounded_up():
    """An expert's matrices of 6 and 3 MiB take blocks of 8 and 4; gradients are twice as large."""
    found = parts(host_need(paper()))
    experts = 48 * 128
    in_blocks = experts * (8 + 4) * 2**20
    attention = 4 * 48 * (2 * 40 * 128 * 2048 / 4 + 2 * 32 * 128 * 2048 / 4)  # 5 MiB in 8, 4 in 4
    assert found["2 copies of the weights"] / 2 == pytest.approx(
        in_blocks + attention * 12 / 9 + 4 * 2 * 256 * 2**20 + 4 * 48 * 2**19, rel=1e-3
    )
    assert found["2 copies of the weights"] / GIB == pytest.approx(114 + 36 + 3, abs=1)
    parameters = EXPERTS + ATTENTION + 2 * 152064 * 2048 + 4 * WHOLE
    assert found["optimizer"] - 12 * parameters == pytest.approx(found["2 copies of the weights"], rel=1e-3)
    assert "optimizer" not in parts(host_need(paper("train.optimizer_offload=false")))


def test_nodes_share_the_optimizer_and_not_the_weights():
    one = parts(host_need(paper("train.gpus_per_node=8", "train.expert_parallel=8")))
    two = parts(host_need(paper("train.gpus_per_node=8", "train.nodes=2", "train.expert_parallel=8")))
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


def test_routes_are_those_of_the_context():
    """384 bytes a token; prompt and response end where the context of 32,768 tokens does."""
    config = paper("method.r3=true")
    assert routes_bytes(config) == BATCH * 48 * 8 == 48 * GIB
    assert routes_bytes(paper()) == 0
    # one of the batch in training and one of the batch in flight, in the object store
    assert parts(host_need(config))["routed experts"] == 2 * 48 * GIB
    assert parts(host_need(paper("method.r3=true", "pipeline.lag=0")))["routed experts"] == 48 * GIB
    # slime's own way: four ranks of one data-parallel group, the store, the pinned slices, and the next batch's samples
    alone = ("method.r3=true", "slime.custom-convert-samples-to-train-data-path=mine.convert")
    assert parts(host_need(paper(*alone)))["routed experts"] == 7 * 48 * GIB
    apart = paper(*alone, "train.tensor_parallel=1")
    assert parts(host_need(apart))["routed experts"] == 5 * 48 * GIB  # as the next batch is put into the store


def test_the_object_store_holds_this_batch_and_the_next():
    assert store_need(paper("method.r3=true")).total == 2 * (48 * GIB + 16 * BATCH)
    assert store_need(paper("method.r3=true", "pipeline.lag=0")).total == 48 * GIB + 16 * BATCH
    assert store_need(paper()).certain == 0


def test_a_run_on_a_cpu_is_one_heap():
    """Measured: 3.1 GiB (docs/rehearse.md)."""
    config = load_config(CONFIGS / "slime" / "laptop.yaml")
    found = parts(host_need(config))
    assert found.keys() >= {"Ray and slime", "ranks' processes", "trainer", "engines", "batch"}
    assert 3 * GIB < host_need(config).total < 5 * GIB


REHEARSED = {
    "qwen3-0.6b-2gpus": 5.4,
    "qwen3-4b-8gpus": 10.9,
    "qwen2.5-7b-8gpus": 12.1,
    "qwen3-30b-a3b-8gpus": 15.0,
}
"""GiB that rehearsals of recipes held at most."""


def rehearsed(name, *overrides, layers=None):
    thin = thin_settings(
        load_config(CONFIGS / "recipes" / f"{name}.yaml", overrides), Path("/nowhere"), Sizes(layers=layers)
    ).config
    prompts = thin.rollout.model_copy(update={"max_prompt_tokens": 24})
    return host_need(thin.model_copy(update={"rollout": prompts}))


@pytest.mark.parametrize("name", REHEARSED)
def test_a_rehearsals_estimate_is_near_what_it_took(name):
    """Rather above it: a peak of logits lasts less than the five seconds between two looks."""
    assert 0.95 < rehearsed(name).total / GIB / REHEARSED[name] < 1.2


def test_every_process_and_node_on_one_machine_counts():
    """The 16 GPUs of that recipe are two nodes; its trainer alone has eight ranks."""
    two, one = rehearsed("qwen3-30b-a3b-16gpus"), rehearsed("qwen3-30b-a3b-8gpus")
    assert two.total > 1.5 * one.total
    assert parts(two)["Ray and slime"] > parts(one)["Ray and slime"]
    assert parts(two)["ranks' processes"] == 2 * parts(one)["ranks' processes"]
    # logits of 16 responses of 24 and 24 tokens, their softmax and the entropy's products, on each rank's quarter of
    # the words
    assert parts(one)["logits"] == 4 * 16 * 48 * 152064 / 4 * 3 * 4
    fewer = rehearsed("qwen3-30b-a3b-8gpus", layers=24)
    assert parts(fewer)["parameters as objects"] < 0.6 * parts(one)["parameters as objects"]
