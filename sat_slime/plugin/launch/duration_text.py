"""The estimate of a run's time and cost as lines for a person."""

from __future__ import annotations

import math
from collections.abc import Callable

from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.plugin.launch.duration import Estimate, Measured, estimates, kv_tokens
from sat_slime.plugin.launch.machine import checkpoint_bytes, checkpoints_on_disk
from sat_slime.plugin.launch.memory.elements import parameters
from sat_slime.plugin.launch.memory.engine import GIB


def duration_lines(config: SlimeConfig, measured: Measured | None = None, done: int = 0) -> list[str]:
    """A table with a column for each mean response length, and what was assumed or measured.

    Args:
        measured: what the run has measured so far.
        done: iterations that are done.
    """
    if not parameters(config.model):
        return ["no estimate: model.architecture does not tell the model's size"]
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
    """GPU-hours, where the GPUs that settings count are some."""
    if config.cluster.device == "cpu":
        return ""
    return f", {column.gpu_hours:,.0f} GPU-hours" if column.gpu_hours >= 10 else f", {column.gpu_hours:.1f} GPU-hours"


def _basis(config: SlimeConfig, measured: Measured | None) -> list[str]:
    """What the table rests on: the KV cache and the disk, and speeds."""
    given, every, lines = config.estimate, config.checkpoint.every_n_iterations, []
    if config.cluster.device == "gpu":
        count, size = checkpoints_on_disk(config), f"{checkpoint_bytes(config) / GIB:,.0f} GiB"
        lines.append(f"KV cache: {kv_tokens(config):,} tokens an engine; disk: {count} checkpoints of {size}")
    engines = f"{given.gpu_tb_per_second:g} TB/s read by a GPU of an engine"
    if given.engine_tokens_per_second:
        engines = f"{given.engine_tokens_per_second:,.0f} tokens/s an engine"
    known = measured or Measured(0, 0.0, None, 0.0, None)
    assumed = [
        text
        for value, text in (
            (known.engine_tokens_per_second, engines),
            (known.train, f"{given.trainer_tflops:g} TFLOP/s a GPU in training"),
            (known.push, f"push {given.push_gib_per_second:g} GiB/s"),
            (known.save if every else 0.0, f"disk {given.disk_gib_per_second:g} GiB/s"),
        )
        if value is None
    ]
    if measured is not None:
        lines.append(f"measured: {measured_words(measured)}")
    if assumed:
        lines.append(f"assumed (section estimate): {', '.join(assumed)}")
    return lines


def measured_words(measured: Measured) -> str:
    """`1,820 tokens/s an engine, responses of 9,210 tokens, over 12 iterations`."""
    speed = measured.engine_tokens_per_second
    told = f"{speed:,.0f} tokens/s an engine, " if speed else ""
    return f"{told}responses of {measured.length:,.0f} tokens, over {measured.iterations} iterations"


def words(seconds: float) -> str:
    """A time in a unit that suits it: `7.1 s`, `5.6 min`, `17 h`, `4.7 days`."""
    for name, size, most in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800), ("days", 86_400, math.inf)):
        if seconds < most:
            value = seconds / size
            return f"{value:,.0f} {name}" if value >= 10 else f"{value:.1f} {name}"
    return "–"
