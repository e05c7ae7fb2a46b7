"""Settings of data, reward, sampling and evaluation that would fail at the first request or reward, or mislead."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sat_slime.config.schema import VerifierLimits
from sat_slime.config.slime_parts.flag_rules import given_flag
from sat_slime.config.slime_schema import SlimeConfig

FREE_OF_SGLANG = 0.9
"""A memory_fraction above which less is left than SGLang itself leaves: 10 GiB of a GPU with 80."""
MOST_RUNNING = 4096
"""Requests that an engine runs at once at most, where nothing says otherwise (SGLang's own bound)."""
LARGEST_SEED = 2**32 - 1
"""The largest seed that NumPy takes."""


def generation_errors(config: SlimeConfig) -> list[str]:
    """A line for every setting with which no batch or evaluation would be generated and rewarded."""
    return [*_reward(config), *_sampling(config), *_seed(config)]


def generation_warnings(config: SlimeConfig) -> list[str]:
    """A line for every setting of which the run's owner should know something."""
    return [*_other_policy(config), *_evaluation(config), *_engines(config), *_verifier(config)]


def uses_verifier(config: SlimeConfig) -> bool:
    """Whether this package's verifier rewards the responses."""
    return bool(config.data.reward and config.data.reward.startswith("sat_slime.plugin.reward."))


def _reward(config: SlimeConfig) -> Iterator[str]:
    reward, flags = config.data.reward, config.extra_args
    rule = (reward or "").removeprefix("boxed_")
    if rule == "remote_rm" and not flags.get("rm-url"):
        yield (
            "data.reward is remote_rm, and nothing says whom to ask: set extra_args.rm-url to http://HOST:PORT of the "
            "reward's server"
        )
    if rule == "dapo" and not flags.get("reward-key"):
        yield (
            f"data.reward is {reward}, which gives score, acc and pred, and slime fails at the first batch without the "
            "one to train on: set extra_args.reward-key to score, or data.reward to sat_slime.plugin.reward.math_dapo"
        )


def _sampling(config: SlimeConfig) -> Iterator[str]:
    rollout, evaluation = config.rollout, config.eval
    for key, value in (("rollout.top_k", rollout.top_k), ("eval.top_k", evaluation.top_k)):
        if value is not None and value < 1 and value != -1:
            yield f"{key} is {value}, and SGLang refuses every request with it: set it to -1 for all tokens"
    words = config.model.vocab_size
    outside = [token for token in rollout.stop_token_ids if token < 0 or (words and token >= words)]
    if outside:
        kept = [token for token in rollout.stop_token_ids if token not in outside]
        yield (
            f"rollout.stop_token_ids has {outside[0]}, which is no token of the model's {words}, and no response would "
            f"end with it: set it to {kept}"
        )


def _seed(config: SlimeConfig) -> Iterator[str]:
    stages = 100 * (config.train.pipeline_parallel - 1)  # Megatron adds this at the last stage
    if config.seed + stages > LARGEST_SEED:
        yield f"seed is {config.seed}, more than NumPy takes: set it to {LARGEST_SEED - stages} or less"
    if ":" in (config.model.hf_checkpoint or ""):
        yield (
            f"model.hf_checkpoint is {config.model.hf_checkpoint}, and SGLang takes no colon in a model's name: rename "
            "the folder, or link to it"
        )


# ----------------------------------------------------------------------------------------------------- warnings


def _other_policy(config: SlimeConfig) -> Iterator[str]:
    rollout, data = config.rollout, config.data
    if rollout.top_k > 0:
        yield (
            f"rollout.top_k is {rollout.top_k}: the engine's policy is cut off, the trainer's is not, and their ratio "
            "is no importance weight: set it to -1"
        )
    if data.reward and data.reward.removeprefix("boxed_") == "deepscaler":
        yield (
            "data.reward is deepscaler: it gives 0 without </think>, which a base model does not write: set it to math"
        )
    if data.reward == "random":
        yield "data.reward is random, which slime has for tests: set it to math"
    if config.method.base == "ppo":
        yield "method.base is ppo: slime's critic is not used, and advantages are GRPO's: set it to grpo, the same run"
    if data.chat_template_args and not data.chat_template:
        yield (
            "data.chat_template_args has no effect with data.chat_template false: leave it out, or set "
            "data.chat_template to true"
        )


def _evaluation(config: SlimeConfig) -> Iterator[str]:
    evaluation = config.eval
    if not evaluation.every_n_iterations:
        return
    samples = evaluation.samples_per_problem * evaluation.repeats
    if evaluation.temperature == 0 and samples > 1:
        yield (
            f"eval.temperature is 0 with {samples} samples of each problem, all of which are the same: set "
            "eval.temperature to null for the rollout's"
        )
    for name, file in evaluation.prompts.items():
        if config.data.prompts and os.path.normpath(file) == os.path.normpath(config.data.prompts):
            yield f"eval.prompts.{name} is {file}, as data.prompts is: it is trained on; name another file"


def _engines(config: SlimeConfig) -> Iterator[str]:
    rollout = config.rollout
    if rollout.memory_fraction > FREE_OF_SGLANG and config.cluster.device == "gpu":
        yield (
            f"rollout.memory_fraction is {rollout.memory_fraction}, and SGLang itself leaves 10 GiB of a large GPU to "
            "its kernels, graphs and pushes of weights: set it to 0.85"
        )
    if rollout.concurrent_requests > MOST_RUNNING and not given_flag(config, "sglang-max-running-requests"):
        yield (
            f"rollout.concurrent_requests is {rollout.concurrent_requests}, and an engine runs {MOST_RUNNING} at most: "
            f"the others are open connections that wait; set it to {MOST_RUNNING}"
        )
    if config.model.architecture.get("multi-latent-attention") and config.train.attention_backend == "flash":
        yield (
            "train.attention_backend is flash with multi-latent attention, whose heads FlashAttention 2 does not take "
            "(version 3 does, on Hopper): set it to auto"
        )


def _verifier(config: SlimeConfig) -> Iterator[str]:
    changed = ", ".join(f"verifier.{name}" for name in sorted(config.verifier.model_fields_set))
    if config.verifier != VerifierLimits() and not uses_verifier(config):
        yield (
            f"{changed} has no effect with data.reward {config.data.reward}: set data.reward to "
            "sat_slime.plugin.reward.default or another of its modes, or leave it out"
        )
