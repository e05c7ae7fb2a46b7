"""Checks of what the sections of a slime run must agree on. Each finding is one line: the key, its value, the
remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sat_slime.config.lab_checks import (
    faults_of_streaming,
    idle_proximal_policy,
    idle_top_p_replay,
    sat_without_lag,
    steps_too_long,
)
from sat_slime.config.method_section import build_method, section_name, unused_settings
from sat_slime.config.schema import VerifierLimits
from sat_slime.config.slime_flags import flag_rule_errors, flag_rule_warnings, given_flag
from sat_slime.config.slime_layout import layout_errors
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.models import FAMILIES
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
NO_CANARY = {
    TRANSPORT: "engines load a push from disk only after the trainer has scored",
    "offload-train": "the trainer has no weights on its GPUs after a push",
    "prefill-num-servers": "an engine that only prefills or only decodes cannot be asked alone",
    "sglang-config": "its engines may prefill or decode only, and cannot be asked alone",
    "debug-train-only": "there are no engines",
    "debug-rollout-only": "there is no trainer",
}
"""Flags of slime with which no canary can be, and why."""
FREE_OF_SGLANG = 0.9
"""A memory_fraction above which less is left than SGLang itself leaves: 10 GiB of a GPU with 80."""
MOST_RUNNING = 4096
"""Requests that an engine runs at once at most, where nothing says otherwise (SGLang's own bound)."""
LARGEST_SEED = 2**32 - 1
"""The largest seed that NumPy takes."""


def slime_config_errors(config: SlimeConfig) -> list[str]:
    """Return everything for which the run would fail or be meaningless, as far as its settings show; empty when it can
    start.

    Flags of slime are held against its own list by plugin.launch.command.flag_errors.
    """
    method = build_method(config.method)
    return [
        *_method(config, method),
        *_streaming(config, method),
        *_canary(config),
        *_unset(config),
        *_places(config),
        *layout_errors(config),
        *_context(config),
        *_scores(config),
        *_reward(config),
        *_sampling(config),
        *_seed(config),
        *flag_rule_errors(config),
        *_cpu(config),
        *_shared_gpu(config),
        *unused_settings(config.method),
    ]


def slime_config_warnings(config: SlimeConfig) -> list[str]:
    """Return what the run can live with and its owner should know."""
    method = build_method(config.method)
    return [
        *_quantile_scope(config, method),
        *steps_too_long("slime.lr", config.train.lr),
        *sat_without_lag(method, config.pipeline),
        *_lengths(config),
        *_other_policy(config),
        *_evaluation(config),
        *_engines(config),
        *_verifier(config),
        *flag_rule_warnings(config),
        *_schedule(config),
        *_checkpoints(config),
        *idle_proximal_policy(method, config.pipeline),
    ]


def context_tokens(config: SlimeConfig) -> int | None:
    """Return the tokens of prompt and response that the engines hold; None where neither setting says it."""
    return config.rollout.context_tokens or config.model.max_positions


def longest_sample(config: SlimeConfig) -> int:
    """Return the tokens of the longest prompt and response that can be trained on; an unset prompt limit counts
    nothing."""
    longest = (config.rollout.max_prompt_tokens or 0) + config.rollout.max_response_tokens
    context = context_tokens(config)
    return min(longest, context) if context else longest


def uses_verifier(config: SlimeConfig) -> bool:
    """Return whether this package's verifier rewards the responses."""
    return bool(config.data.reward and config.data.reward.startswith("sat_slime.plugin.reward."))


# ---------------------------------------------------------------------------------------------------- a method on slime


def not_on_slime(method: Method) -> str | None:
    """Return why slime cannot run a method that the lab runtime can; None where it can."""
    if method.step_constraint:
        return (
            f"{method.name}: TRPO's constraint compares distributions over the whole vocabulary before and after an "
            "optimizer step, and takes the step back where it breaks; slime's engines return the sampled token's "
            "log-prob alone, and its step cannot be taken back: choose base dppo, which judges the sampled token, or "
            "the lab runtime"
        )
    return None


def spares_recompute(method: Method, steps: int) -> bool:
    """Return whether slime can leave out its forward pass that recomputes log-probs, which use_rollout_logprobs makes
    it do.

    With denominator `trainer` and one optimizer step per rollout the training forward is that pass, and A-3PO makes its
    denominator up; but the threshold of a whole step needs the pass beforehand.
    """
    if method.threshold_is_of_the_step:
        return False
    return steps == 1 if method.denominator == "trainer" else method.denominator != "checkpoint"


def needs_versions(method: Method) -> str | None:
    """Return what a method needs that travels to slime's trainer with the versions of weights, in words; None where
    nothing does."""
    meanings = {"lags": "the lag of every token", "rewards": "the reward of every response"}
    needed = [words for need, words in meanings.items() if need in method.needs]
    return f"{method.name} needs {' and '.join(needed)}" if needed else None


# ------------------------------------------------------------------------------------------------------- errors


def _method(config: SlimeConfig, method: Method) -> Iterator[str]:
    steps, lag = config.pipeline.optimizer_steps_per_rollout, config.pipeline.lag
    if config.train.context_parallel > 1 and any(getattr(gate, "form", "") == "suffix" for gate in method.gates):
        yield (
            f"method.veto.form is suffix, which reads responses whole, and slime.context-parallel-size is "
            f"{config.train.context_parallel}: set it to 1, or form to response"
        )
    if method.routing_replay and not config.model.is_moe:
        yield (
            "method.r3 is true, but slime has no num-experts (a dense model has no routing to replay): "
            "set method.r3 to false, or describe an MoE model"
        )
    yield from idle_top_p_replay(method, "slime.rollout-top-p", config.rollout.top_p)
    if config.rollout.top_p < 1 and not method.top_p_replay:
        yield (
            f"slime.rollout-top-p is {config.rollout.top_p}, and slime then replays the engine's mask in the trainer's "
            "softmax whatever the method says: set method.top_p_replay to true, or slime.rollout-top-p to 1"
        )
    if reason := not_on_slime(method):
        yield f"method: {reason}"
    try:
        check_method(method, steps)
    except ValueError as error:
        yield f"method: {error}"
    if method.judge and method.threshold_is_of_the_step and steps > 1:
        scope = f"{section_name(method, method.judge)}.scope"
        few = method.judge.name == "sat" and _few_responses(config, method)
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
    if needs and config.slime.get(TRANSPORT) == "disk":
        yield (
            f"slime.{TRANSPORT} is disk, and {needs}: a push by disk numbers weights one by one, so that the lag "
            "is unknown: leave it out"
        )


def _streaming(config: SlimeConfig, method: Method) -> Iterator[str]:
    pipeline = config.pipeline
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
    for name in NOT_STREAMED:
        if name in config.slime:
            yield f"slime.{name} cannot be with pipeline.mode streaming: leave it out, or set the mode to batch"


def _canary(config: SlimeConfig) -> Iterator[str]:
    if config.pipeline.canary == "none":
        return
    for name, why in NO_CANARY.items():
        if config.slime.get(name) not in (None, False, "nccl"):
            yield (
                f"pipeline.canary is {config.pipeline.canary} with slime.{name}: {why}: leave the flag out, or "
                "set pipeline.canary to none"
            )


def _unset(config: SlimeConfig) -> Iterator[str]:
    needed = (
        ("slime.hf-checkpoint", config.model.hf_checkpoint, "the folder of the Hugging Face weights"),
        ("slime.ref-load", config.model.megatron_checkpoint, "where `sat-slime prepare model` puts them"),
        ("slime.prompt-data", config.data.prompts, "a .jsonl file of prompts"),
        ("slime.rm-type", config.data.reward, "one of slime's rules, such as math, or custom-rm-path to a function"),
    )
    for key, value, what in needed:
        if value is None:
            yield f"{key} is not set: set it to {what}"
    rollout = config.rollout
    for name, number, least in (
        ("rollout-batch-size", rollout.prompts_per_iteration, 1),
        ("n-samples-per-prompt", rollout.samples_per_prompt, 2),
        ("rollout-max-response-len", rollout.max_response_tokens, 1),
    ):
        if number < least:
            yield f"slime.{name} is not set: set it to a number of {least} or more"
    if missing := [name for name in NEEDED_SIZES if name not in config.model.architecture]:
        yield f"slime lacks {', '.join(missing)}: extend a file of configs/models, or write them out"
    if config.eval.every_n_iterations and not (config.eval.prompts or config.slime.get("eval-config")):
        yield (
            f"slime.eval-interval is {config.eval.every_n_iterations}, but slime.eval-prompt-data is empty: name a "
            "file, as in --set slime.eval-prompt-data=[aime24,FILE], or set slime.eval-interval to 0"
        )


def _places(config: SlimeConfig) -> Iterator[str]:
    """Yield folders and variables that would take the place of others."""
    checkpoints, model = config.checkpoint.folder, config.model
    for key, folder in (
        ("slime.ref-load", model.megatron_checkpoint),
        ("slime.hf-checkpoint", model.hf_checkpoint),
    ):
        if checkpoints and folder and checkpoints == folder and config.checkpoint.every_n_iterations:
            yield (
                f"slime.save is {checkpoints}, which {key} is too: checkpoints of the run would take the place "
                "of the model that it starts with: set it to null, which is a folder of the run"
            )
    if config.checkpoint.from_iteration is not None:
        yield from _going_on(config, config.checkpoint.from_iteration)
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


def _going_on(config: SlimeConfig, iteration: int) -> Iterator[str]:
    """Yield the faults of a run that goes on from another run's checkpoint."""
    given = f"pipeline.from_iteration is {iteration}"
    if not config.checkpoint.folder:
        yield f"{given}, but slime.save is not set: name the folder with that checkpoint"
    if not config.checkpoint.every_n_iterations:
        yield f"{given}, but slime reads no checkpoint with slime.save-interval 0: set that to 20"
    if iteration >= config.pipeline.iterations:
        yield (
            f"{given}, and pipeline.iterations {config.pipeline.iterations}, which counts from the other run's start: "
            f"set it to more than {iteration}"
        )


def _context(config: SlimeConfig) -> Iterator[str]:
    rollout, context = config.rollout, context_tokens(config)
    if context is None:
        return
    where = "slime.sglang-context-length" if rollout.context_tokens else "max_positions"
    prompt = rollout.max_prompt_tokens
    if rollout.end_at_context and (prompt is None or prompt >= context):
        yield (
            f"slime.sglang-allow-auto-truncate is true with slime.rollout-max-prompt-len {prompt or 'unset'}: "
            "SGLang would cut "
            f"prompts that fill the context of {context} tokens ({where}): set slime.rollout-max-prompt-len to "
            f"{_some_prompt(context)}"
        )
    limits = {"slime.rollout-max-response-len": rollout.max_response_tokens}
    if config.eval.every_n_iterations and config.eval.max_response_tokens:
        limits["slime.eval-max-response-len"] = config.eval.max_response_tokens
    for key, response in limits.items():
        if rollout.end_at_context:  # the prompt's share is cut off at the end; more than the context is a mistake
            if response > context:
                yield f"{key} is {response}, more than the context of {context} tokens ({where}): set it to {context}"
            continue
        # Without a limit the shortest of prompts has a token.
        needed = response + (prompt or 1)
        if needed > context:
            whole = f" + slime.rollout-max-prompt-len {prompt} = {needed}" if prompt else " and a prompt"
            room = prompt if prompt and prompt < context else _some_prompt(context)
            also = "" if room == prompt else f" and slime.rollout-max-prompt-len to {room}"
            yield (
                f"{key} {response}{whole} is more than the context of {context} tokens ({where}), and SGLang would "
                f"refuse the request: set slime.sglang-allow-auto-truncate to true{also}, or {key} to "
                f"{context - room}{also}"
            )


def _some_prompt(context: int) -> int:
    """Return the tokens of a prompt that leave room for a response."""
    return max(1, min(2048, context // 2))


def _cpu(config: SlimeConfig) -> Iterator[str]:
    """Yield a fault for each part of slime for which there is no stand-in on a CPU."""
    train = config.train
    if config.cluster.device != "cpu":
        return
    if config.model.resolved_family is None:
        yield (
            "cluster.device is cpu, but its flags describe no family that has layers without "
            f"Transformer Engine here ({', '.join(FAMILIES)}): describe one of these, name a file with another one in "
            "family (docs/extend.md), or set cluster.device to gpu"
        )
    if train.optimizer_offload:
        yield "slime.optimizer-cpu-offload is true with cluster.device cpu: all memory is the host's: set it to false"


def _shared_gpu(config: SlimeConfig) -> Iterator[str]:
    """Yield a fault for each count that is not of one trainer rank and one engine."""
    train, rollout = config.train, config.rollout
    if not config.cluster.share_gpu:
        return
    for key, number, wanted in (
        ("slime.actor-num-nodes", train.nodes, 1),
        ("slime.actor-num-gpus-per-node", train.gpus_per_node, 1),
        ("slime.rollout-num-gpus", rollout.gpus, 1),
        ("cluster.gpus_per_node", config.cluster.gpus_per_node, 2),
    ):
        if number != wanted:
            yield (
                f"{key} is {number} with cluster.share_gpu, by which one trainer rank and one engine share a GPU that "
                f"slime takes for two: set it to {wanted}, or cluster.share_gpu to false"
            )


def _scores(config: SlimeConfig) -> Iterator[str]:
    samples, repeats, k = config.eval.samples, config.scores.repeats, config.scores.k
    if not config.eval.every_n_iterations:
        return
    if samples % repeats:
        yield (
            f"slime.n-samples-per-eval-prompt is {samples}, which scores.repeats {repeats} does not divide: set it to "
            f"{samples + repeats - samples % repeats}"
        )
    if k and max(k) > samples:
        yield (
            f"scores.k has {max(k)}, more than slime.n-samples-per-eval-prompt {samples}: raise that, or leave it out"
        )


def _reward(config: SlimeConfig) -> Iterator[str]:
    reward, flags = config.data.reward, config.slime
    rule = (reward or "").removeprefix("boxed_")
    if rule == "remote_rm" and not flags.get("rm-url"):
        yield (
            "slime.rm-type is remote_rm, and nothing says whom to ask: set slime.rm-url to http://HOST:PORT of the "
            "reward's server"
        )
    if rule == "dapo" and not flags.get("reward-key"):
        yield (
            f"slime.rm-type is {reward}, which gives score, acc and pred, and slime fails at the first batch without "
            "the one to train on: set slime.reward-key to score"
        )


def _sampling(config: SlimeConfig) -> Iterator[str]:
    rollout, evaluation = config.rollout, config.eval
    for key, value in (("slime.rollout-top-k", rollout.top_k), ("slime.eval-top-k", evaluation.top_k)):
        if value is not None and value < 1 and value != -1:
            yield f"{key} is {value}, and SGLang refuses every request with it: set it to -1 for all tokens"
    words = config.model.vocab_size
    outside = [token for token in rollout.stop_token_ids if token < 0 or (words and token >= words)]
    if outside:
        kept = [token for token in rollout.stop_token_ids if token not in outside]
        yield (
            f"slime.rollout-stop-token-ids has {outside[0]}, which is no token of the model's {words}, and no "
            "response would "
            f"end with it: set it to {kept}"
        )


def _seed(config: SlimeConfig) -> Iterator[str]:
    stages = 100 * (config.train.pipeline_parallel - 1)  # Megatron adds this at the last stage
    if config.seed + stages > LARGEST_SEED:
        yield f"seed is {config.seed}, more than NumPy takes: set it to {LARGEST_SEED - stages} or less"
    if ":" in (config.model.hf_checkpoint or ""):
        yield (
            f"slime.hf-checkpoint is {config.model.hf_checkpoint}, and SGLang takes no colon in a model's name: rename "
            "the folder, or link to it"
        )


# ----------------------------------------------------------------------------------------------------- warnings


def _quantile_scope(config: SlimeConfig, method: Method) -> Iterator[str]:
    if (few := _few_responses(config, method)) and method.scope == "microbatch":
        steps = config.pipeline.optimizer_steps_per_rollout
        first = "pipeline.optimizer_steps_per_rollout to 1 and " if steps > 1 else ""
        yield (
            f"method.sat.scope is microbatch, and a micro-batch of slime.max-tokens-per-gpu "
            f"{config.train.max_tokens_per_gpu} holds {few[0]} response(s) of full length: below about {few[1]:.0f} "
            "responses the quantile is the largest |d| and the gate of SAT hardly ever opens: set "
            f"{first}method.sat.scope to step"
        )


def _few_responses(config: SlimeConfig, method: Method) -> tuple[int, float] | None:
    """Return how many full responses a micro-batch holds, and how many SAT's quantile needs, where they are too few:
    only where |d| is one value per response do few responses make coarse quantiles."""
    sat = config.method.sat
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
            f"slime.max-tokens-per-gpu is {train.max_tokens_per_gpu}, less than the longest sample of {longest} tokens "
            f"/ slime.context-parallel-size {train.context_parallel}: such a sample is a micro-batch of its own "
            "and takes "
            "more memory than the bound says"
        )
    if context and not rollout.end_at_context and rollout.max_prompt_tokens is None:
        evaluation = config.eval.max_response_tokens if config.eval.every_n_iterations else None
        left = context - max(rollout.max_response_tokens, evaluation or 0)
        if left > 0:
            yield (
                f"slime.rollout-max-prompt-len is not set: a prompt of more than {left} tokens would not fit the "
                "context "
                f"beside its response, and its request fail: set it to {left}"
            )
    positions = config.model.max_positions
    if positions and rollout.context_tokens and rollout.context_tokens > positions:
        yield (
            f"slime.sglang-context-length is {rollout.context_tokens}, more than max_positions {positions}: the model "
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
            f"slime.eval-interval is {evaluation}, no multiple of pipeline.lag {lag}: evaluations measure the "
            f"weights of the last broadcast, some the same twice: set it to {_multiple(evaluation, lag)}"
        )


def _checkpoints(config: SlimeConfig) -> Iterator[str]:
    every, lag = config.checkpoint.every_n_iterations, config.pipeline.lag
    if not every:
        yield (
            "slime.save-interval is 0: nothing is saved, and a run that fails starts over: set it to "
            f"{_multiple(20, max(lag, 1))}"
        )
    elif not config.checkpoint.optimizer:
        yield (
            "slime.no-save-optim is true: a run resumed from such a checkpoint starts with a new optimizer: set "
            "it to false"
        )
    elif lag > 1 and every % lag:
        yield (
            f"slime.save-interval is {every}, no multiple of pipeline.lag {lag}: a run that goes on "
            f"broadcasts at once and again before {lag} iterations have passed: set it to {_multiple(every, lag)}"
        )


def _multiple(number: int, lag: int) -> int:
    """Return the multiple of `lag` that is nearest."""
    return max(1, round(number / lag)) * lag


def _other_policy(config: SlimeConfig) -> Iterator[str]:
    rollout, data = config.rollout, config.data
    if rollout.top_k > 0:
        yield (
            f"slime.rollout-top-k is {rollout.top_k}: the engine's policy is cut off, the trainer's is not, and "
            "their ratio "
            "is no importance weight: set it to -1"
        )
    if data.reward and data.reward.removeprefix("boxed_") == "deepscaler":
        yield (
            "slime.rm-type is deepscaler: it gives 0 without </think>, which a base model does not write: set it "
            "to math"
        )
    if data.reward == "random":
        yield "slime.rm-type is random, which slime has for tests: set it to math"
    if config.method.base == "ppo":
        yield "method.base is ppo: slime's critic is not used, and advantages are GRPO's: set it to grpo, the same run"
    if data.chat_template_args and not data.chat_template:
        yield (
            "slime.apply-chat-template-kwargs has no effect with slime.apply-chat-template false: leave it out, or set "
            "slime.apply-chat-template to true"
        )


def _evaluation(config: SlimeConfig) -> Iterator[str]:
    evaluation = config.eval
    if not evaluation.every_n_iterations:
        return
    samples = evaluation.samples
    if evaluation.temperature == 0 and samples > 1:
        yield (
            f"slime.eval-temperature is 0 with {samples} samples of each problem, all of which are the same: set "
            "slime.eval-temperature to null for the rollout's"
        )
    for file in evaluation.prompts.values():
        if config.data.prompts and os.path.normpath(file) == os.path.normpath(config.data.prompts):
            yield f"slime.eval-prompt-data has {file}, as slime.prompt-data is: it is trained on; name another file"


def _engines(config: SlimeConfig) -> Iterator[str]:
    rollout = config.rollout
    if rollout.memory_fraction > FREE_OF_SGLANG and config.cluster.device == "gpu":
        yield (
            f"slime.sglang-mem-fraction-static is {rollout.memory_fraction}, and SGLang itself leaves 10 GiB of a "
            "large GPU to "
            "its kernels, graphs and pushes of weights: set it to 0.85"
        )
    if rollout.concurrent_requests > MOST_RUNNING and not given_flag(config, "sglang-max-running-requests"):
        yield (
            f"slime.sglang-server-concurrency is {rollout.concurrent_requests}, but an engine runs at most "
            f"{MOST_RUNNING}: "
            f"the others are open connections that wait; set it to {MOST_RUNNING}"
        )
    if (
        config.model.architecture.get("multi-latent-attention")
        and config.slime.get("attention-backend", "flash") == "flash"
    ):
        yield (
            "slime.attention-backend is flash with multi-latent attention, whose heads FlashAttention 2 does not take "
            "(version 3 does, on Hopper): set it to auto"
        )


def _verifier(config: SlimeConfig) -> Iterator[str]:
    changed = ", ".join(f"verifier.{name}" for name in sorted(config.verifier.model_fields_set))
    if config.verifier != VerifierLimits() and not uses_verifier(config):
        yield (
            f"{changed} has no effect with {config.data.reward_key} {config.data.reward}: set slime.custom-rm-path to "
            "sat_slime.plugin.reward.default or another of its modes, or leave it out"
        )
