"""What the settings of a run must agree on, and flags of slime that mislead later: a line each, of key, value, remedy.

What slime's parser, our driver behind it or Megatron refuses in clear words before anything is trained is theirs to
tell: launch/flags.py asks them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import PurePath
from typing import Any, NamedTuple

from sat_slime.config.method_section import build_method, unused_settings
from sat_slime.config.schema import LabConfig, PipelineConfig
from sat_slime.config.slime_schema import SlimeConfig, is_sent
from sat_slime.models.families import FAMILIES
from sat_slime.objective import Method, check_method

MIN_PROBLEMS = 500
"""Fewer problems than this are soon all seen, whatever the evaluation takes."""
Lines = dict[str, object]
"""Lines, each with whether it is told. All are made, told or not, so that what stands in one may not fail."""


def _told(*parts: Lines) -> Iterator[str]:
    for lines in parts:
        yield from compress(lines, lines.values())


def refused_method(method: Method, steps: int) -> Lines:
    """Why a method means nothing. steps: optimizer steps per rollout."""
    try:
        check_method(method, steps)
    except ValueError as error:
        return {f"method: {error}": True}
    return {}


def _off_checkpoint(method: Method, steps: int) -> str:
    """Return what to do where denominator checkpoint cannot be."""
    for over in ("rollout", "trainer"):
        if not refused_method(replace(method, denominator=over), steps):
            return f"set method.denominator to {over}"
    weights = [part.title() for part in method.stabilizers if part.weighs_by_mu]
    return f"leave {weights[0]} out" if weights else "take another method"


def _order(pipeline: PipelineConfig) -> Lines:
    """Faults of the order of mode streaming: no lag, or a bound on staleness that nothing could keep."""
    steps, is_streaming = pipeline.optimizer_steps_per_rollout, pipeline.mode == "streaming"
    # the trainer's own steps between two broadcasts make tokens that old, however fast they come
    least = pipeline.lag * steps - 1
    return {
        "pipeline.lag is 0, which is the synchronous loop, with pipeline.mode streaming: set pipeline.lag to 1 or "
        "more, or pipeline.mode to batch": is_streaming and pipeline.lag == 0,
        f"pipeline.max_staleness is {pipeline.max_staleness}, but with pipeline.lag {pipeline.lag} and "
        f"pipeline.optimizer_steps_per_rollout {steps} tokens of the newest weights are up to {least} updates old: "
        f"raise it to {least} or more": is_streaming and pipeline.max_staleness < least,
    }


def _batch(product: str, responses: int, parts: Mapping[str, int]) -> Lines:
    """The fault of a batch that is no whole number of responses for each of its parts, given by their names."""
    number, words = math.prod(parts.values()), " x ".join(f"{name} {part}" for name, part in parts.items())
    does = f"is {responses} responses, which do not divide evenly into {words}"
    return {f"{product} {does}: make it a multiple of {number}": responses % number}


def _coarse_quantile(method: Method, responses: int, bound: str) -> Lines:
    """What to know of SAT's quantile over micro-batches of few responses: coarse where |d| is one value each.
    responses: of full length in a micro-batch. bound: the setting that says so, and its value."""
    if method.sat is None or method.ratio != "sequence" or method.scope != "microbatch":
        return {}
    needed = 1 / max(1 - method.sat.alpha, 1e-9)
    return {
        f"method.sat.scope is microbatch, and a micro-batch of {bound} holds {responses} response(s) of full length: "
        f"below about {needed:.0f} responses the quantile is the largest |d| and the gate of SAT hardly ever opens: "
        "set method.sat.scope to step": responses < needed
    }


def _unread(method: Method, pipeline: PipelineConfig) -> Lines:
    """What to know of a method that cannot see how old its data is, and of data that is not old enough for it."""
    lag, iterations, is_batch = pipeline.lag, pipeline.iterations, pipeline.mode == "batch"
    is_one = method.denominator == "trainer" and pipeline.optimizer_steps_per_rollout == 1
    is_free = is_one and not (method.gates or method.weights)
    return {
        "method.denominator is trainer with one optimizer step per rollout: the ratio is always 1, so nothing is "
        f"clipped, whatever the lag (pipeline.lag is {lag}): set method.denominator to rollout": lag and is_free,
        "pipeline.lag is 0 with method.sat: no token is stale, and SAT contracts the trust region by differences "
        "between engine and trainer alone: raise pipeline.lag, or set method.sat to false": method.sat and lag == 0,
        f"pipeline.iterations is {iterations}, not more than pipeline.lag {lag}: the run ends before a batch of newer "
        f"weights arrives: set it to {4 * lag} or more": is_batch and lag and iterations <= lag,
    }


# ------------------------------------------------------------------------------------------------- of the lab runtime


def config_errors(config: LabConfig) -> list[str]:
    """Return everything for which the run would fail or be meaningless; empty when it can start."""
    method, product = build_method(config.method), "rollout.prompts_per_iteration x rollout.samples_per_prompt"
    parts = {"pipeline.optimizer_steps_per_rollout": config.pipeline.optimizer_steps_per_rollout}
    batch = _batch(product, config.rollout.responses_per_iteration, parts)
    order = _order(config.pipeline) | _streaming(config)
    faults = _told(_lab_method(config, method), _model(config), _task(config), batch, order)
    return [*faults, *unused_settings(config.method)]


def config_warnings(config: LabConfig) -> list[str]:
    """Return what the run can live with and its owner should know."""
    method, bound, rollout = build_method(config.method), config.train.tokens_per_microbatch, config.rollout
    full = max(1, bound // (config.task.prompt_tokens + rollout.max_response_tokens))
    inexact: Lines = {
        f"rollout.deterministic is true with rollout.dtype {rollout.dtype}: bitwise equal runs are only promised in "
        "float32": rollout.deterministic and rollout.dtype != "float32"
    }
    coarse = _coarse_quantile(method, full, f"train.tokens_per_microbatch {bound}")
    return [*_told(_unread(method, config.pipeline), coarse, inexact)]


def _lab_method(config: LabConfig, method: Method) -> Lines:
    lag, steps = config.pipeline.lag, config.pipeline.optimizer_steps_per_rollout
    is_one = method.denominator == "checkpoint" and lag == 0 and steps == 1
    idle = next((part.title() for part in method.stabilizers if part.idle_at_one), None)
    return {
        "method.r3 is true, but model.experts is 0 (a dense model has no routing to replay): set method.r3 to false or "
        "give the model experts": method.has("r3") and not config.model.is_moe,
        "method.top_p_replay is true, but the engines of a lab run sample from all tokens, so there is no mask to "
        "replay: set it to false, or run it on slime": method.has("topp"),
        **refused_method(method, steps),
        "pipeline.lag is 0 with denominator checkpoint and one optimizer step per rollout: the weights in training are "
        f"those that generated, so the ratio is identically 1 and {idle} would do nothing: raise pipeline.lag, or "
        f"{_off_checkpoint(method, steps)}": idle and is_one,
    }


def _model(config: LabConfig) -> Lines:
    model, family = config.model, config.model.resolved_family
    no, remedy = ("", "give it some") if family.has_experts else ("no ", "set it to 0")
    heads, kv_heads, per_token = model.attention_heads, model.kv_heads, model.experts_per_token
    ties = model.tied_embeddings and not family.may_tie_embeddings
    few, odd = model.is_moe and per_token > model.experts, model.head_dim % 2
    return {
        f"model.experts is {model.experts}, but a {family.name} model has {no}experts: {remedy}, or choose another "
        "model.family": family.has_experts != model.is_moe,
        f"model.tied_embeddings is true, but SGLang serves no {family.name} model with them: set it to false": ties,
        f"model.kv_heads is {kv_heads}: it must divide model.attention_heads {heads}": heads % kv_heads,
        f"model.head_dim is {model.head_dim}: rotary embedding turns pairs, so choose an even width": odd,
        f"model.experts_per_token is {per_token}: it must be at most model.experts {model.experts}": few,
    }


def _task(config: LabConfig) -> Lines:
    """What does not fit the task: its problems are too few, or lengths cut prompts and answers."""
    task, evaluation, response = config.task, config.eval, config.rollout.max_response_tokens
    # Held out by hash, so the share of a small task varies: twice what is drawn from it is a safe expectation.
    held_out = 2 * evaluation.problems * task.held_out_one_in if evaluation.every_n_iterations else 0
    settings = ", ".join(f"task.{key} {getattr(task, key)}" for key in ("min_digits", "max_digits", "max_digit"))
    problems, needed = task.total_problems, max(MIN_PROBLEMS, held_out)
    answer, longest = task.answer_tokens, task.prompt_tokens + response
    positions, bound = config.model.max_positions, config.train.tokens_per_microbatch
    parts = f"the longest prompt ({task.prompt_tokens} tokens) and rollout.max_response_tokens {response}"
    return {
        f"{settings} make {problems} problems, fewer than the {MIN_PROBLEMS} that a run needs and the {held_out} for "
        f"eval.problems {evaluation.problems}: raise one of them, or lower eval.problems": problems < needed,
        f"model.max_positions is {positions}, less than {parts} need: set it to {longest}": positions < longest,
        f"train.tokens_per_microbatch is {bound}, less than {parts} need: set it to {longest} or more": bound < longest,
        f"rollout.max_response_tokens is {response}, but the longest answer of {task.name} with all its steps has "
        f"{answer} tokens: raise it to {answer}, or lower one of {settings}": response < answer,
    }


def _streaming(config: LabConfig) -> Lines:
    rollout, queue, is_streaming = config.rollout, config.pipeline.queue_prompts, config.pipeline.mode == "streaming"
    batch = rollout.prompts_per_iteration
    return {
        f"pipeline.queue_prompts is {queue}, less than the batch of rollout.prompts_per_iteration {batch}: raise it to "
        "that or more": is_streaming and queue < batch,
        "rollout.deterministic is true with pipeline.mode streaming, where the clock decides which weights generate a "
        "token: set it to false, or pipeline.mode to batch": is_streaming and rollout.deterministic,
    }


# ------------------------------------------------------------------------------------------------- of the slime runtime

NOT_STREAMED = (
    *("dynamic-sampling-filter-path", "rollout-sample-filter-path"),
    *("rollout-all-samples-process-path", "multimodal-keys", "buffer-filter-path", "partial-rollout"),
    *("mask-offpolicy-in-partial-rollout", "debug-rollout-only"),
)
"""Flags of slime that have no effect in mode streaming, cannot be saved with its queue, or leave nothing to train on: a
mask of all that an interruption left complete, or no push and so no version."""
ITERATIONS_PLACE = "{rollout_id}"
"""The text that slime replaces by the iteration in the name of a file."""


def slime_config_errors(config: SlimeConfig) -> list[str]:
    """Return everything for which the run would fail or be meaningless, as its settings show; empty: it can start.
    Flags of slime are held against its own list by launch.flags.flag_errors."""
    method = build_method(config.method)
    refused = refused_method(method, config.pipeline.optimizer_steps_per_rollout)
    parts = (part(config) for part in (_method, _unset, _places, _layout, _context, _values))
    faults = _told(refused, _order(config.pipeline), *parts)
    return [*faults, *_broken(config, ERRORS), *unused_settings(config.method)]


def slime_config_warnings(config: SlimeConfig) -> list[str]:
    """Return what the run can live with and its owner should know."""
    method, train = build_method(config.method), config.train
    full, bound = train.micro_batch_size, f"slime.micro-batch-size {train.micro_batch_size}"
    if WHEN[DYNAMIC](config):
        full = max(1, train.max_tokens_per_gpu * train.context_parallel // max(longest_sample(config), 1))
        bound = f"slime.max-tokens-per-gpu {train.max_tokens_per_gpu}"
    coarse = _coarse_quantile(method, full, bound)
    known = _told(coarse, _unread(method, config.pipeline), _lengths(config), _other_run(config))
    return [*known, *_broken(config, WARNINGS), *_told(_out_of_step(config))]


def context_tokens(config: SlimeConfig) -> int | None:
    """Return the tokens of prompt and response that the engines hold; None where neither setting says it."""
    return config.rollout.context_tokens or config.model.max_positions


def longest_sample(config: SlimeConfig, prompt: int = 0) -> int:
    """Return the tokens of the longest sample that can be trained on. prompt: those of one whose limit is unset."""
    longest = (config.rollout.max_prompt_tokens or prompt) + config.rollout.max_response_tokens
    return min(longest, context_tokens(config) or longest)


def reads_engine(method: Method) -> bool:
    """Return whether a method reads the log-probs of the engines, as one of the user's own may."""
    reads = bool(method.weights or method.gates) or method.has("drpo") or not method.base_is_ours
    return reads or method.denominator in ("rollout", "a3po")


