"""Running sums, the task of the lab runtime: answers have several lengths, and one comparison grades them. An answer
may skip the partial sums, but a model that writes them has the easier way.

All that is random follows from the generators that are passed in, so that a resumed run goes on with the same problems.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:  # so that settings are read before numpy is imported
    import numpy as np

    from sat_slime.reward import Verdict


@dataclass(frozen=True)
class Problem:
    """One prompt and its label, both texts."""

    prompt: str
    label: str
    """What an answer is graded by."""


class RunningSums(BaseModel):
    """Running sums: `3524    =` (padded to max_digits) is answered by its partial sums `08,10,14$`. Reward 1 iff the
    response ends and its last number is exact."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True, frozen=True, allow_inf_nan=False)

    name: Literal["running_sums"] = "running_sums"
    """The task; there is one."""
    min_digits: Annotated[int, Field(ge=2)] = 3
    """Fewest digits in a prompt."""
    max_digits: Annotated[int, Field(ge=2, le=11)] = 8
    """Most digits in a prompt; a response has 3 * (digits - 1) tokens when it shows all partial sums."""
    max_digit: Annotated[int, Field(ge=1, le=9)] = 5
    """Largest digit."""

    alphabet: ClassVar[str] = "0123456789,=$ "
    """The characters of prompts and answers; the position of a character is its token id."""
    eos: ClassVar[str] = "$"
    """The character that ends an answer."""
    eos_id: ClassVar[int] = alphabet.index(eos)
    vocab_size: ClassVar[int] = 16
    """Token ids: the alphabet, and two that the tokenizer of slime has for padding and unknown characters."""
    held_out_one_in: ClassVar[int] = 16
    """One in this many problems is held out for evaluation."""

    @model_validator(mode="after")
    def _ordered(self) -> RunningSums:
        if self.min_digits > self.max_digits:
            raise ValueError(f"min_digits is {self.min_digits}, above max_digits {self.max_digits}: swap or widen them")
        if self.max_digits * self.max_digit > 99:
            raise ValueError(
                f"max_digits {self.max_digits} x max_digit {self.max_digit} can sum to more than 99, and sums have two "
                "digits: lower one of them"
            )
        return self

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt: the digits, padded to the most, and the `=`."""
        return self.max_digits + 1

    @property
    def answer_tokens(self) -> int:
        """Tokens of the longest answer: two digits and a separator for each partial sum."""
        return 3 * (self.max_digits - 1)

    @property
    def total_problems(self) -> int:
        """Problems that can be drawn, those held out included."""
        return sum((self.max_digit + 1) ** digits for digits in range(self.min_digits, self.max_digits + 1))

    def problem(self, digits: list[int]) -> Problem:
        """Return the problem of these digits."""
        return Problem("".join(map(str, digits)).ljust(self.max_digits) + "=", str(sum(digits)))

    def is_held_out(self, problem: Problem) -> bool:
        """Return whether a problem is held out for evaluation: by a hash of its prompt, whatever the run."""
        return hashlib.blake2b(problem.prompt.encode(), digest_size=1).digest()[0] % self.held_out_one_in == 0

    def draw_problem(self, rng: np.random.Generator, *, held_out: bool) -> Problem:
        """Return a problem that is held out for evaluation, or one that is not; its number of digits is uniform."""
        while True:
            length = rng.integers(self.min_digits, self.max_digits + 1)
            problem = self.problem(rng.integers(0, self.max_digit + 1, length).tolist())
            if self.is_held_out(problem) == held_out:
                return problem

    def training_problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """Return problems to train on, drawn independently."""
        return [self.draw_problem(rng, held_out=False) for _ in range(count)]

    def evaluation_problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """Return held-out problems, all different."""
        problems: dict[Problem, None] = {}
        while len(problems) < count:
            problems[self.draw_problem(rng, held_out=True)] = None
        return list(problems)

    def demonstration(self, problem: Problem, rng: np.random.Generator, error_rate: float, direct: bool) -> str:
        """Return an answer to imitate during the warm-up: the partial sums, or with `direct` the last of them alone.
        Each sum errs with the probability `error_rate`, and an error is carried on."""
        sums = list(itertools.accumulate(int(digit) for digit in problem.prompt[:-1].rstrip()))[1:]
        slips = rng.choice([-10, -2, -1, 1, 2, 10], len(sums)) * (rng.random(len(sums)) < error_rate)
        numbers = [f"{value:02d}" for value in (slips.cumsum() + sums) % 100]
        return ",".join(numbers[-1:] if direct else numbers) + self.eos

    # --------------------------------------------------------------------------------------------- tokens, and verdicts

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text. Raises ValueError for a character outside of the alphabet."""
        return tuple(self.alphabet.index(character) for character in text)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of token ids; ids beyond the alphabet become `?`."""
        return "".join(self.alphabet[i] if i < len(self.alphabet) else "?" for i in token_ids)

    def verdict(self, label: str, output_ids: Sequence[int]) -> Verdict:
        """Return the verdict on the tokens of a response: reward 1.0 iff it ends, and its last number, two digits right
        before `$` that are no part of a longer one, is that of the label."""
        from sat_slime.reward.verdict import verdict

        answer = self.decode(output_ids)
        last = answer.removesuffix(self.eos).split(",")[-1]
        if not (answer.endswith(self.eos) and len(last) == 2 and last.isdigit()):
            return verdict(None, "no_answer")
        return verdict(last, "number" if int(last) == int(label) else "different")
