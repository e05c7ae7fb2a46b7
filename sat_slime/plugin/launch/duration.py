"""Estimates how long a run of slime takes: seconds of each part of an iteration, days and GPU-hours of the whole run.

Everything here is a pure function of the settings, of a mean response length, and of what the run has measured so far.
Rewards are left out: they are computed beside the generation. `duration_lines` shows an estimate to a person.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.config.jsonl import number
from sat_slime.config.method_section import build_method
from sat_slime.config.slime_checks import spares_recompute
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.plugin.launch.machine import checkpoint_bytes, checkpoints_on_disk
from sat_slime.plugin.launch.memory.elements import (
    Cut,
    active_parameters,
    elements,
    moe_layers,
    parameters,
    stage_tensors,
)
from sat_slime.plugin.launch.memory.memory_needs import (
    BF16,
    FP32,
    GIB,
    engine_kv_tokens,
    engine_weights_bytes,
    kv_bytes_per_token,
)
from sat_slime.plugin.launch.memory.memory_sizes import sizes

PROBLEMS = 30
"""Problems that an evaluation set is taken to have where its file is not here: those of AIME."""
LENGTHS = (2048, 8192)
"""Mean response lengths that an estimate is made for, besides the longest."""
RECENT_ITERATIONS = 50
"""Iterations over which speeds are measured."""
OWN_DECODERS = {"rollout-function-path", "eval-function-path", "custom-generate-function-path"}
"""Flags with functions that may decode routes themselves, to which engines send them as slime's do."""
STREAMED = ("time/collect", "time/train", "time/save", "time/eval")
"""Columns of times.jsonl during which engines generate in mode streaming."""


@dataclass(frozen=True)
class Measured:
    """The speeds that a run has measured over its recent iterations; None for what it has not done yet."""

    iterations: int
    """Iterations that were measured."""
    length: float
    """Mean response, in tokens."""
    engine_tokens_per_second: float | None
    """Tokens that an engine generates a second, the wait for the slowest response included."""
    hand_over: float
    """Seconds from the last response of a batch until the driver has the batch."""
    train: float | None
    """Seconds of training a batch."""
    push: float | None = None
    evaluate: float | None = None
    save: float | None = None
    start: float | None = None
    """Seconds from the driver's start until the engines had weights."""


@dataclass(frozen=True)
class Parts:
    """Seconds of each part of an iteration; 0 where a run has none."""

    generate: float
    """Of a batch."""
    train: float
    """Of a batch, the optimizer included."""
    push: float
    """Of the weights to the engines."""
    evaluate: float
    save: float


@dataclass(frozen=True)
class Estimate:
    """Time and cost of a run whose mean response has `length` tokens. Times are in seconds."""

    length: float
    parts: Parts
    bound: str
    """What an iteration waits for."""
    total: float
    """Of the whole run, its start included."""
    left: float
    """Of the iterations that are still to be done."""
    iterations: int
    gpus: int
    running: int
    """Requests for which an engine's KV cache has room at once, at most those that it is asked for."""

    @property
    def iteration(self) -> float:
        """Mean of an iteration with its share of pushes, evaluations and checkpoints."""
        return self.total / self.iterations

    @property
    def gpu_hours(self) -> float:
        return self.total / 3600 * self.gpus


def estimates(config: SlimeConfig, measured: Measured | None = None, done: int = 0) -> list[Estimate]:
    """Estimates for a mean response of 2k and 8k tokens and the longest, as far as responses may be that long; for the
    measured length alone where there is one."""
    longest = config.rollout.max_response_tokens
    lengths = [measured.length] if measured else [*(length for length in LENGTHS if length < longest), longest]
    return [estimate(config, length, measured, done) for length in lengths]