def spares_recompute(method: Method, steps: int, own_generate: Any) -> bool:
    """Return whether slime can leave out its forward pass that recomputes log-probs, by use_rollout_logprobs.
    With denominator `trainer` and one optimizer step per rollout the training forward is that pass, and A-3PO makes its
    denominator up; but the threshold of a whole step needs the pass beforehand. own_generate: the user's generate
    function, if there is one: it need not give log-probs that the method does not read, and then slime has that pass
    alone."""
    if method.scope == "step" or (own_generate and not reads_engine(method)):
        return False
    return steps == 1 if method.denominator == "trainer" else method.denominator != "checkpoint"


READ_BY_SLIME = ("use-opd", "kl-coef", "log-correct-samples", "use-rollout-entropy", "custom-advantage-function-path")
"""slime's flags by which slime itself reads log-probs or entropies of that pass, or a function on the batch may."""


def recompute_is_spared(config: SlimeConfig) -> bool:
    """Return whether a run leaves that pass out: neither its method nor slime reads it."""
    method, steps = build_method(config.method), config.pipeline.optimizer_steps_per_rollout
    spared = spares_recompute(method, steps, config.slime.get("custom-generate-function-path"))
    return spared and not any(map(config.slime.get, READ_BY_SLIME))


def needs_versions(method: Method) -> str | None:
    """Return what a method needs that travels to slime's trainer with versions of weights, in words; None: nothing."""
    return f"{method.name} needs the lag of every token" if "lags" in method.needs else None


