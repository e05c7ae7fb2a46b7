r"""Takes off what LaTeX and prose put around an answer, before it is compared: one spelling for each sign, Unicode and
plain text as LaTeX; then sizes, spaces, fonts, dollars, and the unit, which is named, so that 5 cm is 5 and no 5 m."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from unicodedata import normalize

from sat_slime.reward.structure import is_name

SIGNS = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "θ": "theta", "λ": "lambda", "μ": "mu",
    "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ϕ": "phi", "ψ": "psi", "ω": "omega", "π": "pi", "∞": "infty",
    "×": "times", "·": "cdot", "⋅": "cdot", "≤": "le", "≥": "ge", "≠": "ne", "∪": "cup", "∩": "cap", "∈": "in",
    "≈": "approx", "≡": "equiv", "±": "pm", "∓": "mp", "∅": "emptyset", "∠": "angle", "△": "triangle", "∨": "lor",
}  # fmt: skip
_UNICODE = str.maketrans(
    {
        **{sign: f"\\{name} " for sign, name in SIGNS.items()},
        "−": "-", "–": "-", "÷": "/", "⁄": "/", "°": "^\\circ ", "ℝ": "\\mathbb{R}", "⟨": "(", "⟩": ")", "…": "...",
        "′": "'", "’": "'", "。": ".", "“": '"', "”": '"', "、": ", ", "或": " or ", "和": " and ",
        **{chr(sign + 0xFEE0): chr(sign) for sign in range(0x21, 0x7F)},  # the full-width forms of ASCII
    }
)  # fmt: skip
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
_SMALL = str.maketrans(_RAISED + _LOWERED, 2 * "0123456789+-n")
_DEGREE = r"\s*(?:\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degrees?(?![a-zA-Z]))"
_DEGREES = re.compile(rf"([0-9]+(?:\.[0-9]+)?){_DEGREE}\s*")
_CIS = re.compile(
    r"(?:\\(?:text|operatorname|mathrm)\s*\{\s*cis\s*\}|\\cis(?![a-zA-Z]))\s*"
    r"(\\frac\{[^{}]*\}\{[^{}]*\}|\([^()]*\)|[0-9]*\\pi|[0-9]+|\\[a-z]+)"
)
_TURNED = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])(?!\s*\^\s*\{\s*-)|\\?cis(?![a-zA-Z])|cis\s*\}")
_BASE = r"_\s*\{?\s*(?:\\(?:text|mathrm)\w*\s*\{)?\s*(?:base\s*\}?\s*)?\(?([a-z]+|[0-9]+)\)?\s*\}{0,2}"
_REALS = r"(?:the set of |the )?(?:all )?(?:real numbers|reals)|all real (?:values of )?\}?\s*[a-z]"
_REPEATING = (
    r"(?<![0-9.,])([0-9]*)\.([0-9]{0,30})(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]{1,30})\}|([0-9]))(?![0-9])|"
    r"(?!0)([0-9]{1,9}?)\5{2,}(?:\.\.\.|\\[ld]?dots(?![a-zA-Z]))(?![\s.]*[0-9]))"
)
_ARRAY = r"(?s)(?:\\left\s*)?[(\[]\s*\\begin\{array\}\s*\{[lcr| ]*\}(.*?)\\end\{array\}\s*(?:\\right\s*)?[)\]]"
_REMAINDER = r"^\s*(-?[0-9]{1,30})\s*\\?b?mod\s*([1-9][0-9]{0,29})\s*$"
_NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
]  # fmt: skip
_NUMBER = rf"^\s*(?:\\text\w*\s*\{{\s*)?({'|'.join(_NUMBERS)})\s*\}}?\s*$"
_NAMED = {
    "lt": "<", "gt": ">", "langle": "(", "rangle": ")", "lparen": "(", "rparen": ")", "lbrace": "\\{", "rbrace": "\\}",
}  # fmt: skip
_REPLACED: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile("[¼-¾⅐-⅞]"), lambda match: "\\frac{{{}}}{{{}}}".format(*normalize("NFKC", match[0]).split("\u2044"))),
    (re.compile(r"^\s*\$+([^$]*)\$+\s*$"), r"\1"),
    (re.compile(r"(?<=[\w)}])\*\*(?=[\w({-])"), "^"),
    (re.compile(r"\\(lg|log_\{?e\}?)(?![a-zA-Z])"), lambda match: r"\log_{10}" if match[1] == "lg" else r"\ln "),
    (re.compile(r"^\s*([0-9]{1,3}(?:\.[0-9]{3}){2,})\s*$"), lambda match: match[1].replace(".", "")),
    (re.compile(_NUMBER, re.IGNORECASE), lambda match: str(_NUMBERS.index(match[1].lower()))),
    (re.compile(r"^\s*(?:\\text\w*\s*\{\s*)?(?:no solutions?|empty set)\s*\}?\.?\s*$", re.IGNORECASE), r"\\emptyset"),
    (re.compile(r"\b(?:minus|negative)\s+(?=[0-9\\])"), "-"),
    (re.compile(r"(?<=[0-9])\s*(?:\\text\s*\{\s*)?thousand\s*\}?"), r" \\times 10^{3}"),
    (re.compile(f"[{_RAISED}]+"), lambda match: f"^{{{match[0].translate(_SMALL)}}}"),
    (re.compile(f"[{_LOWERED}]+"), lambda match: f"_{{{match[0].translate(_SMALL)}}}"),
    (re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+|[a-zA-Z]))"), r"\\sqrt{\1\2\3}"),
    (re.compile(r"(?:(?<![a-zA-Z\\])|\\)sqrt\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+))"), r"\\sqrt{\1\2\3}"),
    (re.compile(r"(?<![a-zA-Z\\{])pi(?![a-zA-Z}])"), r"\\pi "),
    (re.compile(r"(?:\{\}|(?<![\w}]))(?:_\{?(\d+)}?\s*C_\{?(\d+)}?|C_\{?(\d+)}?\^\{?(\d+)}?)"), r"\\binom{\1\3}{\2\4}"),
    (re.compile(r"^\s*(?:\\text\w*\{)?\s*(?i:(?:the )?(?:final )?answer\s*(?:is\b|[:=]))[: ]{0,3}([^{}]*)\}?$"), r"\1"),
    (re.compile(_ARRAY), r"\\begin{pmatrix}\1\\end{pmatrix}"),
    (re.compile(_REMAINDER), lambda match: str(int(match[1]) % int(match[2]))),
    (re.compile(r"\\(lt|gt|[lr]angle|[lr]paren|[lr]brace)(?![a-zA-Z])"), lambda match: _NAMED[match[1]]),
    (re.compile(r"\\math(?:bf|rm)\s*\{(R)\}|\\mathbb\s*([A-Z])|\\(R)(?![a-zA-Z])"), r"\\mathbb{\1\2\3}"),
    (re.compile(rf"^\s*(?:\\text\s*\{{\s*)?(?:{_REALS})\s*\}}?\s*$", re.IGNORECASE), r"\\mathbb{R}"),
    (re.compile(r"^\s*(?:\\(?:text|mathrm)\{)?(\(?[0-9A-F]+\)?)\}?" + _BASE + r"\s*$"), lambda match: _based(match)),
    (re.compile(r"^\s*([+-]?)\s*(?:\\text\s*\{\s*)?infinity\s*\}?\s*$", re.IGNORECASE), r"\1\\infty"),
    (re.compile(r"^\s*([0-9.]+)\s*(?:\\text\s*\{\s*to\s*\}|to)\s*([0-9.]+)\s*$"), r"\1:\2"),
    (re.compile(_REPEATING), lambda match: _repeating(match)),
]  # fmt: skip


def _based(match: re.Match[str]) -> str:
    r"""Return a number whose base is written as a number: (1011)_{\text{two}} becomes 1011_2."""
    base = _NUMBERS.index(match[2]) if match[2] in _NUMBERS else match[2]
    return f"{match[1].strip('()')}_{base}" if str(base).isdigit() else match[0]


def _repeating(match: re.Match[str]) -> str:
    r"""Return a repeating decimal as an exact fraction: 0.1\overline{6} is 1/10 + 6/90."""
    whole, fixed, period = match[1] or "0", match[2], match[3] or match[4] or match[5]
    digits = Fraction(int(whole + fixed)) + Fraction(int(period), 10 ** len(period) - 1)
    value = digits / 10 ** len(fixed)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


_UNITS = {
    "mm": "mm|millimet(?:er|re)s?", "cm": "cm|centimet(?:er|re)s?", "km": "km|kilomet(?:er|re)s?",
    "m": "m|met(?:er|re)s?", "mile": "mi|miles?", "foot": "ft|foot|feet", "inch": "in|inch(?:es)?", "yard": "yd|yards?",
    "mg": "mg|milligrams?", "kg": "kg|kilograms?", "gram": "g|grams?", "pound": "lbs?|pounds?", "ounce": "oz|ounces?",
    "ml": "ml|mL|millilit(?:er|re)s?", "liter": "L|lit(?:er|re)s?", "gallon": "gal|gallons?",
    "ms": "ms|milliseconds?", "second": "s|secs?|seconds?", "minute": "mins?|minutes?", "hour": "h|hrs?|hours?",
    "day": "days?", "week": "weeks?", "month": "months?", "year": "years?", "am": r"[aA]\.?[mM]\.?",
    "pm": r"[pP]\.?[mM]\.?", "dollar": "dollars?|USD", "cent": "cents?", "euro": "euros?|EUR",
    "celsius": "(?:degrees? )?(?:C|Celsius)", "fahrenheit": "(?:degrees? )?(?:F|Fahrenheit)",
    "degree": "degs?|degrees?", "radian": "rad|radians?", "mile/hour": "mph", "km/hour": "kph",
    "": "units?|people|persons?|students?|ways?|points?|digits?|solutions?",
}  # fmt: skip
"""Units by the names under which they are compared; words without a name say nothing that could be wrong."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]{2,12})\s*")
_COMPOUND = re.compile(rf"\s*(?:{_PART.pattern}){{2,4}}")
_CURRENCIES = {
    "\\$": "dollar", "€": "euro", "£": "pound sterling", "\\pounds": "pound sterling", "¥": "yen", "₹": "rupee",
}  # fmt: skip
_CURRENCY = re.compile(r"(\\\$|[€£¥₹]|\\pounds(?![a-zA-Z]))\s*")
_WORD = "|".join(_UNITS.values())
_POWER = r"\s*(?:\^\s*\{?\s*[23]\s*\}?|squared|cubed)"
_KINDS = r"(?:square|sq\.?|cubic|cu\.?)"
_NAME = re.compile(rf"({_KINDS})?\s*({_WORD})({_POWER})?")
_ONE = rf"(?:{_KINDS}\s*)?(?:{_WORD})(?![a-zA-Z])(?:{_POWER})?"
_BARE = re.compile(rf"(?:(?<=[0-9}}])|(?<=\\pi))\s*({_ONE}(?:\s*(?:/|\s+per\s+)\s*{_ONE})?(?:\s+{_ONE})*)$")
_ONE_LETTER = re.compile(r"(?<=[0-9}])[ghsLm]$|(?<=[0-9}])\s*(?:in|[CF])$|\\pi\s*[a-zA-Z]$")
_FACTOR = re.compile(r"(?<![a-zA-Z\\(])[a-zA-Z](?![a-zA-Z).:]|\s*10)")  # the r of r^2 h, whose h is no hour
_TEXT = re.compile(
    rf"(?<=[0-9)}}a-z])\s*\\text\{{([^{{}}]*)\}}((?:{_POWER})?)\s*(?:/\s*\\text\{{([^{{}}]*)\}}((?:{_POWER})?))?$"
)
_FRACTION = re.compile(
    rf"(?<=[0-9)}}])\s*\\frac\s*\{{\s*\\text\{{([^{{}}]*)\}}()\s*\}}\s*\{{\s*\\text\{{([^{{}}]*)\}}((?:{_POWER})?)\s*\}}$"
)
_LAST_DEGREE = re.compile(rf"{_DEGREE}[ $.}}]*$")
_ALL_TEXT = re.compile(r"^\s*\\text\s*\{\s*(\(?[-+]?\s*[0-9][^{}]*?)\s*\}\s*$")
_PERCENT = re.compile(r"(?<=[0-9)}a-z])\s*\\text\{\s*(?:percent|%)\s*\}$|(?<=[0-9])\s*(?:percent|percentage|pct)$")
_NO_UNIT = re.compile(
    r"(?i)(?:[mbtr]+illion|thousand|hundred|dozen|times|squared|cubed|factorial|\\lor)s?\b|.*(?<![mstdn]\^)[0-9]"
)


