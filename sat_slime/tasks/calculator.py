"""Calculator: a task with a tool. An expression is worked out by calls, and each result is read to write the next call.

`47*38+12=` is answered by `47*38?86;86+12?98;98$`: the model writes `47*38?`, which calls the calculator, the tool
writes `86;`, and the model goes on. Two digits throughout, from left to right, modulo 100. Reward is 1 iff the response
ends and its last number is right. What a tool writes is no choice of the model, and is not trained.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from sat_slime.tasks.task import Problem, Task

if TYPE_CHECKING:  # so that settings are read before numpy is imported
    import numpy as np

    from sat_slime.reward import Verdict

_CALL = re.compile(r"(\d\d)([+*])(\d\d)\?")
ERROR = "--;"
"""What the calculator writes where it cannot read a call."""


class Calculator(Task):
    """Calculator: `47*38+12=` is answered by calls of a tool, `47*38?` and `86+12?`, which it answers by `86;` and
    `98;`, and by the result, `98$`. Reward 1 iff the response ends and its last number is right."""

    name: str = "calculator"
    """The task: the name of one of ours (docs/extend.md), or the dotted path of a module or class of your own."""
    numbers: Annotated[int, Field(ge=2, le=6)] = 3
    """Numbers of an expression; an answer calls the tool once less."""

    alphabet: ClassVar[str] = "0123456789+*?;-=$"
    call: ClassVar[str] = "?"

    @property
    def prompt_tokens(self) -> int:
        """Two digits of each number, and the sign behind it."""
        return 3 * self.numbers

    @property
    def answer_tokens(self) -> int:
        """Six for each call, three for the tool's answer to it, and the result with `$`."""
        return 9 * (self.numbers - 1) + 3

    @property
    def total_problems(self) -> int:
        return 100**self.numbers * 2 ** (self.numbers - 1)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Return a problem whose numbers and signs are uniform."""
        numbers = [f"{number:02d}" for number in rng.integers(0, 100, self.numbers)]
        signs = [*("+*"[sign] for sign in rng.integers(0, 2, self.numbers - 1)), "="]
        result = numbers[0]
        for sign, number in zip(signs, numbers[1:], strict=False):
            result = _result(result, sign, number)
        return Problem("".join(number + sign for number, sign in zip(numbers, signs, strict=True)), result)

    def tool(self, answer: str) -> str:
        """Return the result of the last call, `;` behind it."""
        call = _CALL.fullmatch(answer.rpartition(";")[2])
        return f"{_result(call[1], call[2], call[3])};" if call else ERROR

    def demonstration(self, problem: Problem, rng: np.random.Generator, error_rate: float, direct: bool) -> str:
        """Return the calls and the result; with `direct` a guess without a call. An error is another number in the
        place of one that is copied: of the prompt, or of the calculator."""

        def copied(number: str) -> str:
            return f"{rng.integers(100):02d}" if rng.random() < error_rate else number

        if direct:
            return f"{rng.integers(100):02d}{self.eos}"
        answer, result = "", problem.prompt[:2]
        for i in range(2, len(problem.prompt) - 1, 3):
            answer += f"{copied(result)}{problem.prompt[i]}{copied(problem.prompt[i + 1 : i + 3])}{self.call}"
            written = self.tool(answer)
            answer, result = answer + written, written[:2]
        return f"{answer}{copied(result)}{self.eos}"

    def grade(self, label: str, answer: str) -> Verdict:
        """Return reward 1.0 iff what follows the last `;` is the label, and ends."""
        from sat_slime.reward.verdict import verdict

        if not answer.endswith(self.eos):
            return verdict(None, "no_answer")
        last = answer.removesuffix(self.eos).rpartition(";")[2]
        return verdict(last, "text" if last == label else "different")


def _result(first: str, sign: str, second: str) -> str:
    number = int(first) + int(second) if sign == "+" else int(first) * int(second)
    return f"{number % 100:02d}"