def _method(config: SlimeConfig) -> Lines:
    """What a method and the order of generation, training and pushes do not allow."""
    method, context, top_p = build_method(config.method), config.train.context_parallel, config.rollout.top_p
    lag, steps = config.pipeline.lag, config.pipeline.optimizer_steps_per_rollout
    is_streaming, is_split = config.pipeline.mode == "streaming", method.denominator == "checkpoint"
    cuts, instead = top_p < 1 and not method.has("topp"), _off_checkpoint(method, steps)
    reads_whole = any(getattr(gate, "form", "") == "suffix" for gate in method.gates)
    return {
        f"method is {method.name}, and the model has no experts whose choice could be replayed: leave r3 out, as "
        f"{method.without('r3').name}": method.has("r3") and not config.model.is_moe,
        f"method.veto.form is suffix, which reads responses whole, and slime.context-parallel-size is {context}: set "
        "it to 1, or form to response": context > 1 and reads_whole,
        f"slime.rollout-top-p is {top_p}, and slime then replays the engine's mask in the trainer's softmax whatever "
        "the method says: set method.top_p_replay to true, or slime.rollout-top-p to 1": cuts,
        f"pipeline.mode is streaming with denominator checkpoint: {ONE_COPY}: {instead}, or set "
        "pipeline.mode to batch": is_split and is_streaming,
        "pipeline.lag is 0 with denominator checkpoint: the weights that generated are those as the batch begins, "
        f"which denominator trainer stands for: set pipeline.lag to 1, or {instead}": is_split
        and not (lag or is_streaming),
    }


