"""What the settings of a run must agree on, and flags of slime that mislead later: a line each, of key, value, remedy.

What slime's parser, our driver behind it or Megatron refuses in clear words before anything is trained is theirs to
tell: launch/flags.py asks them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

from sat_slime.config.method_section import build_method, unused_settings
from sat_slime.config.schema import LabConfig, PipelineConfig
from sat_slime.config.slime_schema import SlimeConfig, is_sent
from sat_slime.models.families import FAMILIES
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
    """Yield the fault of a batch that is no whole number of responses for each of its parts, given by their names."""
    if responses % (number := math.prod(parts.values())):
        words = " x ".join(f"{name} {part}" for name, part in parts.items())
        yield (
            f"{product} is {responses} responses, which do not divide evenly into {words}: make it a multiple of "
            f"{number}"
        )


def coarse_quantile(method: Method, responses: int, bound: str) -> Iterator[str]:
    """Yield what to know of SAT's quantile over micro-batches of few responses: coarse where |d| is one value each.

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
        *_lab_method(config, build_method(config.method)),
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
    return config.rollout.prompts_per_iteration * config.rollout.samples_per_prompt


def _lab_method(config: LabConfig, method: Method) -> Iterator[str]:
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


# ------------------------------------------------------------------------------------------------- of the slime runtime

NOT_STREAMED = (
    *("dynamic-sampling-filter-path", "rollout-sample-filter-path"),
    *("rollout-all-samples-process-path", "multimodal-keys"),
)
"""Flags of slime's own rollout function that have no effect in mode streaming, or cannot be saved with its queue."""
ITERATIONS_PLACE = "{rollout_id}"
"""The text that slime replaces by the iteration in the name of a file."""


def slime_config_errors(config: SlimeConfig) -> list[str]:
    """Return everything for which the run would fail or be meaningless, as its settings show; empty: it can start.
    Flags of slime are held against its own list by launch.flags.flag_errors."""
    method = build_method(config.method)
    return [
        *refused_combinations(method, config.pipeline.optimizer_steps_per_rollout),
        *streaming_faults(config.pipeline),
        *_method(config, method),
        *_unset(config),
        *_places(config),
        *_layout(config),
        *_context(config),
        *_values(config),
        *_broken(config, ERRORS),
        *unused_settings(config.method),
    ]


