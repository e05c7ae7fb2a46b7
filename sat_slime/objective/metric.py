"""Metric: what a number of a run is called, its unit, how it reduces, and what it says."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Literal

Reduction = Literal["mean", "sum", "min", "max", "step"]
Runtime = Literal["embedded", "slime"]


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
    """What slime itself calls it. What the plugin adds has our name after `train/`."""

    @property
    def names(self) -> list[str]:
        """All names that the pattern stands for."""
        parts = re.split(r"\{([^}]*)\}", self.pattern)
        return ["".join(words) for words in itertools.product(*(part.split(",") for part in parts))]

    def covers(self, name: str) -> bool:
        """Whether `name` is one of its names, whatever stands in the place of its words in capitals."""
        return any(re.fullmatch(_any_word(own), name) for own in self.names)


def _any_word(pattern: str) -> str:
    return "".join(".+" if word.isupper() else re.escape(word) for word in re.split(r"([A-Z]{2,}|(?<=@)K)", pattern))