def _unset(config: SlimeConfig) -> Lines:
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
    sizes = ("num-layers", "hidden-size", "num-attention-heads")
    missing = [name for name in sizes if not config.slime.get(name)]
    return {
        **{f"slime.{name} is not set: set it to {what}": not value for name, (value, what) in needed.items()},
        f"slime lacks {', '.join(missing)}: extend a file of configs/models, or write them out": missing,
    }


def _places(config: SlimeConfig) -> Lines:
    """Folders that would take the place of others."""
    path = config.cluster.env.get("PYTHONPATH")
    save = config.checkpoint.folder if config.checkpoint.every_n_iterations else None
    taken = [name for name in ("ref-load", "hf-checkpoint") if save and save == config.slime.get(name)]
    return {
        f"cluster.env.PYTHONPATH is {path}, and there is one PYTHONPATH, in which slime and Megatron-LM are: leave it "
        "out, and name the folders in cluster.python_path": path is not None,
        **{
            f"slime.save is {save}, which slime.{name} is too: checkpoints of the run would take the place of the "
            "model that it starts with: set it to null, which is a folder of the run": True
            for name in taken
        },
    }


def _layout(config: SlimeConfig) -> Lines:
    """What does not fit of the way in which a run is laid over GPUs, and slime finds out late or never."""
    train, rollout, node, shares = config.train, config.rollout, config.cluster.gpus_per_node, config.cluster.share_gpu
    tensor, experts_tensor, per_engine = train.tensor_parallel, train.expert_tensor_parallel, rollout.gpus_per_engine
    heads, kv_heads, is_moe = config.model.attention_heads, config.model.kv_heads, config.model.is_moe
    drifts = is_moe and train.expert_parallel == 1 and experts_tensor != tensor
    is_uneven = kv_heads and tensor % kv_heads and kv_heads % tensor
    of_experts = experts_tensor * train.expert_parallel * train.pipeline_parallel
    size, of_an_engine = "slime.tensor-model-parallel-size", "slime.rollout-num-gpus-per-engine"
    cuts = (  # Megatron and SGLang say these minutes later, on the GPUs
        (size, tensor, "attention heads", heads),
        (f"{of_an_engine} / sglang-pp-size / -dp-size", rollout.gpus_per_head, "attention heads", heads),
        ("expert-, expert-tensor- and pipeline-parallel size", of_experts, "GPUs that train", train.world_size),
    )
    engine, first, per_node = f"{of_an_engine} is {per_engine}", train.world_size, train.gpus_per_node
    layers, described = config.model.layers, len(config.model.moe_layers)
    is_whole = rollout.gpus % per_engine == 0
    is_cut = is_whole and not _engines_fit_nodes(first, rollout.gpus, per_engine, node)
    parts = {
        "pipeline.optimizer_steps_per_rollout": config.pipeline.optimizer_steps_per_rollout,
        "data-parallel ranks": max(train.data_parallel, 1),
    }
    counts = {
        "slime.actor-num-nodes": (train.nodes, 1),
        "slime.actor-num-gpus-per-node": (per_node, 1),
        "slime.rollout-num-gpus": (rollout.gpus, 1),
        "cluster.gpus_per_node": (node, 2),
    }
    return {
        f"slime.expert-tensor-parallel-size is {experts_tensor} with slime.expert-model-parallel-size 1 and {size} "
        f"{tensor}: Megatron then leaves the gradients of the experts' copies apart, which drift from one another: set "
        f"it to {tensor}": drifts,
        **{
            f"{what}, {number}, does not divide the {whole} {of}: choose a divisor of {whole}": whole % number
            for what, number, of, whole in cuts[: 3 if is_moe else 2]
        },
        f"{size} is {tensor}, with {kv_heads} key-value heads: choose a divisor of those": is_uneven,
        f"slime.moe-layer-freq is {config.slime.get('moe-layer-freq')}, of {described} layers, and slime.num-layers "
        f"{layers}: give it a number for each layer": layers and described != layers,
        f"slime.actor-num-gpus-per-node is {per_node}, and cluster.gpus_per_node {node}: it must be at most "
        "that": per_node > node,
        f"slime.actor-num-nodes is {train.nodes} with {per_node} of {node} GPUs on each, but slime fills a node before "
        f"it takes the next: set slime.actor-num-gpus-per-node to {node}": train.nodes > 1 and per_node < node,
        f"{engine}, which does not divide slime.rollout-num-gpus {rollout.gpus}: choose a divisor of "
        "that": not is_whole,
        f"{engine}: on nodes of {node} GPUs, with the first {first} GPUs training, an engine would start on one node "
        "and end on another: choose a divisor of that": is_cut,
        **_batch("slime.rollout-batch-size x slime.n-samples-per-prompt", rollout.responses_per_iteration, parts),
        **{
            f"{key} is {number} with cluster.share_gpu, by which one trainer rank and one engine share a GPU that "
            f"slime takes for two: set it to {wanted}, or cluster.share_gpu to false": shares and number != wanted
            for key, (number, wanted) in counts.items()
        },
    }


