"""Checks how a slime run is cut over GPUs: what does not fit, and the sizes that would."""

from __future__ import annotations

from collections.abc import Iterator

from sat_slime.config.lab_checks import too_many_responses
from sat_slime.config.slime_schema import SlimeConfig


def layout_errors(config: SlimeConfig) -> list[str]:
    """Return a line for everything that does not fit, with the sizes that divide."""
    return [*_parallelism(config), *_nodes(config), *_batch(config)]


def _divisors(number: int) -> str:
    return f"the divisors of {number} are {', '.join(str(n) for n in range(1, number + 1) if number % n == 0)}"


def _parallelism(config: SlimeConfig) -> Iterator[str]:
    model, train = config.model, config.train
    tensor, pipeline, expert = train.tensor_parallel, train.pipeline_parallel, train.expert_parallel
    gpus = train.world_size
    shared = tensor * pipeline * train.context_parallel
    if gpus % shared:
        yield (
            f"train.nodes x train.gpus_per_node is {gpus} GPUs, which train.tensor_parallel {tensor} x "
            f"train.pipeline_parallel {pipeline} x train.context_parallel {train.context_parallel} = {shared} does not "
            f"divide: {_divisors(gpus)}"
        )
    if model.attention_heads % tensor:
        yield (
            f"train.tensor_parallel is {tensor}, which does not divide the {model.attention_heads} attention heads of "
            f"the model: {_divisors(model.attention_heads)}"
        )
    if model.kv_heads and model.kv_heads % tensor and tensor % model.kv_heads:
        yield (
            f"train.tensor_parallel is {tensor}, neither a divisor nor a multiple of the model's {model.kv_heads} "
            f"key-value heads: {_divisors(model.kv_heads)}"
        )
    uneven = {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout"}
    if model.layers % pipeline and not uneven & config.slime.keys():
        yield (
            f"train.pipeline_parallel is {pipeline}, which does not divide the model's {model.layers} layers, and "
            f"slime.decoder-last-pipeline-num-layers does not cut them unevenly: {_divisors(model.layers)}"
        )
    if not model.is_moe:
        if expert > 1:
            yield f"train.expert_parallel is {expert}, but the model is dense: set it to 1"
        return
    if model.experts % expert:
        yield (
            f"train.expert_parallel is {expert}, which does not divide the model's {model.experts} experts: "
            f"{_divisors(model.experts)}"
        )
    if expert == 1 and train.expert_tensor_parallel != tensor:
        yield (
            f"train.expert_tensor_parallel is {train.expert_tensor_parallel} with train.expert_parallel 1 and "
            f"train.tensor_parallel {tensor}: Megatron then leaves the gradients of the experts' copies apart, which "
            f"drift from one another: set it to {tensor}"
        )
    shared = expert * train.expert_tensor_parallel * pipeline
    if gpus % shared:
        yield (
            f"train.expert_parallel {expert} x train.expert_tensor_parallel {train.expert_tensor_parallel} x "
            f"train.pipeline_parallel {pipeline} is {shared}, which does not divide the {gpus} GPUs that train: "
            f"{_divisors(gpus)}"
        )


def _nodes(config: SlimeConfig) -> Iterator[str]:
    """slime takes GPUs in the order of nodes: first those that train, then an engine's after another's."""
    node, train, rollout = config.cluster.gpus_per_node, config.train, config.rollout
    for key, part in (("train", train), ("rollout", rollout)):
        size = f"{key}.gpus_per_node"
        if part.gpus_per_node > node:
            yield f"{size} is {part.gpus_per_node}, and cluster.gpus_per_node {node}: it must be at most that"
        elif part.nodes > 1 and part.gpus_per_node < node:
            yield (
                f"{key}.nodes is {part.nodes} with {part.gpus_per_node} of {node} GPUs on each, but slime fills a node "
                f"before it takes the next: set {size} to {node}"
            )
    engine, per_engine = "rollout.gpus_per_engine", rollout.gpus_per_engine
    if per_engine > rollout.gpus:
        yield (
            f"{engine} is {per_engine}, more than the {rollout.gpus} GPUs of rollout.nodes x rollout.gpus_per_node, "
            f"and slime would start no engine: {_divisors(rollout.gpus)}"
        )
    elif rollout.gpus % per_engine:
        yield (
            f"{engine} is {per_engine}, which does not divide the {rollout.gpus} GPUs of rollout.nodes x "
            f"rollout.gpus_per_node: {_divisors(rollout.gpus)}"
        )
    elif not _engines_fit_nodes(train.world_size, rollout.gpus, per_engine, node):
        yield (
            f"{engine} is {per_engine}: on nodes of {node} GPUs, with the first {train.world_size} GPUs training, an "
            f"engine would start on one node and end on another: {_divisors(node)}"
        )
    if (heads := config.model.attention_heads) % per_engine:
        yield (
            f"{engine} is {per_engine}, which does not divide the {heads} attention heads of the model: "
            f"{_divisors(heads)}"
        )


def _engines_fit_nodes(first_gpu: int, gpus: int, per_engine: int, node: int) -> bool:
    """Return whether each engine has its GPUs on one node, or on several whole ones."""
    starts = range(first_gpu, first_gpu + gpus, per_engine)
    if per_engine > node:
        return per_engine % node == 0 and all(start % node == 0 for start in starts)
    return all(start % node + per_engine <= node for start in starts)


def _batch(config: SlimeConfig) -> Iterator[str]:
    responses, steps = config.rollout.responses_per_iteration, config.pipeline.optimizer_steps_per_rollout
    ranks = max(config.train.data_parallel, 1)
    yield from too_many_responses("rollout.prompts_per_iteration x rollout.samples_per_prompt", responses)
    if responses % (steps * ranks):
        yield (
            f"rollout.prompts_per_iteration x rollout.samples_per_prompt is {responses} responses, which do not divide "
            f"evenly into pipeline.optimizer_steps_per_rollout {steps} x {ranks} data-parallel ranks: make it a "
            f"multiple of {steps * ranks}"
        )
