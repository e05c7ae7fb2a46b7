r"""Answers and labels of every kind, with the verdicts that the default mode gives: pairs (label, answer)."""

EQUAL = {
    "integer": [
        ("34", "34"), ("-3", "−3"), ("1234", "1,234"), ("5", r"\sqrt{25}"), ("5", "10/2"), ("5", "x = 5"), ("x=5", "5"),
        ("1024", r"\mathbf{2^{10}}"), ("5000000", "5 million"), (r"\binom{5}{2}", "10"), ("6", "3!"),
        ("1011_2", "1011_{2}"), ("1011_2", "1011"), ("1234567", "12,34,567"), ("1000000", "1 000 000"),
        ("5000", r"5\,10^3"),
    ],
    "unit": [
        ("5", r"5 \text{ cm}"), ("5", "5 cm"), ("90", r"90^\circ"), ("17", r"17\text{ people}"),
        (r"10\text{ units}", "10"), ("12 degrees", "12"),
    ],
    "fraction": [
        ("1/2", "0.5"), (r"-\frac{1}{2}", r"\frac{-1}{2}"), (r"-\frac{1}{2}", "-0.5"), ("1/3", "0.3333"),
        (r"\dfrac{8}{3}", r"\tfrac83"), ("2/3", "0.666..."), ("1/6", r"0.1666\ldots"), ("7/2", "3 1/2"),
        ("1000/3", r"1{,}000/3"), ("1000/3", r"1\,000 / 3"), ("1/2", r"\frac  1 2"),
    ],
    "decimal": [(r"1.6\times 10^{-19}", "1.6e-19"), (r"5 \times 10^{6}", "5,000,000"), ("3.14159", "3.1416")],
    "percentage": [
        ("50%", "50"), ("50%", "0.5"), (r"50\%", r"\frac12"), ("0.5", r"50\%"), (r"\frac13", r"33\frac{1}{3}\%"),
        ("10", r"10\%"), ("50%", r"50\text{ percent}"), (r"66.67\%", "2/3"), ("2/3", "66.67%"),
    ],
    "root and constant": [
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"), (r"\frac{\sqrt{3}}{3}", "0.57735"), (r"\pi/2", r"\frac\pi2"),
        (r"\log_2 8", "3"), (r"\frac{\sqrt{3}}{3}", r"\frac{\sqrt{3}}{3} \approx 0.577"), (r"\sqrt{\pi}", r"\sqrt\pi"),
    ],
    "expression": [("(x-2)(x+2)", "x^2-4"), (r"\sin^2 x", r"1-cos^2 x"), ("f(x) = x^2", "x^2"), ("2i", r"2\mathrm{i}")],
    "equation": [
        ("y = 2x + 1", "y = 1 + 2x"), ("y=2x+1", "2x+1"), ("x + y = 2", "y + x = 2"), ("x+y=2", "2 = x+y"),
        ("x^2+y^2=1", "y^2 = 1 - x^2"), ("x^5-x+1=0", "3x^5=3x-3"), ("x=2", "x-2=0"),
    ],
    "interval": [
        (r"[0, \infty)", r"\left[0,\infty\right)"), (r"(\frac12, 3)", "(0.5, 3)"), (r"x \in [1,2]", "[1, 2]"),
        (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)\cup(3,\infty)"), ("[1,2]", r"1 \le x \le 2"),
    ],
    "inequality": [("x > 3", "3 < x"), (r"x \geq 3", r"[3, \infty)"), (r"[-1, 1]", r"|x| \le 1")],
    "tuple and list": [
        ("1,2", "(1, 2)"), ("x=1, y=2", "y=2, x=1"), (r"1, 2, \text{ and } 3", "1,2,3"),
        (r"x = 1 \text{ or } x = 2", "x=1, x=2"),
    ],
    "set": [
        (r"\{1,2,3\}", r"\{3,2,1\}"), (r"\{1,2\}", "1, 2"), ("1, 2", r"\{2,1\}"),
        (r"\{1,\frac{\sqrt3}2\}", r"{\frac{\sqrt{3}}{2}, 1}"), (r"\left\{ 1, 2 \right\}", r"\{1,2\}"),
        (r"3 \pm \sqrt{2}", r"3 + \sqrt{2}, 3 - \sqrt{2}"),
        (r"\emptyset", r"\{ \}"), (r"\frac{-1\pm\sqrt5}{2}", r"\frac{-1-\sqrt5}{2}, \frac{-1+\sqrt5}{2}"),
    ],
    "matrix": [
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
        (r"\begin{pmatrix}1&\frac12\\2&3\end{pmatrix}", r"\begin{pmatrix}1&0.5\\2&3\end{pmatrix}"),
    ],
    "text": [
        (r"\text{if I do}", r"\text{If I do}"), (r"\text{odd}", "odd"), ("odd", "``odd''"), ("A", "(A)"),
        ("A", r"\text{A}"), ("yes", "Yes."), ("E", r"\mathrm{E}"), ("i", "(C) i"), ("ABD", "A, B, D"),
    ],
}  # fmt: skip

