"""Responses that want to hang the verifier, to fill its memory, to crash it, or to run code; drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

INJECTIONS = [
    "__import__('os').system('touch {canary}')", "exec(\"open('{canary}','w')\")", "open('{canary}', 'w').write('x')",
    "eval(compile(\"open('{canary}','w')\", 'x', 'exec'))",
    "().__class__.__base__.__subclasses__()[0]; open('{canary}','a')", "lambda: open('{canary}','w')",
    "S(\"__import__('pathlib').Path('{canary}').touch()\")", "\\text{{__import__('os').system('touch {canary}')}}",
    "\\operatorname{{exec}}(open('{canary}','w'))", "[open('{canary}','w') for x in (1,)]",
    "Matrix([[open('{canary}','w')]])", "\\begin{{pmatrix}}1\\end{{pmatrix}} + [open('{canary}','w')]",
    "[[1, open('{canary}','w')]]", "3*\\pi + open('{canary}','w')", "$(touch {canary})", "`touch {canary}`",
    "'; touch {canary} #", "\\write18{{touch {canary}}}", "\\input{{|touch {canary}}}", "1_{{open('{canary}','w')}}",
    "{{{{''.__class__}}}}{{% open('{canary}') %}}", "%s%n%x {canary}", "\\sin_{{open('{canary}','w')}} x",
    "Interval(1, open('{canary}','w'))",
]  # fmt: skip
"""Each makes the file {canary} where it is evaluated. PRIME evaluates some of them: pi, a list beside a matrix."""

LABELS = [
    "34", r"\frac{1}{2}", r"\sqrt{2}", r"x^2+2x+1", r"\begin{pmatrix}1\\2\end{pmatrix}", "(1, 2]", r"\{1, 2\}",
    "x + y = 2", "50%", r"\text{odd}", r"2\pi", "1, 2, 3", "1 < x < 2",
]  # fmt: skip

_FRAGMENTS = [
    "\\frac", "\\sqrt", "\\boxed", "{", "}", "(", ")", "[", "]", "\\{", "\\}", "^", "_", "!", "=", "<", ",", ";", "&",
    "\\\\", "\\begin{pmatrix}", "\\end{pmatrix}", "\\left(", "\\right", "\\sum", "\\int", "\\lim", "\\log", "\\sin",
    "\\pi", "\\infty", "\\cup", "\\pm", "\\binom", "\\text{", "%", "$", "0", "9", "99999999999", "1e999999999", ".",
    "x", "e", "i", "E", "nan", "\\mod", "\\det", "\\cdot", "/", "-", " ", "\n", "\u0000", "\ud800", "\u202e",
    "𝟗", "٣", "½", "²", "∑", "Answer:", "is ",
]  # fmt: skip


def hostile(count: int, canary: str, seed: int = 0) -> Iterator[tuple[str, str]]:
    """(response, label) pairs."""
    rng = random.Random(seed)
    kinds = [_nested, _powers, _digits, _unbalanced, _injection, _unicode, _fragments, _long, _costly]
    for i in range(count):
        answer = kinds[i % len(kinds)](rng, canary)
        response = rng.choice([f"\\boxed{{{answer}}}", f"Answer: {answer}", answer, f"so it is ${answer}$"])
        yield response, rng.choice(LABELS)


def _nested(rng: random.Random, _: str) -> str:
    depth = rng.choice([10, 30, 100, 1000, 20_000])
    left, right = rng.choice(
        [("(", ")"), ("{", "}"), ("\\frac{1}{", "}"), ("\\sqrt{", "}"), ("[", "]"), ("\\{", "\\}"), ("-(", ")")]
    )
    return left * depth + rng.choice(["1", "x", "", "1,2"]) + right * depth


def _powers(rng: random.Random, _: str) -> str:
    tower = "^{".join(str(rng.randint(2, 99)) for _ in range(rng.randint(2, 6)))
    powers = ["10^{10^{10}}", "2^{-999999999}", "(x+1)^{99999999}", "9^9^9^9", "0^{-1}"]
    big = rng.choice([*powers, "999999999!", "10!!!!!", "1e999999999"])
    return rng.choice(
        [tower + "}" * tower.count("{"), big, f"\\frac{{{big}}}{{{big}}}", f"\\sqrt{{{big}}}", f"\\sin({big})"]
    )


def _digits(rng: random.Random, _: str) -> str:
    digits = "".join(rng.choices("0123456789", k=100)) * rng.choice([1, 10, 1000])
    return rng.choice(
        [digits, "0." + digits, digits + "/" + digits, "1," * (len(digits) // 2), "\\frac{" + digits + "}{7}"]
    )


def _unbalanced(rng: random.Random, _: str) -> str:
    return "".join(rng.choices("{}()[]", k=rng.choice([3, 30, 300, 30_000]))) + rng.choice(["", "5", "\\boxed{"])


def _injection(rng: random.Random, canary: str) -> str:
    return rng.choice(INJECTIONS).format(canary=canary)


def _unicode(rng: random.Random, _: str) -> str:
    ranges = [(0x20, 0x3000), (0xD800, 0xE000), (0, 0x110000)]
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.choice([1, 10, 200])))


def _fragments(rng: random.Random, _: str) -> str:
    return "".join(rng.choices(_FRAGMENTS, k=rng.choice([2, 6, 20, 60])))


def _long(rng: random.Random, _: str) -> str:
    return rng.choice(_FRAGMENTS) * rng.choice([1000, 30_000])


def _costly(rng: random.Random, _: str) -> str:
    """Mathematics whose evaluation is slow, or never ends."""
    n = rng.randint(2, 40)
    return rng.choice(
        [
            f"\\exp(\\exp(\\exp({n})))",
            "+".join(f"\\sqrt{{{k}}}" for k in range(2, n + 2)),
            "".join(f"(x+{k}y)" for k in range(n)),
            "\\sqrt{" + "+".join(f"\\sqrt{{{k} + \\sqrt{{{k + 1}}}}}" for k in range(2, n + 2)) + "}",
            f"\\tan(\\tan(\\tan(10^{{{n}}})))",
            f"\\int_0^1 \\frac{{\\sin(x^{{{n}}})}}{{\\log(1+x^x)}} dx",
            f"\\prod_{{k=1}}^{{10^{{{n}}}}} \\sin(k)",
            f"x^{{{n}}} + y^{{{n}}} + z^{{{n}}} = {n}",
            f"\\{{{', '.join(str(k) for k in range(n))}\\}} \\cup (0, {n}]",
            "\\cos(" * 12 + "x" + ")" * 12 + f" < {n}",
            f"\\zeta({n}) + \\Gamma(\\frac{{1}}{{{n}}})",
            "\\begin{pmatrix}" + " & ".join("x" * n) + "\\end{pmatrix}^{-1}",
        ]
    )