def estimate(config: SlimeConfig, length: float, measured: Measured | None = None, done: int = 0) -> Estimate:
    """Return the time and cost of a run.

    Args:
        length: mean response, in tokens.
        measured: replaces what `config.estimate` assumes.
        done: iterations that are done.
    """
    rollout, assumed = config.rollout, config.estimate
    generate, why = generation_seconds(config, length)
    train, push = training_seconds(config, length), push_seconds(config)
    evaluate, save, start = evaluation_seconds(config, length), save_seconds(config), assumed.start_seconds
    if measured is not None:
        if measured.engine_tokens_per_second:
            tokens = rollout.responses_per_iteration * length
            generate = tokens / rollout.engines / measured.engine_tokens_per_second + measured.hand_over
            why = "generation"
        train = measured.train * length / measured.length if measured.train is not None else train
        push = push if measured.push is None else measured.push
        evaluate = evaluate if measured.evaluate is None or not evaluate else measured.evaluate
        save = save if measured.save is None or not save else measured.save
        start = start if measured.start is None else measured.start
    parts = Parts(generate, train, push, evaluate, save)
    ends = iteration_ends(config, parts)
    return Estimate(
        length=length,
        parts=parts,
        bound=_bound(config, parts, why),
        total=start + ends[-1],
        left=ends[-1] - ([0.0, *ends])[min(done, len(ends))],
        iterations=config.pipeline.iterations,
        gpus=config.train.world_size + rollout.gpus,
        running=running_requests(config, length),
    )


# -------------------------------------------------------------------------------------------------------- the order


