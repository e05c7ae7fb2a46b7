"""What the sections of a slime run must agree on. Each finding is one line: the key, its value, the remedy."""

from __future__ import annotations

from collections.abc import Iterator

from sat_slime.config.embedded_checks import (
    divisors,
    faults_of_streaming,
    idle_proximal_policy,
    idle_top_p_replay,
    too_many_responses,
    uneven_batch,
)
from sat_slime.config.method_reading import build_method, unused_settings
from sat_slime.config.method_section import section_name
from sat_slime.config.on_slime import needs_versions, not_on_slime
from sat_slime.config.schema import VerifierLimits
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.objective import Method, check_method

NEEDED_SIZES = ("num-layers", "hidden-size", "num-attention-heads")
"""Flags without which there is no model."""

NOT_STREAMED = (
    "dynamic-sampling-filter-path",
    "rollout-sample-filter-path",
    "rollout-all-samples-process-path",
    "multimodal-keys",
)
"""Flags of slime's own rollout function that have no effect in mode streaming, or cannot be saved with its queue."""


TRANSPORT = "update-weight-transport"
"""slime's flag for the way that weights take to the engines."""


def slime_config_errors(config: SlimeConfig) -> list[str]:
    """Everything for which the run would fail or be meaningless, as far as its settings show; empty when it can start.

    Flags of slime are held against its own list by plugin.launch.command.flag_errors.
    """
    return [
        *_method(config),
        *_streaming(config),
        *_unset(config),
        *_parallelism(config),
        *_nodes(config),
        *_batch(config),
        *_context(config),
        *_cpu(config),
    ]


def slime_config_warnings(config: SlimeConfig) -> list[str]:
    """What the run can live with and its owner should know."""
    return [
        *_quantile_scope(config),
        *_lengths(config),
        *_sampling(config),
        *_schedule(config),
        *_checkpoints(config),
        *_verifier(config),
        *idle_proximal_policy(build_method(config.method), config.pipeline),
        *unused_settings(config.method),
    ]


def context_tokens(config: SlimeConfig) -> int | None:
    """Tokens of prompt and response that the engines hold; None where neither setting says it."""
    return config.rollout.context_tokens or config.model.max_positions


def longest_sample(config: SlimeConfig) -> int:
    """Tokens of the longest prompt and response that can be trained on; an unset prompt limit counts nothing."""
    longest = (config.rollout.max_prompt_tokens or 0) + config.rollout.max_response_tokens
    context = context_tokens(config)
    return min(longest, context) if context else longest


# ------------------------------------------------------------------------------------------------------- errors


def _method(config: SlimeConfig) -> Iterator[str]:
    method, steps, lag = build_method(config.method), config.pipeline.optimizer_steps_per_rollout, config.pipeline.lag
    if method.routing_replay and not config.model.is_moe:
        yield (
            "method.r3 is true, but model.architecture has no num-experts (a dense model has no routing to replay): "
            "set method.r3 to false or describe an MoE model"
        )
    yield from idle_top_p_replay(method, config.rollout.top_p)
    if config.rollout.top_p < 1 and not method.top_p_replay:
        yield (
            f"rollout.top_p is {config.rollout.top_p}, and slime then replays the engine's mask in the trainer's "
            "softmax whatever the method says: set method.top_p_replay to true, or rollout.top_p to 1"
        )
    if reason := not_on_slime(method):
        yield f"method: {reason}"
    try:
        check_method(method, steps)
    except ValueError as error:
        yield f"method: {error}"
    if method.judge and method.threshold_is_of_the_step and steps > 1:
        scope = f"{section_name(method, method.judge)}.scope"
        yield (
            f"method.{scope} is step with pipeline.optimizer_steps_per_rollout {steps}: the threshold is taken before "
            "the first step and would be stale for the others; set pipeline.optimizer_steps_per_rollout to 1 or "
            f"method.{scope} to microbatch"
        )
    yield from _unknown_versions(config, method)
    if lag == 0 and method.denominator == "checkpoint" and config.pipeline.mode == "batch":
        yield (
            "pipeline.lag is 0 with denominator checkpoint: the weights that generated are those at the start of the "
            "step, which denominator trainer stands for: raise pipeline.lag, or set method.denominator to "
            + ("rollout and method.tis.enabled to false" if method.has("tis") else "trainer or rollout")
        )