def compound(text: str) -> str | None:
    """`2 hour, 30 minute` for `2 hours and 30 minutes`; None: it is no quantity in several units."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    plain = re.sub(r"\band\b|,(?=\s)", " ", plain)
    if not _COMPOUND.fullmatch(plain) or not all(_single_name(unit) for _, unit in _PART.findall(plain)):
        return None  # 5 red, 3 blue are two numbers
    return ", ".join(f"{number} {_single_name(unit)}" for number, unit in _PART.findall(plain))


def without_unit(text: str) -> tuple[str, str]:
    """Return the text without the unit at its end, and that unit's name: "" where it has no name here."""
    text = _PERCENT.sub("%", _ALL_TEXT.sub(r"\1", text))
    unit = _FRACTION.search(text) or _TEXT.search(text)
    if unit and not _NO_UNIT.match(unit[1].strip()):
        written = unit[1].strip() + unit[2] + (f"/{unit[3].strip()}{unit[4]}" if unit[3] else "")
        return text[: unit.start()], _name(written)
    unit = _BARE.search(text)
    product = unit and len(unit[1]) == 1 and _FACTOR.search(text[: unit.start()].rpartition("=")[2])
    if unit is None or product or _ONE_LETTER.search(text):  # 5m and r^2 h are products
        return text, ""
    return text[: unit.start()], _name(unit[1].strip())


