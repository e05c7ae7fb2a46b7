r"""The answer in a sentence: of `Thus the largest $n$ is 34.` the number, of `so it is odd` the word.

Every function takes time linear in the sentence.
"""

from __future__ import annotations

import re

_MAX_SENTENCE = 2000
"""The most characters of a sentence that is looked at; a longer one stays as it is, and is too long for an answer."""
_MATH = re.compile(r"\$\$.+?\$\$|\$(?![0-9][0-9.,]*\s+[a-z]{2})[^$]+\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_VERB = re.compile(
    r"(?<![a-zA-Z\\])(?:is|are|be|was|were|equals?(?:\s+to)?|get|gets|gives?|yields?|have|has|obtain|find|conclude|"
    r"becomes?|namely)(?![a-zA-Z])\s*:?|(?<![<>!:=\\])=|:(?=\s)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r",?\s(?:when|where|for|with|since|because|if|as|at|which|so that|such that|attained|achieved|obtained|in total|by|"
    r"after|in order|from|but)(?![a-zA-Z])|,\s(?:so|not|and so|which|since|because|when|attained)\s|;\s",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(r"\b(?:thought|guess(?:ed)?|expected|at first|initially|mistakenly|wrongly)\b", re.IGNORECASE)
_DENIED = re.compile(r"(?:\b(?:not|never|cannot)|n't)\s*$", re.IGNORECASE)
_CORRECTED = re.compile(r"\b(?:not|no|but|rather|instead|never)\b|n't\b", re.IGNORECASE)
_CONCLUSION = re.compile(
    r",?\s(?:and\s)?(?:so|thus|hence|therefore)(?=[\s,])(?! that\b| far\b| \w+ing\b)", re.IGNORECASE
)
_GIVEN = re.compile(
    r"^\W*(?:if|when|where|for|with|since|because|as|at|let|given|setting|putting|taking|assuming)\b", re.IGNORECASE
)
_EQUATION = r"\b[a-zA-Z](?:_?[0-9])?\s*=\s*[^\s,;=]*[^\s,;=.]"
_EQUATIONS = re.compile(rf"(?<![\w\\$]){_EQUATION}(?:\s*(?:,|;|,?\s(?:and|or)\s)\s*{_EQUATION})+")
_YES_OR_NO = re.compile(r"^(yes|no)\s*[,;:—](?:\s*(because|since|as)\b)?", re.IGNORECASE)
_LETTER = re.compile(r"(?:(?:option|choice)\s+)?\W*\(?([A-J])\)?\W*")
_CHOSEN = re.compile(r"\b(?:option|choice|choose|pick|select|go with)\s+[*$]*\(?([A-J])\)?(?![\w'])", re.IGNORECASE)
_FALSE = re.compile(r"\b(?:incorrect|wrong|false|eliminated?|excluded?)\b", re.IGNORECASE)
_SUBJECT = re.compile(
    r"^(?:(?:therefore|thus|hence|so|finally|consequently),?\s+)?(\$[^$]+\$|\S+)\s+(?:is|are)\s+"
    r"(?:then\s+)?(?:the|our)\s[^0-9$\\]*$",
    re.IGNORECASE,
)
_COMPOUND = re.compile(
    r"\s*(?:hours?|minutes?|days?|weeks?|months?|years?|feet|foot|pounds?|dollars?|degrees?)\s*(?:,|and\b)?\s*(?=[0-9])"
)
_MINUS = re.compile(r"\b(?:minus|negative)\s+(\$|\\\()?(?=[0-9\\])")
_UNORDERED = re.compile(
    r"\b(?:solutions|roots|zeros|zeroes)"
    r"(?: (?:of|to) (?:the|this|our) [a-z ]{0,20}(?:equation|polynomial|quadratic|cubic))?"
    r" are(?: then| therefore| thus)?\s*:?[\s$]*$",
    re.IGNORECASE,
)
_ITEM = re.compile(r"\n[ \t]*(?:[-*•]|\(?[0-9]{1,2}[.)])[ \t]+")
_ITEMS = re.compile(rf":[ \t]*(?:\n[ \t]*)?((?:{_ITEM.pattern}[^\n]*){{2,}})")
_NAME_ALONE = re.compile(r"(?:\$|\\\()\s*\\?[a-zA-Z]+\s*(?:\$|\\\))")
_BOUND = re.compile(
    r"\b(?:not|never|cannot|than|at (?:least|most)|between|under|over|below|above|n't|from|by|up to|no (?:more|less))\b"
    r"[\s$]*$",
    re.IGNORECASE,
)
_MODIFIER = re.compile(
    r"^[\s$]*(?:(?:times|thousand|hundred|dozen|pct|squared|cubed|factorial|or (?:more|less)|(?:more|less|fewer) than|"
    r"th|st|nd|rd)\b|"
    r"(?:m|b|tr)illion|percent|\\?\^)",
    re.IGNORECASE,
)
_JOIN = re.compile(r"\s*(?:,?\s*(?:and|or)|,|;)\s*", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![\w\\])[-+−]?\s?(?:[0-9][0-9.,]*[0-9]|[0-9])(?::[0-9]+)*(?:\s*[/^*+−-]\s*[-0-9a-z.{}()]+)*(?![0-9])(?:\s?\\?%|\s?[ap]\.?m\b\.?)?",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_NO_PROSE = frozenset(
    {
        "and", "or", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "lim", "max", "min", "gcd", "lcm",
        "mod", "det", "sqrt", "pi", "inf", "infinity", "frac", "approximately", "about", "exactly",
        "roughly", "million", "billion", "trillion", "percent", "degrees", "units", "cm", "km", "mm", "kg", "mph",
        "cubic", "square", "inches", "feet", "meters", "miles", "hours", "minutes", "seconds", "days", "years",
        "dollars", "cents",
    }
)  # fmt: skip
"""Words of mathematics and of units: an answer of these alone is compared as it is."""
_ARTICLE = re.compile(
    r"^(?:just|simply|therefore|thus|then|hence|now|also|the|an?|equal to|given by)\s+", re.IGNORECASE
)


def answer_of(sentence: str, announced: bool = False) -> str:
    """Return what the sentence says that something is; the sentence itself where it is mathematics alone.

    Args:
        announced: the sentence stands after "answer is", and begins with the answer.
    """
    sentence = sentence.strip().strip("*_ \t\n").removesuffix(".").strip()
    if len(sentence) > _MAX_SENTENCE or not _is_prose(sentence):
        return sentence
    sentence = _MINUS.sub(r"\1-", sentence)
    clauses = _clauses(sentence)
    if announced and _has_quantity(clauses[0]) and not _verb_ends(clauses[0]) and not _CORRECTED.search(sentence):
        return _quantity(_without_articles(clauses[0].strip()))
    if letter := _letter(sentence, clauses[0] if announced else ""):
        return letter
    if (said := _YES_OR_NO.match(sentence)) and (said[2] or not _has_quantity(sentence)):
        return said[1]
    if (subject := _SUBJECT.match(sentence)) and _has_quantity(subject[1]):
        return subject[1]
    for clause in sorted(clauses, key=lambda clause: bool(_SUPPOSED.search(clause))):
        equations = list(_EQUATIONS.finditer(clause))[-1:]
        if equations and not _GIVEN.match(clause) and not _verb_ends(clause[equations[0].end() :]):
            return equations[0][0]
        for end in reversed(_verb_ends(clause)):
            rest = clause[end:].strip().strip("*_").strip()
            if rest and _has_quantity(rest):
                quantity = _quantity(_without_articles(rest))
                return quantity.replace(" and ", " or ") if is_called_unordered(clause[:end]) else quantity
    ends = _verb_ends(sentence)
    rest = sentence[ends[-1] :].strip(" *_") if ends else ""
    if rest:
        rest = _without_articles(rest)
        return _quantity(rest) if _has_quantity(rest) else rest
    return _quantity(sentence) if _has_quantity(sentence) and not _denies(sentence) else sentence


def conclusion(sentence: str) -> str:
    """Return the part of a sentence after its last "so" or "hence", where that holds something to compare."""
    cuts = list(_CONCLUSION.finditer(_hidden(sentence)))
    rest = sentence[cuts[-1].end() :].strip(" ,") if cuts else ""
    return rest if _has_quantity(rest) else sentence


def is_called_unordered(before: str) -> bool:
    """Return whether a text announces things that have no order, as `the roots are` does."""
    return bool(_UNORDERED.search(before[-200:]))


def listed(text: str) -> str:
    """Return the text with items that stand below each other after a colon as one list with commas."""
    return _ITEMS.sub(lambda items: ": " + ", ".join(_ITEM.split(items[1])[1:]), text)


def _letter(sentence: str, beginning: str) -> str:
    """Return the letter of a choice, at the beginning of an announced answer, or after `option` and the like."""
    if _CORRECTED.search(sentence) or _FALSE.search(sentence):
        return ""
    if letter := _LETTER.fullmatch(beginning):
        return letter[1]
    letters = [] if _has_quantity(sentence) else _CHOSEN.findall(sentence)
    return letters[0] if len(letters) == 1 else ""


def _verb_ends(clause: str) -> list[int]:
    """Return the places where what the verbs lead to begins; `cannot be` and `is not equal to` lead to nothing."""
    return [] if _denies(clause) else [verb.end() for verb in _VERB.finditer(_hidden(clause))]


def _denies(sentence: str) -> bool:
    hidden = _hidden(sentence)
    return any(_DENIED.search(hidden[: verb.start()]) for verb in _VERB.finditer(hidden))


def says_something(sentence: str) -> bool:
    """Return whether a sentence may hold an answer."""
    return _has_quantity(sentence) or bool(_VERB.search(sentence))


def _clauses(sentence: str) -> list[str]:
    hidden, start, clauses = _hidden(sentence), 0, []
    for cut in _CLAUSE.finditer(hidden):
        clauses.append(sentence[start : cut.start()])
        start = cut.start() + 1
    return [*clauses, sentence[start:]]


def _hidden(text: str) -> str:
    """Return the text with its mathematics blotted out, of the same length."""
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
    """Return the mathematics in a few words, or the words where it is only compared, denied or counted in another
    unit."""
    if not _is_prose(text):
        return text
    hidden = _hidden(text)
    maths = [match for match in _MATH.finditer(text) if not _NAME_ALONE.fullmatch(match[0])]
    counts = [] if maths else list(_NUMBER.finditer(hidden))  # 3 values of $k$
    runs = [(match.start(), match.end()) for match in maths or counts or _MATH.finditer(text)]
    for i, (start, end) in enumerate(runs):
        if _BOUND.search(text[:start]):
            if re.search(r"\b(?:not|n't|never|cannot|by)\b[\s$]*$", text[:start], re.IGNORECASE):
                continue
            return text
        if _COMPOUND.match(text, end):
            return text[start:]  # 3 hours and 20 minutes
        for following_start, following_end in runs[i + 1 :]:
            if not _JOIN.fullmatch(text, end, following_start):
                break
            end = following_end
        return text if _MODIFIER.search(text[end:]) else text[start:end].strip()
    return text
