r"""Where the answer of a response is, sought in PRIME's order: after "answer:" or "answer is", there in the last
\boxed, else in a sentence, as the number in `Thus the largest $n$ is 34.` and the word in `so it is odd`.

Every function takes time linear in its text, whatever it holds.
"""

from __future__ import annotations

import re

# ------------------------------------------------------------------------------------------- the answer in a sentence

_MAX_SENTENCE = 2000
"""The most characters of a sentence that is looked at; a longer one stays as it is, and is too long for an answer."""
_MATH = re.compile(r"\$\$.+?\$\$|\$(?![0-9][0-9.,]*\s+[a-z]{2})[^$]+\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_VERB = re.compile(
    r"(?<![a-zA-Z\\])(?:is|are|be|was|were|equals?(?:\s+to)?|gets?|giv(?:es?|ing)|yield(?:s|ing)?|have|has|obtain|find|conclude|"
    r"becomes?|namely)(?![a-zA-Z])\s*:?|(?<![<>!:=\\])=|:(?=\s)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"(?i),?\s\(?(?:when|where|for|with|since|because|if|as|at|which|so that|such that|attained|achieved|obtained|"
    r"in total|by|after|in order|from|but)(?![a-zA-Z])|,\s(?:so|not|and so)\s|;\s|\s\((?=[a-z]{2}|[^()]*=)"
)
_SUPPOSED = re.compile(r"(?i)\b(?:thought|guess(?:ed)?|expected|at first|initially|mistakenly|wrongly)\b")
_DENIED = re.compile(rf"(?i)(?:\b(?:not|never|cannot)|n't)\s*(?:{_VERB.pattern})")
_CORRECTED = re.compile(r"(?i)\b(?:not|no|but|rather|instead|never)\b|n't\b")
_CONCLUSION = re.compile(r"(?i),?\s(?:and\s)?(?:so|thus|hence|therefore)(?=[\s,])(?! that\b| far\b| \w+ing\b)")
_GIVEN = re.compile(
    r"(?i)^\W*(?:if|when|where|for|with|since|because|as|at|let|given|setting|putting|taking|assuming)\b"
)
_EQUATION = r"\b[a-zA-Z](?:_?[0-9])?\s*=\s*[^\s,;=]*[^\s,;=.]"
_EQUATIONS = re.compile(rf"(?<![\w\\$]){_EQUATION}(?:\s*(?:,|;|,?\s(?:and|or)\s)\s*{_EQUATION})+")
_YES_OR_NO = re.compile(r"(?i)^(yes|no)\s*[,;:—](?:\s*(because|since|as)\b)?")
_LETTER = re.compile(r"(?i:(?:so|thus|hence|therefore),?\s+)?(?:(?:option|choice)\s+)?\W*\(?([A-J])\)?\W*")
_CHOSEN = re.compile(r"(?i)\b(?:option|choice|choose|pick|select|go with)\s+[*$]*\(?([A-J])\)?(?![\w'])")
_FALSE = re.compile(r"(?i)\b(?:incorrect|wrong|false|eliminated?|excluded?)\b")
_SUBJECT = re.compile(
    r"(?i)^(?:(?:therefore|thus|hence|so|finally|consequently),?\s+)?(\$[^$]+\$|\S+)\s+(?:is|are)\s+"
    r"(?:then\s+)?(?:the|our)\s[^0-9$\\]*$"
)
_COMPOUND = re.compile(
    r"\s*(?:hours?|minutes?|days?|weeks?|months?|years?|feet|foot|pounds?|dollars?|degrees?)\s*(?:,|and\b)?\s*(?=[0-9])"
)
_MINUS = re.compile(r"\b(?:minus|negative)\s+(\$|\\\()?(?=[0-9\\])")
_UNORDERED = re.compile(
    r"(?i)\b(?:solutions|roots|zeros|zeroes)"
    r"(?: (?:of|to) (?:the|this|our) [a-z ]{0,20}(?:equation|polynomial|quadratic|cubic))?"
    r" are(?: then| therefore| thus)?\s*:?[\s$]*$"
)
_ITEM = re.compile(r"\n[ \t]*(?:[-*•]|\(?[0-9]{1,2}[.)])[ \t]+")
_ITEMS = re.compile(rf":[ \t]*(?:\n[ \t]*)?((?:{_ITEM.pattern}(?:[^ \t\n][^\n]*)?){{2,}})")
_NAME = r"\\?[a-zA-Z]+(?:_\{?\w\}?)?"
_NAME_ALONE = re.compile(rf"(?:\$|\\\()\s*(?:{_NAME}|\\?[({{]\s*{_NAME}(?:\s*,\s*{_NAME})+\s*\\?[)}}])\s*(?:\$|\\\))")
"""Matches $k$, and the pairs $(a, b)$ of which there are so many."""
_BOUND = re.compile(
    r"(?i)\b(?:not|never|cannot|than|at (?:least|most)|between|under|over|below|above|n't|from|by|up to|"
    r"except|twice|(?:root|square|cube|half|third|quarter|multiples?|divisors?|factors?) of|no (?:more|less))\b[\s$]*$"
)
_MODIFIER = re.compile(
    r"(?i)^[\s$]*(?:(?:times|thousand|hundred|dozen|pct|squared|cubed|factorial|to \$?[0-9]+|"
    r"or (?:more|less|fewer|higher|lower|greater|above|below)|(?:more|less|fewer) than|th|st|nd|rd)\b|"
    r"(?:m|b|tr)illion|percent|\\?\^)"
)
_JOIN = re.compile(r"(?i)\s*(?:,?\s*(?:and|or)|,|;)\s*")
_NUMBER = re.compile(
    r"(?i)(?<![\w\\])[-+−]?\s?(?:[0-9][0-9.,]*[0-9]|[0-9]|(?=[π√]))(?:\s?(?:[π√]|(?:pi|sqrt)\b)[0-9()]*)*(?::[0-9]+)*(?:\s*[/^*+−-]\s*[-0-9a-z.{}()]+)*(?![0-9])(?:\s?\\?%|\s?[ap]\.?m\b\.?)?"
)
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_NO_PROSE = frozenset(
    {
        "and", "or", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "lim", "max", "min", "gcd", "lcm",
        "mod", "det", "sqrt", "pi", "inf", "infinity", "frac", "approximately", "about", "exactly", "roughly", "cubic",
        "million", "billion", "trillion", "percent", "degrees", "units", "cm", "km", "mm", "kg", "mph", "square",
        "inches", "feet", "meters", "miles", "hours", "minutes", "seconds", "days", "years", "dollars", "cents",
    }
)  # fmt: skip
"""Words of mathematics and of units: an answer of these alone is compared as it is."""
_ARTICLE = re.compile(r"(?i)^(?:(?:just|simply|therefore|thus|then|hence|now|also|the|an?|equal to|given by)\s+)+")


def answer_of(sentence: str, announced: bool = False) -> str:
    """Return what the sentence says that something is; the sentence itself where it is mathematics alone. One that is
    `announced` stands after "answer is", and begins with the answer."""
    sentence = sentence.strip().strip("*_ \t\n").removesuffix(".").strip()
    if len(sentence) > _MAX_SENTENCE or not _is_prose(sentence):
        return sentence
    sentence = _MINUS.sub(r"\1-", sentence)
    clauses = _clauses(sentence)
    if announced and _has_quantity(clauses[0]) and not _verb_ends(clauses[0]) and not _CORRECTED.search(sentence):
        return _quantity(_ARTICLE.sub("", clauses[0].strip()))
    if letter := _letter(sentence, clauses[0] if announced else ""):
        return letter
    if (agreed := _YES_OR_NO.match(sentence)) and (agreed[2] or not _has_quantity(sentence)):
        return agreed[1]
    if (subject := _SUBJECT.match(sentence)) and _has_quantity(subject[1]):
        return subject[1]
    for clause in sorted(clauses, key=lambda clause: bool(_SUPPOSED.search(clause))):
        equations = list(_EQUATIONS.finditer(clause))[-1:]
        if equations and not _GIVEN.match(clause) and not _verb_ends(clause[equations[0].end() :]):
            return equations[0][0]
        for end in reversed(_verb_ends(clause)):
            rest = clause[end:].strip().strip("*_").strip()
            if rest and _has_quantity(rest):
                quantity = _quantity(_ARTICLE.sub("", rest))
                return quantity.replace(" and ", " or ") if _UNORDERED.search(clause[:end][-200:]) else quantity
    ends = _verb_ends(sentence)
    rest = sentence[ends[-1] :].strip(" *_") if ends else ""
    said = _ARTICLE.sub("", rest) if rest else sentence
    return _quantity(said) if _has_quantity(said) and not _DENIED.search(_hidden(sentence)) else said


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
    hidden = _hidden(clause)
    return [] if _DENIED.search(hidden) else [verb.end() for verb in _VERB.finditer(hidden)]


def _clauses(sentence: str) -> list[str]:
    cuts = list(_CLAUSE.finditer(_hidden(sentence)))
    starts, ends = [0, *(cut.start() + 1 for cut in cuts)], [*(cut.start() for cut in cuts), None]
    return [sentence[start:end] for start, end in zip(starts, ends, strict=True)]


def _hidden(text: str) -> str:
    """Return the text with its mathematics blotted out, of the same length."""
    return _MATH.sub(lambda match: "#" * len(match[0]), text)


def _has_quantity(text: str) -> bool:
    return bool(_MATH.search(text)) or any(character.isdigit() for character in text)


def _is_prose(text: str) -> bool:
    outside = re.sub(r"\\(?:text\w*|mathrm|mbox|begin|end)\s*\{[^{}]*\}|\\[a-zA-Z]+", " ", _MATH.sub(" ", text))
    return any(word.lower() not in _NO_PROSE for word in _WORD.findall(outside))


def _quantity(text: str) -> str:
    """Return the mathematics in a few words; the words where it is only compared, denied or counted in another unit."""
    if not _is_prose(text):
        return text
    maths = [match for match in _MATH.finditer(text) if not _NAME_ALONE.fullmatch(match[0])]
    counts = [] if maths else list(_NUMBER.finditer(_hidden(text)))  # 3 values of $k$
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


# ------------------------------------------------------------------------------------------- the answer in a response

ANSWER_MARKERS = ("answer:", "answer is", "answers are")
TRAILING_MARKERS = ("is answer", "is the answer", "are answers", "are the answers")
CONNECTORS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")
"""PRIME's connectors, in PRIME's order: each is looked for in what the one before has left."""

_MARKED = re.compile(
    r"(?i)\banswers?\s*(?:=|equals?\b)|\banswers?,? (?:therefore|then|hence|thus),? (?:is|are)\b|"
    r"\banswers? (?:must|should|would|will|has to|have to|to|turns out to|comes out to) be\b|(?:^|\n)#### "
)
_TRAILING = re.compile(
    r"(?i)\b(?:is|are|as|will be|must be|should be|would be) (?:(?:the|our|my|your|this) )?"
    r"(?:(?:final|correct|required|desired|only) )*answers?\b"
)
_IF_IT_IS = re.compile(r"(?i)\b(?:suppose|assume|if|whether)(?: that)? (?:(?:the|our|this|final|correct) )*$")
_DOUBTED = re.compile(r"(?i)\b(?:whether|doubt|unsure|suppose|assume|if)\b|^(?:that|this|it)$")
_SENTENCE_END = re.compile(r"(?<!\\)[.!?](?:\s|$)")
_NO_FACTORIAL = re.compile(r"(?<![0-9a-z)\\])!(?:\s|$)|(?<!\\)[.?](?:\s|$)")
"""The end of a sentence that no marker announces, in which 3! is a number."""
_PARAGRAPH = re.compile(r"(?<!\n)\n\s*\n[^\S\n]*(?!\s|\$\$|\\\[)")
_UNFINISHED = re.compile(r"(?i)((?:\b(?:is|are|be|get|have|obtain|equals?|to)|[:=,])[^\S\n]*)\n\s*\n")
_BRACE = re.compile(r"[{}]")
_BRACE_OR_ESCAPE = re.compile(r"(?s)\\.|[{}]")
_MAX_BOXES = 16
_TAIL = 8000
"""Characters from the end in which the last sentences are looked for."""
_BOXES = re.compile(
    r"(?:[\s$,;]|\\[()\[\],;:! ]|\\q?quad|\\text\s*\{\s*(?:and|or)\s*\}|and\b|or\b|[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)


def extract(response: str) -> str | None:
    """Return the answer, or None."""
    text = re.sub("[∴✓✔✅■∎]", "", response.replace("**:", ":"))  # **Answer**: 5 ✅
    text = text.rpartition("</think>")[2].partition("<think>")[0]  # a thought that does not end is no answer
    box = last_box(text)
    in_box = box is not None and any(marker in box.lower() for marker in ANSWER_MARKERS)
    marked = None if in_box else _after_markers(text)  # \boxed{\text{The answer is } 5}
    box = _last_boxes(text if marked is None else marked)
    if box is None and marked is not None and not any(map(str.isdigit, marked)):
        box = _last_boxes(text)
    if box is not None:
        return box.strip() or None
    return _last_answer(text) if marked is None else _marked_answer(marked)


def _last_boxes(text: str) -> str | None:
    r"""Return the last box; with those before it between which only signs and `or` stand: \boxed{3} or \boxed{5}."""
    boxes = last_box(text)
    for _ in range(_MAX_BOXES if boxes is not None else 0):
        text = text.rpartition("\\boxed")[0]
        other = last_box(text)
        if other is None:
            break
        between = text.rpartition("\\boxed")[2].partition("{")[2][len(other) + 1 :]
        if not _BOXES.fullmatch(between) or not re.search(r"and|or|,|;", between):
            break
        joined = "or" if "or" in between or _UNORDERED.search(text.rpartition("\\boxed")[0][-200:]) else ","
        boxes = boxes if other == boxes else f"{other} {joined} {boxes}"
    return boxes


def last_box(text: str) -> str | None:
    r"""Return what the last \boxed{...}, or without one the last \fbox{...}, holds; None when it does not close."""
    rest = _after_box(text).lstrip()
    # `\{` is a brace of the answer, except in what a model left broken: \boxed{185\}.
    closing = _closing_brace(rest, _BRACE_OR_ESCAPE) or _closing_brace(rest, _BRACE)
    return rest[1:closing] if closing and rest[0] == "{" else None


def unboxed(label: str) -> str:
    r"""Return a label without the \boxed that some data sets keep around it: `\boxed{3}\text{ cm}` stays as it is."""
    before, found, rest = label.strip().rpartition("\\boxed")
    box = last_box(label) or ""
    return box if found and not before and rest.lstrip() == f"{{{box}}}" else label


def _after_box(text: str) -> str:
    _, found, rest = text.rpartition("\\boxed" if "\\boxed" in text else "\\fbox")
    return rest if found else ""


def prime_extract(response: str) -> str:
    """PRIME's `match_answer`, step by step."""
    response = _cut(_cut(response, ANSWER_MARKERS), TRAILING_MARKERS, before=True)
    rest = _after_box(response)
    closing = _closing_brace(rest, _BRACE)
    response = (rest[rest.find("{") + 1 : closing].strip() if closing else "") or response
    return _cut(_cut(response, (". ",), before=True), CONNECTORS)


def _cut(text: str, markers: tuple[str, ...], before: bool = False) -> str:
    """Return what stands after, or before, the last of each marker, one marker after the other."""
    for marker in markers:
        if (position := text.lower().rfind(marker)) >= 0:
            text = (text[:position] if before else text[position + len(marker) :]).strip()
    return text


def _after_markers(text: str) -> str | None:
    """Return what follows the last "answer:", "answer is", and so on; None when there is none of them."""
    marked = None
    lowered = text.lower() if len(text.lower()) == len(text) else text
    ends = [match.end() for match in _MARKED.finditer(text)]
    for marker in ANSWER_MARKERS:
        if (place := lowered.rfind(marker)) >= 0 and not _IF_IT_IS.search(text[max(0, place - 60) : place]):
            ends.append(place + len(marker))
    if ends:
        marked = text = text[max(ends) :].strip()
    for match in list(_TRAILING.finditer(text))[-1:]:
        # At 0 nothing stands before it; a box behind it is the later answer.
        before = text[: match.start()].strip()
        if before and "\\boxed" not in text[match.end() :] and not _DOUBTED.search(_sentences(before)[-1]):
            marked = before if marked is not None else _sentences(before)[-1]
    return marked


def _marked_answer(text: str) -> str | None:
    """Return the answer in the first line, up to the end of its sentence; what comes after it explains."""
    # A list that begins the answer follows a marker's colon.
    text = listed(f":\n{text}" if text[:1] in "-*•1(" else text).lstrip(" \t\r\n:*")
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if text.startswith(opening) and (end := text.find(closing, 2)) > 0:
            return text[2:end].strip() or None
    line = _SENTENCE_END.split(text.partition("\n")[0], maxsplit=1)[0]
    return answer_of(line.strip(" \t\r*"), announced=True) or None


def _last_answer(text: str) -> str | None:
    """Return the answer of a response without box and marker: what its last sentence says that says anything, there
    after its last "so" or "hence" where that is followed by something to compare."""
    sentences = _sentences(text)
    if sentences[0].lower() in ("yes", "no") and not any(map(str.isdigit, sentences[-1])):
        return sentences[0]
    said = next((one for one in reversed(sentences) if _has_quantity(one) or _VERB.search(one)), sentences[-1])
    *_, cut = 0, *(match.end() for match in _CONCLUSION.finditer(_hidden(said)))
    concluded = said[cut:].strip(" ,")
    return answer_of(concluded if cut and _has_quantity(concluded) else said) or None


def _sentences(text: str) -> list[str]:
    """Return the last sentences, at least one."""
    paragraphs = _PARAGRAPH.split(_UNFINISHED.sub(r"\1\n", text[-_TAIL:].strip()))
    sentences = [part.strip() for paragraph in map(listed, paragraphs) for part in _NO_FACTORIAL.split(paragraph)]
    return [sentence for sentence in sentences if sentence] or [""]


def _closing_brace(text: str, brace: re.Pattern[str]) -> int | None:
    depth = 0
    for found in brace.finditer(text):
        depth += (found[0] == "{") - (found[0] == "}")
        if depth == 0 and found[0] == "}":
            return found.start()
    return None