def _engines_fit_nodes(first_gpu: int, gpus: int, per_engine: int, node: int) -> bool:
    """Return whether each engine has its GPUs on one node, or on several whole ones. slime takes GPUs in the order of
    nodes: first those that train, then an engine's after another's."""
    starts = range(first_gpu, first_gpu + gpus, per_engine)
    if per_engine > node:
        return per_engine % node == 0 and all(start % node == 0 for start in starts)
    return all(start % node + per_engine <= node for start in starts)


def _context(config: SlimeConfig) -> Lines:
    rollout, context = config.rollout, context_tokens(config)
    if context is None:
        return {}
    where = "slime.sglang-context-length" if rollout.context_tokens else "max_positions"
    prompt, truncate, cuts = rollout.max_prompt_tokens, "slime.sglang-allow-auto-truncate", rollout.end_at_context
    lengths = {"rollout": (prompt, rollout.max_response_tokens)}
    if config.eval.every_n_iterations:
        lengths["eval"] = config.eval.max_prompt_tokens, config.eval.max_response_tokens or 0
    beside, remedy = ("", "") if cuts else (" beside slime.{}-max-prompt-len {}", f", or {truncate} to true")
    return {
        f"{truncate} is true with slime.rollout-max-prompt-len {prompt or 'unset'}: SGLang would cut prompts that fill "
        f"the context of {context} tokens ({where}): set slime.rollout-max-prompt-len to "
        f"{max(1, min(2048, context // 2))}": cuts and (prompt is None or prompt >= context),
        **{
            f"slime.{name}-max-response-len is {response}{beside.format(name, limit or 'unset')}, more than the "
            f"context of {context} tokens ({where}), and SGLang would refuse the request: set it to "
            f"{max(1, room)}{remedy}": response > room
            for name, (limit, response) in lengths.items()
            # What ends at the context loses the prompt's share; without a limit the shortest prompt has a token.
            for room in [context if cuts else context - (limit or 1)]
        },
    }


