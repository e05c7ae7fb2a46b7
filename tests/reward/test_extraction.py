"""Where the answer of a response is looked for."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")

from sat_slime.reward.extraction import extract, last_box, prime_extract
from sat_slime.reward.prime_math import hendrycks


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so it is $\\boxed{34}$.", "34"), ("Answer: 34", "34"), ("Answer: \\boxed{34}", "34"),
        ("The answer is $\\frac{1}{2}$. I checked it.", "$\\frac{1}{2}$"), ("The final answer is: $\\boxed{5}$", "5"),
        ("**Answer:** 34", "34"), ("**Answer**: **34**", "34"), ("Answer: 34\n\nSince x is odd, y = 2.", "34"),
        ("Answer: 7\nno, I see\nAnswer: 8", "8"), ("\\boxed{7}, or rather: Answer: 8", "8"),
        ("Answer: 8, so \\boxed{9}", "9"), ("\\boxed{7} and then \\boxed{8}", "8"), ("34 is the answer.", "34"),
        ("\\boxed{7}. My answer is clearly right", "7"), ("the answer is odd", "odd"), ("Answer: 7 (as x = 3)", "7"),
        ("The roots are:\n\n\n- 2\n- 3", "2, 3"), ("we get\n12", "12"), ("\\fbox{3}", "3"), ("\\boxed {3}", "3"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"), ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."), ("\\boxed{185\\}", "185\\"),
        ("\\boxed{\\boxed{5}}", "5"), ("\\boxed{x**2}", "x**2"), ("Answer: 1</think>Answer: 2", "2"),
        ("</think>", None), ("\\boxed{}", None), ("", None), ("   \n ", None),
    ],
)  # fmt: skip
def test_extract(response, answer):
    assert extract(response) == answer


def test_a_box_that_does_not_close_is_no_box():
    assert last_box("\\boxed{1} and \\boxed{34") is None
    assert extract("\\boxed{34") != "34"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("So x = 5. Done", "5"), ("First x = 3. Then y is 7.", "3"), ("\\boxed{x = 5}", "5"),
        ("\\boxed{x + y = 2}", "2"), ("Answer: 34\n\nSince x is odd, y = 2", "2"), ("**Answer:** 34", "** 34"),
    ],
)  # fmt: skip
def test_prime_extracts_its_own_way(response, answer):
    assert prime_extract(response) == answer


PIECES = ["\\boxed{", "answer: ", "**:", "}{", "\\fbox", ". ", "= ", "İ", "\\", "is the answer", "\\boxed{1}, ", "$"]
PIECES += ["x is ", "answer = ", "1 or ", "final answer ", "\n\n", "x \n"]
LONG = [("", piece, "") for piece in PIECES] + [("answer is\n- ", "\t", "x\ny"), ("so x", "\n", "$$5$$")]


@pytest.mark.parametrize(("before", "piece", "after"), LONG)
def test_extraction_takes_linear_time(before, piece, after):
    extract(before + piece * 100_000 + after)
    prime_extract(before + piece * 100_000 + after)


@pytest.mark.parametrize(
    ("answer", "normalized"),
    [
        (r"\tfrac83", r"\frac{8}{3}"), (r"\frac1{72}", r"\frac{1}{72}"), ("k = 5", "5"), (".5", r"\frac{1}{2}"),
        ("1/2", r"\frac{1}{2}"), (r"10\text{ units}", "10"), (r"\sqrt3", r"\sqrt{3}"), (r"\sqrt", r"\sqrt"),
        (r"\frac", r"\frac"), (r"\left(x\right)", "(x)"), (r"50\%", "50"), ("", ""),
    ],
)  # fmt: skip
def test_hendrycks_normalization(answer, normalized):
    assert hendrycks(answer) == normalized
