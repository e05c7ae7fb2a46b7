r"""The text of a problem: without the instruction around it, in a form that is the same for the same problem, and
inside the instruction that a run is to use."""

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
"""Instructions by name. `slime`: as in slime's copy of DAPO-Math-17k; `dapo`: as in the original."""

# Wordings differ from copy to copy; these are wide enough for all that are known, and hold nothing a problem would say.
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
_TOKEN = re.compile(r"\\?[^\W_]+|[^\w\s]|_")


def strip_instruction(text: str) -> tuple[str, bool]:
    """The problem alone, and whether an instruction stood around it."""
    before = _BEFORE.match(text)
    problem = text[before.end() :] if before else text
    after = _AFTER.search(problem)
    if after:
        problem = problem[: after.start()]
    return problem.strip(), bool(before or after)


def normalize(problem: str) -> str:
    """Equal for the same problem in two copies. Unicode's compatible forms, letter case, kinds of minus signs and
    quotes, LaTeX that is layout alone, white space, and punctuation outside numbers make no difference."""
    text = unicodedata.normalize("NFKC", problem).translate(_SIGNS)
    text = _FRACTION.sub(r"\\frac", _LAYOUT.sub("", text))
    return "".join(_PUNCTUATION.sub("", text).casefold().split())


def digest(text: str) -> bytes:
    """16 bytes that stand for a text: a million of them are small."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def tokens(problem: str) -> list[str]:
    """Words, numbers, LaTeX commands and signs, with what `normalize` drops left out."""
    text = _FRACTION.sub(r"\\frac", _LAYOUT.sub(" ", unicodedata.normalize("NFKC", problem).translate(_SIGNS)))
    return _TOKEN.findall(_PUNCTUATION.sub(" ", text).casefold())


def find_template(given: str) -> str:
    """The template of a name, in a file, or as it was given. Raises PromptError."""
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
    """Not str.format: both are full of LaTeX's braces."""
    return template.replace(PLACE, problem)
