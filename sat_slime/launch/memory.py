"""The memory that a run of slime needs, by Megatron's own arithmetic, against what its machines have.

Counted is what a peak is made of to 1 %: what Megatron keeps of each parameter, a micro-batch's activations and logits,
copies of the weights and batches on the host, an engine's weights and KV cache. Not counted are CUDA's context, NCCL's
buffers, the allocator's gaps, experts that are chosen more often than others, layers that predict further tokens, and
SGLang on the host: so a run is warned from 90 % on. Lines of source are those of slime 624b824a8 and its Megatron-LM.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sat_slime.config.finding import Finding, warn
from sat_slime.config.method_section import build_method
from sat_slime.config.rules import longest_sample
from sat_slime.config.slime_schema import SlimeConfig, SlimeModelConfig
from sat_slime.launch.hf_checkpoint import checkpoint_bits

BF16, FP32, INT64, INT32 = 2, 4, 8, 4
"""Bytes of a number."""
GIB = 2**30
MIB = 2**20
ATTENTION = ("multi-latent-attention", "attention-output-gate")
UNCOUNTED = (*ATTENTION, "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
"""Flags of layouts that are not counted here: latent or gated attention, stages of unequal size."""


def elements(
    model: SlimeModelConfig,
    layers: Sequence[bool],
    tensor: int = 1,
    experts_cut: int = 1,
    *,
    first: bool = True,
    last: bool = True,
) -> tuple[int, int]:
    """Return the elements of a rank's parameters: those that tensor parallelism cuts, and its experts.
    layers: of each layer of its pipeline stage, whether it has experts. tensor: ranks that share a layer's matrices,
    experts left out; experts_cut: those that share the experts. first, last: whether its stage is the first, which has
    the embedding, and the last, which has the output layer."""
    flags, hidden = model.flags, model.hidden_size
    queries, kv = model.attention_heads * model.head_dim, model.kv_heads * model.head_dim
    attention = (2 * queries + 2 * kv) * hidden // tensor + 2 * hidden  # with its two norms
    attention += 2 * model.head_dim if flags.get("qk-layernorm") else 0
    attention += (queries + 2 * kv) // tensor if flags.get("add-qkv-bias") else 0
    width = 3 * hidden if flags.get("swiglu") else 2 * hidden  # of a feed-forward layer's matrices together
    beside_experts = model.experts * hidden + width * model.shared_experts_size // tensor  # with the router
    moe = sum(layers)
    embedding = padded_vocabulary(model, tensor) // tensor * hidden
    # Tied embeddings of a pipeline are on both of its ends.
    output = 0 if model.tied_embeddings and first else embedding
    dense = len(layers) * attention + moe * beside_experts + (len(layers) - moe) * width * (model.ffn_size // tensor)
    dense += first * embedding + last * (hidden + output)
    return dense, moe * width * model.expert_ffn_size * model.experts // experts_cut


def parameters(model: SlimeModelConfig, active: bool = False) -> int:
    """Return the number of parameters of a model, 0 where its sizes lack or its layout is not counted here.
    active: of the experts only those that a token is sent to."""
    sizes = model.layers, model.hidden_size, model.expert_ffn_size, model.vocab_size
    if not all(sizes) or any(map(model.flags.get, ATTENTION)):
        return 0
    dense, experts = elements(model, model.moe_layers)
    return dense + (experts * model.experts_per_token // model.experts if active and experts else experts)


def padded_vocabulary(model: SlimeModelConfig, tensor: int) -> int:
    """Return the rows of the embedding: Megatron pads to 128 for each tensor-parallel rank
    (megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding)."""
    multiple = model.vocab_multiple * tensor
    return -(-model.vocab_size // multiple) * multiple


class Stage(NamedTuple):
    """What a training rank holds of the model, by its stage of the pipeline."""

    layers: list[bool]
    """Of each of its layers, whether it has experts."""
    elements: int
    optimizer: float
    """Elements of which it keeps the optimizer's state: ranks with the same weights share it (slime sets Megatron's
    distributed optimizer, backends/megatron_utils/arguments.py)."""


def stages_of(config: SlimeConfig) -> list[Stage]:
    train, layers, stages = config.train, config.model.moe_layers, []
    tensor, count, cut = train.tensor_parallel, train.pipeline_parallel, train.expert_tensor_parallel
    cut *= train.expert_parallel
    for stage in range(count):
        own = layers[stage * len(layers) // count : (stage + 1) * len(layers) // count]
        dense, experts = elements(config.model, own, tensor, cut, first=stage == 0, last=stage == count - 1)
        ranks = train.world_size / count
        state = dense / max(1.0, ranks / tensor) + experts / max(1.0, ranks / cut)
        stages.append(Stage(own, dense + experts, state))
    return stages


Need = dict[str, float]
"""The parts that one kind of memory has to hold at once, in bytes by their names."""
FULL_LENGTH = ("batch", "routed experts")
"""Parts that are counted as if all responses had the greatest length."""
PROMPT_TOKENS = 1024
"""The length in tokens that a prompt is taken to have where slime.rollout-max-prompt-len is unset."""
SAMPLE_BYTES = (8 + 28) + 8 + (8 + 24)
"""Bytes of a response's token in the rollout process: slime keeps token, loss mask and log-prob in lists of Python,
8 bytes an entry, and Python 28 for a whole number above 256 and 24 for a float."""
STORED_BYTES = INT64 + INT32 + FP32
"""The same as tensors (slime/observability/rollout_data_utils.py, _ROLLOUT_DATA_TENSOR_DTYPES)."""
BATCH_BYTES = INT64 + INT32 + 4 * FP32
"""Bytes of a response's token on a GPU that trains, for the whole step: token, mask, log-probs of engine and reference,
zeros for the KL of the reward, returns (backends/megatron_utils/actor.py, _get_rollout_data; loss.py)."""
PINNED = 4 / 3
"""Bytes that a tensor takes in pinned memory, for each of its own: PyTorch rounds up to a power of two
(ATen/core/CachingHostAllocator.h), which is a third more for the experts of Qwen3-30B-A3B. slime pins each parameter
(utils/tensor_backper.py), Megatron each gradient (hybrid_optimizer.py)."""


def text_of(need: Need) -> str:
    """Return `weights 14.2, gradients 28.4, ...` in GiB, without what is nothing."""
    digits = 0 if sum(need.values()) >= 100 * GIB else 1
    return ", ".join(f"{name} {size / GIB:,.{digits}f}" for name, size in need.items() if size > MIB)


def batch_tokens(config: SlimeConfig) -> int:
    """Return the tokens of an iteration's batch if every response had its full length."""
    return longest_sample(config, PROMPT_TOKENS) * config.rollout.responses_per_iteration


