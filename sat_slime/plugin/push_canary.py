"""The driver's part of the canary: it asks every engine on its own address, and judges the push.

`sat_slime.rollout.canary` has the rule, `inside/canary_scores` the trainer's part.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx

from sat_slime.config.slime_checks import NO_CANARY
from sat_slime.rollout.canary import Canary, EngineScores, read_scores, score_payload
from sat_slime.rollout.client import in_words

logger = logging.getLogger(__name__)

TIMEOUT_S = 300.0
"""Seconds for an engine's answer. In mode streaming the sequences wait for a place beside what is in generation."""


class PushNotTaken(RuntimeError):
    """An engine does not hold the weights that were pushed, and `pipeline.canary` is stop."""


def no_canary(args: Namespace) -> list[str]:
    """Return a line for each of slime's arguments with which there can be no canary."""
    given = {name: getattr(args, name.replace("-", "_"), None) for name in NO_CANARY}
    return [
        f"--{name} is set, and pipeline.canary is not none: {NO_CANARY[name]}: leave the flag out, or set "
        "pipeline.canary to none"
        for name, value in given.items()
        if value and value != "nccl"
    ]


class PushCanary:
    """Judges each push of a run. After a resume the limit is learned anew, since engines start anew."""

    def __init__(self, args: Namespace, then: Literal["warn", "stop"]) -> None:
        """
        Args:
            args: slime's.
            then: what follows where an engine does not hold the weights.
        """
        self._canary, self._then = Canary(dtype(args)), then
        self._sequences: Sequence[Sequence[int]] = ()

    def check(self, from_ranks: Sequence[Any], engines: Mapping[int, str]) -> tuple[dict[str, float], float]:
        """Return the metrics of a push, and the seconds that the trainer took for them.

        Args:
            from_ranks: what each of the trainer's ranks returned from the push: `TrainerScores` or None.
            engines: the address of each engine, by its number.

        Raises:
            PushNotTaken: an engine does not hold the weights, or none can be asked.
        """
        scores = next((scores for scores in from_ranks or [] if scores is not None), None)
        if scores is None or not engines:
            why = "the trainer has no scores" if engines else "there are no engines that take pushes"
            return self._fail(why, len(engines)), 0.0
        answers, numbers, silent = _ask_all(engines, scores.sequences)
        if not answers:
            name, why = next(iter(silent.items()))
            return self._fail(f"no engine gives scores; {name}: {why}", len(engines)), scores.seconds
        for name, why in silent.items():  # a dead engine is slime's to replace, and no reason to end a run
            logger.warning("sat_slime: canary: %s is not judged at version %s: %s", name, scores.version, why)
        verdict = self._canary.check(scores.version, scores.log_probs, answers, numbers)
        self._sequences = scores.sequences
        if verdict.faults:
            self._tell(verdict.message)
        return verdict.metrics, scores.seconds

    def check_again(self, engines: Mapping[int, str]) -> float:
        """Return the number of engines that do not hold the last push any more, before the next; those that give no
        answer do not count. Raises PushNotTaken where there is one."""
        answers, numbers, _ = _ask_all(engines, self._sequences) if self._sequences else ({}, [], {})
        verdict = self._canary.check_again(answers, numbers) if answers else None
        if verdict and verdict.faults:
            self._tell(verdict.message)
        return float(len(verdict.faults)) if verdict else 0.0

    def _fail(self, why: str, engines: int) -> dict[str, float]:
        """Counts a push that cannot be checked as one that no engine took."""
        self._tell(
            f"canary: the push cannot be checked: {why}: look into the engines' logs, or set pipeline.canary to none"
        )
        return {"canary/faults": float(max(1, engines))}

    def _tell(self, message: str) -> None:
        if self._then == "stop":
            raise PushNotTaken(f"{message} (pipeline.canary is stop; go on with --resume)")
        logger.warning("sat_slime: %s", message)


def _ask_all(
    engines: Mapping[int, str], sequences: Sequence[Sequence[int]]
) -> tuple[dict[str, EngineScores], list[int], dict[str, str]]:
    """Return the scores of the engines that answer, by name, their numbers, and why the others do not."""
    answers: dict[str, EngineScores] = {}
    numbers: list[int] = []
    silent: dict[str, str] = {}
    with ThreadPoolExecutor(max(1, len(engines))) as pool:
        asked = {number: pool.submit(ask, url, sequences) for number, url in engines.items()}
    for number, future in asked.items():
        name = f"rollout engine {number} ({engines[number]})"
        try:
            answers[name] = future.result()
            numbers.append(number)
        except ValueError as error:
            silent[name] = str(error)
    return answers, numbers, silent


def dtype(args: Namespace) -> str:
    """Return the arithmetic of the less precise of trainer and engines."""
    of_engines = getattr(args, "sglang_dtype", None) or "auto"  # bf16 or fp16 with SGLang, for weights of fp32 too
    if getattr(args, "fp16", False) or of_engines in ("half", "float16"):
        return "float16"
    exact = not getattr(args, "bf16", False) and of_engines in ("float", "float32")
    return "float32" if exact else "bfloat16"


def ask(url: str, sequences: Sequence[Sequence[int]]) -> EngineScores:
    """Return the scores of the engine at an address. They are asked for once: a second time its prefix cache would have
    them. Raises ValueError, with the reason, where it gives none."""
    try:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client:
            answer = client.post(f"{url}/generate", json=score_payload(sequences))
            answer.raise_for_status()
            return read_scores(answer.json(), sequences)
    except httpx.HTTPError as error:
        raise ValueError(in_words(error)) from error
