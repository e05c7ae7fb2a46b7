"""The view of a run while it goes on: a live terminal view, or one line per step where there is no terminal."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sat_slime.config.jsonl import number
from sat_slime.runs.rows import largest_k

SPARKS = "▁▂▃▄▅▆▇█"
RECENT_ITERATIONS = 32
"""Iterations over which the view averages its speed."""
SPARKLINE_STEPS = 20
WIDE = 100
"""Columns from which on the panel has two columns of numbers."""
ECHO = 2
"""Columns left free beside the panel: on a frame as wide as the terminal the `^C` that this echoes would wrap."""
SHOWN = {
    "reward/mean": ("reward", ".3f"),
    "mismatch/d_pi": ("d_pi", ".4f"),
    "lag/mean": ("lag", "g"),
    "sat/gate_rate": ("gate", ".1%"),
    "sat/newly_clipped": ("newly", ".2%"),
    "clip/fraction": ("clip", ".1%"),
}
"""Metrics that a terminal shows while a run goes on: label and format."""
SHOWN_MESSAGES = 4
CALM_ENGINE_STATES = {"starting", "ready", "generating", "stopped"}
"""States of an engine that are normal; any other, such as a restart, is shown as a warning."""


class View(Protocol):
    """RunLog tells a view these things. Keys of `metrics` are those of metrics.jsonl; any may be missing."""

    def step(self, metrics: Mapping[str, Any]) -> None: ...
    def eval(self, metrics: Mapping[str, Any]) -> None: ...
    def status(self, fields: Mapping[str, Any]) -> None: ...
    def message(self, text: str, level: str) -> None: ...
    def __enter__(self) -> View: ...
    def __exit__(self, *exception: object) -> None: ...


def make_view(
    title: str,
    total_steps: int,
    console: Console | None = None,
    live: bool | None = None,
    first_step: int = 0,
    past: Sequence[Mapping[str, Any]] = (),
    clock: Callable[[], float] = time.monotonic,
) -> View:
    """Return the view of a run. live: whether it repaints itself; default: on a terminal it does, elsewhere it prints
    lines.

    total_steps: optimizer steps of the whole run. first_step: steps made before this start. past: rows of the
    evaluations before it. clock: tells seconds, from which the run's speed is computed.
    """
    console = console or Console()
    progress = Progress(title, total_steps, clock, steps=first_step)
    for row in past:
        progress.add_eval(row)
    return LiveView(progress, console) if is_live(live, console) else PlainView(progress, console)


def is_live(live: bool | None, console: Console) -> bool:
    """Return whether a view repaints itself; `live` None: on a terminal."""
    return console.is_terminal and not console.is_dumb_terminal and "CI" not in os.environ if live is None else live


@dataclass
class Progress:
    """The state of a run that views show."""

    title: str
    total_steps: int
    clock: Callable[[], float] = time.monotonic
    steps: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    """The newest value of every key."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The newest status."""
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_ITERATIONS))
    """Mean rewards of the newest iterations, as many as `times` has."""
    times: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_ITERATIONS))
    """(seconds of the clock, steps made, response tokens of the batch) at the ends of the newest iterations."""
    evals: list[float] = field(default_factory=list)
    eval_interval: tuple[float, float] = (math.nan, math.nan)
    """95 % interval of the newest evaluation, from its samples."""
    messages: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=SHOWN_MESSAGES))

    def add_step(self, metrics: Mapping[str, Any]) -> None:
        iteration = metrics.get("iteration")
        same_batch = iteration is not None and iteration == self.metrics.get("iteration")
        self.metrics.update(metrics)
        self.steps = int(metrics.get("step", self.steps + 1))
        if same_batch and self.times:
            self.times.pop()
        self.times.append((self.clock(), self.steps, int(number(metrics, "tokens/response_total", 0))))
        if not same_batch and (reward := number(metrics, "reward/mean")) == reward:
            self.rewards.append(reward)

    def add_eval(self, metrics: Mapping[str, Any]) -> None:
        if (accuracy := number(metrics, "accuracy")) == accuracy:
            self.evals.append(accuracy)
            self.eval_interval = number(metrics, "accuracy/low_samples"), number(metrics, "accuracy/high_samples")

    @property
    def seconds_per_step(self) -> float:
        """Mean over the recent iterations; NaN until two are known."""
        steps = self.times[-1][1] - self.times[0][1] if self.times else 0
        return (self.times[-1][0] - self.times[0][0]) / steps if steps > 0 else math.nan

    @property
    def seconds_left(self) -> float:
        return self.seconds_per_step * max(0, self.total_steps - self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Response tokens trained per second of wall clock."""
        seconds = self.times[-1][0] - self.times[0][0] if self.times else 0.0
        return sum(tokens for _, _, tokens in list(self.times)[1:]) / seconds if seconds > 0 else math.nan

    @property
    def part_done(self) -> tuple[int, int] | None:
        """(steps made, of so many) of a phase before the first iteration that tells them, such as the warm-up."""
        done, of = self.fields.get("done"), self.fields.get("of")
        return (int(done), int(of)) if done is not None and of else None

    def tell(self, fields: Mapping[str, Any]) -> None:
        """Take a status. What an earlier phase told of its steps is over with it."""
        if fields.get("phase", self.fields.get("phase")) != self.fields.get("phase"):
            self.fields.pop("done", None)
            self.fields.pop("of", None)
        self.fields.update(fields)

    @property
    def engine_warning(self) -> str | None:
        """The engines' newest state where a person should notice it, else None."""
        state = str(self.fields.get("engine", "ready"))
        return None if CALM_ENGINE_STATES.issuperset(state.split(", ")) else state


class PlainView:
    """One line per step."""

    def __init__(self, progress: Progress, console: Console):
        self.progress = progress
        self._console = console
        self._warned: set[str] = set()

    def step(self, metrics: Mapping[str, Any]) -> None:
        self.progress.add_step(metrics)
        self._print(step_line(self.progress))

    def eval(self, metrics: Mapping[str, Any]) -> None:
        self.progress.add_eval(metrics)
        self._print(eval_line(metrics))

    def status(self, fields: Mapping[str, Any]) -> None:
        phase = fields.get("phase")
        # per-step phases would drown the steps; before the first one they are all there is to see
        if phase and phase != self.progress.fields.get("phase") and not self.progress.metrics:
            self._print(str(phase))
        self.progress.tell(fields)
        # "ready (1 restarts)" and "generating (1 restarts)" take turns from then on: each is told once
        if (warning := self.progress.engine_warning) and warning not in self._warned:
            self._warned.add(warning)
            self._print(f"warning: engine {warning}")

    def message(self, text: str, level: str) -> None:
        self._print(text if level == "info" else f"{level}: {text}")

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def step_line(progress: Progress) -> str:
    """Return the newest step in one line of fixed columns; what a step lacks is left out."""
    width = len(str(progress.total_steps))
    parts = [f"step {progress.steps:>{width}}/{progress.total_steps}", *live_words(progress.metrics)]
    if progress.seconds_per_step == progress.seconds_per_step:
        parts.append(f"{progress.tokens_per_second:.0f} tok/s")
        parts.append(f"{progress.seconds_per_step:.2f} s/step")
        parts.append(f"left {duration(progress.seconds_left)}")
    return "  ".join(parts)


def live_words(metrics: Mapping[str, Any]) -> list[str]:
    """Return the metrics of a step that a terminal shows, a label and a value each."""
    known = ((*shown, number(metrics, metric)) for metric, shown in SHOWN.items())
    return [f"{label} {format(value, form)}" for label, form, value in known if value == value]


def eval_line(metrics: Mapping[str, Any]) -> str:
    """Return an evaluation in one line: the 95 % interval is that of the samples, the problems being the same each
    time."""
    accuracy, samples = number(metrics, "accuracy"), metrics.get("n_samples", "?")
    low, high = number(metrics, "accuracy/low_samples"), number(metrics, "accuracy/high_samples")
    interval = f" [{low:.3f}, {high:.3f}]" if low == low else ""
    line = f"eval at step {metrics.get('step', '?')}: accuracy {accuracy:.3f}{interval} ({samples} samples)"
    if (k := largest_k(metrics)) > 1:
        line += f", pass@{k} {number(metrics, f'pass@{k}'):.3f}"
    weights = metrics.get("weights_step")
    return line if weights in (None, metrics.get("step")) else f"{line}, of the weights of step {weights}"


class LiveView:
    """A panel that repaints itself a few times a second; a step only stores numbers."""

    def __init__(self, progress: Progress, console: Console):
        self.progress = progress
        self._console = console
        self._lock = threading.Lock()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=False)

    def step(self, metrics: Mapping[str, Any]) -> None:
        with self._lock:
            self.progress.add_step(metrics)

    def eval(self, metrics: Mapping[str, Any]) -> None:
        with self._lock:
            self.progress.add_eval(metrics)

    def status(self, fields: Mapping[str, Any]) -> None:
        with self._lock:
            self.progress.tell(fields)

    def message(self, text: str, level: str) -> None:
        with self._lock:
            self.progress.messages.append((level, text))

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            # A start that failed has nothing to leave there: the next one has a panel of its own.
            self._live.transient = exception[0] is not None and not self.progress.metrics
        self._live.stop()

    def _render(self) -> RenderableType:
        with self._lock:
            return render(self.progress, self._console.width - ECHO)