def _unknown_versions(config: SlimeConfig, method: Method) -> Iterator[str]:
    needs = needs_versions(method)
    if needs and not config.hooks.version_by_step:
        yield (
            f"hooks.version_by_step is false, and {needs}, which slime's trainer is told with versions that are "
            "optimizer steps: set it to true"
        )
    if needs and config.extra_args.get(TRANSPORT) == "disk":
        yield (
            f"extra_args.{TRANSPORT} is disk, and {needs}: a push by disk numbers weights one by one, so that the lag "
            "is unknown: leave it out"
        )


def _streaming(config: SlimeConfig) -> Iterator[str]:
    pipeline, method = config.pipeline, build_method(config.method)
    if pipeline.mode != "streaming":
        return
    yield from faults_of_streaming(pipeline)
    if method.denominator == "checkpoint":
        yield (
            "pipeline.mode is streaming with denominator checkpoint: a response may be of several weights, and one "
            "copy of those that generated is kept to score it with; set method.denominator to "
            + ("trainer" if method.has("tis") else "rollout")
            + ", or pipeline.mode to batch"
        )
    if not config.hooks.version_by_step:
        yield (
            "hooks.version_by_step is false with pipeline.mode streaming, whose bound counts on versions that are "
            "optimizer steps: set it to true"
        )
    for name in NOT_STREAMED:
        if name in config.extra_args:
            yield f"extra_args.{name} cannot be with pipeline.mode streaming: leave it out, or set the mode to batch"


def _unset(config: SlimeConfig) -> Iterator[str]:
    needed = (
        ("model.hf_checkpoint", config.model.hf_checkpoint, "the folder of the Hugging Face weights"),
        ("model.megatron_checkpoint", config.model.megatron_checkpoint, "where `sat-slime prepare model` puts them"),
        ("data.prompts", config.data.prompts, "a .jsonl file of prompts"),
        ("data.reward", config.data.reward, "one of slime's rules, such as math, or the dotted path of a function"),
    )
    for key, value, what in needed:
        if value is None:
            yield f"{key} is not set: set it to {what}"
    if missing := [name for name in NEEDED_SIZES if name not in config.model.architecture]:
        yield f"model.architecture lacks {', '.join(missing)}: extend a file of configs/models, or write them out"
    if config.eval.every_n_iterations and not config.eval.prompts:
        yield (
            f"eval.every_n_iterations is {config.eval.every_n_iterations}, but eval.prompts is empty: name a file, as "
            "in --set eval.prompts.aime24=FILE, or set eval.every_n_iterations to 0"
        )


