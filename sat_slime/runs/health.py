"""Advisories: what looks unhealthy in a run, while it goes on and after it, each with its threshold and what to try.

They are about the newest 16 steps, or more for whole lag cycles, and tell nothing of what is not logged. An advisory is
no verdict: a run with one may learn on. What counts as a collapse is `runs/collapse`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sat_slime.runs.collapse import LEVEL_STEPS, MISMATCH_CEILING, MISMATCH_RISE, Band, whole_cycles
from sat_slime.runs.reading import section
from sat_slime.runs.rows import number

LEAST_ESS = 0.5
"""Effective sample size of pi / mu over the tokens, as a share: below, half of a batch counts for nothing."""
LEAST_GATE = 0.1
"""Share of the tail (1 - alpha) for which SAT's gate opens: below, SAT is all but its base."""
MOST_REJECTED = 0.01
"""Responses that failed a check, as a share of all."""
LEAST_ENTROPY = 0.1
"""Entropy as a share of that at the beginning. Runs that learned well went to 0.2."""


@dataclass(frozen=True)
class Advisory:
    """One thing that looks unhealthy."""

    name: str
    """Which of the rules holds: ess, mismatch, gate, lag, rejected, entropy or restarts."""
    text: str
    """What is seen, its threshold, and what to try."""


@dataclass
class HealthWatch:
    """The rules over a history that grows. Feed it the rows of metrics.jsonl in the order written."""

    period: int = 1
    """Steps of a lag cycle."""
    tail: float | None = None
    """1 - alpha where SAT is on."""
    most_lag: int | None = None
    """Updates that a token may be old by the run's plan."""
    responses: int = 0
    """Responses of a batch, where it is known."""
    holding: dict[str, Advisory] = field(init=False, default_factory=dict)
    """What holds now, by name."""
    _rows: deque[Mapping[str, Any]] = field(init=False)
    _band: Band = field(init=False)
    _first_entropies: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._rows = deque(maxlen=whole_cycles(LEVEL_STEPS, self.period))
        self._band = Band(self.period, MISMATCH_RISE, MISMATCH_CEILING)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> HealthWatch:
        """The watch of a run with these settings, as config.yaml has them."""
        pipeline, sat, rollout = (
            section(config, "pipeline"),
            section(section(config, "method"), "sat"),
            section(config, "rollout"),
        )
        lag, steps = pipeline.get("lag"), pipeline.get("optimizer_steps_per_rollout") or 1
        streams = pipeline.get("mode") == "streaming"
        planned = pipeline.get("max_staleness") if streams else None if lag is None else (max(lag, 1)) * steps
        return cls(
            period=max(1, (lag or 1) * steps),
            tail=1 - sat["alpha"] if sat.get("enabled") and "alpha" in sat else None,
            most_lag=planned,
            responses=(rollout.get("prompts_per_iteration") or 0) * (rollout.get("samples_per_prompt") or 0),
        )

    def step(self, row: Mapping[str, Any]) -> list[Advisory]:
        """Take an optimizer step; what begins to hold with it."""
        self._rows.append(row)
        self._band.add(int(number(row, "step", 0.0)), number(row, "mismatch/d_pi"))
        entropy = number(row, "loss/entropy")
        if len(self._first_entropies) < self._rows.maxlen and entropy == entropy:  # type: ignore[operator]
            self._first_entropies.append(entropy)
        found = {one.name: one for one in self._found()} if len(self._rows) == self._rows.maxlen else {}
        new = [one for name, one in found.items() if name not in self.holding]
        self.holding = found
        return new

    def anew(self) -> HealthWatch:
        """The same rules over no history."""
        return HealthWatch(self.period, self.tail, self.most_lag, self.responses)

    def replay(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the rows of an earlier part of the run, without a word."""
        for row in rows:
            self.step(row)

    def _found(self) -> Iterable[Advisory]:
        ess = self._mean("mismatch/ess")
        if ess < LEAST_ESS:
            yield Advisory(
                "ess",
                f"the effective sample size is {ess:.0%} of the tokens, below {LEAST_ESS:.0%}: a few stale ones carry "
                "the gradient. Try a smaller lag or clip radius, or cap the weights (tis)",
            )
        if self._band.outside:
            level, floor = self._mean("mismatch/d_pi"), self._band.floor
            bound = (
                f"above {MISMATCH_CEILING:g}"
                if level >= MISMATCH_CEILING
                else f"more than {MISMATCH_RISE:g} times its lowest level of {floor:.3g}"
            )
            advice = "Try a smaller radius, lag or learning rate" + ("" if self.tail else ", or SAT")
            yield Advisory("mismatch", f"d_pi is {level:.3g} nats, {bound}. {advice}")
        gate = self._mean("sat/gate_rate")
        if self.tail is not None and gate < LEAST_GATE * self.tail:
            yield Advisory(
                "gate",
                f"SAT's gate is open for {gate:.2%} of the tokens, less than a tenth of the tail's {self.tail:.0%}: "
                "its quantile is over too few responses. Set method.sat.scope to step, or make micro-batches larger",
            )
        oldest = max((number(row, "lag/max") for row in self._rows), default=math.nan)
        if self.most_lag is not None and oldest > self.most_lag:
            yield Advisory(
                "lag",
                f"tokens are up to {oldest:g} updates old, {self.most_lag} by the plan: weights reach the engines "
                "late. Look for errors of the broadcast in the log",
            )
        rejected = self._sum("rollout/rejected")
        if self.responses and rejected > MOST_REJECTED * self.responses * len(self._rows):
            yield Advisory(
                "rejected",
                f"{rejected / (self.responses * len(self._rows)):.1%} of the responses failed a check, above "
                f"{MOST_REJECTED:.0%}: rollout/rejected/REASON in metrics.jsonl says which",
            )
        entropy = self._mean("loss/entropy")
        first = sum(self._first_entropies) / max(1, len(self._first_entropies))
        if entropy < LEAST_ENTROPY * first:
            yield Advisory(
                "entropy",
                f"entropy is {entropy:.3g} nats, below a tenth of the {first:.3g} it began with: nothing new is tried. "
                "Try loss.entropy_coef, a larger loss.kl_coef, or a smaller learning rate",
            )
        restarts = self._sum("rollout/restarts")
        if restarts > 0:
            yield Advisory(
                "restarts",
                f"engines were restarted {restarts:g} times in {len(self._rows)} steps: the log names what died, and "
                "memory is the usual cause",
            )

    def _mean(self, key: str) -> float:
        known = [value for row in self._rows if (value := number(row, key)) == value]
        return sum(known) / len(known) if known else math.nan

    def _sum(self, key: str) -> float:
        return sum(value for row in self._rows if (value := number(row, key)) == value)