def slime_config_warnings(config: SlimeConfig) -> list[str]:
    """Return what the run can live with and its owner should know."""
    method, train = build_method(config.method), config.train
    full = max(1, train.max_tokens_per_gpu * train.context_parallel // max(longest_sample(config), 1))
    return [
        *coarse_quantile(method, full, f"slime.max-tokens-per-gpu {train.max_tokens_per_gpu}"),
        *unread(method, config.pipeline),
        *_lengths(config),
        *_other_run(config),
        *_broken(config, WARNINGS),
        *_out_of_step(config),
    ]


def context_tokens(config: SlimeConfig) -> int | None:
    """Return the tokens of prompt and response that the engines hold; None where neither setting says it."""
    return config.rollout.context_tokens or config.model.max_positions


def longest_sample(config: SlimeConfig, prompt: int = 0) -> int:
    """Return the tokens of the longest sample that can be trained on. prompt: those of one whose limit is unset."""
    longest = (config.rollout.max_prompt_tokens or prompt) + config.rollout.max_response_tokens
    return min(longest, context_tokens(config) or longest)


def spares_recompute(method: Method, steps: int) -> bool:
    """Return whether slime can leave out its forward pass that recomputes log-probs, by use_rollout_logprobs.

    With denominator `trainer` and one optimizer step per rollout the training forward is that pass, and A-3PO makes its
    denominator up; but the threshold of a whole step needs the pass beforehand.
    """
    if method.threshold_is_of_the_step:
        return False
    return steps == 1 if method.denominator == "trainer" else method.denominator != "checkpoint"


READ_BY_SLIME = ("use-opd", "kl-coef", "log-correct-samples")
"""slime's flags by which slime itself reads the log-probs of that pass."""


def recompute_is_spared(config: SlimeConfig) -> bool:
    """Return whether a run leaves that pass out: neither its method nor slime reads it."""
    spared = spares_recompute(build_method(config.method), config.pipeline.optimizer_steps_per_rollout)
    return spared and not any(map(config.slime.get, READ_BY_SLIME))


def needs_versions(method: Method) -> str | None:
    """Return what a method needs that travels to slime's trainer with versions of weights, in words; None: nothing."""
    return f"{method.name} needs the lag of every token" if "lags" in method.needs else None


def _method(config: SlimeConfig, method: Method) -> Iterator[str]:
    """Yield what a method and the order of generation, training and pushes do not allow."""
    pipeline, context = config.pipeline, config.train.context_parallel
    if context > 1 and any(getattr(gate, "form", "") == "suffix" for gate in method.gates):
        yield (
            "method.veto.form is suffix, which reads responses whole, and slime.context-parallel-size is "
            f"{context}: set it to 1, or form to response"
        )
    if config.rollout.top_p < 1 and not method.top_p_replay:
        yield (
            f"slime.rollout-top-p is {config.rollout.top_p}, and slime then replays the engine's mask in the trainer's "
            "softmax whatever the method says: set method.top_p_replay to true, or slime.rollout-top-p to 1"
        )
    if method.denominator == "checkpoint" and pipeline.mode == "streaming":
        other = "trainer" if method.has("tis") else "rollout"
        yield (
            f"pipeline.mode is streaming with denominator checkpoint: {ONE_COPY}: set method.denominator to {other}, "
            "or pipeline.mode to batch"
        )
    elif method.denominator == "checkpoint" and pipeline.lag == 0:
        yield (
            "pipeline.lag is 0 with denominator checkpoint: the weights that generated are those at the start of the "
            "step, which denominator trainer stands for: set pipeline.lag to 1, or method.denominator to trainer or "
            "rollout"
        )


def _unset(config: SlimeConfig) -> Iterator[str]:
    rollout = config.rollout
    rewarded = config.data.reward or config.slime.get("custom-generate-function-path")  # which may reward, too
    needed = {
        "hf-checkpoint": (config.model.hf_checkpoint, "the folder of the Hugging Face weights"),
        "ref-load": (config.model.megatron_checkpoint, "where slime's tools/convert_hf_to_torch_dist.py put them"),
        "prompt-data": (config.data.prompts, "a .jsonl file of prompts"),
        "rm-type": (rewarded, "one of slime's rules, such as math, or custom-rm-path to a function"),
        "rollout-num-gpus": (rollout.gpus, "the GPUs that generate"),
        "rollout-batch-size": (rollout.prompts_per_iteration, "a number of 1 or more"),
        "n-samples-per-prompt": (rollout.samples_per_prompt > 1, "a number of 2 or more"),
        "rollout-max-response-len": (rollout.max_response_tokens, "a number of 1 or more"),
    }
    yield from (f"slime.{name} is not set: set it to {what}" for name, (value, what) in needed.items() if not value)
    sizes = ("num-layers", "hidden-size", "num-attention-heads")
    if missing := [name for name in sizes if name not in config.model.architecture]:
        yield f"slime lacks {', '.join(missing)}: extend a file of configs/models, or write them out"


def _places(config: SlimeConfig) -> Iterator[str]:
    """Yield folders that would take the place of others."""
    if (path := config.cluster.env.get("PYTHONPATH")) is not None:
        yield (
            f"cluster.env.PYTHONPATH is {path}, and there is one PYTHONPATH, in which slime and Megatron-LM are: leave "
            "it out, and name the folders in cluster.python_path"
        )
    checkpoints = config.checkpoint.folder if config.checkpoint.every_n_iterations else None
    for name in ("ref-load", "hf-checkpoint"):
        if checkpoints and checkpoints == config.slime.get(name):
            yield (
                f"slime.save is {checkpoints}, which slime.{name} is too: checkpoints of the run would take the place "
                "of the model that it starts with: set it to null, which is a folder of the run"
            )


def _layout(config: SlimeConfig) -> Iterator[str]:
    """Yield what does not fit of the way in which a run is laid over GPUs, and slime finds out late or never."""
    train, rollout, node = config.train, config.rollout, config.cluster.gpus_per_node
    tensor, experts_tensor, per_engine = train.tensor_parallel, train.expert_tensor_parallel, rollout.gpus_per_engine
    if config.model.is_moe and train.expert_parallel == 1 and experts_tensor != tensor:
        yield (
            f"slime.expert-tensor-parallel-size is {experts_tensor} with slime.expert-model-parallel-size 1 and "
            f"slime.tensor-model-parallel-size {tensor}: Megatron then leaves the gradients of the experts' "
            f"copies apart, which drift from one another: set it to {tensor}"
        )
    of_experts = experts_tensor * train.expert_parallel * train.pipeline_parallel
    heads, of_an_engine = config.model.attention_heads, "slime.rollout-num-gpus-per-engine / sglang-pp-size / -dp-size"
    cuts = (  # Megatron and SGLang say these minutes later, on the GPUs
        ("slime.tensor-model-parallel-size", tensor, "attention heads", heads),
        (of_an_engine, rollout.gpus_per_head, "attention heads", heads),
        ("expert-, expert-tensor- and pipeline-parallel size", of_experts, "GPUs that train", train.world_size),
    )
    for what, number, of, whole in cuts[: 3 if config.model.is_moe else 2]:
        if whole % number:
            yield f"{what}, {number}, does not divide the {whole} {of}: choose a divisor of {whole}"
    if config.model.kv_heads and tensor % config.model.kv_heads and config.model.kv_heads % tensor:
        yield f"{cuts[0][0]} is {tensor}, with {config.model.kv_heads} key-value heads: choose a divisor of those"
    size = "slime.actor-num-gpus-per-node"
    if train.gpus_per_node > node:
        yield f"{size} is {train.gpus_per_node}, and cluster.gpus_per_node {node}: it must be at most that"
    elif train.nodes > 1 and train.gpus_per_node < node:
        yield (
            f"slime.actor-num-nodes is {train.nodes} with {train.gpus_per_node} of {node} GPUs on each, but slime "
            f"fills a node before it takes the next: set {size} to {node}"
        )
    engine, first = f"slime.rollout-num-gpus-per-engine is {per_engine}", train.world_size
    if rollout.gpus % per_engine:
        yield f"{engine}, which does not divide slime.rollout-num-gpus {rollout.gpus}: choose a divisor of that"
    elif not _engines_fit_nodes(first, rollout.gpus, per_engine, node):
        yield (
            f"{engine}: on nodes of {node} GPUs, with the first {first} GPUs training, an engine would start on one "
            "node and end on another: choose a divisor of that"
        )
    product = "slime.rollout-batch-size x slime.n-samples-per-prompt"
    parts = {
        "pipeline.optimizer_steps_per_rollout": config.pipeline.optimizer_steps_per_rollout,
        "data-parallel ranks": max(train.data_parallel, 1),
    }
    yield from batch_faults(product, rollout.responses_per_iteration, parts)
    counts = {
        "slime.actor-num-nodes": (train.nodes, 1),
        "slime.actor-num-gpus-per-node": (train.gpus_per_node, 1),
        "slime.rollout-num-gpus": (rollout.gpus, 1),
        "cluster.gpus_per_node": (node, 2),
    }
    for key, (number, wanted) in counts.items() if config.cluster.share_gpu else ():
        if number != wanted:
            yield (
                f"{key} is {number} with cluster.share_gpu, by which one trainer rank and one engine share a GPU that "
                f"slime takes for two: set it to {wanted}, or cluster.share_gpu to false"
            )


def _engines_fit_nodes(first_gpu: int, gpus: int, per_engine: int, node: int) -> bool:
    """Return whether each engine has its GPUs on one node, or on several whole ones. slime takes GPUs in the order of
    nodes: first those that train, then an engine's after another's."""
    starts = range(first_gpu, first_gpu + gpus, per_engine)
    if per_engine > node:
        return per_engine % node == 0 and all(start % node == 0 for start in starts)
    return all(start % node + per_engine <= node for start in starts)


def _context(config: SlimeConfig) -> Iterator[str]:
    rollout, context = config.rollout, context_tokens(config)
    if context is None:
        return
    where = "slime.sglang-context-length" if rollout.context_tokens else "max_positions"
    prompt, truncate = rollout.max_prompt_tokens, "slime.sglang-allow-auto-truncate"
    if rollout.end_at_context and (prompt is None or prompt >= context):
        yield (
            f"{truncate} is true with slime.rollout-max-prompt-len {prompt or 'unset'}: SGLang would cut prompts that "
            f"fill the context of {context} tokens ({where}): set slime.rollout-max-prompt-len to "
            f"{max(1, min(2048, context // 2))}"
        )
    # What ends at the context loses the prompt's share at the end; without a limit the shortest prompt has a token.
    room = context if rollout.end_at_context else context - (prompt or 1)
    beside = "" if rollout.end_at_context else f" beside slime.rollout-max-prompt-len {prompt or 'unset'}"
    remedy = "" if rollout.end_at_context else f", or {truncate} to true"
    responses = {"rollout": rollout.max_response_tokens, "eval": config.eval.max_response_tokens or 0}
    for name, response in responses.items():
        if response > room and (name == "rollout" or config.eval.every_n_iterations):
            yield (
                f"slime.{name}-max-response-len is {response}{beside}, more than the context of {context} tokens "
                f"({where}), and SGLang would refuse the request: set it to {max(1, room)}{remedy}"
            )


def _values(config: SlimeConfig) -> Iterator[str]:
    """Yield the faults of rewards, of sampling, and of parts without a stand-in on a CPU."""
    rollout, flags = config.rollout, config.slime
    rule = (config.data.reward or "").removeprefix("boxed_")
    if rule == "dapo" and not flags.get("reward-key"):
        yield (
            f"slime.rm-type is {config.data.reward}, which gives score, acc and pred, and slime fails at the first "
            "batch without the one to train on: set slime.reward-key to score"
        )
    ours = (config.data.function or "").startswith("sat_slime.plugin.")
    for name in ("reward-key", "eval-reward-key"):
        if flags.get(name) and ours:
            yield (
                f"slime.{name} is {flags[name]}, but slime.custom-rm-path {config.data.function} gives a number, of "
                "which slime can take no part, and fails at the first batch or evaluation: set it to null"
            )
    for name in ("rollout-top-k", "eval-top-k"):
        if (value := flags.get(name)) is not None and value < 1 and value != -1:
            yield f"slime.{name} is {value}, and SGLang refuses every request with it: set it to -1 for all tokens"
    words = config.model.vocab_size
    if wrong := [token for token in rollout.stop_token_ids if token < 0 or (words and token >= words)]:
        kept = [token for token in rollout.stop_token_ids if token not in wrong]
        yield (
            f"slime.rollout-stop-token-ids has {wrong[0]}, which is no token of the model's {words}, and no "
            f"response would end with it: set it to {kept}"
        )
    needed = longest_sample(config)
    held = flags.get("sglang-max-total-tokens", needed)
    if _above(0, held) and not _above(needed - 1, held):
        yield (
            f"slime.sglang-max-total-tokens is {held}, less than the longest sample of {needed} tokens, and SGLang "
            "would cut responses there: leave it out"
        )
    if config.cluster.device == "cpu" and config.model.resolved_family is None:
        yield (
            "cluster.device is cpu, but its flags describe no family that has layers without "
            f"Transformer Engine here ({', '.join(FAMILIES)}): describe one of these, or set "
            "cluster.device to gpu"
        )
    if config.cluster.device == "cpu" and config.train.optimizer_offload:
        yield "slime.optimizer-cpu-offload is true with cluster.device cpu: all memory is the host's: set it to false"


# -------------------------------------------------------------------------------------------------- flags that mislead

WHEN: dict[str, Callable[[SlimeConfig], bool]] = {
    "": lambda config: True,
    "method.r3 true": lambda config: config.method.r3,
    "pipeline.mode streaming": lambda config: config.pipeline.mode == "streaming",
    "denominator checkpoint": lambda config: build_method(config.method).denominator == "checkpoint",
    "slime.eval-prompt-data": lambda config: bool(config.eval.prompts and config.eval.every_n_iterations),
    "slime.save-interval": lambda config: config.checkpoint.every_n_iterations > 0,
    "no slime.eval-prompt-data": lambda config: not (config.eval.sets or config.slime.get("eval-config")),
    "slime.use-dynamic-batch-size": lambda config: bool(config.slime.get("use-dynamic-batch-size")),
    "slime's own generation": lambda config: not config.slime.get("custom-generate-function-path"),
}
"""The circumstances under which rules hold, in words."""
ALWAYS, R3, STREAMING, SPLIT, OWN_SETS, SAVES, NO_SETS, DYNAMIC, OWN_GENERATION = WHEN


def _above(bound: float, value: Any) -> bool:
    try:
        return not isinstance(value, bool) and float(value) > bound
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True)
class Rule:
    """Flags that go wrong under the same condition."""

    flags: str
    """Their names, with spaces between them."""
    why: str
    remedy: str = "leave it out"
    """The thing to do; `{value}` in it stands for the flag's value with a place for the iteration."""
    when: str = ALWAYS
    value: Callable[[Any], bool] = is_sent
    """Tells whether a value of the flag is one that goes wrong; by default each that is sent."""


