"""Derives from a run's settings those of its rehearsal, and lists what they change.

What the run is stays: layers, experts and how many a token has, heads, vocabulary, parallel sizes, nodes, schedule,
method, flags, reward, limits of prompts. Widths become a few numbers, counts as few as show the same, and GPUs
processes. Files that are read or written are the rehearsal's own.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sat_slime.config.method_section import build_method
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.small_run import small_flags

HIDDEN, HEAD_DIM, EXPERT_WIDTH, FEED_FORWARD = 64, 16, 16, 64
"""Widths of a thin model."""
LEARNING_RATE = 1e-4
"""With the run's own a thin model would move by less in ten steps than what fp32 rounds."""
ONLY_CUDA = re.compile(
    r"moe-permute-fusion|moe-router-fusion|moe-enable-deepep|moe-deepep.*|moe-flex.*|tp-comm-overlap.*|fp8.*|"
    r"overlap-(param-gather|grad-reduce|moe.*)|cross-entropy-(loss-fusion|fusion-impl)|use-precision-aware-optimizer|"
    r"optimizer-cpu-offload|overlap-cpu-optimizer.*|offload.*|"
    r"sglang-(cuda-graph.*|disable-cuda-graph.*|quantization|kv-cache-dtype|moe-a2a-backend|moe-runner-backend|"
    r"deepep.*|enable-deepep.*|enable-dp-.*|dp-size|enable-torch-compile|piecewise.*|mamba.*|speculative.*)"
)
"""Flags of kernels, memories and links that a CPU has not."""
OF_GPUS = "what is CUDA's has a stand-in on a CPU (docs/rehearse.md)"
THIN, FEW, OWN = "thin", "as few as show the same", "its own folder"
PROMPTS, SAMPLES = 4, 4
"""Least prompts of a batch, and responses to each."""
RESPONSE = 24
"""Tokens of the longest response."""


@dataclass(frozen=True)
class Change:
    """A setting that differs in the rehearsal."""

    key: str
    was: Any
    now: Any
    why: str


@dataclass
class Thin:
    """The rehearsal's settings as they are derived."""

    config: SlimeConfig
    changes: list[Change] = field(default_factory=list)

    def set(self, key: str, value: Any, why: str) -> None:
        """Sets a dotted key, and notes it where the value is another; None of a flag takes it out."""
        section, _, name = key.partition(".")
        values = getattr(self.config, section)
        now: Any
        if isinstance(values, dict):
            was = values.get(name)
            now = {k: v for k, v in values.items() if k != name} | ({} if value is None else {name: value})
        else:
            was = getattr(values, name) if name else values
            now = values.model_copy(update={name: value}) if name else value
        if was != value:
            self.config = self.config.model_copy(update={section: now})
            self.changes.append(Change(key, was, value, why))


def thin_settings(config: SlimeConfig, folder: Path) -> Thin:
    """Return the settings of the rehearsal, whose model, prompts and runs are in `folder`, with what they change."""
    thin = Thin(config)
    _widths(thin)
    _device(thin)
    _counts(thin)
    _places(thin, folder)
    return thin


