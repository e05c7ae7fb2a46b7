r"""The answer in a sentence: of `Thus the largest $n$ is 34.` the number, of `so it is odd` the word.

Every function takes time linear in the sentence.
"""

from __future__ import annotations

import re

_MAX_SENTENCE = 2000
"""Characters; a longer one is left as it is, and too long for an answer."""
_MATH = re.compile(r"\$\$.+?\$\$|\$[^$]+\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_VERB = re.compile(
    r"(?<![a-zA-Z\\])(?:is|are|be|was|were|equals?(?:\s+to)?|get|gets|gives?|yields?|have|has|obtain|find|conclude|"
    r"becomes?)(?![a-zA-Z])\s*:?|(?<![<>!:=\\])=|:(?=\s)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r",?\s(?:when|where|for|with|since|because|if|as|at|which|so that|such that|attained|achieved|obtained|in total|by|"
    r"after|in order|from|but)(?![a-zA-Z])|,\s(?:so|not|and so|which|since|because|when|attained)\s|;\s",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"\b(?:not|never|cannot|than|at (?:least|most)|between|under|over|below|above|n't|from|up to|no (?:more|less))\b"
    r"[\s$]*$",
    re.IGNORECASE,
)
_MODIFIER = re.compile(
    r"^[\s$]*(?:(?:times|thousand|hundred|dozen|pct|squared|cubed|factorial|or (?:more|less)|th|st|nd|rd)\b|"
    r"(?:m|b|tr)illion|percent|%|\\?\^)",
    re.IGNORECASE,
)
_JOIN = re.compile(r"\s*(?:,?\s*(?:and|or)|,|;)\s*", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![\w\\])[-+−]?\s?(?:[0-9][0-9.,]*[0-9]|[0-9])(?:\s*[/^*+−-]\s*[-0-9a-z.{}()]+)*(?![0-9])", re.IGNORECASE
)
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_NO_PROSE = frozenset(
    {
        "and", "or", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "lim", "max", "min", "gcd", "lcm",
        "mod", "det", "sqrt", "pi", "inf", "infinity", "frac", "left", "right", "approximately", "about", "exactly",
        "roughly", "million", "billion", "trillion", "percent", "degrees", "units", "cm", "km", "mm", "kg", "mph",
        "cubic", "square", "inches", "feet", "meters", "miles", "hours", "minutes", "seconds", "days", "years",
        "dollars", "cents",
    }
)  # fmt: skip
"""Words of mathematics and of units: an answer of these alone is compared as it is."""
_ARTICLE = re.compile(
    r"^(?:just|simply|therefore|thus|then|hence|now|also|the|an?|equal to|given by)\s+", re.IGNORECASE
)


def answer_of(sentence: str) -> str:
    """What the sentence says that something is; itself where it is mathematics alone."""
    sentence = sentence.strip().strip("*_ \t\n").removesuffix(".").strip()
    if len(sentence) > _MAX_SENTENCE or not _is_prose(sentence):
        return sentence
    for clause in _clauses(sentence):
        ends = [verb.end() for verb in _VERB.finditer(_hidden(clause))]
        for end in reversed(ends):
            rest = clause[end:].strip().strip("*_").strip()
            if rest and _has_quantity(rest):
                return _quantity(_without_articles(rest))
    ends = [verb.end() for verb in _VERB.finditer(_hidden(sentence))]
    rest = sentence[ends[-1] :].strip(" *_") if ends else ""
    if rest:
        return _quantity(_without_articles(rest)) if _has_quantity(rest) else rest
    return _quantity(sentence) if _has_quantity(sentence) else sentence


def says_something(sentence: str) -> bool:
    """Whether there may be an answer in it."""
    return _has_quantity(sentence) or bool(_VERB.search(sentence))


def _clauses(sentence: str) -> list[str]:
    hidden, start, found = _hidden(sentence), 0, []
    for cut in _CLAUSE.finditer(hidden):
        found.append(sentence[start : cut.start()])
        start = cut.start() + 1
    return [*found, sentence[start:]]


def _hidden(text: str) -> str:
    """The same length, with the mathematics blotted out."""
    return _MATH.sub(lambda match: "#" * len(match[0]), text)


def _has_quantity(text: str) -> bool:
    return bool(_MATH.search(text)) or any(character.isdigit() for character in text)


def _is_prose(text: str) -> bool:
    outside = re.sub(r"\\(?:text\w*|mathrm|mbox|begin|end)\s*\{[^{}]*\}|\\[a-zA-Z]+", " ", _MATH.sub(" ", text))
    return any(word.lower() not in _NO_PROSE for word in _WORD.findall(outside))


def _without_articles(text: str) -> str:
    while (shorter := _ARTICLE.sub("", text)) != text:
        text = shorter
    return text


def _quantity(text: str) -> str:
    """The mathematics of a few words; the words where it is only compared, denied or counted in another unit."""
    if not _is_prose(text):
        return text
    runs = [(match.start(), match.end()) for match in (_MATH if _MATH.search(text) else _NUMBER).finditer(text)]
    for i, (start, end) in enumerate(runs):
        if _BOUND.search(text[:start]):
            if re.search(r"\b(?:not|n't|never|cannot)\b[\s$]*$", text[:start], re.IGNORECASE):
                continue
            return text
        for following_start, following_end in runs[i + 1 :]:
            if not _JOIN.fullmatch(text, end, following_start):
                break
            end = following_end
        return text if _MODIFIER.search(text[end:]) else text[start:end].strip()
    return text
