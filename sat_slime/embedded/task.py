"""The problems of the embedded task, the running sums: answers have several lengths, and one comparison grades them.

What an answer is, and when it is right, says `reward.running_sum_answers`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from sat_slime.config.schema import TaskConfig
from sat_slime.reward.running_sum_answers import ALPHABET, EOS, answer, decode, encode, verdict

__all__ = ["ALPHABET", "EOS", "answer", "decode", "encode", "verdict"]

VOCAB_SIZE = TaskConfig.vocab_size
"""The alphabet rounded up, so that tensor parallelism can cut it."""


@dataclass(frozen=True)
class Problem:
    """One prompt and its answer."""

    digits: tuple[int, ...]
    width: int
    """Characters to which the digits are padded."""

    @property
    def prompt(self) -> str:
        return "".join(map(str, self.digits)).ljust(self.width) + "="

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return encode(self.prompt)

    @property
    def label(self) -> str:
        return str(sum(self.digits))

    @property
    def partial_sums(self) -> np.ndarray:
        """Sums of the first 2, 3, ... digits."""
        return np.cumsum(self.digits)[1:]

    @property
    def held_out(self) -> bool:
        return hashlib.blake2b(self.prompt.encode(), digest_size=1).digest()[0] % TaskConfig.held_out_one_in == 0


def draw_problem(task: TaskConfig, rng: np.random.Generator, *, held_out: bool) -> Problem:
    """A problem that is held out for evaluation, or one that is not; its number of digits is uniform."""
    while True:
        length = rng.integers(task.min_digits, task.max_digits + 1)
        problem = Problem(tuple(rng.integers(0, task.max_digit + 1, length).tolist()), task.max_digits)
        if problem.held_out == held_out:
            return problem


def training_problems(task: TaskConfig, count: int, rng: np.random.Generator) -> list[Problem]:
    """Problems to train on, drawn independently."""
    return [draw_problem(task, rng, held_out=False) for _ in range(count)]


def evaluation_problems(task: TaskConfig, count: int, rng: np.random.Generator) -> list[Problem]:
    """Held-out problems, all different."""
    problems: dict[Problem, None] = {}
    while len(problems) < count:
        problems[draw_problem(task, rng, held_out=True)] = None
    return list(problems)


def wording(output_ids) -> str:
    """A response as the verifier of mathematics reads it; empty where there is no answer."""
    found = answer(output_ids)
    return "" if found is None else f"{decode(output_ids)}\nAnswer: {int(found)}"


def demonstration(problem: Problem, rng: np.random.Generator, error_rate: float, direct: bool) -> str:
    """An answer to imitate: the partial sums, or with `direct` the last of them alone.

    Each step goes wrong with probability `error_rate`, and an error is carried on.
    """
    sums = problem.partial_sums
    slips = rng.choice([-10, -2, -1, 1, 2, 10], len(sums)) * (rng.random(len(sums)) < error_rate)
    numbers = [f"{value:02d}" for value in (sums + slips.cumsum()) % 100]
    return ",".join(numbers[-1:] if direct else numbers) + "$"
