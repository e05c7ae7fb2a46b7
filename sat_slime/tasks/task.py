"""A task of the lab runtime: problems, their answers, and what a model is first shown of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:  # so that settings are read before numpy is imported
    import numpy as np

    from sat_slime.reward import Verdict


_MULTIPLE = 16
"""Vocabularies are multiples of it, so that tensor parallelism can cut them."""
_BESIDE_THE_ALPHABET = 2
"""Token ids kept free: the tokenizer that slime loads has a token for padding and one for unknown characters."""


@dataclass(frozen=True)
class Problem:
    """One prompt and its label, both texts."""

    prompt: str
    label: str
    """What an answer is graded by."""


class Task(BaseModel, ABC):
    """A task is its settings, which are the section `task` of a run, and what follows from them.

    A subclass has a field for each setting, with a default, and defines `draw`, `demonstration`, the lengths and the
    number of problems; docs/extend.md writes one. Texts become tokens by the alphabet, a character each. All that is
    random follows from the generators that are passed in, so that a resumed run goes on with the same problems.
    """

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True, frozen=True, allow_inf_nan=False)

    name: str = ""
    """The task: the name of one of ours, or the dotted path of a module or class of your own."""

    alphabet: ClassVar[str]
    """The characters of prompts and answers; the position of a character is its token id."""
    eos: ClassVar[str] = "$"
    """The character of the alphabet that ends an answer."""
    held_out_one_in: ClassVar[int] = 16
    """One in this many problems is held out for evaluation."""

    # ---------------------------------------------------------------------------------------- what a task defines

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Problem:
        """Return one of all problems, those held out included."""

    @abstractmethod
    def demonstration(self, problem: Problem, rng: np.random.Generator, error_rate: float, direct: bool) -> str:
        """Return an answer to imitate during the warm-up, `eos` included.

        Args:
            error_rate: probability that each of its steps errs; 0 makes it a right one.
            direct: leave out the steps that lead to the answer.
        """

    @property
    @abstractmethod
    def prompt_tokens(self) -> int:
        """Tokens of the longest prompt."""

    @property
    @abstractmethod
    def answer_tokens(self) -> int:
        """Tokens of the longest answer that shows all its steps, `eos` included."""

    @property
    @abstractmethod
    def total_problems(self) -> int:
        """Number of problems that can be drawn, those held out included."""

    # ----------------------------------------------------------------------------- what it may define differently

    def grade(self, label: str, answer: str) -> Verdict:
        """Return the verdict on an answer: here reward 1.0 iff it is the label and ends.

        Args:
            answer: what was written; its last character is `eos` where the response has ended, and characters outside
                of the alphabet are `?`.
        """
        from sat_slime.reward.verdict import verdict

        if not answer.endswith(self.eos):
            return verdict(None, "no_answer")
        text = answer.removesuffix(self.eos)
        return verdict(text, "text" if text == label else "different")

    # ----------------------------------------------------------------------------------------------- what follows

    @property
    def vocab_size(self) -> int:
        """Number of token ids: the alphabet and two more, rounded up."""
        return -(-(len(self.alphabet) + _BESIDE_THE_ALPHABET) // _MULTIPLE) * _MULTIPLE

    @property
    def eos_id(self) -> int:
        """Token id of `eos`."""
        return self.alphabet.index(self.eos)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of its settings."""
        return tuple(key for key in type(self).model_fields if key != "name")

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text. Raises ValueError for a character outside of the alphabet."""
        return tuple(self.alphabet.index(character) for character in text)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of token ids; ids beyond the alphabet become `?`."""
        return "".join(self.alphabet[i] if i < len(self.alphabet) else "?" for i in token_ids)

    def verdict(self, label: str, output_ids: Sequence[int]) -> Verdict:
        """Return the verdict on the tokens of a response."""
        return self.grade(label, self.decode(output_ids))

    def is_held_out(self, problem: Problem) -> bool:
        """Return whether a problem is held out for evaluation: by a hash of its prompt, whatever the run."""
        return hashlib.blake2b(problem.prompt.encode(), digest_size=1).digest()[0] % self.held_out_one_in == 0

    def draw_problem(self, rng: np.random.Generator, *, held_out: bool) -> Problem:
        """Return a problem that is held out for evaluation, or one that is not."""
        while True:
            problem = self.draw(rng)
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
