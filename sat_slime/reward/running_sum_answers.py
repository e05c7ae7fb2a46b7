"""Answers to the running sums: what their tokens are, and when one is right.

`3524    =` asks for the sums of its digits; `08,10,14$` answers with the partial sums from the second digit on, each
two digits, and `$` ends. Reward is 1 iff the response ends and its last number is the exact sum: an answer may skip the
partial sums, but a model that writes them has the easier way. A character is a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sat_slime.reward.verdict import Verdict
from sat_slime.reward.verdict import verdict as make_verdict

ALPHABET = "0123456789,=$ "
"""A character's place is its token id."""
EOS = ALPHABET.index("$")


def encode(text: str) -> tuple[int, ...]:
    """Token ids of a text over the alphabet."""
    return tuple(ALPHABET.index(character) for character in text)


def decode(token_ids: Iterable[int]) -> str:
    """Text of token ids; the ids beyond the alphabet show as `?`."""
    return "".join(ALPHABET[i] if i < len(ALPHABET) else "?" for i in token_ids)


def answer(output_ids: Sequence[int]) -> str | None:
    """The last number of a response that ends: two digits, right before `$`, as a number of their own."""
    text = decode(output_ids)
    last = text.removesuffix("$").split(",")[-1]
    return last if text.endswith("$") and len(last) == 2 and last.isdigit() else None


def verdict(label: str, output_ids: Sequence[int]) -> Verdict:
    """Reward 1.0 iff the last number is that of the label, as the verifier of mathematics would tell it."""
    found = answer(output_ids)
    if found is None:
        return make_verdict(None, "no_answer")
    return make_verdict(found, "number" if int(found) == int(label) else "different")
