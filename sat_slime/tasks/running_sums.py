"""Running sums: answers have several lengths, and one comparison grades them.

`3524    =` asks for the sums of its digits; `08,10,14$` answers with the partial sums from the second digit on, each
two digits, and `$` ends. Reward is 1 iff the response ends and its last number is the exact sum: an answer may skip the
partial sums, but a model that writes them has the easier way.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from sat_slime.tasks.task import Problem, Task

if TYPE_CHECKING:  # so that settings are read before numpy is imported
    import numpy as np

    from sat_slime.reward import Verdict


class RunningSums(Task):
    """Running sums: `3524    =` (padded to max_digits) is answered by its partial sums `08,10,14$`. Reward 1 iff the
    response ends and its last number is exact."""

    name: str = "running_sums"
    """The task: the name of one of ours (docs/extend.md), or the dotted path of a module or class of your own."""
    min_digits: Annotated[int, Field(ge=2)] = 3
    """Fewest digits in a prompt."""
    max_digits: Annotated[int, Field(ge=2, le=11)] = 8
    """Most digits in a prompt; a response has 3 * (digits - 1) tokens when it shows all partial sums."""
    max_digit: Annotated[int, Field(ge=1, le=9)] = 5
    """Largest digit."""

    alphabet: ClassVar[str] = "0123456789,=$ "

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
        """The digits, padded to the most, and the `=`."""
        return self.max_digits + 1

    @property
    def answer_tokens(self) -> int:
        """Two digits and a separator for each partial sum."""
        return 3 * (self.max_digits - 1)

    @property
    def total_problems(self) -> int:
        return sum((self.max_digit + 1) ** digits for digits in range(self.min_digits, self.max_digits + 1))

    def draw(self, rng: np.random.Generator) -> Problem:
        """Return a problem whose number of digits is uniform."""
        length = rng.integers(self.min_digits, self.max_digits + 1)
        return self.problem(rng.integers(0, self.max_digit + 1, length).tolist())

    def problem(self, digits: list[int]) -> Problem:
        """Return the problem of these digits."""
        return Problem("".join(map(str, digits)).ljust(self.max_digits) + "=", str(sum(digits)))

    def grade(self, label: str, answer: str) -> Verdict:
        """Return reward 1.0 iff the last number is that of the label."""
        from sat_slime.reward.verdict import verdict

        number = last_number(answer)
        if number is None:
            return verdict(None, "no_answer")
        return verdict(number, "number" if int(number) == int(label) else "different")

    def demonstration(self, problem: Problem, rng: np.random.Generator, error_rate: float, direct: bool) -> str:
        """Return the partial sums, or with `direct` the last of them alone. An error is carried on."""
        sums = list(itertools.accumulate(int(digit) for digit in problem.prompt[:-1].rstrip()))[1:]
        slips = rng.choice([-10, -2, -1, 1, 2, 10], len(sums)) * (rng.random(len(sums)) < error_rate)
        numbers = [f"{value:02d}" for value in (slips.cumsum() + sums) % 100]
        return ",".join(numbers[-1:] if direct else numbers) + self.eos


def last_number(answer: str) -> str | None:
    """Return the last number of an answer that ends: two digits, right before `$`, as a number of their own."""
    last = answer.removesuffix("$").split(",")[-1]
    return last if answer.endswith("$") and len(last) == 2 and last.isdigit() else None