WITHOUT_R3 = "leave it out, or set method.r3 to false"
BY_BATCH = "leave it out, or set pipeline.mode to batch"
GO_BACK = "leave it out, and go back with --resume-from"
STAGES = "sglang-pp-size sglang-pipeline-parallel-size"
COUNTED = "pushes by disk are numbered one by one, and lags count optimizer steps"
NOTHING = "that mode draws its own prompts and finishes every response, so that this does nothing"
DRAWN = "over-sampling-batch-size partial-rollout mask-offpolicy-in-partial-rollout buffer-filter-path"
ONE_COPY = "a response may be of several weights, and one copy of those that generated is kept to score it with"
KEEP = "leave it out, and say with pipeline.keep_checkpoints how many stay"
ERRORS = (
    Rule("moe-router-fusion", "the fused router chooses the experts itself: no route is replayed", WITHOUT_R3, R3),
    Rule("prefill-num-servers", "an engine that only decodes has no routes of the prompt", WITHOUT_R3, R3),
    Rule(STAGES, "each stage has the routes of its own layers, and one answers", WITHOUT_R3, R3, partial(_above, 1)),
    Rule("sglang-enable-hierarchical-cache", "a prefix back from host memory has lost its routes", WITHOUT_R3, R3),
    Rule("update-weight-transport", COUNTED, value=lambda value: value == "disk"),
    Rule("flush-cache-interval", "cached prefixes outlive a push of weights", BY_BATCH, STREAMING, partial(_above, 1)),
    Rule(" ".join(NOT_STREAMED), "it has no effect, or is not saved with the queue", BY_BATCH, STREAMING),
    Rule(DRAWN, NOTHING, when=STREAMING),
    Rule("partial-rollout", ONE_COPY, "leave it out, or set method.denominator to rollout", SPLIT),
    Rule("eval-config", "slime evaluates only on that file's sets", "leave one of them out", OWN_SETS),
    Rule("eval-interval", "slime refuses it", "set it to 0, or name sets", NO_SETS, partial(_above, 0)),
    Rule("group-rm", "slime rewards no group in an evaluation, and fails there", "leave one of them out", OWN_SETS),
    Rule("rollout-max-context-len", "it ends no response", "give slime.sglang-context-length instead", OWN_GENERATION),
    Rule("save-retain-interval", "slime counts from 0, and Megatron deletes all but the newest checkpoint", KEEP),
    Rule("start-rollout-id", "every resume would start at that iteration with newer weights", GO_BACK),
    Rule("ckpt-step", "every resume would load that checkpoint again", GO_BACK),
    Rule("finetune", "a resume would count iterations from 0 with a new optimizer", when=SAVES),
    Rule("no-load-optim", "a resume would start with a new optimizer", when=SAVES),
)
"""The run would fail, or be another than it says."""