def iteration_ends(config: SlimeConfig, parts: Parts) -> list[float]:
    """Return the seconds after the start at which each iteration ends, in the order of sat_slime.plugin.driver: pushes
    and evaluations wait for the batch in flight; in mode streaming the engines pause for a push alone."""
    pipeline, every = config.pipeline, config.pipeline.lag or 1
    evaluates, saves = config.eval.every_n_iterations, config.checkpoint.every_n_iterations
    streams = pipeline.mode == "streaming"
    ahead = max(1, (pipeline.max_staleness + 1) // pipeline.optimizer_steps_per_rollout)  # batches, in mode streaming
    now = parts.push + (parts.evaluate if evaluates and config.hooks.evaluate_first else 0.0)
    ready: float | None = None  # when the batch that is generated ahead is complete
    complete, taken, ends = parts.push, [parts.push] * ahead, []
    for iteration in range(1, pipeline.iterations + 1):
        is_last = iteration == pipeline.iterations
        if streams:
            complete = max(complete, taken[-ahead]) + parts.generate
            now = max(now, complete)
            taken.append(now)
        else:
            now = now + parts.generate if ready is None else max(now, ready)
            ready = now + parts.generate if pipeline.lag and not is_last else None
        now += parts.train
        if saves and (is_last or iteration % saves == 0):
            now += parts.save
        if is_last or iteration % every == 0:
            now = max(now, ready or now) + parts.push
            complete += parts.push
        if evaluates and (iteration % evaluates == 0 or (is_last and config.hooks.evaluate_last)):
            now = max(now, ready or now) + parts.evaluate
        ends.append(now)
    return ends


def _bound(config: SlimeConfig, parts: Parts, generation: str) -> str:
    """Return what an iteration waits for. generation: what bounds the generation."""
    if not config.pipeline.lag and config.pipeline.mode == "batch":
        return f"{generation}, then training"
    return generation if parts.generate >= parts.train else "training"


# --------------------------------------------------------------------------------------------------------- engines


def kv_tokens(config: SlimeConfig) -> int:
    """Return the tokens that an engine's KV cache holds."""
    return engine_kv_tokens(config, sizes(config).gpu.bytes)


def running_requests(config: SlimeConfig, length: float, responses: int | None = None) -> int:
    """Return the requests that run side by side on one engine: those that it is asked for, as far as their KV fits.
    Responses in flight have half their length on average. responses: of the whole batch; default: an iteration's."""
    rollout = config.rollout
    asked = (responses or rollout.responses_per_iteration) / rollout.engines
    fits = kv_tokens(config) / (config.estimate.prompt_tokens + length / 2)
    return max(1, int(min(rollout.concurrent_requests, asked, fits)))


def decode_seconds(config: SlimeConfig, running: int, context: float) -> float:
    """Return the seconds in which an engine makes a token for each of the `running` requests: what a GPU takes to read
    the weights that they meet and their KV cache, and a part that does not depend on them."""
    rollout, model = config.rollout, config.model
    weights = float(engine_weights_bytes(config))
    if model.is_moe:
        cut = Cut(tensor=rollout.gpus_per_engine, expert_tensor=rollout.gpus_per_engine)
        tensors = list(stage_tensors(model, cut, 0, moe_layers(model)))
        unmet = (1 - min(1.0, model.experts_per_token / model.experts)) ** running
        weights *= 1 - unmet * elements(tensors, expert=True) / elements(tensors)
    read = weights + running * context * kv_bytes_per_token(config)
    return config.estimate.decode_step_ms / 1e3 + read / (config.estimate.gpu_tb_per_second * 1e12)


def engine_tokens_per_second(config: SlimeConfig, length: float, running: int) -> float:
    """Return the tokens that one engine generates a second with so many requests."""
    given = config.estimate.engine_tokens_per_second
    return given or running / decode_seconds(config, running, config.estimate.prompt_tokens + length / 2)


def slowest_seconds(config: SlimeConfig, longest: int) -> float:
    """Return the seconds that a response of the longest length takes on an engine of its own."""
    alone = decode_seconds(config, 1, config.estimate.prompt_tokens + longest / 2)
    return longest / (config.estimate.request_tokens_per_second or 1 / alone)


def generation_seconds(config: SlimeConfig, length: float) -> tuple[float, str]:
    """Return the seconds of generating a batch, and what bounds it: the engines; in mode batch, the longest response
    alone; with R3, the rollout manager, through whose one thread all routes go."""
    rollout = config.rollout
    tokens = rollout.responses_per_iteration * length
    speed = engine_tokens_per_second(config, length, running_requests(config, length))
    seconds = {"generation": tokens / (rollout.engines * speed)}
    if config.pipeline.mode == "batch":
        seconds["the slowest response"] = slowest_seconds(config, rollout.max_response_tokens)
    seconds["routes in the rollout manager"] = tokens / route_tokens_per_second(config)
    bound = max(seconds, key=lambda name: seconds[name])
    return seconds[bound], bound


def route_tokens_per_second(config: SlimeConfig) -> float:
    """Return the tokens a second whose routes (R3) the rollout manager decodes. For each layer and expert there arrives
    a byte where engines send them so (plugin/driver.py, narrows_replies), else an int32."""
    if not (config.method.r3 and config.model.is_moe):
        return math.inf
    narrow = config.hooks.narrow_routed_experts and config.model.experts <= 255
    size = 1 if narrow and not OWN_DECODERS.intersection(config.slime) else FP32
    width = size * sum(moe_layers(config.model)) * config.model.experts_per_token
    return config.estimate.route_mb_per_second * 1e6 / width


def evaluation_seconds(config: SlimeConfig, length: float) -> float:
    """Return the seconds of an evaluation; 0 where there are none. The sets are evaluated together, as slime does."""
    evaluation, rollout = config.eval, config.rollout
    samples = evaluation.samples_per_problem * evaluation.repeats
    responses = samples * sum(problems(file) for file in evaluation.prompts.values())
    if not (evaluation.every_n_iterations and responses):
        return 0.0
    longest = evaluation.max_response_tokens or rollout.max_response_tokens
    length = min(length, longest)
    speed = engine_tokens_per_second(config, length, running_requests(config, length, responses))
    seconds = max(responses * length / (rollout.engines * speed), slowest_seconds(config, longest))
    return max(seconds, responses * length / route_tokens_per_second(config))


def problems(file: str) -> int:
    """Return the problems of an evaluation set: the lines of its file, or its part `FILE@[first:last]`; PROBLEMS where
    the file is not here or has another format."""
    name, *part = re.split(r"@\[(?=-?\d*:-?\d*\]$)", file)
    try:
        with Path(name).open("rb") as lines:
            count = sum(1 for line in lines if line.strip()) if name.endswith(".jsonl") else PROBLEMS
    except OSError:
        return PROBLEMS
    if not part:
        return count
    first, last = (int(end) if end else None for end in part[0].rstrip("]").split(":"))
    return len(range(count)[first:last])


# --------------------------------------------------------------------------------------------------------- trainer


def forward_flops(config: SlimeConfig, length: float) -> float:
    """Return the FLOPs of a forward pass over a batch: 2 for each parameter that a token meets, and causal attention
    over its context. All responses are taken to have the mean length."""
    model = config.model
    sequence = config.estimate.prompt_tokens + length
    met = active_parameters(model)
    if model.architecture.get("untie-embeddings-and-output-weights"):
        met -= model.vocab_size * model.hidden_size  # rows of the input embedding are only looked up
    attention = 2 * model.layers * model.attention_heads * model.head_dim * sequence**2
    return config.rollout.responses_per_iteration * (2 * met * sequence + attention)


def forward_passes(config: SlimeConfig) -> int:
    """Return the forward passes over a batch that training amounts to: a backward pass counts as two."""
    method = build_method(config.method)
    recomputed = config.train.recompute == "full"
    spared = spares_recompute(method, config.pipeline.optimizer_steps_per_rollout)
    return 3 + recomputed + bool(config.loss.kl_coef) + (not spared)


def training_seconds(config: SlimeConfig, length: float) -> float:
    """Return the seconds of training a batch: passes over it, and the steps of an offloaded optimizer."""
    train, assumed = config.train, config.estimate
    flops = forward_passes(config) * forward_flops(config, length)
    seconds = flops / (train.world_size * assumed.trainer_tflops * 1e12)
    if train.optimizer_offload:
        steps = config.pipeline.optimizer_steps_per_rollout
        seconds += steps * parameters(config.model) / train.nodes / (assumed.offloaded_adam_billions_per_second * 1e9)
    return seconds


def push_seconds(config: SlimeConfig) -> float:
    """Return the seconds of sending the weights to the engines."""
    return BF16 * parameters(config.model) / (config.estimate.push_gib_per_second * GIB)


def save_seconds(config: SlimeConfig) -> float:
    """Return the seconds of writing a checkpoint; 0 where there are none."""
    if not config.checkpoint.every_n_iterations:
        return 0.0
    return checkpoint_bytes(config) / (config.estimate.disk_gib_per_second * GIB)


# -------------------------------------------------------------------------------------------------------- measured


def measured(
    config: SlimeConfig, metrics: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]]
) -> Measured | None:
    """Return what a run has measured, or None where it has no iteration yet.

    Args:
        metrics: rows of metrics.jsonl.
        times: rows of times.jsonl.
    """
    steps = config.pipeline.optimizer_steps_per_rollout
    batches = {math.ceil(number(row, "step") / steps): row for row in metrics if number(row, "step") > 0}
    rows = [{**batches[row["iteration"]], **row} for row in times if row.get("iteration") in batches]
    if not rows:
        return None
    pairs = list(itertools.pairwise([{}, *rows]))
    # The first iteration of a job compiles, allocates and fills caches.
    pairs = ([pair for pair in pairs if "time/start" not in pair[1]] or pairs)[-RECENT_ITERATIONS:]
    recent = [row for _, row in pairs]
    tokens = sum(_values(recent, "tokens/response_total"))
    if config.pipeline.mode == "streaming":  # it never pauses but for a push
        generating = sum(sum(_values([row], *STREAMED)) for row in recent)
        late = None
    else:
        generating = sum(_values(recent, "time/rollout"))
        late = _mean([seconds for pair in pairs if not math.isnan(seconds := _hand_over(config, *pair))])
    return Measured(
        iterations=len(recent),
        length=tokens / len(recent) / config.rollout.responses_per_iteration,
        engine_tokens_per_second=tokens / generating / config.rollout.engines if generating else None,
        hand_over=max(late or 0.0, 0.0),
        train=_mean(_values(recent, "time/train")),
        push=_mean([push + number(row, "time/canary", 0.0) for row in recent for push in _values([row], "time/push")]),
        evaluate=_mean(_values(rows, "time/eval", "time/first_eval")),
        save=_mean(_values(rows, "time/save")),
        start=_mean(_values(rows, "time/start")),
    )