def _widths(thin: Thin) -> None:
    model, train = thin.config.model, thin.config.train
    cut = math.lcm(train.tensor_parallel, thin.config.rollout.gpus_per_engine)
    if model.kv_channels:
        thin.set("slime.kv-channels", HEAD_DIM, THIN)
        hidden = HIDDEN
    else:  # a head is hidden / heads wide
        hidden = model.attention_heads * max(4, 2 * (HIDDEN // model.attention_heads // 2))
    thin.set("slime.hidden-size", hidden, THIN)
    thin.set("slime.ffn-hidden-size", math.lcm(FEED_FORWARD, cut), THIN)
    if model.is_moe:
        cut = math.lcm(train.expert_tensor_parallel, thin.config.rollout.gpus_per_engine)
        thin.set("slime.moe-ffn-hidden-size", math.lcm(EXPERT_WIDTH, cut), THIN)


def _device(thin: Thin) -> None:
    thin.set("cluster.device", "cpu", "processes in the place of GPUs")
    thin.set("cluster.share_gpu", False, "processes in the place of GPUs")
    by_cpu = small_flags(thin.config)
    for name in list(thin.config.slime):
        if name in by_cpu or ONLY_CUDA.fullmatch(name):
            thin.set(f"slime.{name}", by_cpu.get(name), OF_GPUS)


def _counts(thin: Thin) -> None:
    config = thin.config
    pipeline, rollout, train, evaluation = config.pipeline, config.rollout, config.train, config.eval
    iterations = 4 if pipeline.mode == "streaming" else max(pipeline.lag, 1) + 2
    thin.set("pipeline.iterations", iterations, FEW)
    share = pipeline.optimizer_steps_per_rollout * max(train.data_parallel, 1)
    thin.set("slime.rollout-batch-size", _prompts(config, share), FEW)
    thin.set("slime.n-samples-per-prompt", SAMPLES, FEW)
    thin.set("slime.rollout-max-response-len", min(RESPONSE, rollout.max_response_tokens), FEW)
    responses = thin.config.rollout.responses_per_iteration
    thin.set("slime.sglang-server-concurrency", min(responses, rollout.concurrent_requests), FEW)
    longest = 256 + thin.config.rollout.max_response_tokens
    # As many responses a micro-batch as SAT's quantile needs, in logits that fit a laptop.
    whole = responses // max(train.data_parallel, 1) * (128 + RESPONSE)
    bound = max(longest, min(whole, 4096)) // train.context_parallel
    thin.set("slime.max-tokens-per-gpu", min(bound, train.max_tokens_per_gpu) or None, FEW)
    thin.set("slime.lr", max(LEARNING_RATE, train.lr), "a thin model has to move by more than what fp32 rounds")
    running = 2 * responses * longest
    thin.set("slime.sglang-max-total-tokens", max(running, 2**13), FEW)
    if evaluation.every_n_iterations:
        thin.set("slime.eval-interval", min(evaluation.every_n_iterations, max(1, iterations // 2)), FEW)
        if evaluation.max_response_tokens:
            thin.set("slime.eval-max-response-len", min(RESPONSE, evaluation.max_response_tokens), FEW)
    if config.checkpoint.every_n_iterations:
        thin.set("slime.save-interval", checkpoint_at(thin.config), FEW)
    thin.set("cluster.restarts", 0, "a job that dies fails the rehearsal, with its error")


def _prompts(config: SlimeConfig, share: int) -> int:
    """Return the prompts of a batch, which `share` divides: at least those asked for, and enough for SAT's quantile to
    lie below the largest |d| of the responses over which it is taken."""
    prompts, sat = math.lcm(PROMPTS, share), config.method.sat
    if sat and sat.alpha < 1:
        of_microbatch = build_method(config.method).scope == "microbatch"
        quantiles = share if of_microbatch else config.pipeline.optimizer_steps_per_rollout
        least = quantiles * math.ceil(1 + 1 / (1 - sat.alpha))
        prompts = max(prompts, share * math.ceil(least / SAMPLES / share))
    return prompts


def checkpoint_at(config: SlimeConfig) -> int:
    """Return the iteration of the checkpoint from which a rehearsal goes on: the run's own where it is early enough,
    else after the last push before the end."""
    iterations, lag = config.pipeline.iterations, max(config.pipeline.lag, 1)
    own = config.checkpoint.every_n_iterations
    return own if 0 < own < iterations else max(1, (iterations - 1) // lag * lag)


def _places(thin: Thin, folder: Path) -> None:
    config = thin.config
    thin.set("slime.hf-checkpoint", str(folder / "model"), "random weights of the thin sizes")
    thin.set("slime.ref-load", str(folder / "model"), "random weights of the thin sizes")
    thin.set("slime.prompt-data", str(folder / "prompts.jsonl"), "a few of the run's, or made")
    if config.eval.every_n_iterations:
        names = [*config.eval.prompts] or ["of-eval-config"]
        sets = [word for n, name in enumerate(names) for word in (name, str(folder / f"eval-{n}.jsonl"))]
        thin.set("slime.eval-prompt-data", sets, "a few of the run's, or made")
        thin.set("slime.eval-config", None, "whose sets are whole")
    thin.set("output_dir", os.path.abspath("rehearsals"), OWN)
    thin.set("slime.save", None, OWN)
    thin.set("slime.use-wandb", None, "nothing of a rehearsal is sent")
    thin.set("cluster.address", None, "a Ray of its own")
    thin.set("slime.save-debug-rollout-data", str(folder / "rollouts" / "{rollout_id}.pt"), "the checks read it")