KEPT = "it has to keep routes and weight version of each answer, as Sample.append_response_tokens does, or is dropped"
DROPS = "the trainer drops tokens from full experts, the engines drop none, and their probabilities differ"
FP8 = "the engines' policy is not the trainer's, and the ratio carries the difference"
PLACE = f"it has no {ITERATIONS_PLACE}, and each file takes the place of the one before"
CARRIED = "without metadata['round_number'] of each sample, as round_number, lags are unknown"
WARNINGS = (
    Rule("custom-convert-samples-to-train-data-path", CARRIED, "see that it keeps that"),
    Rule("custom-generate-function-path", KEPT, "see that it does", R3),
    Rule("custom-generate-function-path", KEPT, "see that it does", STREAMING),
    # at 0 all of them; Megatron takes a negative one for none
    Rule("moe-expert-capacity-factor", DROPS, value=lambda value: value == 0 or _above(0, value)),
    Rule("sglang-kv-cache-dtype", FP8, value=lambda value: str(value).startswith("fp")),
    Rule(
        "save-hf save-debug-rollout-data save-debug-train-data",
        PLACE,
        "set it to {value}",
        value=lambda value: is_sent(value) and ITERATIONS_PLACE not in str(value),
    ),
    Rule("micro-batch-size", "slime ignores it", "leave it out, or set that to false", DYNAMIC),
    Rule("no-save-optim", "a run resumed from such a checkpoint starts with a new optimizer", "set it to false", SAVES),
)
"""The run can live with it, and its owner should know."""


