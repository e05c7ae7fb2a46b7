"""Tells how many seconds a run of slime takes: from given speeds (section `estimate`), or its own iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sat_slime.config.jsonl import number
from sat_slime.config.rules import recompute_is_spared
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.machine import checkpoint_bytes
from sat_slime.launch.memory import BF16, GIB, parameters

START = 600.0
"""Seconds that a start is taken to need where none was measured."""


class Measured(NamedTuple):
    """What a run has measured over its recent iterations."""

    iterations: int
    seconds: float
    """Of an iteration, with its share of pushes, evaluations and checkpoints."""
    length: float
    """Mean response, in tokens."""

    def __str__(self) -> str:
        return f"{words(self.seconds)} an iteration, responses of {self.length:,.0f} tokens, over {self.iterations}"


def measured(
    config: SlimeConfig, metrics: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]]
) -> Measured | None:
    """Return what the rows of metrics.jsonl and times.jsonl say, or None where the run has no iteration yet. The first
    iteration of a job is left out where there are others: it starts, compiles, allocates and fills caches."""
    recent = ([row for row in times if "time/start" not in row] or list(times))[-50:]
    steps = config.pipeline.optimizer_steps_per_rollout
    ended = {row.get("iteration") for row in recent}
    lengths = [number(row, "tokens/response_total") for row in metrics if number(row, "step", 0) / steps in ended]
    if not (recent and lengths):
        return None
    total = sum(number(row, key) for row in recent for key in row if key.startswith("time/"))
    length = sum(lengths) / len(lengths) / config.rollout.responses_per_iteration
    return Measured(len(recent), total / len(recent), length)


def given(config: SlimeConfig, length: float) -> dict[str, float]:
    """Return the seconds of each part by the given speeds: a batch is generated, trained, weights are pushed, a model
    is evaluated, a checkpoint saved. Prompts are taken to have 256 tokens, evaluation sets 30 problems, the disk
    2 GiB/s. Not counted: rewards, the wait for a batch's slowest response, R3's routes, an offloaded optimizer."""
    speeds, evaluation = config.estimate, config.eval
    engines = config.rollout.engines * speeds.engine_tokens_per_second
    # A backward pass counts as two; the reference and the log-probs under the weights that generated are a pass each.
    passes = 3 + (config.train.recompute == "full") + bool(config.loss.kl_coef) + (not recompute_is_spared(config))
    flops = passes * forward_flops(config, 256 + length)
    answers = len(evaluation.prompts) * 30 * evaluation.samples
    return {
        "generate": config.rollout.responses_per_iteration * length / engines,
        "train": flops / (config.train.world_size * speeds.trainer_tflops * 1e12),
        "push": BF16 * parameters(config.model) / (speeds.push_gib_per_second * GIB),
        "evaluate": answers * min(length, evaluation.max_response_tokens or length) / engines,
        "save": checkpoint_bytes(config) / (2 * GIB),
    }


def forward_flops(config: SlimeConfig, tokens: float) -> float:
    """Return the FLOPs of a forward pass over a batch of sequences of so many tokens: 2 for each parameter that a token
    meets, and causal attention over its context."""
    model = config.model
    met = parameters(model, active=True)
    if not model.tied_embeddings:
        met -= model.vocab_size * model.hidden_size  # rows of the input embedding are only looked up
    attention = 2 * model.layers * model.attention_heads * model.head_dim * tokens**2
    return config.rollout.responses_per_iteration * (2 * met * tokens + attention)


def seconds_of(config: SlimeConfig, parts: Mapping[str, float]) -> float:
    """Return the seconds of a whole run: with lag 0, or one GPU for all, one thing after another; else a batch is made
    while one is trained and saved, and the longer counts. In mode streaming evaluations are beside generation, too."""
    pipeline, iterations = config.pipeline, config.pipeline.iterations
    every = {"evaluate": config.eval.every_n_iterations, "save": config.checkpoint.every_n_iterations}
    share = {part: parts[part] / often if often else 0.0 for part, often in every.items()}
    push, streaming = parts["push"] / max(pipeline.lag, 1), pipeline.mode == "streaming"
    training = parts["train"] + share["save"] + share["evaluate"] * streaming
    beside = (streaming or pipeline.lag) and not config.cluster.share_gpu
    batch = max(parts["generate"], training) if beside else parts["generate"] + training
    return START + iterations * (batch + push + share["evaluate"] * (not streaming))


def duration_lines(config: SlimeConfig, measured: Measured | None = None, done: int = 0) -> list[str]:
    """Return how long the whole run takes, and what is left of it after `done` iterations, where it has measured that;
    else a line for each of several mean lengths of responses, and the speeds that they rest on."""
    iterations, longest, speeds = config.pipeline.iterations, config.rollout.max_response_tokens, config.estimate

    def told(seconds: float) -> str:
        return words(seconds) + (f", {_short(seconds / 3600 * config.gpus)} GPU-hours" if config.gpus else "")

    if measured:
        left = words(left_s) if (left_s := (iterations - done) * measured.seconds) > 0 else "nothing"
        return [f"{told(START + iterations * measured.seconds)}, of which {left} is left", f"measured: {measured}"]
    if not config.gpus:
        return ["no estimate on a CPU before the run has measured its own speed"]
    if not parameters(config.model):
        return ["no estimate: slime has no flags for the model's size, or its layout is not counted"]
    lines = []
    for length in [*(n for n in (2048, 8192) if n < longest), longest]:
        parts = given(config, length)
        each = ", ".join(f"{part} {words(seconds)}" for part, seconds in parts.items())
        lines.append(f"{told(seconds_of(config, parts))} at {length:,.0f} tokens a response: {each}")
    lines.append(
        f"an estimate from given speeds (section estimate): {speeds.engine_tokens_per_second:,.0f} tokens/s an engine, "
        f"{speeds.trainer_tflops:g} TFLOP/s a GPU in training, push {speeds.push_gib_per_second:g} GiB/s"
    )
    return lines


def words(seconds: float) -> str:
    """Return a time in a unit that suits it: `7.1 s`, `5.6 min`, `17 h`, `4.7 days`."""
    units = ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h"))
    size, name = next(((size, name) for most, size, name in units if seconds < most), (86_400, "days"))
    return f"{_short(seconds / size)} {name}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