def _name(written: str) -> str:
    """`cm^2` for `square centimeters`, `km/hour` for `kilometers per hour`."""
    names = [_single_name(part.strip()) for part in re.split(r"/|\bper\b", written)]
    return "/".join(names) if all(names) else ""


def _single_name(written: str) -> str:
    unit = _NAME.fullmatch(written) or _NAME.fullmatch(written.lower())
    if unit is None:
        return ""
    name = next(name for name, words in _UNITS.items() if re.fullmatch(words, unit[2]))
    kind = (unit[1] or "") + (unit[3] or "")
    power = "2" if "sq" in kind or "2" in kind else "3" if kind else ""
    return f"{name}^{power}" if name and power else name


MAX_ANSWER = 2000
"""The most characters of an answer: more is no answer, and the expressions below take more than linear time."""

_MATRIX = re.compile(r"\\begin\{(?:[a-zA-Z]*matrix|cases|array|aligned)\}")
_FONTS = "normal|rm|bf|it|sf|tt|sc|up|md|sl"
_LETTER = r"\\(?:pi|alpha|beta|theta|lambda|omega)(?![a-zA-Z])"
_BEFORE = r"(?<=[\s0-9)}\]])(?<![a-zA-Z\\])"
_GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_SIMPLER = [
    (re.compile(r"(?:\\text\{\s*\(\s*or\s*\}|\(\s*(?:\\text\s*\{\s*)?or(?![a-zA-Z])\s*\}?)([^()]*)\)$"), r"\\lor \1"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"(?<![0-9.,])0\{,\}(?=[0-9])"), "0."),
    (re.compile(r"(?<=[0-9])(?:\\[,!;: ]|~|\{,\}|,\\!)\s*(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"(?<=[0-9])\s+(?=[0-9]{3}(?![0-9]|\s*[/^]))"), ""),  # 1 000, and not 3 125/200
    (re.compile(r"(?<=[0-9])\{,\}(?=[0-9])"), "."),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(frac|sqrt|[dt]?binom)\s+(?=[0-9])"), r"\\\1"),
    (re.compile(rf"(?<=\\frac|\\sqrt)\s*({_LETTER})"), r"{\1}"),
    (re.compile(rf"(\\frac\s*(?:[0-9]|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}))\s*({_LETTER})"), r"\1{\2}"),
    (re.compile(r"\\(?:left|right)\s*\.|\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|boxed|fbox|therefore)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:checkmark|(?:black)?square|qed|small|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:text)?color\s*\{[^{}]*\}"), ""),
    (re.compile(r"(?<!\\)\\[()\[\]](?=[\s,;.]|$)|(?<!\S)\\[(\[]|(?<!\\)\\!|\$"), ""),
    (re.compile(r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-zA-Z])|\\(?:h|ph)antom\{\}"), " "),
    (re.compile(r"\\(?:operatorname|mathrm|text)\s*\{\s*(gcd|lcm|ln|log|(?:arc)?(?:sin|cos|tan))\s*\}"), r"\\\1 "),
    (re.compile(r"\\(?:mathrm|text)\s*\{\s*([ie])\s*\}|\\(?:mathbf|bm|boldsymbol)\s*\{\s*([a-z])\s*\}"), r"\1\2"),
    (re.compile(r"(\\sqrt\s*\[[^\[\]]*\])\s*([0-9])"), r"\1{\2}"),
    (re.compile(r"\s*[,;(]\s*[a-z]\s*\\in\s*(?:\\[a-zA-Z]+\s*)?\{?\s*[ZN]\s*\}?(?:[_^]\{?[+*]\}?)?\s*\)?$"), ""),
    (re.compile(r"(?<=[^\s,{]),?\s?\\text\s*\{\s*,?\s*(?:for|where)\b[^=;,]{0,60}$"), ""),
    (re.compile(r"\\(?:bm|boldsymbol|mathbf)\s*(?=\{[^{}]*\{)"), ""),
    (re.compile(r"\{\s*\\(?:rm|bf|it|sf|tt)\s+([^{}]*)\}"), r"\\text{\1}"),
    (re.compile(r"\\(?:rm|bf|it|sf|tt)(?![a-zA-Z])"), ""),
    (re.compile(rf"\\(?:operatorname|bm|boldsymbol|mbox|underline|(?:text|math)(?:{_FONTS}))\s*\{{"), r"\\text{"),
    (re.compile(rf",?\s*(?:\\text\s*\{{\s*,?\s*and\s*\}}|{_BEFORE}and(?![a-zA-Z]))\s*"), ", "),
    (re.compile(rf",?\s*(?:\\text\s*\{{\s*,?\s*or\s*\}}|(?:{_BEFORE}or|\\lor|\\vee)(?![a-zA-Z]))\s*"), r" \\lor "),
    (re.compile(r"\\(le|ge|ne)q(?:slant)?(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"<\s*=|=\s*<"), r"\\le "),
    (re.compile(r">\s*="), r"\\ge "),
    (re.compile(r"(?<=[^\s=,])\s*\(\s*([a-z]\s*(?:[<>]|\\(?:le|ge|ne)(?![a-zA-Z]))[^()]*)\)$"), r", \1"),
    (re.compile(r"\\(?:thickapprox|simeq|doteq)(?![a-zA-Z])"), r"\\approx"),
    (re.compile(r"\\varnothing(?![a-zA-Z])|^\s*\\\{\s*\\\}\s*$"), r"\\emptyset"),
    (re.compile(r"(?<![\w^.,/])([0-9]+)\s+(?=[0-9]+(?![0-9]|\s*[/^]))"), r"\1, "),  # not 3 1/2, 5 10^3
    (re.compile(rf"^\s*\{{((?:[^{{}},]|{_GROUP})*,(?:[^{{}}]|{_GROUP})*)\}}\s*$"), r"\\{\1\\}"),
]  # fmt: skip
_ABOUT = re.compile(r"^(?:\\text\{\s*)?(?:approx(?:imately|\.)?|about|roughly|around|exactly)(?:\s*\}|(?![a-zA-Z]))\s*")
_NEARLY = re.compile(
    r"(?<=\S)\s*[,(]?\s*(?:or|i\.e\.,?|which is)?\s*(?:\\text\{\s*)?\b(?:approximately|about|roughly)\s*\}?\s*(?=[0-9])"
)
_SAID = re.compile(r"^\\text\s*\{[^{}]*[a-z]{2}[^{}]*(?:\bis|\bare|:|=)\s*\}\s*(?=\S)")
_ROUNDED = re.compile(r"\s*(?:\\text\s*\{\s*)?\(\s*(?:rounded|correct|to|nearest)\s[^{}()]*\)\s*\}?$")
_SPACES = re.compile(r"\s+")
_SAID_ALOUD = re.compile(r"^[`']+([^`'].*?)[.,;:!]*[`']+$|(?:(?<=[a-z]{3})|(?<=^no))!+$")
"""Matches the signs around a word; elsewhere they say something, as in n! and f'."""
_CHOSEN = re.compile(r"^(?:(?:option|choice|answer|letter) )?\(?([a-j])\)?$")


def split_unit(answer: str) -> tuple[str, str]:
    """Return the answer as one line of plain mathematics, which to clean again changes nothing that matters, and the
    name of its unit: "" without one, or with one that has no name. It never fails."""
    text = _SPACES.sub(" ", answer.translate(_UNICODE))
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    if _TURNED.search(text) and "," not in text and "=" not in text:  # radians for degrees in sine, cosine and so on
        text = _DEGREES.sub(r"\\frac{\1\\pi}{180} ", text)
    text = _CIS.sub(r"e^{i \1}", text)
    money = _CURRENCY.search(text)
    text = _CURRENCY.sub("", text)
    degree = "degree" if _LAST_DEGREE.search(text) else ""
    text = re.sub(_DEGREE, "", text)
    if not _MATRIX.search(text):
        text = re.sub(r"\\\\(?=[a-zA-Z({\[])", r"\\", text).rstrip("\\")
    for pattern, replacement in _SIMPLER:
        text = pattern.sub(replacement, text)
    text = _SPACES.sub(" ", text).strip().rstrip(".,;:").strip()
    text = _ABOUT.sub("", _SAID.sub("", _ROUNDED.sub("", text)))
    text = _ABOUT.sub("", _exactly(_NEARLY.sub(r" \\approx ", text)))
    if several := compound(text):
        return several, ""
    text, unit = without_unit(text)
    return text.strip(), unit or degree or (_CURRENCIES[money[1]] if money else "")


def _exactly(text: str) -> str:
    r"""Return what is compared of an approximation: the root of `\sqrt{2} \approx 1.41`, `x = 11` of `x \approx 11`."""
    if (match := re.search(r"\\approx(?![a-zA-Z])", text)) is None:
        return text
    exact, near = text[: match.start()].strip(), text[match.end() :].strip()
    name = exact.rpartition("=")[2].strip()
    if exact and near and is_name(name) and name not in ("\\pi", "\\infty", "e", "i"):
        return f"{exact} = {near}"
    return exact or near


def words(text: str) -> str:
    """Return an answer in words, the way it is compared: lower case, no fonts, no punctuation around it."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).lower()
    text = _SAID_ALOUD.sub(r"\1", _SPACES.sub(" ", text).strip(' .,;:"'))
    return _CHOSEN.sub(r"\1", re.sub(r"^(?:an?|the) (?=[a-z][a-z' -]{2,}$)", "", text))
