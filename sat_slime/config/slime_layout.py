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
            f"slime.actor-num-nodes x slime.actor-num-gpus-per-node is {gpus} GPUs, which "
            f"slime.tensor-model-parallel-size {tensor} x "
            f"slime.pipeline-model-parallel-size {pipeline} x slime.context-parallel-size "
            f"{train.context_parallel} = {shared} does not "
            f"divide: {_divisors(gpus)}"
        )
    if model.attention_heads % tensor:
        yield (
            f"slime.tensor-model-parallel-size is {tensor}, which does not divide the {model.attention_heads} "
            "attention heads of "
            f"the model: {_divisors(model.attention_heads)}"
        )
    if model.kv_heads and model.kv_heads % tensor and tensor % model.kv_heads:
        yield (
            f"slime.tensor-model-parallel-size is {tensor}, neither a divisor nor a multiple of the model's "
            f"{model.kv_heads} "
            f"key-value heads: {_divisors(model.kv_heads)}"
        )
    uneven = {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout"}
    if model.layers % pipeline and not uneven & config.slime.keys():
        yield (
            f"slime.pipeline-model-parallel-size is {pipeline}, which does not divide the model's {model.layers} "
            "layers, and "
            f"slime.decoder-last-pipeline-num-layers does not cut them unevenly: {_divisors(model.layers)}"
        )
    if not model.is_moe:
        if expert > 1:
            yield f"slime.expert-model-parallel-size is {expert}, but the model is dense: set it to 1"
        return
    if model.experts % expert:
        yield (
            f"slime.expert-model-parallel-size is {expert}, which does not divide the model's {model.experts} experts: "
            f"{_divisors(model.experts)}"
        )
    if expert == 1 and train.expert_tensor_parallel != tensor:
        yield (
            f"slime.expert-tensor-parallel-size is {train.expert_tensor_parallel} with "
            "slime.expert-model-parallel-size 1 and "
            f"slime.tensor-model-parallel-size {tensor}: Megatron then leaves the gradients of the experts' "
            "copies apart, which "
            f"drift from one another: set it to {tensor}"
        )
    shared = expert * train.expert_tensor_parallel * pipeline
    if gpus % shared:
        yield (
            f"slime.expert-model-parallel-size {expert} x slime.expert-tensor-parallel-size "
            f"{train.expert_tensor_parallel} x "
            f"slime.pipeline-model-parallel-size {pipeline} is {shared}, which does not divide the {gpus} GPUs "
            "that train: "
            f"{_divisors(gpus)}"
        )


def _nodes(config: SlimeConfig) -> Iterator[str]:
    """slime takes GPUs in the order of nodes: first those that train, then an engine's after another's."""
    node, train, rollout = config.cluster.gpus_per_node, config.train, config.rollout
    size = "slime.actor-num-gpus-per-node"
    if train.gpus_per_node > node:
        yield f"{size} is {train.gpus_per_node}, and cluster.gpus_per_node {node}: it must be at most that"
    elif train.nodes > 1 and train.gpus_per_node < node:
        yield (
            f"slime.actor-num-nodes is {train.nodes} with {train.gpus_per_node} of {node} GPUs on each, but slime "
            "fills "
            f"a node before it takes the next: set {size} to {node}"
        )
    engine, per_engine = "slime.rollout-num-gpus-per-engine", rollout.gpus_per_engine
    if per_engine > rollout.gpus:
        yield (
            f"{engine} is {per_engine}, more than the {rollout.gpus} GPUs of slime.rollout-num-gpus, "
            f"and slime would start no engine: {_divisors(rollout.gpus)}"
        )
    elif rollout.gpus % per_engine:
        yield (
            f"{engine} is {per_engine}, which does not divide the {rollout.gpus} GPUs of "
            f"slime.rollout-num-gpus: {_divisors(rollout.gpus)}"
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
    yield from too_many_responses("slime.rollout-batch-size x slime.n-samples-per-prompt", responses)
    if responses % (steps * ranks):
        yield (
            f"slime.rollout-batch-size x slime.n-samples-per-prompt is {responses} responses, which do not divide "
            f"evenly into pipeline.optimizer_steps_per_rollout {steps} x {ranks} data-parallel ranks: make it a "
            f"multiple of {steps * ranks}"
        )
