"""The embedded task: running sums, with answers of several lengths and a verifier that is one comparison.

`3524    =` asks for the sums of its digits; `08,10,14$` answers with the partial sums from the second digit on, each
two digits, and `$` ends. Reward is 1 iff the response ends and its last number is the exact sum: an answer may skip the
partial sums, but a model that writes them has the easier way. A character is a token.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from sat_slime.config.schema import TaskConfig
from sat_slime.rollout.reward.verdict import Verdict
from sat_slime.rollout.reward.verdict import verdict as make_verdict

ALPHABET = "0123456789,=$ "
VOCAB_SIZE = TaskConfig.vocab_size
"""The alphabet rounded up, so that tensor parallelism can cut it."""
EOS = ALPHABET.index("$")


@dataclass(frozen=True)
class Problem:
    """One prompt and its answer."""

    digits: tuple[int, ...]
    width: int
    """Characters that the digits are padded to."""

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


def encode(text: str) -> tuple[int, ...]:
    """Token ids of a text over the alphabet."""
    return tuple(ALPHABET.index(character) for character in text)


def decode(token_ids) -> str:
    """Text of token ids; the two ids beyond the alphabet show as `?`."""
    return "".join(ALPHABET[i] if i < len(ALPHABET) else "?" for i in token_ids)


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


def answer(output_ids) -> str | None:
    """The last number of a response that ends: two digits, right before `$`, as a number of their own."""
    text = decode(output_ids)
    last = text.removesuffix("$").split(",")[-1]
    return last if text.endswith("$") and len(last) == 2 and last.isdigit() else None


def verdict(label: str, output_ids) -> Verdict:
    """Reward 1.0 iff the last number is that of the label, as the verifier of mathematics would tell it."""
    found = answer(output_ids)
    if found is None:
        return make_verdict(None, "no_answer")
    return make_verdict(found, "number" if int(found) == int(label) else "different")


def wording(output_ids) -> str:
    """A response as the verifier of mathematics reads it; empty where there is no answer."""
    found = answer(output_ids)
    return "" if found is None else f"{decode(output_ids)}\nAnswer: {int(found)}"


def demonstration(problem: Problem, rng: np.random.Generator, error_rate: float, direct: bool) -> str:
    """An answer to imitate: partial sums, each step going wrong with probability `error_rate` and the error carried
    on; `direct` keeps the last number only."""
    sums = problem.partial_sums
    slips = rng.choice([-10, -2, -1, 1, 2, 10], len(sums)) * (rng.random(len(sums)) < error_rate)
    numbers = [f"{value:02d}" for value in (sums + slips.cumsum()) % 100]
    return ",".join(numbers[-1:] if direct else numbers) + "$"
