"""What several sections must agree on. Each finding is one line: the key, its value, the remedy. The first ones are of
runs on either host."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from sat_slime.config.method_section import build_method, unused_settings
from sat_slime.config.schema import LabConfig, PipelineConfig
from sat_slime.objective import Method, check_method

MIN_PROBLEMS = 500
"""Fewer problems than this are soon all seen, whatever the evaluation takes."""


def refused_combinations(method: Method, steps: int) -> Iterator[str]:
    """Yield why a method means nothing. steps: optimizer steps per rollout."""
    try:
        check_method(method, steps)
    except ValueError as error:
        yield f"method: {error}"


def streaming_faults(pipeline: PipelineConfig) -> Iterator[str]:
    """Yield faults of the order of mode streaming: no lag, or a bound on staleness that nothing could keep."""
    if pipeline.mode != "streaming":
        return
    if pipeline.lag == 0:
        yield (
            "pipeline.lag is 0, which is the synchronous loop, with pipeline.mode streaming: set pipeline.lag to 1 or "
            "more, or pipeline.mode to batch"
        )
    # the trainer's own steps between two broadcasts make tokens that old, however fast they come
    steps = pipeline.optimizer_steps_per_rollout
    if pipeline.max_staleness < (least := pipeline.lag * steps - 1):
        yield (
            f"pipeline.max_staleness is {pipeline.max_staleness}, but with pipeline.lag {pipeline.lag} and "
            f"pipeline.optimizer_steps_per_rollout {steps} tokens of the newest weights are up to {least} updates old: "
            f"raise it to {least} or more"
        )


def batch_faults(product: str, responses: int, parts: Mapping[str, int]) -> Iterator[str]:
    """Yield the fault of a batch that is no whole number of responses for each of its parts, whose numbers are given by
    their names."""
    if responses % (number := math.prod(parts.values())):
        words = " x ".join(f"{name} {part}" for name, part in parts.items())
        yield (
            f"{product} is {responses} responses, which do not divide evenly into {words}: make it a multiple of "
            f"{number}"
        )


def coarse_quantile(method: Method, responses: int, bound: str) -> Iterator[str]:
    """Yield what to know of SAT's quantile over micro-batches of few responses. Only where |d| is one value per
    response do few make it coarse.

    responses: of full length in a micro-batch. bound: the setting that says so, and its value.
    """
    if method.sat is None or method.ratio != "sequence" or method.scope != "microbatch":
        return
    if responses < (needed := 1 / max(1 - method.sat.alpha, 1e-9)):
        yield (
            f"method.sat.scope is microbatch, and a micro-batch of {bound} holds {responses} response(s) of full "
            f"length: below about {needed:.0f} responses the quantile is the largest |d| and the gate of SAT hardly "
            "ever opens: set method.sat.scope to step, with pipeline.optimizer_steps_per_rollout 1"
        )


def unread(method: Method, pipeline: PipelineConfig) -> Iterator[str]:
    """Yield what to know of a method that cannot see how old its data is, and of data that is not old enough for it."""
    is_one = method.denominator == "trainer" and pipeline.optimizer_steps_per_rollout == 1
    if is_one and pipeline.lag and not (method.gates or method.weights):
        yield (
            "method.denominator is trainer with one optimizer step per rollout: the ratio is always 1, so nothing is "
            f"clipped, whatever the lag (pipeline.lag is {pipeline.lag}): set method.denominator to rollout"
        )
    if method.sat and pipeline.lag == 0:
        yield (
            "pipeline.lag is 0 with method.sat: no token is stale, and SAT contracts the trust region by differences "
            "between engine and trainer alone: raise pipeline.lag, or set method.sat to false"
        )
    if pipeline.mode == "batch" and pipeline.lag and pipeline.iterations <= pipeline.lag:
        yield (
            f"pipeline.iterations is {pipeline.iterations}, not more than pipeline.lag {pipeline.lag}: the run ends "
            f"before a batch of newer weights arrives: set it to {4 * pipeline.lag} or more"
        )


# ------------------------------------------------------------------------------------------------- of the lab runtime


def config_errors(config: LabConfig) -> list[str]:
    """Return everything for which the run would fail or be meaningless; empty when it can start."""
    return [
        *_method(config, build_method(config.method)),
        *_model(config),
        *_task(config),
        *batch_faults(
            "rollout.prompts_per_iteration x rollout.samples_per_prompt",
            responses_per_iteration(config),
            {"pipeline.optimizer_steps_per_rollout": config.pipeline.optimizer_steps_per_rollout},
        ),
        *_streaming(config),
        *unused_settings(config.method),
    ]


def config_warnings(config: LabConfig) -> list[str]:
    """Return what the run can live with and its owner should know."""
    method, bound = build_method(config.method), config.train.tokens_per_microbatch
    full = max(1, bound // (config.task.prompt_tokens + config.rollout.max_response_tokens))
    warnings = [*unread(method, config.pipeline)]
    warnings += coarse_quantile(method, full, f"train.tokens_per_microbatch {bound}")
    if config.rollout.deterministic and config.rollout.dtype != "float32":
        warnings.append(
            f"rollout.deterministic is true with rollout.dtype {config.rollout.dtype}: bitwise equal runs are only "
            "promised in float32"
        )
    return warnings


def responses_per_iteration(config: LabConfig) -> int:
    """Return the responses of one rollout batch."""
    return config.rollout.prompts_per_iteration * config.rollout.samples_per_prompt


def _method(config: LabConfig, method: Method) -> Iterator[str]:
    lag, steps = config.pipeline.lag, config.pipeline.optimizer_steps_per_rollout
    if method.routing_replay and not config.model.is_moe:
        yield (
            "method.r3 is true, but model.experts is 0 (a dense model has no routing to replay): set method.r3 to "
            "false or give the model experts"
        )
    if method.top_p_replay:
        yield (
            "method.top_p_replay is true, but the engines of a lab run sample from all tokens, so there is no mask to "
            "replay: set it to false, or run it on slime"
        )
    yield from refused_combinations(method, steps)
    idle = next((part.title() for part in method.stabilizers if part.idle_at_one), None)
    if idle and method.denominator == "checkpoint" and lag == 0 and steps == 1:
        yield (
            "pipeline.lag is 0 with denominator checkpoint and one optimizer step per rollout: the weights in training "
            f"are those that generated, so the ratio is identically 1 and {idle} would do nothing: raise pipeline.lag"
            + (" or turn method.tis off" if method.has("tis") else " or set method.denominator to rollout")
        )


def _model(config: LabConfig) -> Iterator[str]:
    model, family = config.model, config.model.resolved_family
    if family.has_experts != model.is_moe:
        remedy = "give it some" if family.has_experts else "set it to 0"
        yield (
            f"model.experts is {model.experts}, but a {family.name} model has {'' if family.has_experts else 'no '}"
            f"experts: {remedy}, or choose another model.family"
        )
    if model.tied_embeddings and not family.may_tie_embeddings:
        yield f"model.tied_embeddings is true, but SGLang serves no {family.name} model with them: set it to false"
    if model.attention_heads % model.kv_heads:
        yield f"model.kv_heads is {model.kv_heads}: it must divide model.attention_heads {model.attention_heads}"
    if model.head_dim % 2:
        yield f"model.head_dim is {model.head_dim}: rotary embedding turns pairs, so choose an even width"
    if model.is_moe and model.experts_per_token > model.experts:
        yield f"model.experts_per_token is {model.experts_per_token}: it must be at most model.experts {model.experts}"


def _task(config: LabConfig) -> Iterator[str]:
    """Yield what does not fit the task: its problems are too few, or lengths cut prompts and answers."""
    task, evaluation, response = config.task, config.eval, config.rollout.max_response_tokens
    # Held out by hash, so the share of a small task varies: twice what is drawn from it is a safe expectation.
    held_out = 2 * evaluation.problems * task.held_out_one_in if evaluation.every_n_iterations else 0
    settings = ", ".join(f"task.{key} {getattr(task, key)}" for key in ("min_digits", "max_digits", "max_digit"))
    if task.total_problems < max(MIN_PROBLEMS, held_out):
        yield (
            f"{settings} make {task.total_problems} problems, fewer than the {MIN_PROBLEMS} that a run needs and the "
            f"{held_out} for eval.problems {evaluation.problems}: raise one of them, or lower eval.problems"
        )
    longest, micro_batch = task.prompt_tokens + response, config.train.tokens_per_microbatch
    parts = f"the longest prompt ({task.prompt_tokens} tokens) and rollout.max_response_tokens {response}"
    if longest > config.model.max_positions:
        yield f"model.max_positions is {config.model.max_positions}, less than {parts} need: set it to {longest}"
    if micro_batch < longest:
        yield f"train.tokens_per_microbatch is {micro_batch}, less than {parts} need: set it to {longest} or more"
    if response < task.answer_tokens:
        yield (
            f"rollout.max_response_tokens is {response}, but the longest answer of {task.name} with all its steps has "
            f"{task.answer_tokens} tokens: raise it to {task.answer_tokens}, or lower one of {settings}"
        )


def _streaming(config: LabConfig) -> Iterator[str]:
    pipeline, rollout = config.pipeline, config.rollout
    yield from streaming_faults(pipeline)
    if pipeline.mode == "streaming" and pipeline.queue_prompts < rollout.prompts_per_iteration:
        yield (
            f"pipeline.queue_prompts is {pipeline.queue_prompts}, less than the batch of rollout.prompts_per_iteration "
            f"{rollout.prompts_per_iteration}: raise it to that or more"
        )
    if pipeline.mode == "streaming" and rollout.deterministic:
        yield (
            "rollout.deterministic is true with pipeline.mode streaming, where the clock decides which weights "
            "generate a token: set it to false, or pipeline.mode to batch"
        )