DIFFERENT = {
    "integer": [
        ("5", r"5 \pm 1"), ("0", r"\frac{1}{10^{30}}"), ("0", "None"), ("0", "False"), ("5", "nan"), ("34", ""),
        ("5 million", "5"), ("5", "5 million"), ("1011_2", "1011_3"), ("1011_2", "11"), ("55", r"\sum_{k=1}^{10} k"),
        ("8", "1e1"), ("5", r"\frac{5.0000001}{1}"), ("35", "3 5"), ("8", "3 5"),
    ],
    "percentage": [("1", "100%"), ("10", r"1000\%"), ("50%", "5000"), ("x + 1", "100x + 100"), ("2/3", "67%")],
    "fraction": [("1/3", "0.3334"), ("1/2", "1/2, 1/3"), ("1/2", "-1/2"), ("1/3", r"1{,}000/3"), ("1", "0.333...3")],
    "decimal": [("3.14", "3.14159"), ("10^{-20}", r"2 \times 10^{-20}")],
    "root and constant": [(r"\sqrt{2}", "1.41"), (r"\infty", r"-\infty"), (r"2\pi", "6")],
    "expression": [("x", "|x|"), ("x^2+2x+1", "x^3+2x+1"), ("n!", "n"), ("f'", "f"), ("1/f(x)", "f^{-1}(x)")],
    "equation": [("y=0", "x=0"), ("x+y=2", "2"), ("x+y=2", "x+y=3"), ("x + y - z + 2 = 0", "5x - 7y + 11z + 4 = 0")],
    "interval": [("(1,2]", "[1,2]"), ("(1,2]", "(1,2)"), ("[1,2]", "1,2")],
    "inequality": [("x>3", r"x\ge 3"), ("x>3", "x<3"), ("(2,3)", "x^2-5x+6<0")],
    "tuple and list": [
        ("(1,2)", "(2,1)"), ("1,2", "2,1"), ("1,2", "1,2,3"), ("BAC", "ABC"), (r"\sqrt{67},-\sqrt{85}", r"\sqrt{67}"),
    ],
    "set": [(r"\{1,2\}", r"\{1,3\}"), (r"\{1,2\}", "(1,2)")],
    "matrix": [
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
    ],
    "text": [("odd", "even"), ("A", "B"), ("A", "AB"), ("odd", r"\text{oddd}"), ("A", "(B) A"), ("ABD", "B, A, D")],
    "symbols by case": [("R/r", "r/R"), (r"\frac{R}{r}", "1"), ("R - r", "0"), ("M-m", "m-M"), ("x^2+X", "X^2+x")],
}  # fmt: skip


UNDEFINED = [
    "1/0", "5:0", r"\frac{3}{0}", r"\frac{0}{0}", r"\frac{1}{2-2}", "0^{-1}", "(-1)!", r"\log 0", r"\ln(0)",
    r"\tan\frac{\pi}{2}", r"\cot 0", r"\Gamma(0)", r"\log_1 5", r"\infty - \infty", r"0 \cdot \infty", r"1^{\infty}",
    r"\sin(\infty)", r"7 \mod 0", r"\sqrt[0]{5}", "x = 1/0", "x > 1/0", "(1/0, 2)", "1/0, 2", "[1/0, 2]",
    r"\{1/0, 2\}", r"\begin{pmatrix}1/0\\2\end{pmatrix}", r"\frac{x}{x-x}", r"1/(1/0)", r"5 + \frac{1}{0}", "1/0%",
    r"\frac{1}{(1+\sqrt{2})^2 - 3 - 2\sqrt{2}}", "nan", "NaN", r"$\frac10$", r"5 \div 0",
]  # fmt: skip
"""Labels without a value, and texts that hold one."""

TIMES = ["12:00", "3:00", "7:05", "7:30:15"]
"""Texts that look like quotients and are none."""


def rows(table):
    return [(kind, label, answer) for kind, pairs in table.items() for label, answer in pairs]


LABELS = sorted({label for table in (EQUAL, DIFFERENT) for _, label, _ in rows(table)})
