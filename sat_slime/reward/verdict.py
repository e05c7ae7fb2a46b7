"""A verification ends with a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["default", "prime_math"]
"""The ways in which answers are extracted and compared; docs/reward.md."""
MODES: tuple[Mode, ...] = get_args(Mode)

CORRECT = ("text", "number", "symbolic")
"""Reasons of reward 1: both are equal as texts, as exact numbers, or as parsed mathematics."""
WRONG = (
    "different", "no_answer", "too_long", "too_large", "unevaluated", "undefined", "unparsed", "undefined_label",
    "unparsed_label",
)  # fmt: skip
"""Reasons of reward 0 that the comparison found. `undefined`: it has no value, such as 1/0; `too_large`: its numbers
would not fit; `unevaluated`: it holds a sum, an integral or the like, which nothing works out; docs/reward.md."""
KILLED = ("timeout", "memory", "forbidden", "crash")
"""Reasons of reward 0 for which the worker was ended: it was over a limit, or did what mathematics does not need."""


@dataclass(frozen=True)
class Verdict:
    """The reward of one response."""

    reward: float
    """1.0 or 0.0."""
    extracted: str | None
    """The answer that was compared; None: none was found, or the worker was ended."""
    reason: str
    """One of CORRECT, WRONG, KILLED."""


def verdict(extracted: str | None, reason: str) -> Verdict:
    """Return a verdict, whose reward follows from the reason."""
    return Verdict(float(reason in CORRECT), extracted, reason)
