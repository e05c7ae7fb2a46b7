"""The bytes that a run of slime needs at most at one time: on a GPU that trains, on one of an engine, and in the memory
of a training node.

Lines of source are those of slime 624b824a8 and of its Megatron-LM. Not counted are a GPU's CUDA context and NCCL's
buffers, kernels' own, experts that are chosen more often than others, gaps of the allocator; on the host the processes
themselves and SGLang. So a run is warned from 90 % on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sat_slime.config.method_section import build_method
from sat_slime.config.slime_checks import context_tokens, spares_recompute
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.memory.elements import (
    Cut,
    Tensors,
    elements,
    expected_elements,
    moe_layers,
    padded_vocabulary,
    rank_tensors,
    stage_layers,
    stage_tensors,
)

BF16, FP32, INT64, INT32 = 2, 4, 8, 4
"""Bytes of a number."""
GIB = 2**30
MIB = 2**20
PROMPT_TOKENS = 1024
"""The length in tokens that a prompt is taken to have where rollout.max_prompt_tokens is unset."""
SAMPLE_BYTES = (8 + 28) + 8 + (8 + 24)
"""Bytes of a response's token in the rollout process: slime keeps token, loss mask and log-prob in lists of Python,
8 bytes an entry, and Python 28 for a whole number above 256 and 24 for a float."""
STORED_BYTES = INT64 + INT32 + FP32
"""The same as tensors (slime/observability/rollout_data_utils.py, _ROLLOUT_DATA_TENSOR_DTYPES)."""
COPIES_WHILE_PUT = 5
"""Copies of a batch as the next one is put into Ray's store: samples, pickle, both batches in the store, and the pinned
routes of the one in training."""
COPIES_BESIDE_RANKS = 3
"""Copies of a batch as training begins, besides those of the ranks: in the store, pinned, and samples of the next."""
STORED_BATCHES = 2
"""Batches in Ray's object store at a time: the one in training and the next."""
OWN_WAYS = {"custom-convert-samples-to-train-data-path", "rollout-data-transport", "update-weight-transport"}
"""Flags with which routes may go slime's own way."""
CPU_RUN_BYTES, CPU_NODE_BYTES = 2050 * MIB, 330 * MIB
"""Ray's own processes, slime's driver, rollout manager, router and lock, and what each further node takes. These and
the next are proportional set sizes of processes of a whole run, without what the model's sizes add."""
CPU_RANK_BYTES, CPU_WRITER_BYTES = 560 * MIB, 220 * MIB
"""A trainer rank, and the process that writes its checkpoints."""
CPU_ENGINE_BYTES, CPU_SCHEDULER_BYTES = 900 * MIB, 500 * MIB
"""An engine's actor, server and detokenizer, and each of its ranks."""
CPU_PARAMETER_BYTES = 180 * 2**10
"""A parameter of a rank besides its elements: tensors, hooks, autograd's nodes, and what a checkpoint makes of it. A
thin model of many experts has thousands, of a few KiB each."""
CPU_WORD_BYTES = 500
"""A word of a vocabulary in each process that has loaded the tokenizer."""
CPU_KV_TOKENS = 2**15
"""KV cache of an engine on a CPU (plugin/launch/cpu_run.py, sglang-max-total-tokens)."""


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


