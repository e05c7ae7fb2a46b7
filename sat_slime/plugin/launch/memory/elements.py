"""Counts the elements of a model's parameters on a rank of Megatron, from the flags of its architecture.

Counted are the layers of Megatron's GPTModel as slime builds it with Transformer Engine: attention with query groups or
latent attention, gated or plain feed-forward layers, experts, shared experts, norms, biases, embeddings. A family of
sat_slime.models counts its own layers; of other models, layers of another kind (linear attention) are taken for
attention. Layers that predict further tokens are left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sat_slime.config.slime_schema import SlimeConfig, SlimeModelConfig
from sat_slime.models import Weight


@dataclass(frozen=True)
class Tensors:
    """Parameters of one rank that have the same size."""

    name: str
    elements: int
    """Elements of one of them."""
    count: int = 1
    expert: bool = False
    """Whether expert parallelism cuts them, and not tensor parallelism."""

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
    flags = tuple((flag, value) for flag, value in config.model.architecture.items() if not isinstance(value, list))
    return _stage_tensors(flags, config.model.family, cut_of(config), stage, tuple(stage_layers(config)[stage]))


@functools.lru_cache(4096)  # the search for a change of settings asks for the same ones again and again
def _stage_tensors(
    flags: tuple[tuple[str, object], ...], family: str | None, cut: Cut, stage: int, layers: tuple[bool, ...]
) -> tuple[Tensors, ...]:
    return tuple(stage_tensors(SlimeModelConfig(architecture=dict(flags), family=family), cut, stage, layers))


def stage_tensors(model: SlimeModelConfig, cut: Cut, stage: int, layers: Iterable[bool]) -> Iterator[Tensors]:
    """Yields the parameters of a rank. layers: for each layer of its stage, whether it has experts."""
    embedding = padded_vocabulary(model, cut.tensor) // cut.tensor * model.hidden_size
    last = stage == cut.pipeline - 1
    if stage == 0:
        yield Tensors("embedding", embedding)
    moe = list(layers)
    yield from _times(moe.count(True), _layer(model, cut, True))
    yield from _times(moe.count(False), _layer(model, cut, False))
    if last:
        yield _norm(model, model.hidden_size)
        # tied embeddings of a pipeline lie on both of its ends
        if _has(model, "untie-embeddings-and-output-weights") or stage:
            yield Tensors("output", embedding)


def _times(count: int, tensors: Iterable[Tensors]) -> Iterator[Tensors]:
    if count:
        yield from (replace(tensor, count=tensor.count * count) for tensor in tensors)


def _layer(model: SlimeModelConfig, cut: Cut, moe: bool) -> Iterator[Tensors]:
    if family := model.resolved_family:
        yield from (_on_a_rank(weight, cut) for weight in family.layer_weights(model, moe))
        return
    hidden, bias = model.hidden_size, not _has(model, "disable-bias-linear")
    yield _norm(model, model.hidden_size, 2)
    yield from _latent_attention(model, cut) if _has(model, "multi-latent-attention") else _attention(model, cut)
    if bias:
        yield Tensors("bias", hidden)
    if not moe:
        yield from _feed_forward("feed-forward", hidden, model.ffn_size // cut.tensor, model, 1)
        return
    yield Tensors("router", model.experts * hidden)
    if bias:
        yield Tensors("bias", model.experts)
    if shared := _number(model, "moe-shared-expert-intermediate-size"):
        yield from _feed_forward("shared expert", hidden, shared // cut.tensor, model, 1)
        if _has(model, "moe-shared-expert-gate"):
            yield Tensors("shared expert", hidden)
    width, own = model.expert_ffn_size // cut.expert_tensor, model.experts // cut.expert
    yield from _feed_forward("experts", hidden, width, model, own, expert=True)


def _on_a_rank(weight: Weight, cut: Cut) -> Tensors:
    ranks = 1 if weight.cut is None else cut.expert_tensor if weight.experts else cut.tensor
    count = weight.experts // cut.expert if weight.experts else 1
    return Tensors(weight.kind, weight.elements // ranks, count, bool(weight.experts))


def _attention(model: SlimeModelConfig, cut: Cut) -> Iterator[Tensors]:
    """Yields Megatron's SelfAttention: queries, keys and values in one matrix, cut by heads."""
    queries, keys = model.attention_heads * model.head_dim, model.kv_heads * model.head_dim
    outputs = (queries * (2 if _has(model, "attention-output-gate") else 1) + 2 * keys) // cut.tensor
    yield Tensors("attention", outputs * model.hidden_size)
    yield Tensors("attention", queries // cut.tensor * model.hidden_size)
    if _has(model, "add-qkv-bias") or not _has(model, "disable-bias-linear"):
        yield Tensors("bias", outputs)
    if _has(model, "qk-layernorm"):
        yield _norm(model, model.head_dim, 2)


def _latent_attention(model: SlimeModelConfig, cut: Cut) -> Iterator[Tensors]:
    """Yields Megatron's MLASelfAttention: with Transformer Engine the matrices into the latent spaces are whole on
    every rank (multi_latent_attention.py, parallel_mode duplicated)."""
    hidden, heads = model.hidden_size, model.attention_heads // cut.tensor
    query, key_value = _number(model, "q-lora-rank"), _number(model, "kv-lora-rank", 512)
    position, value = _number(model, "qk-pos-emb-head-dim", 64), _number(model, "v-head-dim", 128)
    head = _number(model, "qk-head-dim", 128)
    if query:
        yield Tensors("attention", query * hidden)
        yield Tensors("attention", heads * (head + position) * query)
        yield _norm(model, query)
    else:
        yield Tensors("attention", heads * (head + position) * hidden)
    yield Tensors("attention", (key_value + position) * hidden)
    yield Tensors("attention", heads * (head + value) * key_value)
    yield _norm(model, key_value)
    yield Tensors("attention", heads * value * hidden)


def _feed_forward(
    name: str, hidden: int, width: int, model: SlimeModelConfig, count: int, expert: bool = False
) -> Iterator[Tensors]:
    """Yields the two matrices of each of `count` feed-forward layers; a gated one's first is twice as wide."""
    gated = 2 if _has(model, "swiglu") else 1
    yield Tensors(name, gated * width * hidden, count, expert)
    yield Tensors(name, width * hidden, count, expert)
    if not _has(model, "disable-bias-linear"):
        yield Tensors("bias", gated * width, count, expert)
        yield Tensors("bias", hidden, count, expert)


def _norm(model: SlimeModelConfig, width: int, count: int = 1) -> Tensors:
    """Return `count` norms: a weight each, of LayerNorm a bias too."""
    return Tensors("norm", width, count * (1 if model.architecture.get("normalization") == "RMSNorm" else 2))


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
    given = [config.extra_args.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
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
