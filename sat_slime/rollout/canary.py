"""The canary: after a push every engine scores a few fixed sequences that the trainer scores too.

An engine and the trainer differ by what rounding, and the routers of a MoE model, make of the same weights. How much
that is, is learned from the pushes that passed. An engine that differs by more, that is nearer to the trainer's scores
of an earlier push, or that tells another version, does not hold the weights that were pushed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

SEQUENCES = 8
"""Their mean |d| varies little from push to push, and no iteration feels a forward pass of them."""
FACTOR = 3.0
"""The limit over the median of what passed. From push to push the mean of 120 tokens of a bf16 MoE model varies by half
of itself."""
BOUNDS = {"float32": (1e-5, 1e-2), "bfloat16": (2e-3, 0.5)}
"""nats: no limit is below the first, however well the first scores agree, nor above the second, so that an engine with
another model does not pass at the first push."""
REMEMBERED = 16
"""Newest pushes whose differences, and trainer's scores, are kept."""
NEARER = 0.5
"""An engine whose distance to an earlier push's scores is below this share of that to the newest holds the earlier."""
DIVERGED = (
    "cannot be judged: the trainer's own log-probs are not finite, since training has diverged: go on from an earlier "
    "checkpoint, or start another run with a lower learning rate"
)
_SEED = 0xCA9A


def canary_sequences(vocab_size: int, length: int) -> list[tuple[int, ...]]:
    """Return the sequences, of `length` tokens drawn from the vocabulary, the same in every run."""
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


class EngineScores(NamedTuple):
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


class Verdict(NamedTuple):
    """The judgement of a canary on a push."""

    metrics: dict[str, float]
    """canary/* of metrics.jsonl."""
    faults: dict[str, str]
    """Why an engine does not hold the weights that were pushed, and what to do, by the engine's name."""

    @property
    def message(self) -> str:
        return "canary: " + "; ".join(f"{engine} {fault}" for engine, fault in self.faults.items())


class Canary:
    """The record of the pushes so far, and the verdict on the next."""

    def __init__(self, dtype: str) -> None:
        """dtype: the arithmetic of the engines."""
        self.floor, self.ceiling = BOUNDS[dtype]
        self.levels: list[float] = []
        """Mean |d| of the pushes that passed, the newest ones; a checkpoint keeps them."""
        self._trainer: list[tuple[int, np.ndarray]] = []

    def check(self, version: int, trainer: np.ndarray, engines: dict[str, EngineScores]) -> Verdict:
        """Return the verdict on a push of the weights `version`, under which the trainer's log-probs of the scored
        tokens are (T,) `trainer`. engines: the answer of each, by its name."""
        distances = {name: _distance(scores.log_probs, trainer) for name, scores in engines.items()}
        level = float(np.median(self.levels) if self.levels else np.fmin.reduce([*distances.values()]))
        limit = min(max(FACTOR * level, self.floor), self.ceiling)
        diverged = not np.isfinite(trainer).all()
        found = {
            name: DIVERGED if diverged else self._fault(version, scores, distances[name], limit)
            for name, scores in engines.items()
        }
        faults = {name: fault for name, fault in found.items() if fault}
        if passed := [distance for name, distance in distances.items() if name not in faults]:
            self.levels = [*self.levels, max(passed)][-REMEMBERED:]
        self._trainer = [*self._trainer, (version, trainer)][-REMEMBERED:]
        worst = max(distances[name] for name in faults or distances)
        metrics = {"canary/d": worst, "canary/limit": limit, "canary/faults": float(len(faults))}
        return Verdict(metrics, faults)

    def _fault(self, version: int, scores: EngineScores, distance: float, limit: float) -> str | None:
        differs = f"differs from the trainer by {distance:.2g} nats a token, the limit is {limit:.2g}"
        if not np.isfinite(distance):
            return "gives log-probs that are not finite: its weights are damaged. Restart it"
        earlier = [(_distance(scores.log_probs, known), held) for held, known in self._trainer if held != version]
        nearest, held = min(earlier, default=(np.inf, version))
        if nearest < NEARER * distance:
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


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).mean())
