"""Counts the elements of a model's parameters on a rank of Megatron, from the flags of its architecture.

Counted are the layers of Megatron's GPTModel as slime builds it with Transformer Engine: attention with query groups or
latent attention, gated or plain feed-forward layers, experts, shared experts, norms, biases, embeddings. A family of
sat_slime.models counts its own layers; of other models, layers of another kind (linear attention) are taken for
attention. Layers that predict further tokens are left out.

`expected_elements` adds what Megatron makes of them on each rank: buffers of weights and gradients, and the shard of
the optimizer's state. A rehearsal records what its ranks hold, by `cpu/recorder`; the tests hold every number
here against Megatron's own model.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sat_slime.config.slime_schema import SlimeConfig, SlimeModelConfig
from sat_slime.models import Weight

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
LAYER = "decoder.layers.*"
ATTENTION = f"{LAYER}.self_attention"
ORDER = (
    *("linear_proj.weight", "linear_proj.bias", "input_layernorm", "linear_qkv.weight", "linear_qkv.bias"),
    *("q_layernorm", "k_layernorm", "pre_mlp_layernorm", "router.weight", "linear_fc1.weight", "linear_fc2.weight"),
)
"""Parameters of a layer of a family, by parts of their names, in the order in which Megatron's model has them."""


@dataclass(frozen=True)
class Tensors:
    """Parameters of one rank that have the same name, but for the numbers of layer and expert, and the same shape."""

    name: str
    """Megatron's name without Transformer Engine, with `*` for the number of the layer, and for the expert's."""
    shape: tuple[int, ...]
    count: int = 1
    expert: bool = False
    """Whether expert parallelism cuts them, and not tensor parallelism."""

    @property
    def elements(self) -> int:
        """Elements of one of them."""
        return math.prod(self.shape)

    @property
    def total(self) -> int:
        return self.elements * self.count


@dataclass(frozen=True)
class Cut:
    """The number of ranks that share a model, by Megatron's kinds of parallelism."""

    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1
    pipeline: int = 1


def cut_of(config: SlimeConfig) -> Cut:
    """Return the parallelism of the trainer."""
    train = config.train
    return Cut(train.tensor_parallel, train.expert_parallel, train.expert_tensor_parallel, train.pipeline_parallel)


def elements(tensors: Iterable[Tensors], expert: bool | None = None) -> int:
    """Return the elements of all tensors, or of those that are experts or are not."""
    return sum(tensor.total for tensor in tensors if expert in (None, tensor.expert))


def parameters(model: SlimeModelConfig) -> int:
    """Return the number of parameters of the whole model; 0 where its sizes lack."""
    return elements(_whole(model)) if model.layers and model.hidden_size else 0