def _parallelism(config: SlimeConfig) -> Iterator[str]:
    model, train = config.model, config.train
    tensor, pipeline, expert = train.tensor_parallel, train.pipeline_parallel, train.expert_parallel
    gpus = train.world_size
    shared = tensor * pipeline * train.context_parallel
    if gpus % shared:
        yield (
            f"train.nodes x train.gpus_per_node is {gpus} GPUs, which train.tensor_parallel {tensor} x "
            f"train.pipeline_parallel {pipeline} x train.context_parallel {train.context_parallel} = {shared} does not "
            f"divide: use a multiple of {shared} GPUs, or less parallelism"
        )
    if model.attention_heads % tensor:
        yield (
            f"train.tensor_parallel is {tensor}, which does not divide the {model.attention_heads} attention heads of "
            f"the model: choose one of {divisors(model.attention_heads)}"
        )
    if model.kv_heads and model.kv_heads % tensor and tensor % model.kv_heads:
        yield (
            f"train.tensor_parallel is {tensor}, neither a divisor nor a multiple of the model's {model.kv_heads} "
            f"key-value heads: choose one of {divisors(model.kv_heads)}"
        )
    uneven = {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout"}
    if model.layers % pipeline and not uneven & config.extra_args.keys():
        yield (
            f"train.pipeline_parallel is {pipeline}, which does not divide the model's {model.layers} layers: choose "
            f"one of {divisors(model.layers)}, or cut unevenly with extra_args.decoder-last-pipeline-num-layers"
        )
    if not model.is_moe:
        if expert > 1:
            yield f"train.expert_parallel is {expert}, but the model is dense: set it to 1"
        return
    if model.experts % expert:
        yield (
            f"train.expert_parallel is {expert}, which does not divide the model's {model.experts} experts: choose one "
            f"of {divisors(model.experts)}"
        )
    if expert == 1 and train.expert_tensor_parallel != tensor:
        yield (
            f"train.expert_tensor_parallel is {train.expert_tensor_parallel} with train.expert_parallel 1 and "
            f"train.tensor_parallel {tensor}: Megatron then leaves the gradients of the experts' copies apart, which "
            f"drift from one another: set train.expert_tensor_parallel to {tensor}, or raise train.expert_parallel"
        )
    shared = expert * train.expert_tensor_parallel * pipeline
    if gpus % shared:
        yield (
            f"train.expert_parallel {expert} x train.expert_tensor_parallel {train.expert_tensor_parallel} x "
            f"train.pipeline_parallel {pipeline} is {shared}, which does not divide the {gpus} GPUs that train: lower "
            "train.expert_parallel or use more GPUs"
        )


def _nodes(config: SlimeConfig) -> Iterator[str]:
    """slime takes GPUs in the order of nodes: first those that train, then an engine's after another's."""
    node, train, rollout = config.cluster.gpus_per_node, config.train, config.rollout
    for key, part in (("train", train), ("rollout", rollout)):
        if part.gpus_per_node > node:
            yield (
                f"{key}.gpus_per_node is {part.gpus_per_node}, more than cluster.gpus_per_node {node}: use more "
                f"{key}.nodes, or correct cluster.gpus_per_node"
            )
        elif part.nodes > 1 and part.gpus_per_node < node:
            yield (
                f"{key}.nodes is {part.nodes} with {part.gpus_per_node} of {node} GPUs on each, but slime fills a node "
                f"before it takes the next: set {key}.gpus_per_node to {node}"
            )
    per_engine = rollout.gpus_per_engine
    if per_engine > rollout.gpus:
        yield (
            f"rollout.gpus_per_engine is {per_engine}, more than the {rollout.gpus} GPUs of rollout.nodes x "
            f"rollout.gpus_per_node, and slime would start no engine: choose one of {divisors(rollout.gpus)}"
        )
    elif rollout.gpus % per_engine:
        yield (
            f"rollout.gpus_per_engine is {per_engine}, which does not divide the {rollout.gpus} GPUs of rollout.nodes "
            f"x rollout.gpus_per_node: choose one of {divisors(rollout.gpus)}"
        )
    elif not _engines_fit_nodes(train.world_size, rollout.gpus, per_engine, node):
        yield (
            f"rollout.gpus_per_engine is {per_engine}: on nodes of {node} GPUs, with the first {train.world_size} GPUs "
            "training, an engine would begin on one node and end on another: choose a divisor of both numbers"
        )
    if config.model.attention_heads % per_engine:
        yield (
            f"rollout.gpus_per_engine is {per_engine}, which does not divide the {config.model.attention_heads} "
            f"attention heads of the model: choose one of {divisors(config.model.attention_heads)}"
        )


def _engines_fit_nodes(first_gpu: int, gpus: int, per_engine: int, node: int) -> bool:
    """Whether each engine has its GPUs on one node, or on several whole ones."""
    starts = range(first_gpu, first_gpu + gpus, per_engine)
    if per_engine > node:
        return per_engine % node == 0 and all(start % node == 0 for start in starts)
    return all(start % node + per_engine <= node for start in starts)


def _batch(config: SlimeConfig) -> Iterator[str]:
    responses, steps = config.rollout.responses_per_iteration, config.pipeline.optimizer_steps_per_rollout
    ranks = max(config.train.data_parallel, 1)
    yield from too_many_responses("rollout.prompts_per_iteration x rollout.samples_per_prompt", responses)
    yield from uneven_batch(responses, steps, ranks, f"{ranks} data-parallel ranks")


def _context(config: SlimeConfig) -> Iterator[str]:
    rollout, context = config.rollout, context_tokens(config)
    if context is None:
        return
    where = "rollout.context_tokens" if rollout.context_tokens else "model.max_positions"
    prompt = rollout.max_prompt_tokens
    if rollout.end_at_context and (prompt is None or prompt >= context):
        yield (
            f"rollout.end_at_context is true with rollout.max_prompt_tokens {prompt or 'unset'}: SGLang would cut "
            f"prompts that fill the context of {context} tokens ({where}): set rollout.max_prompt_tokens below it"
        )
    limits = {"rollout.max_response_tokens": rollout.max_response_tokens}
    if config.eval.every_n_iterations and config.eval.max_response_tokens:
        limits["eval.max_response_tokens"] = config.eval.max_response_tokens
    for key, response in limits.items():
        if rollout.end_at_context:  # the prompt's share is cut off at the end; more than the context is a mistake
            if response > context:
                yield f"{key} is {response}, more than the whole context of {context} tokens ({where}): lower it"
            continue
        # Without a limit the shortest of prompts has a token.
        needed = response + (prompt or 1)
        if needed > context:
            whole = f" + rollout.max_prompt_tokens {prompt} = {needed}" if prompt else " and a prompt"
            yield (
                f"{key} {response}{whole} is more than the context of {context} tokens ({where}), and SGLang would "
                f"refuse the request: lower {key}, or set rollout.end_at_context to true"
            )


def _cpu(config: SlimeConfig) -> Iterator[str]:
    """The parts of slime for which there is no stand-in on a CPU."""
    train = config.train
    if config.cluster.device != "cpu":
        return
    if not config.model.is_moe:
        yield (
            "cluster.device is cpu, but model.architecture has no num-experts: only a Qwen3-MoE has layers without "
            "Transformer Engine here; describe one, or set cluster.device to gpu"
        )
    if train.optimizer_offload:
        yield "train.optimizer_offload is true with cluster.device cpu: all memory is the host's; set it to false"
    if train.pipeline_parallel > 1:
        yield (
            f"train.pipeline_parallel is {train.pipeline_parallel} with cluster.device cpu, which was never run: set "
            "it to 1"
        )
    if config.rollout.gpus_per_engine > 1:
        yield (
            f"rollout.gpus_per_engine is {config.rollout.gpus_per_engine} with cluster.device cpu: an engine is one "
            "process there; set it to 1, and rollout.gpus_per_node to more for more engines"
        )


# ----------------------------------------------------------------------------------------------------- warnings


def _quantile_scope(config: SlimeConfig) -> Iterator[str]:
    """Only where |d| is one value per response do few responses make coarse quantiles."""
    method, sat = build_method(config.method), config.method.sat
    if not sat.enabled or method.ratio != "sequence" or sat.scope != "microbatch":
        return
    needed = 1 / max(1 - sat.alpha, 1e-9)
    full = max(1, config.train.max_tokens_per_gpu * config.train.context_parallel // max(longest_sample(config), 1))
    if full < needed:
        yield (
            f"method.sat.scope is microbatch, and a micro-batch of train.max_tokens_per_gpu "
            f"{config.train.max_tokens_per_gpu} holds {full} response(s) of full length: below about {needed:.0f} "
            "responses the quantile is the largest |d| and the gate of SAT hardly ever opens: set method.sat.scope to "
            "step or raise train.max_tokens_per_gpu"
        )


def _lengths(config: SlimeConfig) -> Iterator[str]:
    rollout, train, context = config.rollout, config.train, context_tokens(config)
    bound, longest = train.max_tokens_per_gpu * train.context_parallel, longest_sample(config)
    if bound < longest:
        yield (
            f"train.max_tokens_per_gpu is {train.max_tokens_per_gpu}, less than the longest sample of {longest} tokens "
            f"/ train.context_parallel {train.context_parallel}: such a sample is a micro-batch of its own and takes "
            "more memory than the bound says"
        )
    if context and not rollout.end_at_context and rollout.max_prompt_tokens is None:
        yield (
            f"rollout.max_prompt_tokens is not set: a prompt of more than {context - rollout.max_response_tokens} "
            "tokens would not fit the context beside its response, and its request fail"
        )
    positions = config.model.max_positions
    if positions and rollout.context_tokens and rollout.context_tokens > positions:
        yield (
            f"rollout.context_tokens is {rollout.context_tokens}, more than model.max_positions {positions}: the model "
            "has never seen positions beyond that"
        )


def _sampling(config: SlimeConfig) -> Iterator[str]:
    rollout, data = config.rollout, config.data
    if rollout.top_k > 0:
        yield (
            f"rollout.top_k is {rollout.top_k}: the engine's policy is cut off, the trainer's is not, and their ratio "
            "is no importance weight; set it to -1"
        )
    if data.reward and data.reward.removeprefix("boxed_") == "deepscaler":
        yield "data.reward is deepscaler: it gives 0 without </think>, which a base model does not write; math does not"
    if config.method.base == "ppo":
        yield "method.base is ppo: slime's critic is not used, advantages are GRPO's; grpo is the same run"


def _schedule(config: SlimeConfig) -> Iterator[str]:
    lag, iterations, evaluation = config.pipeline.lag, config.pipeline.iterations, config.eval.every_n_iterations
    if lag and iterations <= lag:
        yield (
            f"pipeline.iterations is {iterations}, not more than pipeline.lag {lag}: the run ends before a batch of "
            f"newer weights arrives; use {4 * lag} or more to see lag at work"
        )
    if evaluation and lag > 1 and evaluation % lag:
        yield (
            f"eval.every_n_iterations is {evaluation}, no multiple of pipeline.lag {lag}: evaluations measure the "
            f"weights of the last broadcast, some the same twice; a multiple of {lag} measures new ones each time"
        )
    if evaluation and iterations % evaluation and not config.hooks.evaluate_last:
        yield (
            f"pipeline.iterations is {iterations}, no multiple of eval.every_n_iterations {evaluation}: the last "
            f"{iterations % evaluation} iterations are not evaluated; set hooks.evaluate_last to true"
        )


def _verifier(config: SlimeConfig) -> Iterator[str]:
    changed = ", ".join(f"verifier.{name}" for name in sorted(config.verifier.model_fields_set))
    if config.verifier != VerifierLimits() and not uses_verifier(config):
        yield (
            f"{changed} has no effect with data.reward {config.data.reward}: the verifier is that of "
            "sat_slime.plugin.reward.default and its other modes"
        )


def uses_verifier(config: SlimeConfig) -> bool:
    """Whether this package's verifier rewards the responses."""
    return bool(config.data.reward and config.data.reward.startswith("sat_slime.plugin.reward."))


def _checkpoints(config: SlimeConfig) -> Iterator[str]:
    every, lag = config.checkpoint.every_n_iterations, config.pipeline.lag
    if not every:
        yield "checkpoint.every_n_iterations is 0: nothing is saved, and a run that fails begins anew"
    elif not config.checkpoint.optimizer:
        yield "checkpoint.optimizer is false: a run that goes on from such a checkpoint begins with a new optimizer"
    elif lag > 1 and every % lag:
        yield (
            f"checkpoint.every_n_iterations is {every}, no multiple of pipeline.lag {lag}: a run that goes on "
            f"broadcasts at once and again before {lag} iterations have passed; a multiple of {lag} keeps the rhythm"
        )
