r"""One spelling for each sign: Unicode, plain text and LaTeX's older commands as the LaTeX that is compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "θ": "theta", "λ": "lambda", "μ": "mu",
    "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ϕ": "phi", "ψ": "psi", "ω": "omega", "π": "pi", "∞": "infty",
    "×": "times", "·": "cdot", "⋅": "cdot", "≤": "le", "≥": "ge", "≠": "ne", "∪": "cup", "∩": "cap", "∈": "in",
    "≈": "approx", "≡": "equiv", "±": "pm", "∓": "mp", "∅": "emptyset", "∠": "angle", "△": "triangle", "∨": "lor",
}  # fmt: skip
_FRACTIONS = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
    "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
}  # fmt: skip
_UNICODE = str.maketrans(
    {
        **{sign: f"\\{name} " for sign, name in _GREEK.items()},
        **{sign: "\\frac{{{}}}{{{}}}".format(*fraction.split("/")) for sign, fraction in _FRACTIONS.items()},
        "−": "-", "–": "-", "÷": "/", "⁄": "/", "°": "^\\circ ", "ℝ": "\\mathbb{R}", "⟨": "(", "⟩": ")", "…": "...",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ", "′": "'", "’": "'", "。": ".",
        **{chr(sign + 0xFEE0): chr(sign) for sign in range(0x21, 0x7F)},  # the full-width forms of ASCII
    }
)  # fmt: skip
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
_SMALL = str.maketrans(_RAISED + _LOWERED, 2 * "0123456789+-n")
_DEGREE = r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})\s*|\\degrees?(?![a-zA-Z])\s*"
_DEGREES = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*(?:{_DEGREE})")
_CIS = re.compile(
    r"(?:\\(?:text|operatorname|mathrm)\s*\{\s*cis\s*\}|\\cis(?![a-zA-Z]))\s*"
    r"(\\frac\{[^{}]*\}\{[^{}]*\}|\([^()]*\)|[0-9]*\\pi|[0-9]+|\\[a-z]+)"
)
_TURNED = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])(?!\s*\^\s*\{\s*-)|\\?cis(?![a-zA-Z])|cis\s*\}")
_BASE = r"_\s*\{?\s*(?:\\(?:text|mathrm)\w*\s*\{)?\s*(?:base\s*)?\(?([a-z]+|[0-9]+)\)?\s*\}{0,2}"
_REALS = r"(?:the set of |the )?(?:all )?(?:real numbers|reals)|all real (?:values of )?\}?\s*[a-z]"
_REPEATING = re.compile(
    r"(?<![0-9.,])([0-9]*)\.([0-9]*)(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]{1,30})\}|([0-9])))(?![0-9])"
)
_ARRAY = re.compile(
    r"(?:\\left\s*)?[(\[]\s*\\begin\{array\}\s*\{[lcr| ]*\}(.*?)\\end\{array\}\s*(?:\\right\s*)?[)\]]", re.DOTALL
)
_REMAINDER = re.compile(r"^\s*(-?[0-9]{1,30})\s*\\b?mod\s*([1-9][0-9]{0,29})\s*$")
_NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
]  # fmt: skip
_NUMBER = rf"^\s*(?:\\text\w*\s*\{{\s*)?({'|'.join(_NUMBERS)})\s*\}}?\s*$"
_REPLACED: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<=[\w)}])\*\*(?=[\w({-])"), "^"),
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10}"),
    (re.compile(r"^\s*([0-9]{1,3}(?:\.[0-9]{3}){2,})\s*$"), lambda match: match[1].replace(".", "")),
    (re.compile(_NUMBER, re.IGNORECASE), lambda match: str(_NUMBERS.index(match[1].lower()))),
    (re.compile(r"^\s*(?:\\text\w*\s*\{\s*)?no solutions?\s*\}?\.?\s*$", re.IGNORECASE), r"\\emptyset"),
    (re.compile(r"\b(?:minus|negative)\s+(?=[0-9\\])"), "-"),
    (re.compile(r"(?<=[0-9])\s*(?:\\text\s*\{\s*)?thousand\s*\}?"), r" \\times 10^{3}"),
    (re.compile(f"[{_RAISED}]+"), lambda match: f"^{{{match[0].translate(_SMALL)}}}"),
    (re.compile(f"[{_LOWERED}]+"), lambda match: f"_{{{match[0].translate(_SMALL)}}}"),
    (re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+|[a-zA-Z]))"), lambda match: _root(match)),
    (re.compile(r"(?:(?<![a-zA-Z\\])|\\)sqrt\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+))"), lambda match: _root(match)),
    (re.compile(r"(?<![a-zA-Z\\{])pi(?![a-zA-Z}])"), r"\\pi "),
    (re.compile(r"\{([^{}\\]*)\\choose(?![a-zA-Z])([^{}]*)\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"(?:\{\}|(?<![\w}]))_\{?([0-9]+)\}?\s*C_\{?([0-9]+)\}?"), r"\\binom{\1}{\2}"),
    (_ARRAY, r"\\begin{pmatrix}\1\\end{pmatrix}"),
    (_REMAINDER, lambda match: str(int(match[1]) % int(match[2]))),
    (re.compile(r"\\(?:langle|lparen)(?![a-zA-Z])"), "("),
    (re.compile(r"\\(?:rangle|rparen)(?![a-zA-Z])"), ")"),
    (re.compile(r"\\math(?:bf|rm)\s*\{R\}|\\mathbb\s*R|\\R(?![a-zA-Z])"), r"\\mathbb{R}"),
    (re.compile(rf"^\s*(?:\\text\s*\{{\s*)?(?:{_REALS})\s*\}}?\s*$", re.IGNORECASE), r"\\mathbb{R}"),
    (re.compile(r"^\s*(\(?[0-9A-F]+\)?)" + _BASE + r"\s*$"), lambda match: _based(match)),
    (re.compile(r"^\s*([+-]?)\s*(?:\\text\s*\{\s*)?infinity\s*\}?\s*$", re.IGNORECASE), r"\1\\infty"),
    (re.compile(r"^\s*\+\s*\\infty\s*$"), r"\\infty"),
    (re.compile(r"^\s*([0-9.]+)\s*(?:\\text\s*\{\s*to\s*\}|to)\s*([0-9.]+)\s*$"), r"\1:\2"),
]  # fmt: skip


def respelled(text: str) -> str:
    """Return the text with one spelling for each sign, and with radians in place of degrees in sine, cosine and so
    on."""
    text = text.translate(_UNICODE)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_repeating, text)
    if _TURNED.search(text) and "," not in text and "=" not in text:
        text = _DEGREES.sub(r"\\frac{\1\\pi}{180} ", text)
    return _CIS.sub(r"e^{i \1}", text)


def _root(match: re.Match[str]) -> str:
    return "\\sqrt{" + next(group for group in match.groups() if group is not None) + "}"


def _based(match: re.Match[str]) -> str:
    r"""Return a number whose base is written as a number: (1011)_{\text{two}} becomes 1011_2."""
    base = _NUMBERS.index(match[2]) if match[2] in _NUMBERS else match[2]
    return f"{match[1].strip('()')}_{base}" if str(base).isdigit() else match[0]


def _repeating(match: re.Match[str]) -> str:
    r"""Return a repeating decimal as an exact fraction: 0.1\overline{6} is 1/10 + 6/90."""
    whole, fixed, period = match[1] or "0", match[2], match[3] or match[4]
    if len(fixed) > 30 or len(whole) > 30:
        return match[0]
    digits = Fraction(int(whole + fixed)) + Fraction(int(period), 10 ** len(period) - 1)
    value = digits / 10 ** len(fixed)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
