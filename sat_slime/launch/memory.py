"""The memory that a run of slime needs, by Megatron's own arithmetic, against what its machines have.

Counted are GPTModel's layers as slime builds them with Transformer Engine (attention with query groups or latent
attention, gated or plain feed-forward layers, experts, shared experts), what Megatron keeps of each parameter, a
micro-batch's activations and logits, copies of the weights and batches on the host, an engine's weights and KV cache.
As in megatron/training/theoretical_memory_usage.py, layers of another kind count as attention, and layers that predict
further tokens are left out; so are CUDA's context, NCCL's buffers, the allocator's gaps, experts that are chosen more
often than others, and on the host SGLang. So a run is warned from 90 % on. Lines of source are those of slime 624b824a8
and of its Megatron-LM.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from sat_slime.config.finding import Finding, ok, warn
from sat_slime.config.method_section import build_method
from sat_slime.config.slime_checks import context_tokens, spares_recompute
from sat_slime.config.slime_schema import SlimeConfig, SlimeModelConfig

BF16, FP32, INT64, INT32 = 2, 4, 8, 4
"""Bytes of a number."""
GIB = 2**30
MIB = 2**20

# ------------------------------------------------------------------------------------------------------- parameters


class Cut(NamedTuple):
    """The number of ranks that share a model, by Megatron's kinds of parallelism."""

    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1
    pipeline: int = 1


WHOLE = Cut()


@dataclass(frozen=True)
class Tensors:
    """Parameters of one rank of the same size."""

    elements: int
    """Of one of them."""
    count: int = 1
    expert: bool = False
    """Whether expert parallelism cuts them, and not tensor parallelism."""


def elements(tensors: Iterable[Tensors], expert: bool | None = None) -> int:
    """Return the elements of all tensors, or of those that are experts or are not."""
    return sum(each.elements * each.count for each in tensors if expert in (None, each.expert))


def parameters(model: SlimeModelConfig) -> int:
    """Return the number of parameters of a model; 0 where its sizes lack."""
    return elements(stage_tensors(model)) if model.layers and model.hidden_size else 0