def _values(config: SlimeConfig) -> Lines:
    """The faults of rewards, of sampling, and of parts without a stand-in on a CPU."""
    rollout, flags, data, words = config.rollout, config.slime, config.data, config.model.vocab_size
    is_dapo = (data.reward or "").removeprefix("boxed_") == "dapo"
    ours, on_cpu = (data.function or "").startswith("sat_slime.plugin."), config.cluster.device == "cpu"
    top_ks = {name: flags[name] for name in ("rollout-top-k", "eval-top-k") if is_sent(flags.get(name))}
    keys = [name for name in ("reward-key", "eval-reward-key") if flags.get(name) and ours]
    wrong = [token for token in rollout.stop_token_ids if token < 0 or (words and token >= words)]
    kept = [token for token in rollout.stop_token_ids if token not in wrong]
    needed, is_unknown = longest_sample(config), config.model.resolved_family is None
    held = flags.get("sglang-max-total-tokens", needed)
    return {
        f"slime.rm-type is {data.reward}, which gives score, acc and pred, and slime fails at the first batch without "
        "the one to train on: set slime.reward-key to score": is_dapo and not flags.get("reward-key"),
        **{
            f"slime.{name} is {flags[name]}, but slime.custom-rm-path {data.function} gives a number, of which slime "
            "can take no part, and fails at the first batch or evaluation: set it to null": True
            for name in keys
        },
        **{
            f"slime.{name} is {value}, and SGLang refuses every request with it: set it to -1 for all tokens": True
            for name, value in top_ks.items()
            if value < 1 and value != -1
        },
        f"slime.rollout-stop-token-ids has {next(iter(wrong), None)}, which is no token of the model's {words}, and no "
        f"response would end with it: set it to {kept}": wrong,
        f"slime.sglang-max-total-tokens is {held}, less than the longest sample of {needed} tokens, and SGLang would "
        "cut responses there: leave it out": _above(0, held) and not _above(needed - 1, held),
        "cluster.device is cpu, but its flags describe no family that has layers without Transformer Engine here "
        f"({', '.join(FAMILIES)}): describe one of these, or set cluster.device to gpu": on_cpu and is_unknown,
        "slime.optimizer-cpu-offload is true with cluster.device cpu: all memory is the host's: set it to false": on_cpu
        and config.train.optimizer_offload,
    }


