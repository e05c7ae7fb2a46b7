r"""The text of a problem: the instruction around it taken off, two copies of it told to be the same, slime's put
around it; and prompts, labels and files that can be read and yet are not what they seem to be."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import re
import unicodedata
from pathlib import Path
from typing import Any

INSTRUCTION = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "\\boxed{$Answer} where $Answer is the answer to the problem.",
    'Remember to put your answer on its own line after "Answer:".',
)
"""What stands before and after a problem in slime's copy of DAPO-Math-17k."""

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
_PUNCTUATION = re.compile(r"(?<![0-9])[,;?]|[.,;?](?![0-9])")
_LISTED, _APART = re.compile(r"(?<=[0-9])([,;])\s+(?=[0-9])"), re.compile(r"(?<=[0-9])\s+(?=[0-9])")


def strip_instruction(text: str) -> str:
    """Return the problem without the instruction around it."""
    before = _BEFORE.match(text)
    return _AFTER.sub("", text[before.end() :] if before else text).strip()


def normalize(problem: str) -> str:
    """Return a text that is equal for two copies of the same problem: Unicode's compatible forms, letter case, kinds of
    minus signs and quotes, LaTeX that is only layout, white space, and punctuation outside numbers make no difference.
    """
    text = unicodedata.normalize("NFKC", problem).translate(_SIGNS)
    text = _FRACTION.sub(r"\\frac", _LAYOUT.sub("", text))
    text = _APART.sub("_", _PUNCTUATION.sub("", _LISTED.sub(r"\1", text)))  # 1, 2 is 1,2, and 1 2 is not 12
    return "".join(text.casefold().split())


def digest(problem: str) -> bytes:
    """Return 16 bytes that stand for the normal form of a problem: a million of them take little memory."""
    return hashlib.blake2b(normalize(problem).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def instructed(problem: str) -> str:
    """Return the problem with slime's instruction around it."""
    before, after = INSTRUCTION
    return f"{before}\n\n{problem}\n\n{after}"


ROLES = ("system", "developer", "user", "assistant", "tool")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_LIST = re.compile(rf"\s*\[\s*{_QUOTED}(?:[\s,]+{_QUOTED})*[\s,]*\]\s*")
_MESSAGES = re.compile(r'\s*\[\s*\{\s*"(?:role|content)"\s*:')
_CONTROL = re.compile(r"<\|[a-z_]{2,40}\|>|<｜[^<>｜\s]{1,40}｜>|<(?:start|end)_of_turn>")


def odd_file(path: Path) -> str | None:
    """Return what a file is instead of its data, or None. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(40)
    if head.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, without the data: `git lfs pull` gets them"
    if head.startswith(b"\x1f\x8b"):
        return "it is compressed: unpack it with gunzip"
    return None


def odd_prompt(prompt: Any, templated: bool) -> str | None:
    """Return what is wrong with a prompt, a text or a list of messages, or None. templated: a chat template will be put
    around it, so a control token in it would end its turn."""
    if isinstance(prompt, str):
        return odd_text(prompt, templated)
    roles = [message.get("role") if isinstance(message, dict) else None for message in prompt]
    if unknown := [role for role in roles if role not in ROLES]:
        return f"it has a message of role {unknown[0]!r}, which chat templates drop: they know {', '.join(ROLES)}"
    if roles and roles[-1] == "assistant":
        return "its last message is the assistant's, so nothing is asked: leave that out"
    texts = (message.get("content") for message in prompt)
    return next((what for text in texts if isinstance(text, str) and (what := odd_text(text, templated))), None)


def odd_text(text: str, templated: bool) -> str | None:
    """Return what is wrong with a text, as in odd_prompt."""
    if half := _half(text):
        return half
    if templated and (token := _CONTROL.search(text)):
        return f"it holds the control token {token[0]}: take it out"
    return "it is JSON of messages in a text: write the list itself" if _MESSAGES.match(text) else None


def _half(text: str) -> str | None:
    if half := _SURROGATE.search(text):
        return f"it holds half a character (U+{ord(half[0]):04X}), which no tokenizer takes: repair or leave it out"
    return None


def list_in_text(label: Any) -> Any:
    r"""Return a label as it is, or where it is a list of texts in a text, written as in JSON, Python or numpy, that
    list. A text with a control character in it stays as it was written: \text after one backslash is no tab."""
    if isinstance(label, str) and _LIST.fullmatch(label):
        with contextlib.suppress(ValueError, SyntaxError):
            texts = [(ast.literal_eval(quoted), quoted[1:-1]) for quoted in re.findall(_QUOTED, label)]
            return [text if min(text, default=" ") >= " " else written for text, written in texts]
    return label


def odd_label(label: Any) -> str | None:
    """Return what is wrong with a label, or None."""
    if isinstance(label, str) and (half := _half(label)):
        return half
    if isinstance(label, (str, float)) and str(label).strip(" +-").lower() in ("nan", "inf"):
        return "it is no finite number: write the answer, such as \\infty, or leave the row out"
    return None