def _hand_over(config: SlimeConfig, before: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Return the seconds between the end of a batch's generation and the driver's having it; NaN where the driver did
    not wait. before: the row of the iteration in which the batch was asked for, if it was generated ahead."""
    generated = number(row, "time/rollout")
    if not config.pipeline.lag:
        return number(row, "time/collect") - generated
    waits = number(before, "time/flight", 0.0), number(row, "time/collect")
    if max(waits) < 0.1 * generated or (waits[0] == 0.0 and {"time/push", "time/eval"} & before.keys()):
        return math.nan
    return number(before, "time/train") + number(before, "time/save", 0.0) + (waits[0] or waits[1]) - generated


def _values(rows: Sequence[Mapping[str, Any]], *keys: str) -> list[float]:
    return [value for row in rows for key in keys if not math.isnan(value := number(row, key))]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# ------------------------------------------------------------------------------------------------------- for a person


def duration_lines(config: SlimeConfig, measured: Measured | None = None, done: int = 0) -> list[str]:
    """Return a table with a column for each mean response length, and what was assumed or measured.

    Args:
        measured: what the run has measured so far.
        done: iterations that are done.
    """
    if not parameters(config.model):
        return ["no estimate: model.architecture does not give the model's size"]
    on_cpu = config.cluster.device == "cpu"
    if on_cpu and measured is None:
        return ["no estimate on a CPU before the run has measured its own speeds"]
    rows: dict[str, Callable[[Estimate], str]] = {
        "mean response": lambda column: f"{column.length:,.0f} tokens",
        "generate a batch": lambda column: words(column.parts.generate),
        "train on it": lambda column: words(column.parts.train),
        "push, evaluate, save": lambda column: ", ".join(
            words(part) if part else "–" for part in (column.parts.push, column.parts.evaluate, column.parts.save)
        ),
        "an iteration waits for": lambda column: column.bound,
        f"all {config.pipeline.iterations} iterations": lambda column: words(column.total) + _cost(config, column),
    }
    if done:
        rows["still to be done"] = lambda column: words(column.left)
    if not on_cpu:
        asked = config.rollout.concurrent_requests
        rows["requests in the KV cache"] = lambda column: f"{column.running} of {asked} at once"
    columns = estimates(config, measured, done)
    cells = [[label, *(cell(column) for column in columns)] for label, cell in rows.items()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return table + _basis(config, measured)


def _cost(config: SlimeConfig, column: Estimate) -> str:
    """Return the GPU-hours, where the GPUs that settings count are some."""
    if config.cluster.device == "cpu":
        return ""
    return f", {column.gpu_hours:,.0f} GPU-hours" if column.gpu_hours >= 10 else f", {column.gpu_hours:.1f} GPU-hours"


def _basis(config: SlimeConfig, measured: Measured | None) -> list[str]:
    """Return what the table rests on: the KV cache and the disk, and speeds."""
    assumptions, every, lines = config.estimate, config.checkpoint.every_n_iterations, []
    if config.cluster.device == "gpu":
        count, size = checkpoints_on_disk(config), f"{checkpoint_bytes(config) / GIB:,.0f} GiB"
        lines.append(f"KV cache: {kv_tokens(config):,} tokens an engine; disk: {count} checkpoints of {size}")
    engines = f"{assumptions.gpu_tb_per_second:g} TB/s read by a GPU of an engine"
    if assumptions.engine_tokens_per_second:
        engines = f"{assumptions.engine_tokens_per_second:,.0f} tokens/s an engine"
    known = measured or Measured(0, 0.0, None, 0.0, None)
    assumed = [
        text
        for value, text in (
            (known.engine_tokens_per_second, engines),
            (known.train, f"{assumptions.trainer_tflops:g} TFLOP/s a GPU in training"),
            (known.push, f"push {assumptions.push_gib_per_second:g} GiB/s"),
            (known.save if every else 0.0, f"disk {assumptions.disk_gib_per_second:g} GiB/s"),
        )
        if value is None
    ]
    if measured is not None:
        lines.append(f"measured: {measured_words(measured)}")
    if assumed:
        lines.append(f"assumed (section estimate): {', '.join(assumed)}")
    return lines


def measured_words(measured: Measured) -> str:
    """Return `1,820 tokens/s an engine, responses of 9,210 tokens, over 12 iterations`."""
    speed = measured.engine_tokens_per_second
    shown_speed = f"{speed:,.0f} tokens/s an engine, " if speed else ""
    return f"{shown_speed}responses of {measured.length:,.0f} tokens, over {measured.iterations} iterations"


def words(seconds: float) -> str:
    """Return a time in a unit that suits it: `7.1 s`, `5.6 min`, `17 h`, `4.7 days`."""
    for name, size, most in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800), ("days", 86_400, math.inf)):
        if seconds < most:
            value = seconds / size
            return f"{value:,.0f} {name}" if value >= 10 else f"{value:.1f} {name}"
    return "–"