# -------------------------------------------------------------------------------------------------- flags that mislead

WHEN: dict[str, Callable[[SlimeConfig], bool]] = {
    "": lambda config: True,
    "method.r3 true": lambda config: config.method.r3,
    "pipeline.mode streaming": lambda config: config.pipeline.mode == "streaming",
    "denominator checkpoint": lambda config: build_method(config.method).denominator == "checkpoint",
    "slime.eval-prompt-data": lambda config: bool(config.eval.prompts and config.eval.every_n_iterations),
    "slime.save-interval": lambda config: config.checkpoint.every_n_iterations > 0,
    "Adam's moments": lambda config: WHEN["slime.save-interval"](config) and not config.slime.get("use-stateless-adam"),
    "no slime.eval-prompt-data": lambda config: not (config.eval.sets or config.slime.get("eval-config")),
    "slime.use-dynamic-batch-size": lambda config: bool(config.slime.get("use-dynamic-batch-size")),
    "slime's own generation": lambda config: not config.slime.get("custom-generate-function-path"),
}
"""The circumstances under which rules hold, in words."""
ALWAYS, R3, STREAMING, SPLIT, OWN_SETS, SAVES, SAVES_MOMENTS, NO_SETS, DYNAMIC, OWN_GENERATION = WHEN


def _above(bound: float, value: Any) -> bool:
    try:
        return not isinstance(value, bool) and float(value) > bound
    except (TypeError, ValueError):
        return False