def render(progress: Progress, width: int = WIDE) -> RenderableType:
    """Return the live panel, of so many columns."""
    metrics = progress.metrics
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    what, done, total = "step", progress.steps, progress.total_steps
    left = duration(progress.seconds_left) + " left" if progress.times else "starting"
    if progress.part_done is not None:
        what, left = str(progress.fields.get("phase")), ""
        done, total = progress.part_done
    bar.add_row(f"{what} [bold]{done}[/] of {total}", ProgressBar(total=total, completed=done), left)

    spark = sparkline(list(progress.rewards)[-SPARKLINE_STEPS:])
    evals = " → ".join(f"{value:.3f}" for value in dict.fromkeys((*progress.evals[:1], *progress.evals[-1:])))
    if evals and progress.eval_interval[0] == progress.eval_interval[0]:
        evals += "  [dim]{:.3f} to {:.3f}[/]".format(*progress.eval_interval)
    least, most = shown(metrics, "lag/min", "g"), shown(metrics, "lag/max", "g")
    lags = f"  [dim]{least} to {most}[/]" if least != most else ""
    rate = f"{progress.tokens_per_second:,.0f} tokens/s  [dim]at[/] {progress.seconds_per_step:.2f} s/step"
    gate, newly = shown(metrics, "sat/gate_rate", ".1%"), shown(metrics, "sat/newly_clipped", ".2%")
    clipped, radius = shown(metrics, "clip/fraction", ".1%"), shown(metrics, "sat/radius_high", ".3f")
    cells_by_label = {
        "reward": f"[bold]{shown(metrics, 'reward/mean', '.3f')}[/] [cyan]{spark}[/]",
        "eval": evals or "–",
        "mismatch d_pi": shown(metrics, "mismatch/d_pi", ".4f"),
        "lag": f"{shown(metrics, 'lag/mean', '.3g')}{lags}",
        "gate open": f"{gate}  [dim]newly clipped[/] {newly}",
        "clipped": f"{clipped}  [dim]radius[/] {radius}",
        "speed": rate.replace("nan", "–"),
    }
    if phase := progress.fields.get("phase"):  # another terminal is not told it
        cells_by_label["phase"] = escape(str(phase))
    pairs = 2 if width >= WIDE else 1
    table = Table.grid(padding=(0, 2), expand=True)
    for label_width, ratio in ((13, 3), (7, 2))[:pairs]:
        table.add_column(width=label_width, style="dim")
        table.add_column(ratio=ratio, no_wrap=True)
    cells = [cell for pair in cells_by_label.items() for cell in pair]
    for first in range(0, len(cells), 2 * pairs):
        table.add_row(*cells[first : first + 2 * pairs])
    styles = {"health": "not dim bold yellow"} | ({"engine": "not dim bold yellow"} if progress.engine_warning else {})
    others = (
        f"[{styles.get(key, 'dim')}]{escape(key)} {escape(str(value))}[/]"
        for key, value in progress.fields.items()
        if key not in ("phase", "done", "of") and value is not None
    )

    body: list[RenderableType] = [bar, Text(""), table]
    if line := "  ".join(others):
        body.append(Text.from_markup(line, overflow="ellipsis"))
    colours = {"warning": "yellow", "error": "red"}
    body += [
        Text(f"{'' if level == 'info' else level + ': '}{text}", style=colours.get(level, "dim"))
        for level, text in progress.messages
    ]
    title = f"[bold]{escape(progress.title)}[/]"
    return Panel(Group(*body), title=title, title_align="left", border_style="blue", width=width)


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars of eight heights, over their own range."""
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join(SPARKS[round((value - low) / span * 7) if span else 3] for value in values)


def duration(seconds: float) -> str:
    """Return `45 s`, `3 min 20 s`, `2 h 05 min`; a dash when unknown."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def shown(metrics: Mapping[str, Any], key: str, form: str) -> str:
    """Return the number under `key`, formatted; a dash when there is none."""
    value = number(metrics, key)
    return format(value, form) if value == value else "–"
