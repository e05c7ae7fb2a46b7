"""Metric: a number of a run: its name and unit, how it reduces, and where a reader meets it."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Reduction = Literal["mean", "sum", "min", "max", "step"]
Runtime = Literal["embedded", "slime"]


@dataclass(frozen=True)
class Panel:
    """A panel of a run's report: metrics by optimizer step on one axis, averaged over whole lag cycles."""

    title: str
    figure: str = "method"
    """The figure that the panel is in: one of report.run's, or any other word, which makes a figure of its own."""
    y_label: str = ""
    """The text at the axis. Unset: the unit of the first metric."""
    raw: bool = False
    """True where the first metric is also drawn step by step, in a lighter tone."""
    zero: bool = True
    """True where the axis begins at 0 unless values lie below."""
    log: bool = False
    """True where the axis is logarithmic."""


DROPPED = Panel("dropped tokens")
WEIGHTS = Panel("mean weight", zero=False)
"""Panels that several stabilizers share."""


class Line(NamedTuple):
    """The look of a metric in its panel."""

    label: str
    """The name of it in the key."""
    colour: str
    """A colour of report.looks by its name, such as `blue`, or any of CSS."""
    dash: Any = "-"
    """`-`, `--`, `:`, `-.`, or (0, lengths on and off in widths of the line); `area`: an area, stacked on those
    before."""


class Shown(NamedTuple):
    """The form of a metric among others in a table or in a line of text."""

    label: str
    form: str
    """Its format, such as `.3f`."""


Yardstick = Literal["", "beginning", "lowest", "tail", "lag", "responses", "clipped"]


@dataclass(frozen=True)
class Bound:
    """The bound at which the level of a metric stops being healthy. The level is taken of the newest 16 steps, or more
    for whole cycles of the lag."""

    limit: float
    above: bool = True
    """True where the level is unhealthy above the limit; else it is below it."""
    of: Yardstick = ""
    """The quantity of which the limit is a multiple; empty: it is the limit itself. `beginning`: the median of the
    first level. `lowest`: the lowest mean over at least 32 steps. Of the run's settings: `tail`, the 1 − alpha of SAT;
    `lag`, the updates that a token may be old; `responses` of a batch; `clipped`, the share of tokens that a radius may
    clip. Without such a setting nothing is unhealthy."""
    over: Literal["mean", "max", "sum", "run"] = "mean"
    """The way in which the level follows from the values of the steps. `run`: the mean of all steps, once there are
    64."""
    ceiling: float = math.inf
    """With `lowest`: a level that is unhealthy whatever the lowest one was."""
    least: float = -math.inf
    """A level below this is healthy, whatever the multiple."""


@dataclass(frozen=True)
class Rule:
    """A rule says what looks unhealthy about a metric, what is then said, and what to try. It is advice and no verdict.

    The texts may name `{level}`; `{usual}`, what the limit is a multiple of; `{share}`, level over usual; `{limit}`;
    `{steps}` of the level; `{crossed}`, which limit of a level against its lowest was crossed, in words.
    """

    name: str
    """In a word."""
    bound: Bound
    seen: str
    advice: str = ""
    """A text on what to try. `{or_sat}`: ", or SAT", where that is off."""


@dataclass(frozen=True)
class Metric:
    """One entry of the table of metrics, for one name or for several that differ in a word."""

    pattern: str
    """The name. Words in braces stand for a name each, `lag/{mean,min}`; a word in capitals for any."""
    unit: str
    """Such as nats, seconds, tokens, or share: a fraction of 1."""
    meaning: str
    """One sentence. `|d|` is written abs(d), for tables in Markdown."""
    reduction: Reduction = "mean"
    """Over the micro-batches and ranks of an optimizer step: the mean over active tokens, the sum, the least, the
    largest; `step`: it is taken of the whole step or batch at once."""
    runtime: Runtime | None = None
    """The only runtime that writes it. Unset: both do."""
    slime: tuple[str, ...] = ()
    """Its name in slime itself. A metric that the plugin adds has our name after `train/`."""
    panel: Panel | None = None
    """The panel of a run's report that it is drawn in. Unset: none."""
    lines: tuple[Line, ...] = ()
    """The look of each of its names there, in their order. Unset: with its name, in a colour and dash that is free."""
    table: Shown | None = None
    """Its form in the table at the head of a run's report. Unset: not at all."""
    live: Shown | None = None
    """The form in which a terminal shows its newest value while the run goes on. Unset: not at all."""
    health: Rule | None = None
    """The rule by which it looks unhealthy. Of an entry for one name."""

    @property
    def names(self) -> list[str]:
        """Return all names that the pattern stands for."""
        parts = re.split(r"\{([^}]*)\}", self.pattern)
        return ["".join(words) for words in itertools.product(*(part.split(",") for part in parts))]

    def covers(self, name: str) -> bool:
        """Return whether `name` is one of its names, whatever stands in the place of its words in capitals."""
        return any(re.fullmatch(_any_word(own), name) for own in self.names)


def _any_word(pattern: str) -> str:
    return "".join(".+" if word.isupper() else re.escape(word) for word in re.split(r"([A-Z]{2,}|(?<=@)K)", pattern))