class Rule(NamedTuple):
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
COUNTED = "pushes by disk are numbered one by one, and lags count optimizer steps"
NOTHING = "that mode draws its own prompts, so that this does nothing"
UNSTREAMED = "it has no effect, is not saved with the queue, or leaves nothing to train on"
ONE_COPY = "a response may be of several weights, and one copy of those that generated is kept to score it with"
KEEP = "leave it out, and say with pipeline.keep_checkpoints how many stay"
ERRORS = (
    Rule("moe-router-fusion", "the fused router chooses the experts itself: no route is replayed", WITHOUT_R3, R3),
    Rule("prefill-num-servers", "an engine that only decodes has no routes of the prompt", WITHOUT_R3, R3),
    Rule("sglang-pp-size", "each stage has the routes of its own layers alone", WITHOUT_R3, R3, partial(_above, 1)),
    Rule("sglang-enable-hierarchical-cache", "a prefix back from host memory has lost its routes", WITHOUT_R3, R3),
    Rule("update-weight-transport", COUNTED, value=lambda value: value == "disk"),
    Rule("flush-cache-interval", "cached prefixes outlive a push of weights", BY_BATCH, STREAMING, partial(_above, 1)),
    Rule(" ".join(NOT_STREAMED), UNSTREAMED, BY_BATCH, STREAMING),
    Rule("over-sampling-batch-size", NOTHING, when=STREAMING),
    Rule("partial-rollout", ONE_COPY, when=SPLIT),
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
    Rule("save-debug-train-data dump-details", "replay would take log pi_l there for log pi", when=SPLIT),
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
    Rule("no-save-optim", "a resume from such a checkpoint starts with new ones", "set it to false", SAVES_MOMENTS),
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
                remedy, where = rule.remedy.replace("{value}", place), rule.when and f" with {rule.when}"
                yield f"slime.{name} is {shown}{where}: {rule.why}: {remedy}"


def _lengths(config: SlimeConfig) -> Lines:
    rollout, train, context = config.rollout, config.train, context_tokens(config)
    bound, longest, positions = train.max_tokens_per_gpu, longest_sample(config, prompt=1), config.model.max_positions
    is_over = WHEN[DYNAMIC](config) and bound * train.context_parallel < longest
    left = (context or 0) - rollout.max_response_tokens  # prompts of an evaluation have a limit of their own
    is_open = not rollout.end_at_context and rollout.max_prompt_tokens is None
    beyond = positions and rollout.context_tokens and rollout.context_tokens > positions
    return {
        f"slime.max-tokens-per-gpu is {bound}, less than the longest sample of {longest} tokens / "
        f"slime.context-parallel-size {train.context_parallel}: such a sample is a micro-batch of its own and takes "
        "more memory than the bound says": is_over,
        f"slime.rollout-max-prompt-len is not set: a prompt of more than {left} tokens would not fit the context "
        f"beside its response, and its request fail: set it to {left}": is_open and left > 0,
        f"slime.sglang-context-length is {rollout.context_tokens}, more than max_positions {positions}: the model has "
        "never seen positions beyond that": beyond,
    }


def _other_run(config: SlimeConfig) -> Lines:
    """Settings by which a run is another than its owner may think."""
    top_k, data, evaluation = config.rollout.top_k, config.data, config.eval
    files = evaluation.prompts.values() if evaluation.every_n_iterations and data.prompts else ()
    prompts = os.path.normpath(data.prompts or "")
    return {
        f"slime.rollout-top-k is {top_k}: the engine's policy is cut off, the trainer's is not, and their ratio is no "
        "importance weight: set it to -1": top_k > 0,
        f"slime.rm-type is {data.reward}: it gives 0 without </think>, so that only a model that thinks can earn any: "
        "set it to math for another": data.reward in ("deepscaler", "boxed_deepscaler"),
        **{
            f"slime.eval-prompt-data has {file}, as slime.prompt-data is: it is trained on; name another "
            "file": os.path.normpath(file) == prompts
            for file in files
        },
    }


def _out_of_step(config: SlimeConfig) -> Lines:
    """What is to be known of evaluations and checkpoints that fall between two broadcasts."""
    lag, save = max(config.pipeline.lag, 1), config.checkpoint.every_n_iterations
    intervals = (
        ("eval", config.eval.every_n_iterations, "evaluations measure the weights of the last broadcast, some twice"),
        ("save", save, f"a run that goes on broadcasts at once and again before {lag} iterations have passed"),
    )
    return {
        "slime.save-interval is 0: nothing is saved, and a run that fails starts over: set it to 20": not save,
        **{
            f"slime.{name}-interval is {every}, no multiple of pipeline.lag {lag}: {why}: set it to "
            f"{max(1, round(every / lag)) * lag}": True
            for name, every, why in intervals
            if every % lag
        },
    }
