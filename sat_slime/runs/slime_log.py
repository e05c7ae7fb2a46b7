"""Reads a run's progress from slime's log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sat_slime.objective.metrics import slime_names

# slime logs Python dictionaries: `[2026-08-21 12:00:00] model.py:918 - step 3: {'train/loss': 0.1, 'train/x': nan}`.
# Numbers are picked out one by one, since nan, inf and NumPy's own notation are no Python literals.
_METRICS = re.compile(
    r"(?:^|\s)(?P<kind>step|rollout|eval|perf|multi_turn|passrate) (?P<number>\d+): \{(?P<values>.*)\}"
)
_VALUE = re.compile(
    r"'(?P<key>[^']+)': (?:np\.\w+\()?(?P<value>[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))(?=[,)}\s]|$)", re.IGNORECASE
)
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_PHASE = re.compile(r"\bTimer (?P<name>\w+) start\b")
_TROUBLE = re.compile(r"\b(?:\w*Error|\w*Exception|Traceback|out of memory|SIGKILL|SIGSEGV)\b")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_NAMES = {own.partition("/")[2]: ours for own, ours in slime_names().items()} | {"rewards": "reward/mean"}
"""slime's own names without their prefix, each with the name in a run folder. Older versions of slime log `rewards` and
not `raw_reward`."""


@dataclass(frozen=True)
class LogLine:
    """The contents of one line of the log."""

    kind: str
    """The kind of line: step, rollout, eval, perf, multi_turn or passrate for a line of metrics; phase; trouble;
    other."""
    number: int = -1
    """In a step line the number of optimizer steps before this one; in other lines of metrics the rollout."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics by slime's names: `train/loss`, `rollout/raw_reward`."""
    text: str = ""
    """The name of a phase, or the line that tells of trouble."""
    time: float | None = None
    """Seconds since the epoch, as the line states them."""


def read_line(line: str) -> LogLine:
    """Return what a line of slime's log tells; nothing in it is evaluated."""
    line = _ESCAPES.sub("", line).strip()
    time = _time(line)
    if match := _METRICS.search(line):
        metrics = {value["key"]: float(value["value"]) for value in _VALUE.finditer(match["values"])}
        return LogLine(match["kind"], int(match["number"]), metrics, time=time)
    if match := _PHASE.search(line):
        return LogLine("phase", text=match["name"].replace("_", " "), time=time)
    if _TROUBLE.search(line):
        return LogLine("trouble", text=line, time=time)
    return LogLine("other", time=time)


def run_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics by the names of a run folder: slime's prefix is left out, and slime's own numbers fill in where
    ours are missing."""
    plain = {key.partition("/")[2] if key.startswith(("train/", "rollout/")) else key: metrics[key] for key in metrics}
    for own, ours in _NAMES.items():
        if own in plain:
            plain.setdefault(ours, plain[own])
    return plain


def _time(line: str) -> float | None:
    if match := _TIME.search(line):
        try:
            return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").timestamp()
        except ValueError:
            return None
    return None
