r"""The text of a problem: how the instruction around it is taken off, how two copies of a problem are told to be the
same, and how a run's own instruction is put around it."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import Path

from sat_slime.prompts import PromptError

PLACE = "{problem}"
TEMPLATES = {
    "slime": (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "\\boxed{$Answer} where $Answer is the answer to the problem.\n\n{problem}\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    ),
    "dapo": (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{problem}\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    ),
    "boxed": "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "none": "{problem}",
}
"""Instructions by name. `slime` is that of slime's copy of DAPO-Math-17k, `dapo` that of the original."""

# The wording differs from copy to copy. These match all that are known, and nothing that a problem would say.
_BEFORE = re.compile(
    r"(?:user:)?\s*Solve the following (?:math )?problem step by step\.\s*The last line of your response should be "
    r"[^\n]{0,200}? where \$?Answer is the answer to the problem\.",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"(?:Remember to put your answer on its own line [^\n]{0,300}"
    r"|(?:Please |Let's )?(?:reason|think) step by step,? and (?:put|output) (?:your|the) final answer (?:with)?in "
    r"\\boxed\{\}\.?)\s*\Z",
    re.IGNORECASE,
)
_SIGNS = str.maketrans({"−": "-", "–": "-", "—": "-", "“": '"', "”": '"', "‘": "'", "’": "'"})
_LAYOUT = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|q?quad)(?![a-zA-Z])"
    r"|\\[,;:!> ]|\\[()\[\]]|\$|~"
)
_FRACTION = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_PUNCTUATION = re.compile(r"(?<![0-9])[.,;?]|[.,;?](?![0-9])")


def strip_instruction(text: str) -> tuple[str, bool]:
    """Return the problem alone, and whether an instruction stood around it."""
    before = _BEFORE.match(text)
    problem = text[before.end() :] if before else text
    after = _AFTER.search(problem)
    if after:
        problem = problem[: after.start()]
    return problem.strip(), bool(before or after)


def normalize(problem: str) -> str:
    """Return a text that is equal for two copies of the same problem.

    Unicode's compatible forms, letter case, kinds of minus signs and quotes, LaTeX that is only layout, white space,
    and punctuation outside numbers make no difference.
    """
    text = unicodedata.normalize("NFKC", problem).translate(_SIGNS)
    text = _FRACTION.sub(r"\\frac", _LAYOUT.sub("", text))
    return "".join(_PUNCTUATION.sub("", text).casefold().split())


def digest(text: str) -> bytes:
    """Return 16 bytes that stand for a text: a million of them take little memory."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def find_template(given: str) -> str:
    """Return the template that is given by its name, by a file, or as text. Raises PromptError."""
    if given in TEMPLATES:
        return TEMPLATES[given]
    template = given
    if PLACE not in given:
        try:
            template = Path(given).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, ValueError):
            names = ", ".join(TEMPLATES)
            raise PromptError(
                f"template {given!r} is neither one of {names}, nor a file, nor a text with {PLACE} in it"
            ) from None
    if template.count(PLACE) != 1:
        raise PromptError(f"template {given!r} has to hold {PLACE} once, it does {template.count(PLACE)} times")
    return template


def fill(template: str, problem: str) -> str:
    """Return the template with the problem in its place. str.format would stumble over LaTeX's braces in both."""
    return template.replace(PLACE, problem)
