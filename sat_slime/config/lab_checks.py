"""What several sections must agree on. Each finding is one line: the key, its value, the remedy. The first ones are of
runs on either host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sat_slime.config.method_section import build_method, unused_settings
from sat_slime.config.schema import LabConfig, PipelineConfig
from sat_slime.objective import Method, check_method

MIN_PROBLEMS = 500
"""Fewer problems than this are soon all seen, whatever the evaluation takes."""
LARGE_LR = 0.1
MAX_RESPONSES = 2**20
"""Responses of a batch or of an evaluation. Each is several objects of Python in one process, a kilobyte or more."""


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
    if pipeline.max_staleness < (least := pipeline.least_staleness):
        yield (
            f"pipeline.max_staleness is {pipeline.max_staleness}, but with pipeline.lag {pipeline.lag} and "
            f"pipeline.optimizer_steps_per_rollout {pipeline.optimizer_steps_per_rollout} tokens of the newest weights "
            f"are up to {least} updates old: raise it to {least} or more"
        )


def divides(key: str, number: int, size: int, what: str) -> Iterator[str]:
    """Yield the fault of a setting that does not divide a size. what: the size in words."""
    if size % number:
        divisors = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
        yield f"{key} is {number}, which does not divide the {size} {what}: the divisors of {size} are {divisors}"


def batch_faults(product: str, responses: int, parts: int, parts_in_words: str) -> Iterator[str]:
    """Yield the faults of a batch: more than a process can hold, or no whole number for each of its parts."""
    yield from too_many_responses(product, responses)
    if responses % parts:
        yield (
            f"{product} is {responses} responses, which do not divide evenly into {parts_in_words}: make it a multiple "
            f"of {parts}"
        )


def too_many_responses(product: str, responses: int) -> Iterator[str]:
    """Yield the fault of a batch, or an evaluation, that no process can hold. product: the settings that make it."""
    if responses > MAX_RESPONSES:
        yield f"{product} is {responses:,} responses, more than the {MAX_RESPONSES:,} that a process holds: lower one"


def unread(key: str, lr: float, method: Method, pipeline: PipelineConfig) -> Iterator[str]:
    """Yield what to know of a learning rate that was meant otherwise, of a method that cannot see how old its data is,
    and of parts of it that nothing is stale enough for. key: that of the learning rate."""
    if lr >= LARGE_LR:
        yield (
            f"{key} is {lr:g}, which no model survives: RL of language models takes about 1e-6, tiny models 1e-3: "
            "set it to 1e-6"
        )
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
    if method.has("a3po") and pipeline.largest_lag <= 1:
        bound = "pipeline.max_staleness" if pipeline.mode == "streaming" else "pipeline.lag"
        yield (
            f"method.a3po is on, but no token is more than {pipeline.largest_lag} optimizer "
            f"updates old: its denominator is mu at such tokens, so it changes nothing: raise {bound} to 2 or more, or "
            "set method.a3po to false"
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
        *_lengths(config),
        *_batch(config),
        *_streaming(config),
        *unused_settings(config.method),
    ]


def config_warnings(config: LabConfig) -> list[str]:
    """Return what the run can live with and its owner should know."""
    method = build_method(config.method)
    return [
        *_quantile_scope(config, method),
        *unread("train.lr", config.train.lr, method, config.pipeline),
        *_other_run(config),
    ]


def responses_per_iteration(config: LabConfig) -> int:
    """Return the responses of one rollout batch."""
    return config.rollout.prompts_per_iteration * config.rollout.samples_per_prompt


def _method(config: LabConfig, method: Method) -> Iterator[str]:
    pipeline = config.pipeline
    if config.method.r3 and not config.model.is_moe:
        yield (
            "method.r3 is true, but model.experts is 0 (a dense model has no routing to replay): set method.r3 to "
            "false or give the model experts"
        )
    if method.top_p_replay:
        yield (
            "method.top_p_replay is true, but the engines of a lab run sample from all tokens, so there is no mask to "
            "replay: set it to false, or run it on slime"
        )
    yield from refused_combinations(method, pipeline.optimizer_steps_per_rollout)
    idle = next((part.title() for part in method.stabilizers if part.idle_at_one), None)
    if idle and method.denominator == "checkpoint" and pipeline.lag == 0 and pipeline.optimizer_steps_per_rollout == 1:
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
    yield from divides("model.kv_heads", model.kv_heads, model.attention_heads, "model.attention_heads")
    if model.head_dim % 2:
        yield f"model.head_dim is {model.head_dim}: rotary embedding turns pairs, so choose an even width"
    if model.is_moe and model.experts_per_token > model.experts:
        yield (
            f"model.experts_per_token is {model.experts_per_token}, more than model.experts {model.experts}: lower it "
            "or add experts"
        )


def _task(config: LabConfig) -> Iterator[str]:
    task, evaluation = config.task, config.eval
    # Held out by hash, so the share of a small task varies: twice what is drawn from it is a safe expectation.
    held_out = 2 * evaluation.problems * task.held_out_one_in if evaluation.every_n_iterations else 0
    if task.total_problems < max(MIN_PROBLEMS, held_out):
        needs, remedy = f"the {MIN_PROBLEMS} that a run needs", ""
        if held_out > MIN_PROBLEMS:
            needs, remedy = f"the {held_out} for eval.problems {evaluation.problems}", ", or lower eval.problems"
        values = _listed("and", (f"{key} {getattr(task, key)}" for key in task.settings))
        more = _listed("or", task.count_settings or task.settings)
        yield f"{values} make {task.total_problems} problems, fewer than {needs}: raise {more}{remedy}"


def _listed(conjunction: str, keys: Iterable[str]) -> str:
    """Return the settings of a task in words, such as `task.a, task.b and task.c`."""
    *first, last = (f"task.{key}" for key in keys)
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def _lengths(config: LabConfig) -> Iterator[str]:
    task, response = config.task, config.rollout.max_response_tokens
    prompt, needed = task.prompt_tokens, task.answer_tokens
    longest = prompt + response
    lengths = _listed("or", task.length_settings or task.settings)
    parts = f"the longest prompt ({prompt} tokens, from {lengths}) and rollout.max_response_tokens {response}"
    if longest > config.model.max_positions:
        yield f"model.max_positions is {config.model.max_positions}, less than {parts} need: set it to {longest}"
    if config.train.tokens_per_microbatch < longest:
        yield (
            f"train.tokens_per_microbatch is {config.train.tokens_per_microbatch}, less than {parts} need: set it to "
            f"{longest} or more"
        )
    if response < needed:
        yield (
            f"rollout.max_response_tokens is {response}, but the longest answer of {task.name} with all its steps has "
            f"{needed} tokens: raise it to {needed} or lower {lengths}"
        )


def _batch(config: LabConfig) -> Iterator[str]:
    steps = config.pipeline.optimizer_steps_per_rollout
    product, where = (
        "rollout.prompts_per_iteration x rollout.samples_per_prompt",
        "pipeline.optimizer_steps_per_rollout",
    )
    yield from batch_faults(product, responses_per_iteration(config), steps, f"{where} {steps}")
    if config.eval.every_n_iterations:
        evaluation = config.eval
        key = "final_repeats" if evaluation.final.repeats > evaluation.repeats else "repeats"
        asked = evaluation.problems * evaluation.samples_per_problem * max(evaluation.repeats, evaluation.final.repeats)
        yield from too_many_responses(f"eval.problems x eval.samples_per_problem x eval.{key}", asked)


def _streaming(config: LabConfig) -> Iterator[str]:
    pipeline, rollout = config.pipeline, config.rollout
    yield from streaming_faults(pipeline)
    if pipeline.mode != "streaming":
        return
    if pipeline.queue_prompts < rollout.prompts_per_iteration:
        yield (
            f"pipeline.queue_prompts is {pipeline.queue_prompts}, less than the batch of rollout.prompts_per_iteration "
            f"{rollout.prompts_per_iteration}: raise it to that or more"
        )
    if rollout.deterministic:
        yield (
            "rollout.deterministic is true with pipeline.mode streaming, where the clock decides which weights "
            "generate a token: set it to false, or pipeline.mode to batch"
        )


def _quantile_scope(config: LabConfig, method: Method) -> Iterator[str]:
    sat, task = method.sat, config.task
    # Only where |d| is one value per response do few responses make coarse quantiles.
    if sat is None or method.ratio != "sequence":
        return
    mean = task.mean_answer_tokens
    responses = responses_per_iteration(config) / config.pipeline.optimizer_steps_per_rollout
    if method.scope == "microbatch":
        packed = config.train.tokens_per_microbatch / (task.prompt_tokens + mean)
        responses = max(1.0, min(packed, responses))
    share = min(1.0, config.rollout.max_response_tokens / (responses * mean))
    if share >= 1 - sat.alpha:
        where = "a micro-batch" if method.scope == "microbatch" else "an optimizer step"
        yield (
            f"method.sat.scope is {method.scope}: the quantile of {where} is over about {responses:.0f} responses, "
            f"so the longest can hold {share:.0%} of its tokens, and above {1 - sat.alpha:.0%} the gate of SAT "
            "hardly ever opens: raise train.tokens_per_microbatch or set method.sat.scope to step"
        )


def _other_run(config: LabConfig) -> Iterator[str]:
    """Yield settings by which a run is another than its owner may think."""
    if config.rollout.deterministic and config.rollout.dtype != "float32":
        yield (
            f"rollout.deterministic is true with rollout.dtype {config.rollout.dtype}: bitwise equal runs are only "
            "promised in float32"
        )
