"""The canary: after a push every engine scores a few fixed sequences that the trainer scores too.

An engine and the trainer differ by what rounding, and the routers of a MoE model, make of the same weights. How much
that is, is learned from the pushes that passed. An engine that differs by more, that is nearer to the trainer's scores
of an earlier push, or that tells another version, does not hold the weights that were pushed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SEQUENCES = 8
"""Their mean |d| varies little from push to push, and no iteration feels a forward pass of them."""
FACTOR = 3.0
"""The limit over the median of what passed. From push to push the mean of 120 tokens of a bf16 MoE model varies by half
of itself."""
FLOORS = {"float32": 1e-5, "bfloat16": 2e-3, "float16": 1e-3}
"""nats: no limit is below, however well the first scores agree."""
CEILINGS = {"float32": 1e-2, "bfloat16": 0.5, "float16": 0.5}
"""nats: no limit is above, so that an engine with another model does not pass at the first push."""
REMEMBERED = 16
"""Newest pushes whose differences, and trainer's scores, are kept."""
NEARER = 0.5
"""An engine whose distance to an earlier push's scores is below this share of that to the newest holds the earlier."""
_SEED = 0xCA9A


def canary_sequences(vocab_size: int, length: int) -> list[tuple[int, ...]]:
    """Return the sequences: tokens drawn from the vocabulary, the same in every run.

    Args:
        length: tokens of each.
    """
    rng = np.random.default_rng(_SEED)
    # Without the last token of the vocabulary, whose log-prob SGLang returns under the number 0.
    return [tuple(row) for row in rng.integers(vocab_size - 1, size=(SEQUENCES, length)).tolist()]


def prefix_length(sequences: Sequence[Sequence[int]]) -> int:
    """Return the tokens of each sequence that are not scored: half of them."""
    return len(sequences[0]) // 2


def score_payload(sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the body of SGLang's /generate that scores the sequences, each behind its prefix."""
    return {
        "input_ids": [list(sequence) for sequence in sequences],
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True},
        "return_logprob": True,
        # The log-probs that come back begin behind the token at this place.
        "logprob_start_len": prefix_length(sequences) - 1,
    }


@dataclass(frozen=True)
class EngineScores:
    """The answer of one engine to the canary."""

    log_probs: np.ndarray
    """(T,) of the tokens behind the prefixes, sequence by sequence."""
    version: str
    """Version that it tells of its weights."""


def read_scores(answers: Any, sequences: Sequence[Sequence[int]]) -> EngineScores:
    """Return the scores in SGLang's answers to `score_payload`. Raises ValueError where they are not as asked for."""
    start = prefix_length(sequences)
    try:
        infos = [answer["meta_info"] for answer in answers]
        scored = [info["input_token_logprobs"][1:] for info in infos]
        tokens = [[entry[1] for entry in entries] for entries in scored]
        log_probs = np.array([entry[0] for entries in scored for entry in entries], np.float64)
        versions = sorted({str(info["weight_version"]) for info in infos})
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"an engine's answer to the canary cannot be read: {error!r}: {answers!r:.300}") from error
    if tokens != [list(sequence[start:]) for sequence in sequences]:
        raise ValueError(f"an engine scored other tokens than the canary's: {tokens!r:.300}")
    return EngineScores(log_probs, ", ".join(versions))


@dataclass(frozen=True)
class Verdict:
    """The judgement of a canary on a push."""

    metrics: dict[str, float]
    """canary/* of metrics.jsonl."""
    faults: dict[str, str]
    """Why an engine does not hold the weights that were pushed, and what to do, by the engine's name."""

    @property
    def message(self) -> str:
        return "canary: " + "; ".join(f"{engine} {fault}" for engine, fault in self.faults.items())


@dataclass
class Canary:
    """The record of the pushes so far, and the verdict on the next."""

    dtype: str
    """Arithmetic of the engines."""
    levels: list[float] = field(default_factory=list)
    """Mean |d| of the pushes that passed, the newest ones; a checkpoint keeps them."""
    _trainer: deque[tuple[int, np.ndarray]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def check(
        self, version: int, trainer: np.ndarray, engines: dict[str, EngineScores], numbers: Sequence[int] = ()
    ) -> Verdict:
        """Return the verdict on a push.

        Args:
            version: of the weights that were pushed.
            trainer: (T,) log-probs of the scored tokens under them.
            engines: the answer of each engine, by its name.
            numbers: of these engines, where others gave no answer; default: from 0 on.
        """
        distances = {name: _distance(scores.log_probs, trainer) for name, scores in engines.items()}
        limit = self._limit(min(distances.values()))
        found = {name: self._fault(version, scores, distances[name], limit) for name, scores in engines.items()}
        faults = {name: fault for name, fault in found.items() if fault}
        if passed := [distance for name, distance in distances.items() if name not in faults]:
            self.levels = [*self.levels, max(passed)][-REMEMBERED:]
        self._trainer.append((version, trainer))
        worst = max(distances, key=lambda name: (name in faults, distances[name]))
        metrics = {
            "canary/d": distances[worst],
            "canary/limit": limit,
            "canary/worst_engine": float((numbers or range(len(engines)))[list(engines).index(worst)]),
            "canary/faults": float(len(faults)),
        }
        return Verdict(metrics, faults)

    def _limit(self, first: float) -> float:
        """Return the limit of mean |d|, of the best engine where this is the first push."""
        level = float(np.median(self.levels)) if self.levels else first
        return min(max(FACTOR * level, FLOORS[self.dtype]), CEILINGS[self.dtype])

    def _fault(self, version: int, scores: EngineScores, distance: float, limit: float) -> str | None:
        differs = f"differs from the trainer by {distance:.2g} nats a token, the limit is {limit:.2g}"
        if not np.isfinite(distance):
            return "gives log-probs that are not finite: its weights are damaged. Restart it"
        if (held := self._held(version, scores.log_probs, distance)) is not None:
            says = f"and says {scores.version}" if scores.version != str(held) else "as it says"
            return f"still holds the weights of version {held}, {says}: it took no push since, or lost it. See its log"
        if scores.version != str(version):
            return (
                f"says that it holds version {scores.version}, not {version}, and {differs}: its responses would be "
                "counted to the wrong weights. Look for a restart or another pusher in its log"
            )
        if distance > limit:
            return (
                f"{differs}, and it holds the weights of no push of this run: another model, or one of its "
                "tensor-parallel ranks or layers did not take the push. Restart it, and compare its model path and its "
                "log with the others'"
            )
        return None

    def _held(self, version: int, scores: np.ndarray, distance: float) -> int | None:
        """Return the version of an earlier push to which the scores are much nearer; None where there is none."""
        earlier = [(_distance(scores, known), held) for held, known in self._trainer if held != version]
        nearest, held = min(earlier, default=(np.inf, None))
        return held if nearest < NEARER * distance else None


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).mean())
