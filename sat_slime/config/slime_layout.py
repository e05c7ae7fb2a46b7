"""Checks how a slime run is cut over GPUs: what does not fit, and the nearest sizes that do.

A remedy is looked for among other sizes, with the same checks, so that no advice leads into another fault.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sat_slime.config.embedded_checks import MAX_RESPONSES, too_many_responses, uneven_batch
from sat_slime.config.slime_schema import SlimeConfig

TRAINING = (
    "train.tensor_parallel",
    "train.expert_parallel",
    "train.expert_tensor_parallel",
    "train.pipeline_parallel",
    "train.gpus_per_node",
    "train.nodes",
    "rollout.prompts_per_iteration",
)
ENGINES = ("rollout.gpus_per_engine", "rollout.gpus_per_node", "rollout.nodes")
"""Sizes among which a remedy is looked for, the likeliest first."""
MOST_CHOICES = 8
"""Values of a size that are tried, so that a large cluster costs no more than seconds."""


@dataclass(frozen=True)
class _Misfit:
    """A size that does not fit, or two that do not fit each other."""

    kind: str
    """The fault in a word or two: the same kind at other sizes is the same fault."""
    key: str
    """The setting that is likeliest to be wrong."""
    reason: str


def layout_errors(config: SlimeConfig) -> list[str]:
    """Return a line for everything that does not fit, with the nearest size that does."""
    misfits = list(_misfits(config))

    @functools.cache
    def together(keys: tuple[str, ...], others: frozenset[str]) -> str:
        return _together(config, keys, others)

    return [f"{misfit.reason}: {_remedy(config, misfit, misfits, together)}" for misfit in misfits]


def _misfits(config: SlimeConfig) -> Iterator[_Misfit]:
    yield from _parallelism(config)
    yield from _nodes(config)
    yield from _batch(config)


# ------------------------------------------------------------------------------------------------------- remedies


Together = Callable[[tuple[str, ...], frozenset[str]], str]


def _remedy(config: SlimeConfig, misfit: _Misfit, misfits: list[_Misfit], together: Together) -> str:
    """Return what to set so that the misfit is gone and no other comes: its own size, else another, else several of
    them. Misfits between trainer and engines are mended apart."""
    keys = ENGINES if misfit.key in ENGINES else TRAINING
    others = frozenset(other.kind for other in misfits if (other.key in ENGINES) != (misfit.key in ENGINES))
    own = [value for value in _sizes(config, misfit.key) if _fits(_changed(config, {misfit.key: value}), others)]
    if own:
        shown = ", ".join(str(value) for value in sorted(own))
        if misfit.reason.startswith(f"{misfit.key} is"):
            return f"choose one of {shown}" if len(own) > 1 else f"set it to {shown}"
        return f"set {misfit.key} to {own[0]}"
    return together(keys, others)


def _together(config: SlimeConfig, keys: tuple[str, ...], others: frozenset[str]) -> str:
    """Return what to set of several sizes, as few as possible."""
    for count in (1, 2, 3):
        for chosen in itertools.combinations(keys, count):
            for values in itertools.product(*(_sizes(config, key) for key in chosen)):
                settings = dict(zip(chosen, values, strict=True))
                if _fits(_changed(config, settings), others):
                    return "set " + " and ".join(f"{key} to {value}" for key, value in settings.items())
    return "choose other numbers of GPUs"


def _fits(config: SlimeConfig, others: frozenset[str]) -> bool:
    return {misfit.kind for misfit in _misfits(config)} <= others


def _sizes(config: SlimeConfig, key: str) -> list[int]:
    """Return other values of a size, the nearest first and of two as near the larger one."""
    now = _value(config, key)
    if key == "rollout.prompts_per_iteration":
        steps = config.pipeline.optimizer_steps_per_rollout * max(config.train.data_parallel, 1)
        most = MAX_RESPONSES // config.rollout.samples_per_prompt
        values = {-(-min(now, most) // steps) * steps, min(now, most) // steps * steps}
    elif key == "pipeline.optimizer_steps_per_rollout":
        values = set(range(1, now + 1))
    elif key.endswith("gpus_per_node"):
        values = set(range(1, config.cluster.gpus_per_node + 1))
    elif key.endswith("nodes"):
        values = set(range(1, 2 * now + 1))
    else:
        gpus = config.rollout.gpus if key.startswith("rollout.") else config.train.world_size
        values = {size for size in range(1, gpus + 1) if gpus % size == 0}
    return sorted(values - {now, 0}, key=lambda value: (abs(value - now), -value))[:MOST_CHOICES]


def _value(config: SlimeConfig, key: str) -> int:
    section, _, name = key.partition(".")
    value = getattr(getattr(config, section), name)
    assert isinstance(value, int)
    return value


def _changed(config: SlimeConfig, settings: dict[str, int]) -> SlimeConfig:
    for key, value in settings.items():
        section, _, name = key.partition(".")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})
    return config


# -------------------------------------------------------------------------------------------------------- misfits


def _parallelism(config: SlimeConfig) -> Iterator[_Misfit]:
    model, train = config.model, config.train
    tensor, pipeline, expert = train.tensor_parallel, train.pipeline_parallel, train.expert_parallel
    gpus = train.world_size
    shared = tensor * pipeline * train.context_parallel
    if gpus % shared:
        key = "train.tensor_parallel" if tensor > 1 else "train.gpus_per_node"
        yield _Misfit(
            "ranks",
            key,
            f"train.nodes x train.gpus_per_node is {gpus} GPUs, which train.tensor_parallel {tensor} x "
            f"train.pipeline_parallel {pipeline} x train.context_parallel {train.context_parallel} = {shared} does not "
            "divide",
        )
    if model.attention_heads % tensor:
        yield _Misfit(
            "heads",
            "train.tensor_parallel",
            f"train.tensor_parallel is {tensor}, which does not divide the {model.attention_heads} attention heads of "
            "the model",
        )
    if model.kv_heads and model.kv_heads % tensor and tensor % model.kv_heads:
        yield _Misfit(
            "kv heads",
            "train.tensor_parallel",
            f"train.tensor_parallel is {tensor}, neither a divisor nor a multiple of the model's {model.kv_heads} "
            "key-value heads",
        )
    uneven = {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout"}
    if model.layers % pipeline and not uneven & config.extra_args.keys():
        yield _Misfit(
            "layers",
            "train.pipeline_parallel",
            f"train.pipeline_parallel is {pipeline}, which does not divide the model's {model.layers} layers, and "
            "extra_args.decoder-last-pipeline-num-layers does not cut them unevenly",
        )
    if not model.is_moe:
        if expert > 1:
            yield _Misfit(
                "dense", "train.expert_parallel", f"train.expert_parallel is {expert}, but the model is dense"
            )
        return
    if model.experts % expert:
        yield _Misfit(
            "experts",
            "train.expert_parallel",
            f"train.expert_parallel is {expert}, which does not divide the model's {model.experts} experts",
        )
    if expert == 1 and train.expert_tensor_parallel != tensor:
        yield _Misfit(
            "copies of experts",
            "train.expert_tensor_parallel",
            f"train.expert_tensor_parallel is {train.expert_tensor_parallel} with train.expert_parallel 1 and "
            f"train.tensor_parallel {tensor}: Megatron then leaves the gradients of the experts' copies apart, which "
            "drift from one another",
        )
    shared = expert * train.expert_tensor_parallel * pipeline
    if gpus % shared:
        yield _Misfit(
            "expert ranks",
            "train.expert_parallel",
            f"train.expert_parallel {expert} x train.expert_tensor_parallel {train.expert_tensor_parallel} x "
            f"train.pipeline_parallel {pipeline} is {shared}, which does not divide the {gpus} GPUs that train",
        )


def _nodes(config: SlimeConfig) -> Iterator[_Misfit]:
    """slime takes GPUs in the order of nodes: first those that train, then an engine's after another's."""
    node, train, rollout = config.cluster.gpus_per_node, config.train, config.rollout
    for key, part in (("train", train), ("rollout", rollout)):
        size = f"{key}.gpus_per_node"
        if part.gpus_per_node > node:
            yield _Misfit(
                f"{key} node", size, f"{size} is {part.gpus_per_node}, more than cluster.gpus_per_node {node}"
            )
        elif part.nodes > 1 and part.gpus_per_node < node:
            yield _Misfit(
                f"{key} part of nodes",
                size,
                f"{key}.nodes is {part.nodes} with {part.gpus_per_node} of {node} GPUs on each, but slime fills a node "
                "before it takes the next",
            )
    engine, per_engine = "rollout.gpus_per_engine", rollout.gpus_per_engine
    if per_engine > rollout.gpus:
        yield _Misfit(
            "engine",
            engine,
            f"{engine} is {per_engine}, more than the {rollout.gpus} GPUs of rollout.nodes x rollout.gpus_per_node, "
            "and slime would start no engine",
        )
    elif rollout.gpus % per_engine:
        yield _Misfit(
            "engine",
            engine,
            f"{engine} is {per_engine}, which does not divide the {rollout.gpus} GPUs of rollout.nodes x "
            "rollout.gpus_per_node",
        )
    elif not _engines_fit_nodes(train.world_size, rollout.gpus, per_engine, node):
        yield _Misfit(
            "engine",
            engine,
            f"{engine} is {per_engine}: on nodes of {node} GPUs, with the first {train.world_size} GPUs training, an "
            "engine would start on one node and end on another",
        )
    if config.model.attention_heads % per_engine:
        yield _Misfit(
            "engine's heads",
            engine,
            f"{engine} is {per_engine}, which does not divide the {config.model.attention_heads} attention heads of "
            "the model",
        )


def _engines_fit_nodes(first_gpu: int, gpus: int, per_engine: int, node: int) -> bool:
    """Return whether each engine has its GPUs on one node, or on several whole ones."""
    starts = range(first_gpu, first_gpu + gpus, per_engine)
    if per_engine > node:
        return per_engine % node == 0 and all(start % node == 0 for start in starts)
    return all(start % node + per_engine <= node for start in starts)


def _batch(config: SlimeConfig) -> Iterator[_Misfit]:
    responses, steps = config.rollout.responses_per_iteration, config.pipeline.optimizer_steps_per_rollout
    ranks, key = max(config.train.data_parallel, 1), "rollout.prompts_per_iteration"
    for line in too_many_responses(f"{key} x rollout.samples_per_prompt", responses):
        yield _Misfit("many responses", key, line.rpartition(": ")[0])
    for line in uneven_batch(responses, steps, ranks, f"{ranks} data-parallel ranks"):
        yield _Misfit("uneven batch", key, line.rpartition(": ")[0])