def micro_batch_tokens(config: SlimeConfig) -> int:
    """Return the tokens of the largest micro-batch on one GPU, where a longer sample makes one of its own; without
    slime.use-dynamic-batch-size it has slime.micro-batch-size samples."""
    longest = -(-longest_sample(config, PROMPT_TOKENS) // config.train.context_parallel)
    if not config.slime.get("use-dynamic-batch-size"):
        return longest * config.train.micro_batch_size
    return max(config.train.max_tokens_per_gpu, longest)


def training_need(config: SlimeConfig) -> Need:
    """Return what the fullest GPU that trains holds at its peak, in the backward pass of a step."""
    train, model, stages = config.train, config.model, stages_of(config)
    in_fp32 = config.slime.get("accumulate-allreduce-grads-in-fp32")
    offloaded = train.optimizer_offload * train.offload_fraction
    # distrib_optimizer.py: master weights, two moments; gradients in bf16 are copied into fp32
    kept = (1 if config.slime.get("use-stateless-adam") else 3) + (0 if in_fp32 else 1)
    tokens = micro_batch_tokens(config)
    # Logits and their softmax in fp32, which becomes the gradient in place (slime/utils/ppo_utils.py,
    # _VocabParallelLogProbEntropy); bf16 logits are gone by then. A temperature makes a copy (loss.py,
    # get_log_probs_and_entropy), a mask of top-p and the entropy's gradient, too.
    copies = 2 + (config.rollout.temperature != 1) + (config.rollout.top_p < 1) + (config.loss.entropy_coef != 0)
    all_logits = tokens * (copies * FP32 * padded_vocabulary(model, train.tensor_parallel) / train.tensor_parallel)
    needs: list[Need] = []
    for number, stage in enumerate(stages):
        # param_and_grad_buffer.py: param_data, grad_data
        need: Need = {"weights": BF16 * stage.elements, "gradients": (FP32 if in_fp32 else BF16) * stage.elements}
        need["optimizer"] = (1 - offloaded) * kept * FP32 * stage.optimizer
        need["batch"] = BATCH_BYTES * batch_tokens(config) / max(train.data_parallel, 1)
        # A stage holds one micro-batch for itself and each of the stages behind it (1F1B).
        saved, in_flight = [tokens * saved_bytes_per_token(config, moe) for moe in stage.layers], len(stages) - number
        if train.recompute == "full":
            # random.py, CheckpointFunction: a layer's input, which sequence parallelism cuts
            inputs = BF16 * tokens * model.hidden_size / train.tensor_parallel
            need["layer inputs"] = in_flight * len(saved) * inputs
        else:
            need["activations"] = in_flight * sum(saved)
        # Logits are gone when the first layer is computed again, and the other way round.
        logits, one_layer = all_logits if stage is stages[-1] else 0.0, max(saved, default=0.0)
        need["logits" if logits >= one_layer else "a layer"] = max(logits, one_layer)
        needs.append(need)
    return max(needs, key=lambda need: sum(need.values()))


def saved_bytes_per_token(config: SlimeConfig, moe: bool) -> float:
    """Return the bytes that a layer keeps for its backward pass, of one token on one GPU, with flash attention and
    experts that are chosen equally often: inputs and outputs of its norms, of matrices, of attention and of SwiGLU, in
    bf16, and the router's scores in fp32. `selective` recomputes the attention's output."""
    model, train = config.model, config.train
    hidden, heads, kv = model.hidden_size, model.attention_heads, model.kv_heads
    query_key = (heads + kv) if model.flags.get("qk-layernorm") else 0
    output = 0 if train.recompute == "selective" else heads
    numbers = 4 * hidden + (heads + 2 * kv + query_key + output) * model.head_dim
    if not moe:
        return BF16 * (numbers + 3 * model.ffn_size) / train.tensor_parallel
    numbers += 3 * model.shared_experts_size
    # sent to experts: before and after the exchange, both ways, and between the two matrices
    numbers += model.experts_per_token * (4 * hidden + 3 * model.expert_ffn_size)
    return (BF16 * numbers + 3 * FP32 * model.experts) / train.tensor_parallel


def engine_need(config: SlimeConfig) -> Need:
    """Return what an engine's GPU must hold within `sglang-mem-fraction-static`; SGLang fills the rest with its KV
    cache. Tensor parallelism cuts the experts, too, and attention and embeddings within a group of data-parallel
    attention, but no head of keys and values: with more GPUs than heads each holds one
    (sglang/srt/configs/model_config.py, get_num_kv_heads). A quantized checkpoint has its embeddings in bf16."""
    model, rollout = config.model, config.rollout
    heads = max(1, model.kv_heads // rollout.gpus_per_head)
    of_a_token = BF16 * 2 * model.layers / rollout.stages * heads * model.head_dim
    cut = rollout.gpus_per_head * rollout.stages, rollout.gpus_per_engine
    embeddings = sum(elements(model, [], *cut))
    layers = sum(elements(model, model.moe_layers, *cut)) - embeddings
    weights = BF16 * embeddings + checkpoint_bits(model.hf_checkpoint) / 8 * layers
    return {"weights": weights, "KV of the longest response": longest_sample(config, PROMPT_TOKENS) * of_a_token}


def host_need(config: SlimeConfig) -> Need:
    """Return what the memory of a training node holds, whose ranks are counted as those of the fullest stage. slime
    keeps copies of the weights: the actor's, the KL's reference, and for denominator `checkpoint` those that generated
    (a queue of two where they are replaced every iteration). Each rank has a copy of the batch of its data-parallel
    group (slime/utils/data.py, process_rollout_data), and there are those in Ray's store, pinned, and as samples of the
    next batch, or five as that is put into the store: samples, pickle, both batches, and the pinned routes."""
    train, model, own = config.train, config.model, max(stages_of(config), key=lambda stage: stage.elements)
    copies = 1 + (config.loss.kl_coef > 0)
    if build_method(config.method).denominator == "checkpoint":
        copies += 2 if config.pipeline.lag <= 1 else 1
    need: Need = {f"{copies} copies of the weights": copies * train.gpus_per_node * PINNED * BF16 * own.elements}
    # master weights, two moments and pinned gradients, in fp32 (optimizer/cpu_offloading/hybrid_optimizer.py)
    offloaded = train.optimizer_offload * train.offload_fraction
    need["optimizer"] = offloaded * train.gpus_per_node * (3 + PINNED) * FP32 * own.optimizer
    of_batch = max(3 + train.gpus_per_node / max(train.data_parallel, 1), 5)
    need["batch"] = batch_tokens(config) * (SAMPLE_BYTES + STORED_BYTES * (of_batch - 1))
    # In Ray's store, which with a lag has the next batch, too, and in the rollout process; in each rank, which copies
    # them once more for its routers. A route takes a byte or two.
    stored = 2 if config.pipeline.lag or config.pipeline.mode == "streaming" else 1
    held = stored + 1 + 2 * train.gpus_per_node / max(train.data_parallel, 1)
    width = (1 if model.experts <= 2**8 else 2) if config.method.r3 and model.is_moe else 0
    need["routed experts"] = held * width * model.layers * model.experts_per_token * batch_tokens(config)
    return need


ASSUMED_GPU_BYTES = 79.1 * GIB
"""What CUDA shows of an H100 of 80 GB, less than 80 GB by what the driver keeps (PyTorch's messages on memory that ran
out: "GPU 0 has a total capacity of 79.10 GiB")."""
Sizes = Mapping[str, tuple[float, str]]
"""Bytes that there are of `gpu` and `host`, and who says so: a node, or the setting. Without what nobody knows."""


def sizes(config: SlimeConfig, machines: Mapping[str, Mapping[str, float | None]] | None = None) -> Sizes:
    """Return what the settings give, else the smallest of the machines: by name, what `machine_sizes` says there."""
    there = {"gpu": (ASSUMED_GPU_BYTES, "assumed: an 80 GB card")}
    for kind, given in (("gpu", config.cluster.gpu_memory_gib), ("host", config.cluster.host_memory_gib)):
        known = [(size, name) for name, machine in (machines or {}).items() if (size := machine.get(kind))]
        if given is not None:
            there[kind] = given * GIB, f"cluster.{kind}_memory_gib"
        elif known:
            there[kind] = min(known)
    return there


def machine_sizes(root: Path = Path("/sys/fs/cgroup")) -> dict[str, float | None]:
    """Return the bytes of this machine's smallest GPU, None where there is none, and of its memory, or of the container
    that this process is in. The driver is asked for the first, so that no CUDA context is made and CUDA_VISIBLE_DEVICES
    does not matter. root: where both versions of control groups have their files."""
    gpu, host = None, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    command = ["nvidia-smi", "--format=csv,noheader,nounits", "--query-gpu=memory.total,memory.reserved"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        cells = [[float(cell) for cell in row.split(",")] for row in output.splitlines() if row.strip()]
        gpu = min(total - reserved for total, reserved in cells) * MIB
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # `max`: without a limit
            host = min(host, float((root / limit).read_text(encoding="utf-8")))
    return {"gpu": gpu, "host": host}


TIGHT = 0.9
"""Share of what there is above which a run is warned: what is not counted needs room."""
RAY_KILLS = 0.95
"""Share of a host's memory above which Ray kills workers (RAY_memory_usage_threshold)."""
TRAINING, ENGINE, HOST = ROWS = ("training GPU", "engine GPU", "host memory")
"""What is judged, in the order of the table."""
REMEDIES = {
    TRAINING: "slime.recompute-granularity full, slime.max-tokens-per-gpu down to the longest sample, more "
    "slime.tensor-model-parallel-size, context-, pipeline- or expert-model-parallel-size, slime.optimizer-cpu-offload "
    "true where the hosts have room",
    ENGINE: "more slime.rollout-num-gpus-per-engine or slime.sglang-mem-fraction-static, or fewer "
    "slime.rollout-max-response-len",
    HOST: "loss.kl_coef 0, slime.optimizer-cpu-offload false where the GPUs have room, fewer slime.rollout-batch-size "
    "or slime.rollout-max-response-len, or more slime.actor-num-nodes",
}
BESIDE_BOTH = 3 * GIB
"""Bytes of a shared GPU beside trainer and engine's share: two CUDA contexts, the engine's graphs and prefills."""


class Row(NamedTuple):
    """One kind of memory: what is needed, and what there is to be used of it, infinite where it is not known."""

    what: str
    need: Need
    usable: float
    source: str

    @property
    def total(self) -> float:
        return sum(self.need.values())

    @property
    def mark(self) -> str:
        """FAIL, WARN or OK. What depends on responses' lengths is counted at its most, and so is worth a warning."""
        certain = sum(size for name, size in self.need.items() if name not in FULL_LENGTH)
        if certain > self.usable:
            return "FAIL"
        return "WARN" if self.total > TIGHT * self.usable else "OK"

    def __str__(self) -> str:
        """Needed of what there is, the share, who says so, and the parts of what is needed."""
        if not self.source:
            return f"{gib(self.total)} GiB: {text_of(self.need)}"
        share = f"{100 * self.total / self.usable:.0f} %"
        return f"{gib(self.total)} of {gib(self.usable)} GiB, {share} ({self.source}): {text_of(self.need)}"


def rows(config: SlimeConfig, there: Sizes) -> list[Row]:
    """Return what is judged of a run on GPUs; nothing where its model is not counted."""
    if config.cluster.device == "cpu" or not parameters(config.model) or any(map(config.slime.get, UNCOUNTED)):
        return []
    fraction, (gpu, source) = config.rollout.memory_fraction, there["gpu"]
    host, host_source = there.get("host", (math.inf, ""))
    # On a shared GPU the engine starts first, and takes its share of the whole.
    training = max((1 - fraction) * gpu - BESIDE_BOTH, 1.0) if config.cluster.share_gpu else gpu
    return [
        Row(TRAINING, training_need(config), training, source),
        Row(ENGINE, engine_need(config), max(fraction * gpu, 1.0), source),
        Row(HOST, host_need(config), RAY_KILLS * host, host_source),
    ]


def gib(count: float) -> str:
    """Return a number of GiB as people read it."""
    return f"{count / GIB:,.{1 if count < 10 * GIB else 0}f}"


def memory_findings(config: SlimeConfig, there: Sizes) -> Iterator[Finding]:
    """Yield a finding for each kind of memory: needed, there, the share, and what helps where it does not fit."""
    judged = rows(config, there)
    if not judged and config.cluster.device == "gpu":
        flags = ", ".join(f"slime.{flag}" for flag in UNCOUNTED if config.slime.get(flag))
        why = f"a model with {flags} is not counted" if flags else "slime has no flags for the model's size"
        yield warn(HOST, f"{why}: memory is not checked")
    train, kl = config.train, f"loss.kl_coef {config.loss.kl_coef:g}"
    offload = "true where the hosts have room" if train.optimizer_offload else "false where the GPUs have room"
    done = (f"slime.recompute-granularity {train.recompute}", f"slime.optimizer-cpu-offload {offload}", kl)
    for row in judged:
        if not row.source:  # of the host alone
            yield warn(HOST, f"how much there is is not known here; a training node needs {row}")
            continue
        text = str(row)
        if row.mark != "OK":
            needs = "needs" if row.mark == "FAIL" else "needs up to"
            shared = row.what == TRAINING and config.cluster.share_gpu
            less = "less slime.sglang-mem-fraction-static, " if shared else ""
            helps = (each for each in REMEDIES[row.what].split(", ") if each not in done)
            text = f"{needs} {text}: {less}{', '.join(helps)}"
        # The settings or their default may say how much there is, whatever the machine is.
        yield Finding(row.mark, row.what, text, row.source.startswith(("cluster.", "assumed")))
