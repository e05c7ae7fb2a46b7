"""Estimates how long a run of slime takes, from given speeds (section `estimate`) until it has measured its own.

Rewards are left out: they are computed beside the generation. All times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sat_slime.config.jsonl import number
from sat_slime.config.method_section import build_method
from sat_slime.config.slime_checks import spares_recompute
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.machine import checkpoint_bytes
from sat_slime.launch.memory import BF16, GIB, parameters

Parts = Mapping[str, float]
"""Seconds of `start`, `generate` and `train` (a batch), `push`, `evaluate` and `save`."""


class Measured(NamedTuple):
    """What a run has measured over its recent iterations."""

    iterations: int
    length: float
    """Mean response, in tokens."""
    tokens_per_second: float
    """Of an engine, the wait for the slowest response included; NaN where nothing was timed."""
    parts: Parts
    """Without what was not done."""

    def __str__(self) -> str:
        speed = "" if math.isnan(self.tokens_per_second) else f"{self.tokens_per_second:,.0f} tokens/s an engine, "
        return f"{speed}responses of {self.length:,.0f} tokens, over {self.iterations} iterations"


def time_of(config: SlimeConfig, parts: Parts, first: int, last: int) -> float:
    """Return the seconds of the iterations from `first` (from 0) to before `last`: with lag 0 one thing after another;
    else a batch is generated while one is trained and saved, and the longer counts. Pushes and evaluations wait for the
    batch in flight; in mode streaming evaluations do not."""
    pipeline, count, begins = config.pipeline, last - first, first == 0

    def times(every: int, before: bool) -> int:
        """Count what is done every so many iterations and at the end, and before the first one."""
        return last // every - first // every + (last % every != 0) + before if every else 0

    generate, train = count * parts["generate"], count * parts["train"]
    push = times(max(pipeline.lag, 1), begins) * parts["push"]
    evaluate = times(config.eval.every_n_iterations, begins) * parts["evaluate"]
    train += times(config.checkpoint.every_n_iterations, False) * parts["save"]
    if pipeline.mode == "streaming":
        train, evaluate = train + evaluate, 0.0
    elif not pipeline.lag:
        return push + evaluate + generate + train
    # The first batch has nothing beside it, and the last one's training neither.
    alone = min(parts["generate"], parts["train"]) if begins else 0.0
    return push + evaluate + max(generate, train) + alone


def given(config: SlimeConfig, length: float) -> Parts:
    """Return the seconds of each part by the given speeds, a start of ten minutes, prompts of 256 tokens, evaluation
    sets of 30 problems and 2 GiB/s to disk. Not counted: the wait for the slowest response of a batch, R3's routes and
    the steps of an offloaded optimizer."""
    speeds, evaluation = config.estimate, config.eval
    engines = config.rollout.engines * speeds.engine_tokens_per_second
    trainer = config.train.world_size * speeds.trainer_tflops * 1e12
    spared = spares_recompute(build_method(config.method), config.pipeline.optimizer_steps_per_rollout)
    # A backward pass counts as two; the reference and the log-probs under the weights that generated are a pass each.
    passes = 3 + (config.train.recompute == "full") + bool(config.loss.kl_coef) + (not spared)
    answers = len(evaluation.prompts) * 30 * evaluation.samples
    return {
        "start": 600.0,
        "generate": config.rollout.responses_per_iteration * length / engines,
        "train": passes * forward_flops(config, 256 + length) / trainer,
        "push": BF16 * parameters(config.model) / (speeds.push_gib_per_second * GIB),
        "evaluate": answers * min(length, evaluation.max_response_tokens or length) / engines,
        "save": checkpoint_bytes(config) / (2 * GIB),
    }


def forward_flops(config: SlimeConfig, tokens: float) -> float:
    """Return the FLOPs of a forward pass over a batch of sequences of so many tokens: 2 for each parameter that a token
    meets, and causal attention over its context."""
    model = config.model
    met = parameters(model, active=True)
    if model.architecture.get("untie-embeddings-and-output-weights"):
        met -= model.vocab_size * model.hidden_size  # rows of the input embedding are only looked up
    attention = 2 * model.layers * model.attention_heads * model.head_dim * tokens**2
    return config.rollout.responses_per_iteration * (2 * met * tokens + attention)


def measured(
    config: SlimeConfig, metrics: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]]
) -> Measured | None:
    """Return what the rows of metrics.jsonl and times.jsonl say, or None where the run has no iteration yet."""
    steps = config.pipeline.optimizer_steps_per_rollout
    batches = {math.ceil(number(row, "step") / steps): row for row in metrics if number(row, "step") > 0}
    rows = [{**batches[row["iteration"]], **row} for row in times if row.get("iteration") in batches]
    if not rows:
        return None
    # The first iteration of a job compiles, allocates and fills caches; lengths and speeds change as a run goes on.
    recent = ([row for row in rows if "time/start" not in row] or rows)[-50:]
    generating = ["time/rollout"]
    if config.pipeline.mode == "streaming":  # the engines pause for a push alone
        generating = ["time/collect", "time/train", "time/save", "time/eval"]
    elif not config.pipeline.lag:  # the driver waits until it has the batch
        generating = ["time/collect"]
    values = {
        "start": _values(rows, "time/start"),
        "generate": [total for row in recent if (total := sum(_values([row], *generating)))],
        "train": _values(recent, "time/train"),
        "push": [push + number(row, "time/canary", 0.0) for row in recent for push in _values([row], "time/push")],
        "evaluate": _values(rows, "time/eval", "time/first_eval"),
        "save": _values(rows, "time/save"),
    }
    parts = {part: sum(seconds) / len(seconds) for part, seconds in values.items() if sum(seconds)}
    tokens = sum(_values(recent, "tokens/response_total")) / len(recent)
    speed = tokens / config.rollout.engines / parts.get("generate", math.nan)
    return Measured(len(recent), tokens / config.rollout.responses_per_iteration, speed, parts)


def _values(rows: Sequence[Mapping[str, Any]], *keys: str) -> list[float]:
    return [value for row in rows for key in keys if not math.isnan(value := number(row, key))]


def duration_lines(config: SlimeConfig, measured: Measured | None = None, done: int = 0) -> list[str]:
    """Return a line for each mean response length, the measured alone where there is one, and the speeds that they rest
    on. done: iterations that are done."""
    if not parameters(config.model):
        return ["no estimate: slime has no flags for the model's size, or its attention is latent"]
    on_cpu, longest, speeds = config.cluster.device == "cpu", config.rollout.max_response_tokens, config.estimate
    if on_cpu and measured is None:
        return ["no estimate on a CPU before the run has measured its own speeds"]
    gpus, iterations = config.train.world_size + config.rollout.gpus, config.pipeline.iterations
    lines = []
    for length in [measured.length] if measured else [*(n for n in (2048, 8192) if n < longest), longest]:
        parts = {**given(config, length), **(measured.parts if measured else {})}
        total = parts["start"] + time_of(config, parts, 0, iterations)
        cost = "" if on_cpu else f", {_short(total / 3600 * gpus)} GPU-hours"
        left = f", of which {words(time_of(config, parts, done, iterations))} are left" if done else ""
        each = ", ".join(f"{part} {words(parts[part])}" for part in ("generate", "train", "push", "evaluate", "save"))
        lines.append(f"{words(total)}{cost}{left} at {length:,.0f} tokens a response: {each}")
    basis = {
        "generate": f"{speeds.engine_tokens_per_second:,.0f} tokens/s an engine",
        "train": f"{speeds.trainer_tflops:g} TFLOP/s a GPU in training",
        "push": f"push {speeds.push_gib_per_second:g} GiB/s",
    }
    if measured:
        lines.append(f"measured: {measured}")
    if assumed := [text for part, text in basis.items() if not (measured and part in measured.parts)]:
        lines.append(f"an estimate from given speeds (section estimate): {', '.join(assumed)}")
    return lines


def words(seconds: float) -> str:
    """Return a time in a unit that suits it: `7.1 s`, `5.6 min`, `17 h`, `4.7 days`."""
    units = ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h"), (math.inf, 86_400, "days"))
    size, name = next((size, name) for most, size, name in units if seconds < most)
    return f"{_short(seconds / size)} {name}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
