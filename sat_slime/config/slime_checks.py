"""What the sections of a slime run must agree on. Each finding is one line: the key, its value, the remedy."""

from __future__ import annotations

from collections.abc import Iterator

from sat_slime.config.embedded_checks import faults_of_streaming, idle_proximal_policy, idle_top_p_replay
from sat_slime.config.method_reading import build_method, unused_settings
from sat_slime.config.method_section import section_name
from sat_slime.config.on_slime import needs_versions, not_on_slime
from sat_slime.config.slime_parts.flag_rules import flag_rule_errors, flag_rule_warnings
from sat_slime.config.slime_parts.generation_checks import generation_errors, generation_warnings
from sat_slime.config.slime_parts.layout_checks import layout_errors
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
        *_places(config),
        *layout_errors(config),
        *_context(config),
        *generation_errors(config),
        *flag_rule_errors(config),
        *_cpu(config),
    ]


def slime_config_warnings(config: SlimeConfig) -> list[str]:
    """What the run can live with and its owner should know."""
    return [
        *_quantile_scope(config),
        *_lengths(config),
        *generation_warnings(config),
        *flag_rule_warnings(config),
        *_schedule(config),
        *_checkpoints(config),
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
            "set method.r3 to false, or describe an MoE model"
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
        few = method.judge.name == "sat" and _few_responses(config)
        yield (
            f"method.{scope} is step with pipeline.optimizer_steps_per_rollout {steps}: the threshold is taken before "
            "the first step and would be stale for the others: set pipeline.optimizer_steps_per_rollout to 1"
            + ("" if few else f", or method.{scope} to microbatch")
        )
    yield from _unknown_versions(config, method)
    if lag == 0 and method.denominator == "checkpoint" and config.pipeline.mode == "batch":
        yield (
            "pipeline.lag is 0 with denominator checkpoint: the weights that generated are those at the start of the "
            "step, which denominator trainer stands for: set pipeline.lag to 1, or method.denominator to "
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
            "copy of those that generated is kept to score it with: set method.denominator to "
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
    if config.eval.every_n_iterations and not (config.eval.prompts or config.extra_args.get("eval-config")):
        yield (
            f"eval.every_n_iterations is {config.eval.every_n_iterations}, but eval.prompts is empty: name a file, as "
            "in --set eval.prompts.aime24=FILE, or set eval.every_n_iterations to 0"
        )


def _places(config: SlimeConfig) -> Iterator[str]:
    """Folders and variables that would take the place of others."""
    checkpoints, model = config.checkpoint.folder, config.model
    for key, folder in (
        ("model.megatron_checkpoint", model.megatron_checkpoint),
        ("model.hf_checkpoint", model.hf_checkpoint),
    ):
        if checkpoints and folder and checkpoints == folder and config.checkpoint.every_n_iterations:
            yield (
                f"checkpoint.folder is {checkpoints}, which {key} is too: checkpoints of the run would take the place "
                "of the model that it begins with: set it to null, which is a folder of the run"
            )
    inner = config.cluster.runtime_env.get("env_vars")
    for key, variables in (
        ("cluster.env", config.cluster.env),
        ("cluster.runtime_env.env_vars", inner if isinstance(inner, dict) else {}),
    ):
        if "PYTHONPATH" in variables:
            yield (
                f"{key}.PYTHONPATH is {variables['PYTHONPATH']}, and there is one PYTHONPATH, in which slime and "
                "Megatron-LM are: leave it out, and name the folders in cluster.python_path"
            )


def _context(config: SlimeConfig) -> Iterator[str]:
    rollout, context = config.rollout, context_tokens(config)
    if context is None:
        return
    where = "rollout.context_tokens" if rollout.context_tokens else "model.max_positions"
    prompt = rollout.max_prompt_tokens
    if rollout.end_at_context and (prompt is None or prompt >= context):
        yield (
            f"rollout.end_at_context is true with rollout.max_prompt_tokens {prompt or 'unset'}: SGLang would cut "
            f"prompts that fill the context of {context} tokens ({where}): set rollout.max_prompt_tokens to "
            f"{_some_prompt(context)}"
        )
    limits = {"rollout.max_response_tokens": rollout.max_response_tokens}
    if config.eval.every_n_iterations and config.eval.max_response_tokens:
        limits["eval.max_response_tokens"] = config.eval.max_response_tokens
    for key, response in limits.items():
        if rollout.end_at_context:  # the prompt's share is cut off at the end; more than the context is a mistake
            if response > context:
                yield f"{key} is {response}, more than the context of {context} tokens ({where}): set it to {context}"
            continue
        # Without a limit the shortest of prompts has a token.
        needed = response + (prompt or 1)
        if needed > context:
            whole = f" + rollout.max_prompt_tokens {prompt} = {needed}" if prompt else " and a prompt"
            room = prompt if prompt and prompt < context else _some_prompt(context)
            also = "" if room == prompt else f" and rollout.max_prompt_tokens to {room}"
            yield (
                f"{key} {response}{whole} is more than the context of {context} tokens ({where}), and SGLang would "
                f"refuse the request: set rollout.end_at_context to true{also}, or {key} to {context - room}{also}"
            )


def _some_prompt(context: int) -> int:
    """Tokens of a prompt that leave room for a response."""
    return max(1, min(2048, context // 2))


def _cpu(config: SlimeConfig) -> Iterator[str]:
    """The parts of slime for which there is no stand-in on a CPU."""
    train = config.train
    if config.cluster.device != "cpu":
        return
    if not config.model.is_moe:
        yield (
            "cluster.device is cpu, but model.architecture has no num-experts: only a Qwen3-MoE has layers without "
            "Transformer Engine here: describe one, or set cluster.device to gpu"
        )
    if train.optimizer_offload:
        yield "train.optimizer_offload is true with cluster.device cpu: all memory is the host's: set it to false"
    if train.pipeline_parallel > 1:
        yield (
            f"train.pipeline_parallel is {train.pipeline_parallel} with cluster.device cpu, which was never run: set "
            "it to 1"
        )
    if config.rollout.gpus_per_engine > 1:
        yield (
            f"rollout.gpus_per_engine is {config.rollout.gpus_per_engine} with cluster.device cpu: an engine is one "
            "process there, and rollout.gpus_per_node says how many there are: set it to 1"
        )


# ----------------------------------------------------------------------------------------------------- warnings


def _quantile_scope(config: SlimeConfig) -> Iterator[str]:
    if (few := _few_responses(config)) and config.method.sat.scope == "microbatch":
        steps = config.pipeline.optimizer_steps_per_rollout
        first = "pipeline.optimizer_steps_per_rollout to 1 and " if steps > 1 else ""
        yield (
            f"method.sat.scope is microbatch, and a micro-batch of train.max_tokens_per_gpu "
            f"{config.train.max_tokens_per_gpu} holds {few[0]} response(s) of full length: below about {few[1]:.0f} "
            "responses the quantile is the largest |d| and the gate of SAT hardly ever opens: set "
            f"{first}method.sat.scope to step"
        )


def _few_responses(config: SlimeConfig) -> tuple[int, float] | None:
    """How many full responses a micro-batch holds, and how many SAT's quantile needs, where they are too few: only
    where |d| is one value per response do few responses make coarse quantiles."""
    method, sat = build_method(config.method), config.method.sat
    if not sat.enabled or method.ratio != "sequence":
        return None
    needed = 1 / max(1 - sat.alpha, 1e-9)
    full = max(1, config.train.max_tokens_per_gpu * config.train.context_parallel // max(longest_sample(config), 1))
    return (full, needed) if full < needed else None


def _lengths(config: SlimeConfig) -> Iterator[str]:
    rollout, train, context = config.rollout, config.train, context_tokens(config)
    bound = train.max_tokens_per_gpu * train.context_parallel
    longest = longest_sample(config)
    if rollout.max_prompt_tokens is None:  # the shortest of prompts has a token
        longest = min(longest + 1, context or longest + 1)
    if bound < longest:
        yield (
            f"train.max_tokens_per_gpu is {train.max_tokens_per_gpu}, less than the longest sample of {longest} tokens "
            f"/ train.context_parallel {train.context_parallel}: such a sample is a micro-batch of its own and takes "
            "more memory than the bound says"
        )
    if context and not rollout.end_at_context and rollout.max_prompt_tokens is None:
        evaluation = config.eval.max_response_tokens if config.eval.every_n_iterations else None
        left = context - max(rollout.max_response_tokens, evaluation or 0)
        if left > 0:
            yield (
                f"rollout.max_prompt_tokens is not set: a prompt of more than {left} tokens would not fit the context "
                f"beside its response, and its request fail: set it to {left}"
            )
    positions = config.model.max_positions
    if positions and rollout.context_tokens and rollout.context_tokens > positions:
        yield (
            f"rollout.context_tokens is {rollout.context_tokens}, more than model.max_positions {positions}: the model "
            "has never seen positions beyond that"
        )


def _schedule(config: SlimeConfig) -> Iterator[str]:
    lag, iterations, evaluation = config.pipeline.lag, config.pipeline.iterations, config.eval.every_n_iterations
    if lag and iterations <= lag:
        yield (
            f"pipeline.iterations is {iterations}, not more than pipeline.lag {lag}: the run ends before a batch of "
            f"newer weights arrives: set it to {4 * lag} or more"
        )
    if evaluation and lag > 1 and evaluation % lag:
        yield (
            f"eval.every_n_iterations is {evaluation}, no multiple of pipeline.lag {lag}: evaluations measure the "
            f"weights of the last broadcast, some the same twice: set it to {_multiple(evaluation, lag)}"
        )
    if evaluation and iterations % evaluation and not config.hooks.evaluate_last:
        yield (
            f"pipeline.iterations is {iterations}, no multiple of eval.every_n_iterations {evaluation}: the last "
            f"{iterations % evaluation} iterations are not evaluated: set hooks.evaluate_last to true"
        )


def _checkpoints(config: SlimeConfig) -> Iterator[str]:
    every, lag = config.checkpoint.every_n_iterations, config.pipeline.lag
    if not every:
        yield (
            "checkpoint.every_n_iterations is 0: nothing is saved, and a run that fails begins anew: set it to "
            f"{_multiple(20, max(lag, 1))}"
        )
    elif not config.checkpoint.optimizer:
        yield (
            "checkpoint.optimizer is false: a run that goes on from such a checkpoint begins with a new optimizer: set "
            "it to true"
        )
    elif lag > 1 and every % lag:
        yield (
            f"checkpoint.every_n_iterations is {every}, no multiple of pipeline.lag {lag}: a run that goes on "
            f"broadcasts at once and again before {lag} iterations have passed: set it to {_multiple(every, lag)}"
        )


def _multiple(number: int, lag: int) -> int:
    """The multiple of `lag` that is nearest."""
    return max(1, round(number / lag)) * lag