def active_parameters(model: SlimeModelConfig) -> int:
    """Return the number of parameters that a token meets: of the experts only those that it is sent to."""
    whole = _whole(model) if model.layers and model.hidden_size else ()
    experts = elements(whole, expert=True)
    return elements(whole, expert=False) + (experts * model.experts_per_token // model.experts if experts else 0)


def _whole(model: SlimeModelConfig) -> list[Tensors]:
    return list(stage_tensors(model, Cut(), 0, moe_layers(model)))


def rank_tensors(config: SlimeConfig, stage: int = 0) -> tuple[Tensors, ...]:
    """Return the parameters of a rank that trains, by its stage of the pipeline."""
    return _stage_tensors(_shape(config, stage))


@functools.lru_cache(4096)  # the search for a change of settings asks for the same ones again and again
def _stage_tensors(shape: StageShape) -> tuple[Tensors, ...]:
    model = SlimeModelConfig(architecture=dict(shape.flags), family=shape.family)
    return tuple(stage_tensors(model, shape.cut, shape.stage, shape.layers))


def stage_tensors(model: SlimeModelConfig, cut: Cut, stage: int, layers: Iterable[bool]) -> Iterator[Tensors]:
    """Yield the parameters of a rank, those of all layers together. layers: for each layer of its stage, whether it has
    experts."""
    counts: Counter[Tensors] = Counter()
    for tensors in tensors_in_order(model, cut, stage, layers):
        counts[replace(tensors, count=1)] += tensors.count
    return (replace(tensors, count=count) for tensors, count in counts.items())


def tensors_in_order(model: SlimeModelConfig, cut: Cut, stage: int, layers: Iterable[bool]) -> Iterator[Tensors]:
    """Yield the parameters of a rank, layer by layer, in the order of Megatron's model."""
    embedding = (padded_vocabulary(model, cut.tensor) // cut.tensor, model.hidden_size)
    if stage == 0:
        yield Tensors(EMBEDDING, embedding)
    moe = list(layers)
    layer = {kind: tuple(_layer(model, cut, kind)) for kind in set(moe)}
    for kind in moe:
        yield from layer[kind]
    if stage == cut.pipeline - 1:
        yield from _norm(model, "decoder.final_layernorm")
        # tied embeddings of a pipeline lie on both of its ends
        if _has(model, "untie-embeddings-and-output-weights") or stage:
            yield Tensors(OUTPUT, embedding)


def _layer(model: SlimeModelConfig, cut: Cut, moe: bool) -> Iterator[Tensors]:
    """Yield the parameters of a layer, in Megatron's order: by it they lie in buffers."""
    if family := model.resolved_family:
        tensors = [_on_a_rank(weight, cut) for weight in family.layer_weights(model, moe)]
    else:
        tensors = list(_other_layer(model, cut, moe))
    yield from sorted(tensors, key=_order)


def _order(tensors: Tensors) -> int:
    """Return the place among Megatron's modules of a layer, where a norm is part of the product after it, as with
    Transformer Engine, and attention's output comes before its input; what is not listed comes last."""
    return next((place for place, part in enumerate(ORDER) if part in tensors.name), len(ORDER))


def _other_layer(model: SlimeModelConfig, cut: Cut, moe: bool) -> Iterator[Tensors]:
    """Yield the parameters of a layer that is of no family."""
    hidden, bias = model.hidden_size, not _has(model, "disable-bias-linear")
    yield from _norm(model, f"{LAYER}.input_layernorm")
    yield from _norm(model, f"{LAYER}.pre_mlp_layernorm")
    yield from _latent_attention(model, cut) if _has(model, "multi-latent-attention") else _attention(model, cut)
    if bias:
        yield Tensors(f"{ATTENTION}.linear_proj.bias", (hidden,))
    if not moe:
        yield from _feed_forward(f"{LAYER}.mlp", model, model.ffn_size // cut.tensor)
        return
    yield Tensors(f"{LAYER}.mlp.router.weight", (model.experts, hidden))
    if bias:
        yield Tensors(f"{LAYER}.mlp.router.bias", (model.experts,))
    if shared := _number(model, "moe-shared-expert-intermediate-size"):
        yield from _feed_forward(f"{LAYER}.mlp.shared_experts", model, shared // cut.tensor)
        if _has(model, "moe-shared-expert-gate"):
            yield Tensors(f"{LAYER}.mlp.shared_experts.gate_weight", (1, hidden))
    width, own = model.expert_ffn_size // cut.expert_tensor, model.experts // cut.expert
    yield from _feed_forward(f"{LAYER}.mlp.experts.local_experts.*", model, width, own, expert=True)


def _on_a_rank(weight: Weight, cut: Cut) -> Tensors:
    ranks = 1 if weight.cut is None else cut.expert_tensor if weight.experts else cut.tensor
    count = weight.experts // cut.expert if weight.experts else 1
    shapes = list(weight.tensors.values())
    shape = [sum(rows for rows, *_ in shapes), *shapes[0][1:]]
    if weight.cut is not None:
        shape[weight.cut] //= ranks
    return Tensors(weight.megatron, tuple(shape), count, bool(weight.experts))


def _attention(model: SlimeModelConfig, cut: Cut) -> Iterator[Tensors]:
    """Yield Megatron's SelfAttention: queries, keys and values in one matrix, cut by heads."""
    queries, keys = model.attention_heads * model.head_dim, model.kv_heads * model.head_dim
    outputs = (queries * (2 if _has(model, "attention-output-gate") else 1) + 2 * keys) // cut.tensor
    yield Tensors(f"{ATTENTION}.linear_qkv.weight", (outputs, model.hidden_size))
    yield Tensors(f"{ATTENTION}.linear_proj.weight", (model.hidden_size, queries // cut.tensor))
    if _has(model, "add-qkv-bias") or not _has(model, "disable-bias-linear"):
        yield Tensors(f"{ATTENTION}.linear_qkv.bias", (outputs,))
    if _has(model, "qk-layernorm"):
        for name in "qk":
            yield from _norm(model, f"{ATTENTION}.{name}_layernorm", model.head_dim)


def _latent_attention(model: SlimeModelConfig, cut: Cut) -> Iterator[Tensors]:
    """Yield Megatron's MLASelfAttention: with Transformer Engine the matrices into the latent spaces are whole on every
    rank (multi_latent_attention.py, parallel_mode duplicated)."""
    hidden, heads = model.hidden_size, model.attention_heads // cut.tensor
    query, key_value = _number(model, "q-lora-rank"), _number(model, "kv-lora-rank", 512)
    position, value = _number(model, "qk-pos-emb-head-dim", 64), _number(model, "v-head-dim", 128)
    head = _number(model, "qk-head-dim", 128)
    if query:
        yield Tensors(f"{ATTENTION}.linear_q_down_proj.weight", (query, hidden))
        yield Tensors(f"{ATTENTION}.linear_q_up_proj.weight", (heads * (head + position), query))
        yield from _norm(model, f"{ATTENTION}.q_layernorm", query)
    else:
        yield Tensors(f"{ATTENTION}.linear_q_proj.weight", (heads * (head + position), hidden))
    yield Tensors(f"{ATTENTION}.linear_kv_down_proj.weight", (key_value + position, hidden))
    yield Tensors(f"{ATTENTION}.linear_kv_up_proj.weight", (heads * (head + value), key_value))
    yield from _norm(model, f"{ATTENTION}.kv_layernorm", key_value)
    yield Tensors(f"{ATTENTION}.linear_proj.weight", (hidden, heads * value))


def _feed_forward(
    name: str, model: SlimeModelConfig, width: int, count: int = 1, expert: bool = False
) -> Iterator[Tensors]:
    """Yield the two matrices of each of `count` feed-forward layers; a gated one's first is twice as wide."""
    hidden, outputs = model.hidden_size, (2 if _has(model, "swiglu") else 1) * width
    yield Tensors(f"{name}.linear_fc1.weight", (outputs, hidden), count, expert)
    yield Tensors(f"{name}.linear_fc2.weight", (hidden, width), count, expert)
    if not _has(model, "disable-bias-linear"):
        yield Tensors(f"{name}.linear_fc1.bias", (outputs,), count, expert)
        yield Tensors(f"{name}.linear_fc2.bias", (hidden,), count, expert)


def _norm(model: SlimeModelConfig, name: str, width: int = 0) -> Iterator[Tensors]:
    """Yield a norm: a weight, of LayerNorm a bias too. width: default: the hidden size."""
    yield Tensors(f"{name}.weight", (width or model.hidden_size,))
    if model.architecture.get("normalization") != "RMSNorm":
        yield Tensors(f"{name}.bias", (width or model.hidden_size,))


def padded_vocabulary(model: SlimeModelConfig, tensor: int) -> int:
    """Return the rows of the embedding: Megatron pads to 128 for each tensor-parallel rank
    (megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding)."""
    multiple = _number(model, "make-vocab-size-divisible-by", 128) * tensor
    return -(-model.vocab_size // multiple) * multiple


def moe_layers(model: SlimeModelConfig) -> list[bool]:
    """Return for each layer whether it has experts: Megatron's --moe-layer-freq, a number n (every n-th layer, from the
    first), a list, or a sum such as `[0]*1+[1]*45`."""
    if not model.is_moe:
        return [False] * model.layers
    frequency = model.architecture.get("moe-layer-freq", 1)
    if isinstance(frequency, list):
        return [bool(has_experts) for has_experts in frequency]
    if isinstance(frequency, str):
        if not frequency.strip().isdigit():
            return _pattern(frequency) or [True] * model.layers
        frequency = int(frequency)
    return [index % frequency == 0 for index in range(model.layers)]


@functools.cache
def _pattern(text: str) -> list[bool]:
    layers: list[bool] = []
    for inner, times in re.findall(r"\[([\d,\s]*)\](?:\s*\*\s*(\d+))?", text):
        layers += [digit.strip() != "0" for digit in inner.split(",") if digit.strip()] * int(times or 1)
    return layers


def stage_layers(config: SlimeConfig) -> list[list[bool]]:
    """Return the layers of each stage of the pipeline, and of each whether it has experts."""
    layers, stages = moe_layers(config.model), config.train.pipeline_parallel
    given = [config.slime.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
    ends = [size if isinstance(size, int) else 0 for size in given]
    between = stages - sum(map(bool, ends))
    each = (len(layers) - sum(ends)) // between if between else 0
    sizes = [each] * stages
    sizes[0], sizes[-1] = ends[0] or sizes[0], ends[1] or sizes[-1]
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return [layers[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _has(model: SlimeModelConfig, flag: str) -> bool:
    return bool(model.architecture.get(flag))


def _number(model: SlimeModelConfig, flag: str, default: int = 0) -> int:
    value = model.architecture.get(flag, default)
    return value if isinstance(value, int) else default


# ------------------------------------------------------------------------------------------ what Megatron makes of them


ALIGNED, BUCKET = 64, 128
"""Elements at whose multiples a parameter begins in a buffer, and of which a bucket has a multiple
(megatron/core/distributed/param_and_grad_buffer.py)."""
LEAST_OF_A_BUCKET = 40_000_000, 1_000_000
"""Elements with which a bucket is full where gradients are reduced meanwhile, and those for each of its ranks; the
larger one counts (distributed_data_parallel.py)."""


def expected_elements(config: SlimeConfig, rank: int) -> dict[str, int]:
    """Return the elements that a rank of the trainer holds.

    Returns:
        `weights`: its parameters; `buffers`: those, and as many gradients, in Megatron's buffers, padding included;
        `optimizer`: the parameters, or parts of them, of which it has a master weight and two moments.
    """
    per_stage = max(1, config.train.world_size // config.train.pipeline_parallel)
    stage = min(rank // per_stage, config.train.pipeline_parallel - 1)
    within, shape = rank - stage * per_stage, _shape(config, stage)
    # Ranks that hold the same weights are as many apart as share a model; those of context parallelism are among them.
    shards = within // shape.cut.tensor, within // (shape.cut.expert * shape.cut.expert_tensor)
    return dict(zip(("weights", "buffers", "optimizer"), _rank_elements(shape, shards), strict=True))


@dataclass(frozen=True)
class StageShape:
    """All that the elements of a stage's ranks depend on; it can be hashed."""

    flags: tuple[tuple[str, object], ...]
    family: str | None
    cut: Cut
    stage: int
    layers: tuple[bool, ...]
    ranks: int
    """Ranks of the stage."""
    overlap: bool
    """Whether gradients are reduced during the backward pass."""


def _shape(config: SlimeConfig, stage: int) -> StageShape:
    flags = tuple((flag, value) for flag, value in config.model.architecture.items() if not isinstance(value, list))
    ranks = max(1, config.train.world_size // config.train.pipeline_parallel)
    overlap = bool(config.slime.get("overlap-grad-reduce"))
    layers = tuple(stage_layers(config)[stage])
    return StageShape(flags, config.model.family, cut_of(config), stage, layers, ranks, overlap)


@functools.lru_cache(4096)
def _rank_elements(shape: StageShape, shards: tuple[int, int]) -> tuple[int, int, int]:
    """Return weights, elements of buffers, and those of the optimizer. shards: the rank's number among those with the
    same weights, and with the same experts."""
    model, cut = SlimeModelConfig(architecture=dict(shape.flags), family=shape.family), shape.cut
    tensors = list(tensors_in_order(model, cut, shape.stage, shape.layers))
    tied = cut.pipeline > 1 and not _has(model, "untie-embeddings-and-output-weights")
    # With one expert-parallel rank experts are to Megatron parameters as others are.
    apart = [tensor for tensor in tensors if tensor.expert and cut.expert > 1]
    together = [tensor for tensor in tensors if not (tensor.expert and cut.expert > 1)]
    size = held = 0
    sharing = cut.tensor, cut.expert * cut.expert_tensor
    for some, number, share_a_model in zip((together, apart), shards, sharing, strict=True):
        ranks = max(1, shape.ranks // share_a_model)
        full = max(LEAST_OF_A_BUCKET[0], LEAST_OF_A_BUCKET[1] * ranks) if shape.overlap and not shape.stage else None
        for start, end, spans in _buckets(some, ranks, tied, full):
            share = (end - start) // ranks
            first, last = start + number * share, start + (number + 1) * share
            size += end - start
            held += sum(max(0, min(last, stop) - max(first, begin)) for begin, stop in spans)
    return elements(tensors), size, held


def _buckets(
    tensors: Sequence[Tensors], ranks: int, tied: bool, full: int | None
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield beginning and end of each bucket of a buffer, and those of its parameters: the last one of the model comes
    first, and an embedding that two stages have is alone."""
    position, start, spans = 0, 0, list[tuple[int, int]]()
    for tensor in reversed(tensors):
        alone = tied and tensor.name in (EMBEDDING, OUTPUT)
        for _ in range(tensor.count):
            if alone and spans:
                yield start, (position := _up(position, math.lcm(ranks, BUCKET))), spans
                start, spans = position, []
            begin = _up(position, ALIGNED)
            position = begin + tensor.elements
            spans.append((begin, position))
            if alone or (full and position - start >= full):
                yield start, (position := _up(position, math.lcm(ranks, BUCKET))), spans
                start, spans = position, []
    if spans:
        yield start, _up(position, math.lcm(ranks, BUCKET)), spans


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