def active_parameters(model: SlimeModelConfig) -> int:
    """Return the number of parameters that a token meets: of the experts only those that it is sent to."""
    whole = list(stage_tensors(model)) if model.layers and model.hidden_size else []
    experts = elements(whole, expert=True)
    return elements(whole, expert=False) + (experts * model.experts_per_token // model.experts if experts else 0)


def cut_of(config: SlimeConfig) -> Cut:
    """Return the parallelism of the trainer."""
    train = config.train
    return Cut(train.tensor_parallel, train.expert_parallel, train.expert_tensor_parallel, train.pipeline_parallel)


def rank_tensors(config: SlimeConfig, stage: int = 0) -> list[Tensors]:
    """Return the parameters of a rank that trains, by its stage of the pipeline."""
    return list(stage_tensors(config.model, cut_of(config), stage, stage_layers(config)[stage]))


def stage_tensors(
    model: SlimeModelConfig, cut: Cut = WHOLE, stage: int = 0, layers: Sequence[bool] | None = None
) -> Iterator[Tensors]:
    """Yield the parameters of a rank. layers: for each layer of its stage, whether it has experts; default: the whole
    model's."""
    embedding = padded_vocabulary(model, cut.tensor) // cut.tensor * model.hidden_size
    if stage == 0:
        yield Tensors(embedding)
    for moe, count in Counter(moe_layers(model) if layers is None else layers).items():
        yield from (replace(each, count=each.count * count) for each in _layer(model, cut, moe))
    if stage == cut.pipeline - 1:
        yield from _norms(model, model.hidden_size)
        # Tied embeddings of a pipeline are on both of its ends.
        if model.architecture.get("untie-embeddings-and-output-weights") or stage:
            yield Tensors(embedding)


def _layer(model: SlimeModelConfig, cut: Cut, moe: bool) -> Iterator[Tensors]:
    flags, hidden = model.architecture, model.hidden_size
    bias = not flags.get("disable-bias-linear")

    def matrices(width: int, count: int = 1, expert: bool = False) -> Iterator[Tensors]:
        """Yield the two matrices of `count` feed-forward layers; a gated one's first is twice as wide."""
        outputs = (2 if flags.get("swiglu") else 1) * width
        yield from (Tensors(size, count, expert) for size in (outputs * hidden, width * hidden))
        yield from (Tensors(size, count, expert) for size in (outputs, hidden) if bias)

    yield from _norms(model, hidden, hidden)
    yield from _latent_attention(model, cut) if flags.get("multi-latent-attention") else _attention(model, cut)
    if bias:
        yield Tensors(hidden)  # of attention's output
    if not moe:
        yield from matrices(model.ffn_size // cut.tensor)
        return
    yield Tensors(model.experts * hidden)  # the router
    if bias:
        yield Tensors(model.experts)
    if shared := _number(model, "moe-shared-expert-intermediate-size"):
        yield from matrices(shared // cut.tensor)
        if flags.get("moe-shared-expert-gate"):
            yield Tensors(hidden)
    yield from matrices(model.expert_ffn_size // cut.expert_tensor, model.experts // cut.expert, expert=True)


def _attention(model: SlimeModelConfig, cut: Cut) -> Iterator[Tensors]:
    """Yield Megatron's SelfAttention: queries, keys and values in one matrix, cut by heads."""
    flags, queries = model.architecture, model.attention_heads * model.head_dim
    outputs = queries * (2 if flags.get("attention-output-gate") else 1) + 2 * model.kv_heads * model.head_dim
    yield Tensors(outputs // cut.tensor * model.hidden_size)
    yield Tensors(model.hidden_size * queries // cut.tensor)
    if flags.get("add-qkv-bias") or not flags.get("disable-bias-linear"):
        yield Tensors(outputs // cut.tensor)
    if flags.get("qk-layernorm"):
        yield from _norms(model, model.head_dim, model.head_dim)


def _latent_attention(model: SlimeModelConfig, cut: Cut) -> Iterator[Tensors]:
    """Yield Megatron's MLASelfAttention: with Transformer Engine the matrices into the latent spaces are whole on every
    rank (multi_latent_attention.py, parallel_mode duplicated)."""
    hidden, heads = model.hidden_size, model.attention_heads // cut.tensor
    query, key_value = _number(model, "q-lora-rank"), _number(model, "kv-lora-rank", 512)
    position, value = _number(model, "qk-pos-emb-head-dim", 64), _number(model, "v-head-dim", 128)
    head = _number(model, "qk-head-dim", 128)
    if query:
        yield Tensors(query * hidden)
        yield from _norms(model, query)
    yield Tensors(heads * (head + position) * (query or hidden))
    yield Tensors((key_value + position) * hidden)
    yield Tensors(heads * (head + value) * key_value)
    yield from _norms(model, key_value)
    yield Tensors(hidden * heads * value)


def _norms(model: SlimeModelConfig, *widths: int) -> Iterator[Tensors]:
    """Yield norms: a weight each, of LayerNorm a bias too."""
    for width in widths:
        yield Tensors(width, 1 if model.architecture.get("normalization") == "RMSNorm" else 2)


def padded_vocabulary(model: SlimeModelConfig, tensor: int) -> int:
    """Return the rows of the embedding: Megatron pads to 128 for each tensor-parallel rank
    (megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding)."""
    multiple = _number(model, "make-vocab-size-divisible-by", 128) * tensor
    return -(-model.vocab_size // multiple) * multiple


def moe_layers(model: SlimeModelConfig) -> list[bool]:
    """Return for each layer whether it has experts: Megatron's --moe-layer-freq, a number n (every n-th layer, from the
    first), a list, or a sum such as `[0]*1+[1]*45`."""
    frequency = model.architecture.get("moe-layer-freq", 1)
    if not model.is_moe or isinstance(frequency, list):
        return [bool(one) for one in frequency] if model.is_moe else [False] * model.layers
    if str(frequency).strip().isdigit():
        return [index % int(frequency) == 0 for index in range(model.layers)]
    layers: list[bool] = []
    for inner, times in re.findall(r"\[([\d,\s]*)\](?:\s*\*\s*(\d+))?", frequency):
        layers += [digit.strip() != "0" for digit in inner.split(",") if digit.strip()] * int(times or 1)
    return layers or [True] * model.layers


def stage_layers(config: SlimeConfig) -> list[list[bool]]:
    """Return the layers of each stage of the pipeline, and of each whether it has experts."""
    layers, stages = moe_layers(config.model), config.train.pipeline_parallel
    ends = [config.slime.get(f"decoder-{end}-pipeline-num-layers") or 0 for end in ("first", "last")]
    between = stages - sum(map(bool, ends))
    sizes = [(len(layers) - sum(ends)) // between if between else 0] * stages
    sizes[0], sizes[-1] = ends[0] or sizes[0], ends[1] or sizes[-1]
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return [layers[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _number(model: SlimeModelConfig, flag: str, default: int = 0) -> int:
    value = model.architecture.get(flag, default)
    return value if isinstance(value, int) else default


# ----------------------------------------------------------------------------------------------------- what is needed

PROMPT_TOKENS = 1024
"""The length in tokens that a prompt is taken to have where slime.rollout-max-prompt-len is unset."""
SAMPLE_BYTES = (8 + 28) + 8 + (8 + 24)
"""Bytes of a response's token in the rollout process: slime keeps token, loss mask and log-prob in lists of Python,
8 bytes an entry, and Python 28 for a whole number above 256 and 24 for a float."""
STORED_BYTES = INT64 + INT32 + FP32
"""The same as tensors (slime/observability/rollout_data_utils.py, _ROLLOUT_DATA_TENSOR_DTYPES)."""
OWN_WAYS = {"custom-convert-samples-to-train-data-path", "rollout-data-transport", "update-weight-transport"}
"""Flags with which routes may go slime's own way, a copy for each rank."""


@dataclass(frozen=True)
class Part:
    """Something that takes memory, in bytes."""

    name: str
    size: float
    at_full_length: bool = False
    """Whether it grows with the responses, and is counted as if all had the greatest length."""


@dataclass(frozen=True)
class Need:
    """The parts that one kind of memory has to hold at once."""

    parts: tuple[Part, ...]

    @property
    def total(self) -> float:
        return sum(part.size for part in self.parts)

    @property
    def certain(self) -> float:
        """The bytes that are needed however long the responses are."""
        return sum(part.size for part in self.parts if not part.at_full_length)

    @property
    def text(self) -> str:
        """`weights 14.2, gradients 28.4, ...` in GiB, without what is nothing."""
        big = self.total >= 100 * GIB
        shown = (f"{part.name} {part.size / GIB:,.{0 if big else 1}f}" for part in self.parts if part.size > MIB)
        return ", ".join(shown)


def longest_tokens(config: SlimeConfig) -> int:
    """Return the tokens of the longest prompt and response."""
    longest = (config.rollout.max_prompt_tokens or PROMPT_TOKENS) + config.rollout.max_response_tokens
    return min(longest, context_tokens(config) or longest)


def micro_batch_tokens(config: SlimeConfig) -> int:
    """Return the tokens of the largest micro-batch on one GPU. A longer sample makes one of its own."""
    return max(config.train.max_tokens_per_gpu, -(-longest_tokens(config) // config.train.context_parallel))


def training_need(config: SlimeConfig) -> Need:
    """Return what the fullest GPU that trains holds at its peak, in the backward pass of a step."""
    stages = range(config.train.pipeline_parallel)
    return max((Need(tuple(_training_parts(config, stage))) for stage in stages), key=lambda need: need.total)


def _training_parts(config: SlimeConfig, stage: int) -> Iterator[Part]:
    train, model, tensors = config.train, config.model, rank_tensors(config, stage)
    yield Part("weights", BF16 * elements(tensors))  # param_and_grad_buffer.py: param_data, grad_data
    in_fp32 = config.slime.get("accumulate-allreduce-grads-in-fp32")
    yield Part("gradients", (FP32 if in_fp32 else BF16) * elements(tensors))
    if not train.optimizer_offload:
        # distrib_optimizer.py: master weights, two moments; gradients in bf16 are copied into fp32
        yield Part("optimizer", (3 if in_fp32 else 4) * FP32 * optimizer_elements(config, tensors))
    last = stage == train.pipeline_parallel - 1
    yield Part("batch", _batch_bytes(config, last), at_full_length=True)
    # A stage holds one micro-batch for itself and each of the stages behind it (1F1B).
    layers, in_flight, tokens = stage_layers(config)[stage], train.pipeline_parallel - stage, micro_batch_tokens(config)
    saved = [tokens * saved_bytes_per_token(config, moe) for moe in layers]
    if train.recompute == "full":
        # random.py, CheckpointFunction: a layer's input, which sequence parallelism cuts
        yield Part("layer inputs", in_flight * len(layers) * BF16 * tokens * model.hidden_size / train.tensor_parallel)
    else:
        yield Part("activations", in_flight * sum(saved))
    # Logits are gone when the first layer is computed again, and the other way round.
    logits, one_layer = tokens * _logit_bytes(config) * _columns(config) if last else 0.0, max(saved, default=0.0)
    yield Part("logits", logits) if logits >= one_layer else Part("a layer", one_layer)


def optimizer_elements(config: SlimeConfig, tensors: Iterable[Tensors]) -> float:
    """Return the elements of a rank's parameters of which it keeps the optimizer's state: ranks with the same weights
    share it (slime sets Megatron's distributed optimizer, backends/megatron_utils/arguments.py)."""
    return sum(each.elements * each.count / _sharing(config, each.expert) for each in tensors)


def _sharing(config: SlimeConfig, expert: bool) -> float:
    train = config.train
    cut = train.expert_tensor_parallel * train.expert_parallel if expert else train.tensor_parallel
    return max(1.0, train.world_size / (cut * train.pipeline_parallel))


def _batch_bytes(config: SlimeConfig, last_stage: bool) -> float:
    """Return the bytes of a data-parallel rank's responses on its GPU, where they are for the whole step: tokens and
    loss masks whole (backends/megatron_utils/actor.py, _get_rollout_data); the engine's log-probs by context-parallel
    rank; on the last stage those of the reference and, where they are computed, the trainer's, the zeros that slime
    makes for the KL of the reward, and returns, which advantages share (loss.py, compute_advantages_and_returns)."""
    columns = 1  # the engine's log-probs
    if last_stage:
        spared = spares_recompute(build_method(config.method), config.pipeline.optimizer_steps_per_rollout)
        columns += 2 + (config.loss.kl_coef > 0) + (not spared)
    tokens = longest_tokens(config) * config.rollout.responses_per_iteration / max(config.train.data_parallel, 1)
    return tokens * (INT64 + INT32 + FP32 * columns / config.train.context_parallel)


def _columns(config: SlimeConfig) -> float:
    """Return the columns of the logits on a rank."""
    return padded_vocabulary(config.model, config.train.tensor_parallel) / config.train.tensor_parallel


def _logit_bytes(config: SlimeConfig) -> int:
    """Return the bytes of one logit at the peak: itself and its softmax in fp32, which becomes the gradient in place
    (slime/utils/ppo_utils.py, _VocabParallelLogProbEntropy); bf16 logits are gone by then. A temperature makes a copy
    (loss.py, get_log_probs_and_entropy); a mask of top-p one more, and a byte; the entropy's gradient one more."""
    copies = 2 + (config.rollout.temperature != 1) + (config.rollout.top_p < 1) + (config.loss.entropy_coef != 0)
    return copies * FP32 + (config.rollout.top_p < 1)


def saved_bytes_per_token(config: SlimeConfig, moe: bool) -> float:
    """Return the bytes that a layer keeps for its backward pass, of one token on one GPU, with flash attention and
    experts that are chosen equally often: inputs and outputs of its norms, of matrices, of attention and of SwiGLU, in
    bf16, and the router's scores in fp32. `selective` recomputes the attention's output."""
    model, train = config.model, config.train
    hidden, heads, kv = model.hidden_size, model.attention_heads, model.kv_heads
    query_key = (heads + kv) if model.architecture.get("qk-layernorm") else 0
    output = 0 if train.recompute == "selective" else heads
    numbers = 4 * hidden + (heads + 2 * kv + query_key + output) * model.head_dim
    if not moe:
        return BF16 * (numbers + 3 * model.ffn_size) / train.tensor_parallel
    if shared := _number(model, "moe-shared-expert-intermediate-size"):
        numbers += hidden + 3 * shared
    # sent to experts: before and after the exchange, both ways, and between the two matrices
    numbers += model.experts_per_token * (4 * hidden + 3 * model.expert_ffn_size)
    return (BF16 * numbers + 3 * FP32 * model.experts) / train.tensor_parallel


def engine_need(config: SlimeConfig) -> Need:
    """Return what an engine's GPU must hold within `sglang-mem-fraction-static`; SGLang fills the rest with its KV
    cache."""
    longest = longest_tokens(config) * kv_bytes_per_token(config)
    return Need((Part("weights", engine_weights_bytes(config)), Part("KV of the longest response", longest)))


def engine_weights_bytes(config: SlimeConfig) -> int:
    """Return the bytes of the weights on one GPU of an engine: tensor parallelism cuts the experts, too."""
    gpus = config.rollout.gpus_per_engine
    return _width(config) * elements(stage_tensors(config.model, Cut(tensor=gpus, expert_tensor=gpus)))


def kv_bytes_per_token(config: SlimeConfig) -> int:
    """Return the bytes of a token's keys and values on one GPU of an engine. A head is not cut: with more GPUs than
    heads each holds one (sglang/srt/configs/model_config.py, get_num_kv_heads). Latent attention keeps one vector, on
    every GPU."""
    model = config.model
    if model.architecture.get("multi-latent-attention"):
        latent = _number(model, "kv-lora-rank", 512) + _number(model, "qk-pos-emb-head-dim", 64)
        return _width(config) * model.layers * latent
    heads = max(1, model.kv_heads // config.rollout.gpus_per_engine)
    return _width(config) * 2 * model.layers * heads * model.head_dim


def engine_kv_tokens(config: SlimeConfig, gpu_bytes: float) -> int:
    """Return the tokens that an engine's KV cache holds on GPUs of `gpu_bytes`: `sglang-mem-fraction-static` leaves
    beside the weights (sglang/srt/model_executor/model_runner_kv_cache_mixin.py, _profile_available_bytes). 0: the
    weights alone are too large."""
    room = config.rollout.memory_fraction * gpu_bytes - engine_weights_bytes(config)
    return max(0, int(room / max(kv_bytes_per_token(config), 1)))


def _width(config: SlimeConfig) -> int:
    return FP32 if config.cluster.device == "cpu" and config.cluster.cpu_dtype == "float32" else BF16


def host_need(config: SlimeConfig) -> Need:
    """Return what the memory of the fullest training node holds."""
    if config.cluster.device == "cpu":
        return Need(tuple(_cpu_parts(config)))
    nodes = [list(_tensors_of_node(config, node)) for node in range(config.train.nodes)]
    copies = weight_copies(config)
    weights = max(sum(_pinned(BF16, tensors) for tensors in node) for node in nodes)
    parts = [Part(f"{copies} copies of the weights", copies * weights)]
    if config.train.optimizer_offload:
        # master weights, two moments and pinned gradients, in fp32 (optimizer/cpu_offloading/hybrid_optimizer.py)
        pinned = (sum(_pinned(FP32, each) / _sharing(config, each.expert) for each in node) for node in nodes)
        held = (3 * FP32 * optimizer_elements(config, node) for node in nodes)
        parts.append(Part("optimizer", max(map(sum, zip(held, pinned, strict=True)))))
    return Need((*parts, *_batch_on_host(config)))


def _tensors_of_node(config: SlimeConfig, node: int) -> Iterator[Tensors]:
    """Yield the parameters of all ranks of a node; stages of the pipeline take the ranks one after another."""
    train = config.train
    per_stage = max(1, train.world_size // train.pipeline_parallel)
    ranks = range(node * train.gpus_per_node, (node + 1) * train.gpus_per_node)
    for stage, count in Counter(min(rank // per_stage, train.pipeline_parallel - 1) for rank in ranks).items():
        yield from (replace(each, count=each.count * count) for each in rank_tensors(config, stage))


def _pinned(width: int, tensors: Tensors) -> int:
    """Return the bytes of tensors in pinned memory: PyTorch rounds each up to a power of two
    (ATen/core/CachingHostAllocator.h). slime pins each parameter (utils/tensor_backper.py), Megatron each gradient
    (hybrid_optimizer.py)."""
    return tensors.count * (1 << max(width * tensors.elements - 1, 0).bit_length())


def weight_copies(config: SlimeConfig) -> int:
    """Return how many copies of the weights slime keeps in pinned host memory: the actor, the KL's reference, and for
    denominator `checkpoint` the weights that generated (a queue of two where they are replaced every iteration)."""
    copies = 1 + (config.loss.kl_coef > 0)
    if build_method(config.method).denominator == "checkpoint":
        copies += 2 if config.pipeline.lag <= 1 else 1
    return copies


def _batch_on_host(config: SlimeConfig) -> Iterator[Part]:
    """Yield the copies of a batch: each rank has its own of the batch of its data-parallel group (slime/utils/data.py,
    process_rollout_data), and there are those in Ray's store, pinned, and as samples of the next batch, or five as that
    is put into the store: samples, pickle, both batches in the store, and the pinned routes."""
    copies = max(3 + config.train.gpus_per_node / max(config.train.data_parallel, 1), 5)
    tokens = longest_tokens(config) * config.rollout.responses_per_iteration
    yield Part("batch", tokens * (SAMPLE_BYTES + STORED_BYTES * (copies - 1)), at_full_length=True)
    if routes := routes_bytes(config):
        shared = not OWN_WAYS.intersection(config.slime)  # a node holds a batch's routes once, in the store
        yield Part("routed experts", routes * (_stored_batches(config) if shared else copies), at_full_length=True)


def routes_bytes(config: SlimeConfig) -> float:
    """Return the bytes of one copy of a batch's routed experts when every response has its full length, in the smallest
    type that numbers the experts."""
    model = config.model
    if not (config.method.r3 and model.is_moe):
        return 0.0
    tokens = longest_tokens(config) * config.rollout.responses_per_iteration
    return float((1 if model.experts <= 2**8 else 2) * model.layers * model.experts_per_token * tokens)


def _stored_batches(config: SlimeConfig) -> int:
    """Return the batches in Ray's store at a time: the one in training, and with a lag the next."""
    return 2 if config.pipeline.lag or config.pipeline.mode == "streaming" else 1


def store_need(config: SlimeConfig) -> Need:
    """Return what Ray's object store holds: batches that are in training or wait for it (slime/ray/rollout.py,
    ray.put)."""
    batches = _stored_batches(config)
    tokens = longest_tokens(config) * config.rollout.responses_per_iteration
    parts = [Part(f"tokens of {batches} batch{'es' if batches > 1 else ''}", batches * tokens * STORED_BYTES, True)]
    if routes := routes_bytes(config):
        parts.append(Part("routed experts", batches * routes, True))
    return Need(tuple(parts))


def _cpu_parts(config: SlimeConfig) -> Iterator[Part]:
    """Yield what a whole run on a CPU takes: trainer ranks and engines are processes of one machine, and its nodes are
    raylets there. The constants are proportional set sizes of the processes of whole runs, in MiB."""
    train, rollout, width = config.train, config.rollout, _width(config)
    nodes = -(-(train.world_size + rollout.gpus) // config.cluster.gpus_per_node)
    schedulers = rollout.engines * rollout.gpus_per_engine
    yield Part("Ray and slime", (2050 + 330 * (nodes - 1)) * MIB)
    writes = 220 if config.checkpoint.every_n_iterations else 0
    yield Part("ranks' processes", train.world_size * (560 + writes) * MIB)
    yield Part("engines' processes", (rollout.engines * 900 + schedulers * 500) * MIB)
    # 500 bytes for a word of the vocabulary, in each process that has loaded the tokenizer
    yield Part("tokenizers", (1 + train.world_size + 2 * rollout.engines + schedulers) * 500 * config.model.vocab_size)
    ranks = [tensors for node in range(train.nodes) for tensors in _tensors_of_node(config, node)]
    shard = optimizer_elements(config, ranks)
    yield Part("trainer", (width + FP32) * elements(ranks) + (3 if width == BF16 else 2) * FP32 * shard)
    # 180 KiB for a parameter besides its elements: tensors, hooks, autograd's nodes, a checkpoint's entries
    yield Part("parameters as objects", 180 * 2**10 * sum(tensors.count for tensors in ranks))
    yield Part(f"{weight_copies(config)} copies of the weights", width * elements(ranks) * weight_copies(config))
    batch = longest_tokens(config) * rollout.responses_per_iteration // max(train.data_parallel, 1)
    tokens = min(micro_batch_tokens(config), -(-batch // train.context_parallel))
    # on a CPU the entropy's products are a copy of their own (slime/utils/ppo_utils.py, sum_softmax_logits)
    logits = train.world_size * tokens * (_logit_bytes(config) + FP32) * _columns(config)
    yield Part("logits", logits, at_full_length=True)
    kv = int(config.slime.get("sglang-max-total-tokens", 2**15)) * kv_bytes_per_token(config)
    yield Part("engines", schedulers * (engine_weights_bytes(config) + kv))
    yield from _batch_on_host(config)


# ------------------------------------------------------------------------------------------------------ what there is

KINDS = ("gpu", "host", "shm", "store")
ASSUMED_GPU_BYTES = 79.1 * GIB
"""What CUDA shows of an H100 of 80 GB, less than 80 GB by what the driver keeps (PyTorch's messages on memory that ran
out: "GPU 0 has a total capacity of 79.10 GiB")."""


@dataclass(frozen=True)
class Size:
    """An amount of memory, and who says so."""

    bytes: float
    source: str
    """A node, or the setting that gives it."""
    taken: float = 0.0
    """Bytes of it that programs hold which are not the run's."""

    @property
    def is_of_settings(self) -> bool:
        """True where the settings or their default say so, whatever the machine is."""
        return self.source.startswith(("cluster.", "assumed"))


@dataclass(frozen=True)
class Sizes:
    """The smallest of each kind on the machines of a run; None where nobody knows it."""

    gpu: Size
    host: Size | None = None
    shm: Size | None = None
    store: Size | None = None


def sizes(config: SlimeConfig, machines: Mapping[str, Mapping[str, float | None]] | None = None) -> Sizes:
    """Return what the settings give, else the smallest that the machines have. machines: by name, what `machine_sizes`
    says there."""
    cluster = config.cluster
    given = (cluster.gpu_memory_gib, cluster.host_memory_gib, cluster.shm_gib, cluster.object_store_gib)
    keys = ("gpu_memory_gib", "host_memory_gib", "shm_gib", "object_store_gib")
    smallest: dict[str, Size] = {"gpu": Size(ASSUMED_GPU_BYTES, "assumed: an 80 GB card")}
    for kind, key, gib_given in zip(KINDS, keys, given, strict=True):
        known = [(size, name) for name, machine in (machines or {}).items() if (size := machine.get(kind))]
        if known:
            smallest[kind] = Size(*min(known))
        if gib_given is not None:
            smallest[kind] = Size(gib_given * GIB, f"cluster.{key}")
    return Sizes(**smallest)


def left_here() -> Sizes:
    """Return what this machine has for a run on its CPU, whose processes it all holds, beside other programs."""
    host, taken = host_memory()
    return Sizes(Size(0, "none"), Size(host, "this machine", taken))


def machine_sizes() -> dict[str, float | None]:
    """Return the bytes of this machine's smallest GPU, its memory and its /dev/shm; None: unknown, or not there."""
    status = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    shm = status.f_blocks * status.f_frsize if status else None
    return {"gpu": gpu_memory(), "host": host_memory()[0], "shm": shm}


def gpu_memory() -> float | None:
    """Return the bytes that CUDA can use of this machine's smallest GPU, asked of the driver, so that no CUDA context
    is made and CUDA_VISIBLE_DEVICES does not matter. Older drivers do not tell what they keep for themselves."""
    for fields in ("memory.total,memory.reserved", "memory.total"):
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            command = ["nvidia-smi", "--format=csv,noheader,nounits", f"--query-gpu={fields}"]
            output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
            rows = [[float(cell) for cell in row.split(",")] for row in output.splitlines() if row.strip()]
            if rows:
                return min(total - sum(reserved) for total, *reserved in rows) * MIB
    return None


def host_memory(root: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Return the bytes of memory that this machine, or the container that this process is in, has, and those of them
    that programs hold: what Ray counts before it kills workers. Pages of files that can be dropped are not among
    them. root: where both versions of control groups have their files."""
    meminfo = (line.split() for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    machine = {name: 1024.0 * int(kib) for name, kib, *_ in meminfo}
    total = machine["MemTotal:"]
    for limit, held, stat, droppable in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, KeyError, ValueError):
            most = int((root / limit).read_text(encoding="utf-8"))
            if most < total:
                parts = dict(line.split() for line in (root / stat).read_text(encoding="utf-8").splitlines())
                return most, int((root / held).read_text(encoding="utf-8")) - int(parts[droppable])
    return total, total - machine["MemAvailable:"]


def sizes_of_nodes(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, float | None]]:
    """Return what the nodes of a cluster that have GPUs told the probe, by their names."""
    return {f"node {node['name']}": node["sizes"] for node in nodes if node["gpus"] and node.get("sizes")}


# ----------------------------------------------------------------------------------------------------- the judgement

TIGHT = 0.9
"""Share of what there is above which a run is warned: what is not counted needs room."""
RAY_KILLS = 0.95
"""Share of a host's memory above which Ray kills workers (RAY_memory_usage_threshold)."""
TRAINING, ENGINE, HOST, STORE = "training GPU", "engine GPU", "host memory", "object store"
REMEDIES = {
    TRAINING: "slime.recompute-granularity full, slime.max-tokens-per-gpu down to the longest sample, more "
    "slime.tensor-model-parallel-size, context-, pipeline- or expert-model-parallel-size, slime.optimizer-cpu-offload "
    "true where the hosts have room",
    ENGINE: "more slime.rollout-num-gpus-per-engine or slime.sglang-mem-fraction-static, or fewer "
    "slime.rollout-max-response-len",
    HOST: "loss.kl_coef 0, slime.optimizer-cpu-offload false where the GPUs have room, fewer slime.rollout-batch-size "
    "or slime.rollout-max-response-len, or more slime.actor-num-nodes",
    STORE: "Ray writes the rest to disk, which is slow: start it with a larger --object-store-memory and /dev/shm",
}
ROWS = tuple(REMEDIES)
"""What is judged, in the order of the table."""


@dataclass(frozen=True)
class Row:
    """One kind of memory: what is needed, and what there is to be used of it."""

    what: str
    need: Need
    size: Size | None
    """What there is; None: unknown."""
    part: float = 1.0
    """Share of it that may be used."""

    @property
    def usable(self) -> float:
        return max(self.part * self.size.bytes - self.size.taken, 1.0) if self.size else float("inf")

    @property
    def share(self) -> float:
        return self.need.total / self.usable

    @property
    def mark(self) -> str:
        """FAIL, WARN or OK. What depends on the length of responses is counted at its most, and so is worth a warning.
        Ray writes to disk what its store cannot hold."""
        if self.need.certain > self.usable and self.what != STORE:
            return "FAIL"
        return "WARN" if self.share > TIGHT else "OK"

    @property
    def text(self) -> str:
        """`57 of 79 GiB, 72 % (node 10.0.0.1): weights 14.2, ...`"""
        if self.size is None:
            return f"{gib(self.need.total)} GiB: {self.need.text}"
        sums = f"{gib(self.need.total)} of {gib(self.usable)} GiB, {100 * self.share:.0f} %"
        return f"{sums} ({self.size.source}): {self.need.text}"


def gib(count: float) -> str:
    """Return a number of GiB as people read it."""
    return f"{count / GIB:,.{1 if count < 10 * GIB else 0}f}"


def rows(config: SlimeConfig, there: Sizes, kinds: Collection[str] = ROWS) -> list[Row]:
    """Return what is judged of a run; nothing where the sizes of its model lack. A run on a CPU has memory of one
    kind."""
    if not parameters(config.model):
        return []
    if config.cluster.device == "cpu":
        return [Row(HOST, host_need(config), there.host, RAY_KILLS)]
    store = min((size for size in (there.store, there.shm) if size), key=lambda size: size.bytes, default=None)
    judged = (
        Row(TRAINING, training_need(config), there.gpu),
        Row(ENGINE, engine_need(config), there.gpu, config.rollout.memory_fraction),
        Row(HOST, host_need(config), there.host, RAY_KILLS),
        Row(STORE, store_need(config), store if there.store else None),
    )
    return [row for row in judged if row.what in kinds]


def table(judged: Iterable[Row]) -> list[str]:
    """Return a line for each kind of memory: needed, there, percent, and the parts of what is needed, in GiB."""
    lines = [f"{'GiB':12}  {'needs':>6}  {'has':>6}  {'%':>4}"]
    for row in judged:
        has = (gib(row.usable), f"{100 * row.share:.0f}") if row.size else ("?", "")
        source = f" ({row.size.source})" if row.size else ""
        lines.append(f"{row.what:12}  {gib(row.need.total):>6}  {has[0]:>6}  {has[1]:>4}  {row.need.text}{source}")
    return lines


def memory_findings(config: SlimeConfig, there: Sizes) -> Iterator[Finding]:
    """Yield a finding for each kind of memory: needed, there, the share, and what helps where it does not fit."""
    judged = rows(config, there)
    if not judged:
        yield warn(HOST, "slime has no flags for the model's size: memory is not checked")
    for row in judged:
        if row.size is None:
            if row.what == HOST:
                yield warn(HOST, f"how much there is is not known here; a training node needs {row.text}")
        elif row.mark == "OK":
            yield ok(row.what, row.text)
        else:
            needs = "needs" if row.mark == "FAIL" else "needs up to"
            remedy = REMEDIES[row.what]
            if config.cluster.device == "cpu":
                remedy = "take a smaller batch or model, or another machine"
            yield Finding(row.mark, row.what, f"{needs} {row.text}: {remedy}", row.size.is_of_settings)
    if judged and config.cluster.device == "gpu":
        yield from _room_of_engine(config, there)
    if there.shm and there.store and there.store.bytes > there.shm.bytes:
        yield warn(
            "/dev/shm",
            f"{gib(there.shm.bytes)} GiB ({there.shm.source}), less than Ray's object store of "
            f"{gib(there.store.bytes)}, which is then on disk: start containers with a larger one, or Ray with a "
            "smaller --object-store-memory",
        )


def _room_of_engine(config: SlimeConfig, there: Sizes) -> Iterator[Finding]:
    """Yield what is wrong with the share of a GPU that an engine gets, and with the requests that are sent to it. CUDA
    graphs and prefills need 2 GiB, and SGLang itself would leave twelve (sglang/srt/server_args.py); the paper's 0.85
    of 80 GB leaves as many."""
    rollout, gpu = config.rollout, there.gpu
    left = (1 - rollout.memory_fraction) * gpu.bytes
    if left < gpu.bytes / 12:
        mark = "FAIL" if left < 2 * GIB else "WARN"
        detail = (
            f"slime.sglang-mem-fraction-static is {rollout.memory_fraction}, which leaves {gib(left)} GiB of a "
            "GPU for CUDA "
            "graphs and prefills: set it to at most 0.91"
        )
        yield Finding(mark, ENGINE, detail, gpu.is_of_settings)
    tokens, longest = engine_kv_tokens(config, gpu.bytes), longest_tokens(config)
    sent = min(rollout.concurrent_requests, -(-rollout.responses_per_iteration // max(rollout.engines, 1)))
    held = tokens // min(longest, 2048)
    if tokens >= longest and sent > held:
        yield warn(
            ENGINE,
            f"slime.sglang-server-concurrency is {rollout.concurrent_requests}, but the KV cache of an engine, "
            f"{tokens:,} "
            f"tokens, holds {held:,} requests of 2,048 tokens and {tokens // longest} of {longest:,}; SGLang lets "
            f"others wait, or drops what they have and computes it again: set it to {max(1, tokens // longest)} to "
            f"{held:,}",
        )