def least_tokens(config: SlimeConfig) -> int:
    """Return the tokens on a GPU of a micro-batch of the longest sample alone."""
    return -(-longest_tokens(config) // config.train.context_parallel)


def micro_batch_tokens(config: SlimeConfig) -> int:
    """Return the tokens of the largest micro-batch on one GPU. A longer sample makes one of its own."""
    return max(config.train.max_tokens_per_gpu, least_tokens(config))


# ---------------------------------------------------------------------------------------------- a GPU that trains


def training_need(config: SlimeConfig) -> Need:
    """Return what the fullest GPU that trains holds at its peak, in the backward pass of a step."""
    stages = range(config.train.pipeline_parallel)
    return max((Need(tuple(_training_parts(config, stage))) for stage in stages), key=lambda need: need.total)


def _training_parts(config: SlimeConfig, stage: int) -> Iterator[Part]:
    train, model = config.train, config.model
    fullest = stage * max(1, train.world_size // train.pipeline_parallel)  # the last of a buffer's ranks holds padding
    held = expected_elements(config, fullest)
    yield Part("weights", BF16 * held["buffers"])  # param_and_grad_buffer.py: param_data, grad_data
    in_fp32 = config.flag("accumulate-allreduce-grads-in-fp32")
    yield Part("gradients", (FP32 if in_fp32 else BF16) * held["buffers"])
    if not train.optimizer_offload:
        # distrib_optimizer.py: master weights, two moments; gradients in bf16 are copied into fp32
        yield Part("optimizer", (3 if in_fp32 else 4) * FP32 * held["optimizer"])
    last = stage == train.pipeline_parallel - 1
    yield Part("batch", _batch_bytes(config, last), at_full_length=True)
    # A stage holds one micro-batch for itself and each of the stages behind it (1F1B).
    layers = stage_layers(config)[stage]
    in_flight = train.pipeline_parallel - stage
    tokens = micro_batch_tokens(config)
    each = [tokens * saved_bytes_per_token(config, moe) for moe in (True, False)]
    one_layer = max((each[0 if moe else 1] for moe in set(layers)), default=0.0)
    if train.recompute == "full":
        # random.py, CheckpointFunction: a layer's input, which sequence parallelism cuts
        yield Part("layer inputs", in_flight * len(layers) * BF16 * tokens * model.hidden_size / train.tensor_parallel)
    else:
        saved = layers.count(True) * each[0] + layers.count(False) * each[1]
        yield Part("activations", in_flight * saved)
    # Logits are gone when the first layer is computed again, and the other way round.
    logits = tokens * _logit_bytes(config) * _columns(config) if last else 0.0
    yield Part("logits", logits) if logits >= one_layer else Part("a layer", one_layer)


def copies_of_weights(config: SlimeConfig) -> tuple[float, float]:
    """Return the number of ranks that hold the same weights, of those that are no experts and of experts; they share
    the optimizer's state (slime sets Megatron's distributed optimizer, backends/megatron_utils/arguments.py)."""
    train = config.train
    stages = train.pipeline_parallel
    return (
        max(1.0, train.world_size / (train.tensor_parallel * stages)),
        max(1.0, train.world_size / (train.expert_tensor_parallel * train.expert_parallel * stages)),
    )


def _batch_bytes(config: SlimeConfig, last_stage: bool) -> float:
    """Return the bytes of a data-parallel rank's responses on its GPU, where they lie for the whole step: tokens and
    loss masks whole (backends/megatron_utils/actor.py, _get_rollout_data); the engine's log-probs by context-parallel
    rank; on the last stage those of the reference and, where they are computed, the trainer's, the zeros that slime
    makes for the KL of the reward, and returns, which advantages share (loss.py, compute_advantages_and_returns)."""
    train, rollout = config.train, config.rollout
    columns = 1  # the engine's log-probs
    if last_stage:
        spared = spares_recompute(build_method(config.method), config.pipeline.optimizer_steps_per_rollout)
        columns += 2 + (config.loss.kl_coef > 0) + (not spared)
    tokens = longest_tokens(config) * rollout.responses_per_iteration / max(train.data_parallel, 1)
    return tokens * (INT64 + INT32 + FP32 * columns / train.context_parallel)


def _columns(config: SlimeConfig) -> float:
    """Return the columns of the logits on a rank."""
    tensor = config.train.tensor_parallel
    return padded_vocabulary(config.model, tensor) / tensor


def _logit_bytes(config: SlimeConfig) -> int:
    """Return the bytes of one logit at the peak: itself and its softmax in fp32, which becomes the gradient in place
    (slime/utils/ppo_utils.py, _VocabParallelLogProbEntropy); bf16 logits are gone by then. A temperature makes a copy
    (loss.py, get_log_probs_and_entropy); a mask of top-p one more, and a byte; the entropy's gradient one more.
    --log-probs-chunk-size cuts the softmax, which the backward pass keeps: no less there."""
    copies = 2 + (config.rollout.temperature != 1) + (config.rollout.top_p < 1) + (config.loss.entropy_coef != 0)
    return copies * FP32 + (config.rollout.top_p < 1)


def saved_bytes_per_token(config: SlimeConfig, moe: bool) -> float:
    """Return the bytes that a layer keeps for its backward pass, of one token on one GPU, with flash attention and
    experts that are chosen equally often: inputs and outputs of its norms, of matrices, of attention and of SwiGLU, in
    bf16, and the router's scores in fp32. `selective` recomputes the attention's output."""
    model, train = config.model, config.train
    rank = 1 / train.tensor_parallel
    hidden, heads, kv = model.hidden_size, model.attention_heads, model.kv_heads
    query_key = (heads + kv) if model.architecture.get("qk-layernorm") else 0
    output = 0 if train.recompute == "selective" else heads
    numbers = (4 * hidden + (heads + 2 * kv + query_key + output) * model.head_dim) * rank
    if not moe:
        return BF16 * (numbers + 3 * model.ffn_size * rank)
    shared = model.architecture.get("moe-shared-expert-intermediate-size", 0)
    numbers += (hidden + 3 * shared) * rank if isinstance(shared, int) and shared else 0
    # sent to experts: before and after the exchange, both ways, and between the two matrices
    numbers += model.experts_per_token * (4 * hidden + 3 * model.expert_ffn_size) * rank
    return BF16 * numbers + 3 * FP32 * model.experts * rank


# ---------------------------------------------------------------------------------------------------------- an engine


def engine_weights_bytes(config: SlimeConfig) -> int:
    """Return the bytes of the weights on one GPU of an engine: tensor parallelism cuts the experts, too."""
    model, gpus = config.model, config.rollout.gpus_per_engine
    shared = stage_tensors(model, Cut(tensor=gpus, expert_tensor=gpus), 0, moe_layers(model))
    return _width(config) * elements(shared)


def kv_bytes_per_token(config: SlimeConfig) -> int:
    """Return the bytes of a token's keys and values on one GPU of an engine. A head is not cut: with more GPUs than
    heads each holds one (sglang/srt/configs/model_config.py, get_num_kv_heads). Latent attention keeps one vector, on
    every GPU."""
    model = config.model
    if model.architecture.get("multi-latent-attention"):
        sizes = (model.architecture.get(flag) for flag in ("kv-lora-rank", "qk-pos-emb-head-dim"))
        latent = sum(size if isinstance(size, int) else default for size, default in zip(sizes, (512, 64), strict=True))
        return _width(config) * model.layers * latent
    heads = max(1, model.kv_heads // config.rollout.gpus_per_engine)
    return _width(config) * 2 * model.layers * heads * model.head_dim


def engine_kv_tokens(config: SlimeConfig, gpu_bytes: float) -> int:
    """Return the tokens that an engine's KV cache holds on GPUs of `gpu_bytes`: what `rollout.memory_fraction` leaves
    beside the weights (sglang/srt/model_executor/model_runner_kv_cache_mixin.py, _profile_available_bytes). 0: the
    weights alone are too large."""
    room = config.rollout.memory_fraction * gpu_bytes - engine_weights_bytes(config)
    return max(0, int(room / max(kv_bytes_per_token(config), 1)))


def _width(config: SlimeConfig) -> int:
    return FP32 if config.cluster.device == "cpu" and config.cluster.cpu_dtype == "float32" else BF16


def engine_need(config: SlimeConfig) -> Need:
    """Return what an engine's GPU must hold within `rollout.memory_fraction`; SGLang fills the rest with its KV
    cache."""
    longest = longest_tokens(config) * kv_bytes_per_token(config)
    return Need((Part("weights", engine_weights_bytes(config)), Part("KV of the longest response", longest)))


# ------------------------------------------------------------------------------------------------ a training node


def host_need(config: SlimeConfig) -> Need:
    """Return what the memory of the fullest training node holds."""
    if config.cluster.device == "cpu":
        return Need(tuple(_cpu_parts(config)))
    nodes = range(config.train.nodes if config.train.pipeline_parallel > 1 else 1)  # without stages all are alike
    copies = weight_copies(config)
    weights = max(sum(_pinned(BF16, tensors) for tensors in _tensors_of_node(config, node)) for node in nodes)
    parts = [Part(f"{copies} copies of the weights", copies * weights)]
    if config.train.optimizer_offload:
        parts.append(Part("optimizer", max(_offloaded_bytes(config, node) for node in nodes)))
    return Need((*parts, *_batch_on_host(config)))


def _batch_on_host(config: SlimeConfig) -> Iterator[Part]:
    """Yield the copies of a batch: each rank has its own of the batch of its data-parallel group (slime/utils/data.py,
    process_rollout_data)."""
    ranks = config.train.gpus_per_node / max(config.train.data_parallel, 1)
    copies = max(COPIES_BESIDE_RANKS + ranks, COPIES_WHILE_PUT)
    tokens = longest_tokens(config) * config.rollout.responses_per_iteration
    yield Part("batch", tokens * (SAMPLE_BYTES + STORED_BYTES * (copies - 1)), at_full_length=True)
    if routes := routes_bytes(config):
        held = _stored_batches(config) if routes_are_shared(config) else copies
        yield Part("routed experts", routes * held, at_full_length=True)


def _tensors_of_node(config: SlimeConfig, node: int) -> Iterator[Tensors]:
    """Yield the parameters of all ranks of a node; stages of the pipeline take the ranks one after another."""
    train = config.train
    per_stage = max(1, train.world_size // train.pipeline_parallel)
    ranks = range(node * train.gpus_per_node, (node + 1) * train.gpus_per_node)
    for stage, count in Counter(min(rank // per_stage, train.pipeline_parallel - 1) for rank in ranks).items():
        yield from (replace(tensors, count=tensors.count * count) for tensors in rank_tensors(config, stage))


def _pinned(width: int, tensors: Tensors, share: float = 1) -> float:
    """Return the bytes of tensors in pinned memory: PyTorch rounds each up to a power of two
    (ATen/core/CachingHostAllocator.h). slime pins each parameter (utils/tensor_backper.py), Megatron each gradient
    (hybrid_optimizer.py)."""
    size = width * tensors.elements
    return tensors.count * (1 << (size - 1).bit_length() if size > 1 else size) / share


def _offloaded_bytes(config: SlimeConfig, node: int) -> float:
    """Return the bytes of the offloaded optimizer: master weights and two moments in fp32, and pinned gradients in fp32
    (megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py)."""
    dense, experts = copies_of_weights(config)
    shares = {False: dense, True: experts}
    each = config.train.gpus_per_node
    held = sum(expected_elements(config, rank)["optimizer"] for rank in range(node * each, (node + 1) * each))
    pinned = sum(_pinned(FP32, tensors, shares[tensors.expert]) for tensors in _tensors_of_node(config, node))
    return 3 * FP32 * held + pinned


def weight_copies(config: SlimeConfig) -> int:
    """Return how many copies of the weights slime keeps in pinned host memory: the actor, the KL's reference, and for
    denominator `checkpoint` the weights that generated (a queue of two where they are replaced every iteration)."""
    copies = 1 + (config.loss.kl_coef > 0)
    if build_method(config.method).denominator == "checkpoint":
        copies += 2 if config.pipeline.lag <= 1 else 1
    return copies


def routes_bytes(config: SlimeConfig) -> float:
    """Return the bytes of one copy of a batch's routed experts when every response has its full length. slime holds
    int32; the hook keeps the smallest type that numbers the experts."""
    model = config.model
    if not (config.method.r3 and model.is_moe):
        return 0.0
    width = 1 if model.experts <= 2**8 else 2
    tokens = longest_tokens(config) * config.rollout.responses_per_iteration
    return float(width * model.layers * model.experts_per_token * tokens)


def routes_are_shared(config: SlimeConfig) -> bool:
    """Return whether a node holds each batch's routes once, in Ray's object store (plugin/inside/shared_routes.py)."""
    return not OWN_WAYS.intersection(config.slime)


def _stored_batches(config: SlimeConfig) -> int:
    return STORED_BATCHES if config.pipeline.lag or config.pipeline.mode == "streaming" else 1


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
    raylets there."""
    train, rollout, width = config.train, config.rollout, _width(config)
    nodes = -(-(train.world_size + rollout.gpus) // config.cluster.gpus_per_node)
    schedulers = rollout.engines * rollout.gpus_per_engine
    yield Part("Ray and slime", CPU_RUN_BYTES + (nodes - 1) * CPU_NODE_BYTES)
    writes = CPU_WRITER_BYTES if config.checkpoint.every_n_iterations else 0
    yield Part("ranks' processes", train.world_size * (CPU_RANK_BYTES + writes))
    yield Part("engines' processes", rollout.engines * CPU_ENGINE_BYTES + schedulers * CPU_SCHEDULER_BYTES)
    tokenizers = 1 + train.world_size + 2 * rollout.engines + schedulers
    yield Part("tokenizers", tokenizers * CPU_WORD_BYTES * config.model.vocab_size)
    ranks = [tensors for node in range(train.nodes) for tensors in _tensors_of_node(config, node)]
    held, (dense, experts) = elements(ranks), copies_of_weights(config)
    shard = elements(ranks, expert=False) / dense + elements(ranks, expert=True) / experts
    yield Part("trainer", (width + FP32) * held + (3 if width == BF16 else 2) * FP32 * shard)
    yield Part("parameters as objects", CPU_PARAMETER_BYTES * sum(tensors.count for tensors in ranks))
    yield Part(f"{weight_copies(config)} copies of the weights", width * held * weight_copies(config))
    batch = longest_tokens(config) * rollout.responses_per_iteration // max(train.data_parallel, 1)
    tokens = min(micro_batch_tokens(config), -(-batch // train.context_parallel))
    # on a CPU the entropy's products are a copy of their own (slime/utils/ppo_utils.py, sum_softmax_logits)
    logits = train.world_size * tokens * (_logit_bytes(config) + FP32) * _columns(config)
    yield Part("logits", logits, at_full_length=True)
    kv = int(config.slime.get("sglang-max-total-tokens", CPU_KV_TOKENS)) * kv_bytes_per_token(config)
    yield Part("engines", schedulers * (engine_weights_bytes(config) + kv))
    yield from _batch_on_host(config)