def _broken(config: SlimeConfig, rules: tuple[Rule, ...]) -> Iterator[str]:
    for rule in rules:
        for name in rule.flags.split() if WHEN[rule.when](config) else ():
            value = config.slime.get(name)
            if name in config.slime and rule.value(value):
                shown = str(value).lower() if isinstance(value, bool) else value if value != "" else "empty"
                path = PurePath(str(value) or "FOLDER")
                place = str(path.parent / path.stem / (ITERATIONS_PLACE + path.suffix))
                yield (
                    f"slime.{name} is {shown}{rule.when and f' with {rule.when}'}: {rule.why}: "
                    f"{rule.remedy.replace('{value}', place)}"
                )


def _lengths(config: SlimeConfig) -> Iterator[str]:
    rollout, train, context = config.rollout, config.train, context_tokens(config)
    longest = longest_sample(config, prompt=1)
    if WHEN[DYNAMIC](config) and train.max_tokens_per_gpu * train.context_parallel < longest:
        yield (
            f"slime.max-tokens-per-gpu is {train.max_tokens_per_gpu}, less than the longest sample of {longest} tokens "
            f"/ slime.context-parallel-size {train.context_parallel}: such a sample is a micro-batch of its own and "
            "takes more memory than the bound says"
        )
    if context and not rollout.end_at_context and rollout.max_prompt_tokens is None:
        evaluation = config.eval.max_response_tokens if config.eval.every_n_iterations else None
        left = context - max(rollout.max_response_tokens, evaluation or 0)
        if left > 0:
            yield (
                f"slime.rollout-max-prompt-len is not set: a prompt of more than {left} tokens would not fit the "
                f"context beside its response, and its request fail: set it to {left}"
            )
    positions = config.model.max_positions
    if positions and rollout.context_tokens and rollout.context_tokens > positions:
        yield (
            f"slime.sglang-context-length is {rollout.context_tokens}, more than max_positions {positions}: the model "
            "has never seen positions beyond that"
        )


def _other_run(config: SlimeConfig) -> Iterator[str]:
    """Yield settings by which a run is another than its owner may think."""
    rollout, data, evaluation = config.rollout, config.data, config.eval
    if rollout.top_k > 0:
        yield (
            f"slime.rollout-top-k is {rollout.top_k}: the engine's policy is cut off, the trainer's is not, and "
            "their ratio is no importance weight: set it to -1"
        )
    if data.reward and data.reward.removeprefix("boxed_") == "deepscaler":
        yield (
            "slime.rm-type is deepscaler: it gives 0 without </think>, which a base model does not write: set it "
            "to math"
        )
    for file in evaluation.prompts.values() if evaluation.every_n_iterations else ():
        if data.prompts and os.path.normpath(file) == os.path.normpath(data.prompts):
            yield f"slime.eval-prompt-data has {file}, as slime.prompt-data is: it is trained on; name another file"


def _out_of_step(config: SlimeConfig) -> Iterator[str]:
    """Yield what is to be known of evaluations and checkpoints that fall between two broadcasts."""
    lag, save = max(config.pipeline.lag, 1), config.checkpoint.every_n_iterations
    if not save:
        yield "slime.save-interval is 0: nothing is saved, and a run that fails starts over: set it to 20"
    for name, every, why in (
        ("eval", config.eval.every_n_iterations, "evaluations measure the weights of the last broadcast, some twice"),
        ("save", save, f"a run that goes on broadcasts at once and again before {lag} iterations have passed"),
    ):
        if every % lag:
            yield (
                f"slime.{name}-interval is {every}, no multiple of pipeline.lag {lag}: {why}: set it to "
                f"{max(1, round(every / lag)) * lag}"
            )
