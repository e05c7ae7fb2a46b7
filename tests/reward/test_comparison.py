"""Which answers are which labels, in both modes: kinds of labels, the pairs of others, and where the modes differ."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")

from answer_kinds import RIGHT, WRONG
from label_kinds import DIFFERENT, EQUAL, LABELS, TIMES, UNDEFINED, rows

from sat_slime.reward import MODES
from sat_slime.reward.comparison import compare, judge

ROOT = r"\sqrt{2}"
PAIRS = Path(__file__).parent / "equivalence_pairs"


@pytest.mark.parametrize(
    ("reward", "kind", "label", "response"), [(1.0, *row) for row in rows(RIGHT)] + [(0.0, *row) for row in rows(WRONG)]
)
def test_however_it_is_written(reward, kind, label, response):
    assert judge(response, label, "default").reward == reward


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_its_own_answer(label):
    verdict = judge(f"So it is $\\boxed{{{label}}}$.", label, "default")
    assert (verdict.reward, verdict.extracted) == (1.0, label.strip())


@pytest.mark.parametrize("name", ["hendrycks_equivalence", "nemo_skills_math_equal"])
def test_the_pairs_of_others_have_their_verdicts(name):
    for pair in json.loads((PAIRS / f"{name}.json").read_text()):
        assert judge(f"\\boxed{{{pair['pred']}}}", pair["gold"], "default").reward == pair["expected"], pair
        assert judge(f"\\boxed{{{pair['gold']}}}", pair["gold"], "default").reward == 1.0, pair


def test_numbers_are_read_without_evaluation(monkeypatch):
    """sympy would read `12.5` by `eval`."""
    import builtins

    from sat_slime.reward import symbolic

    functions = (r"\gcd(10^{999}, 3)", r"\gcd(\sqrt{2}, 3)", r"\operatorname{lcm}(a, 2.5)", r"\lcm(\pi, 3^{600})")
    texts = ("12.5 x + 1,000", "x^{0.5}", r"50\% x", "3 x E", *functions)
    read = [symbolic._parse(text) for text in texts]  # the parser imports modules of its own at first
    monkeypatch.setattr(builtins, "eval", None)
    monkeypatch.setattr(builtins, "exec", None)
    assert [symbolic._parse(text) for text in texts] == read


@pytest.mark.parametrize(
    ("answer", "label", "reason"),
    [
        (r"9^{9^{9^9}}", ROOT, "too_large"), ("100000000!", ROOT, "too_large"), ("(x+1)^{10^9}", ROOT, "too_large"),
        (r"\binom{10^9}{5 \cdot 10^8}", ROOT, "too_large"), (r"\gcd(9^{9^{9}}, 3)", "3", "too_large"),
        ("(" * 500 + "1" + ")" * 500, ROOT, "too_large"), ("{" * 500 + "1" + "}" * 500, ROOT, "too_large"),
        ("1" * 100_000, ROOT, "too_long"), (r"\int_0^1 x^2 dx", ROOT, "unevaluated"),
        (r"\sum_{k=1}^{\infty} \frac{1}{k^2}", ROOT, "unevaluated"), ("}}}}{{{{", ROOT, "unparsed"),
        (r"\lim_{x \to 0} \frac{\sin x}{x}", ROOT, "unevaluated"), (r"\frac{1}{", ROOT, "unparsed"),
        (r"\zzz{\unknown", ROOT, "unparsed"), (r"\sqrt{3}", r"\frac{1}{", "unparsed_label"),
        # greatest common divisors and least common multiples
        (r"\gcd(10^{999},3)", "1", "symbolic"), (r"\gcd(10^{999},3)", "3", "different"),
        (r"\gcd(10^{999}, 2^{998})", "2^{998}", "symbolic"), (r"\gcd(\frac12, \frac13)", r"\frac16", "symbolic"),
        (r"\gcd(12, 18)", "6", "symbolic"), (r"\operatorname{lcm}(4, 6)", "12", "symbolic"),
        (r"\gcd(\sqrt{2}, 3)", "1", "different"), (r"\gcd(\pi, 3)", "1", "different"),
        (r"\gcd(m, n)", "1", "different"), (r"\gcd(m, n)", r"\gcd(n, m)", "symbolic"),
    ],
)  # fmt: skip
def test_each_verdict_has_its_reason(answer, label, reason):
    assert compare(answer, label) == reason


@pytest.mark.parametrize(("name", "expected"), [("hendrycks_equivalence", 16), ("nemo_skills_math_equal", 27)])
def test_prime_math_gives_the_verdicts_of_prime(name, expected):
    """16 of 16 and 27 of 30 are what verl's prime_math gets, run on the same pairs."""
    pairs = json.loads((PAIRS / f"{name}.json").read_text())
    hits = [judge(f"\\boxed{{{p['pred']}}}", p["gold"], "prime_math").reward == p["expected"] for p in pairs]
    assert sum(hits) == expected


DIFFERENCES = [
    ("\\boxed{200}", "2", 1.0, 0.0), ("\\boxed{10000}", "9999", 1.0, 0.0), ("\\boxed{0.33335}", "1/3", 1.0, 0.0),
    ("\\boxed{6.28}", r"2\pi", 1.0, 0.0), ("\\boxed{x + y = 2}", "x + y = 2", 0.0, 1.0),
    ("Answer: 34\n\nSince x is odd, y = 2", "34", 0.0, 1.0), ("First x = 3. Then y is 7.", "7", 0.0, 1.0),
    ("**Answer:** 34", "34", 0.0, 1.0), ("\\boxed{7}. The answer is clear", "7", 0.0, 1.0),
    ("\\boxed{101_2}", "101_3", 1.0, 0.0), ("\\boxed{[1, 2]}", "1, 2", 1.0, 0.0),
    (r"\boxed{\{3, 1\}}", r"\{1, 3\}", 0.0, 1.0), ("\\boxed{y + x = 2}", "x + y = 2", 0.0, 1.0),
    ("\\boxed{1,2}", "(1,2)", 1.0, 1.0), ("\\boxed{2,1}", "1,2", 0.0, 0.0), ("\\boxed{BAC}", "ABC", 0.0, 0.0),
    ("\\boxed{34}", "\\boxed{34}", 1.0, 1.0), ("\\boxed{(1,2)}", "[1,2]", 0.0, 0.0),
    ("\\boxed{(1, 2]}", "(1,2)", 0.0, 0.0), ("\\boxed{1}", "R/r", 0.0, 0.0), ("\\boxed{r/R}", "R/r", 1.0, 0.0),
    ("\\boxed{2}", r"\ln 2", 0.0, 0.0), (r"\boxed{\pm 3}", "3", 0.0, 0.0), (r"\boxed{2\ln 3}", r"\ln 6", 0.0, 0.0),
    (r"\boxed{x \le 3}", r"x \ge 3", 0.0, 0.0), (r"\boxed{1,2}", r"\boxed{1}, \boxed{2}", 1.0, 1.0),
    ("\\boxed{5}", r"5 \mbox{ cm}", 1.0, 1.0), ("\\boxed{ABC}", r"\triangle ABC", 1.0, 0.0),
    ("\\boxed{3 5}", "35", 1.0, 0.0), ("\\boxed{3 5}", "8", 0.0, 0.0), (r"\boxed{\log 2}", r"\ln 2", 1.0, 0.0),
    (r"\boxed{3 \pmod 4}", r"3 \pmod{4}", 1.0, 1.0), (r"\boxed{2\pm\sqrt8}", r"2\pm\sqrt9", 0.0, 0.0),
    (r"\boxed{3}", r"\boxed{3}\text{ cm}", 1.0, 1.0),
]  # fmt: skip
"""docs/reward.md: response, label, reward of prime_math, of default. verl's own gives the former, run on the same."""


@pytest.mark.parametrize(("response", "label", "prime", "default"), DIFFERENCES)
def test_where_prime_math_differs_and_where_not(response, label, prime, default):
    assert judge(response, label, "prime_math").reward == prime
    assert judge(response, label, "default").reward == default


def test_a_plus_minus_that_joins_nothing_is_left_out_of_no_answer():
    assert judge(r"\boxed{\pm -\infty}", r"-\infty", "prime_math").reward == 0.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", UNDEFINED)
def test_what_is_undefined_is_equal_to_nothing(label, mode):
    for answer in (label, "34", "0", r"\infty", "x"):
        for response in (f"\\boxed{{{answer}}}", f"Answer: {answer}"):
            assert judge(response, label, mode).reason == "undefined_label"


@pytest.mark.parametrize("mode", MODES)
def test_an_undefined_answer_is_no_answer(mode):
    for answer in UNDEFINED:
        for label in LABELS:
            assert judge(f"Answer: {answer}", label, mode).reward == 0.0, (answer, label)
    assert judge("", "$$", mode).reason == "no_answer"
    if mode != "prime_math":  # which cuts at the "="
        assert judge("Answer: 1/0 = 5", "5", mode).reward == 0.0


@pytest.mark.parametrize("time", TIMES)
def test_a_time_of_day_is_equal_to_itself_alone(time):
    for mode in ("default", "prime_math"):
        assert judge(f"\\boxed{{{time}}}", time, mode).reason == "text"
        for answer in ("34", "12", "0", "12:01", r"\frac{1}{0}", r"\infty"):
            assert judge(f"\\boxed{{{answer}}}", time, mode).reward == 0.0


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
def test_no_wrong_number_is_rewarded_whatever_the_label(mode, count):
    """Each is compared with a label of every kind."""
    rng = random.Random(7)
    kinds = {kind: [label for _, label, _ in rows({kind: EQUAL[kind] + DIFFERENT.get(kind, [])})] for kind in EQUAL}
    kinds |= {"undefined": UNDEFINED, "time": TIMES}
    for _ in range(count):
        number = wrong_number(rng)
        for kind, labels in kinds.items():
            label = rng.choice(labels)
            response = f"{rng.choice(['Answer: ', 'so it is '])}\\boxed{{{number}}}"
            assert judge(response, label, mode).reward == 0.0, (kind, label, number)


def wrong_number(rng: random.Random) -> str:
    """A number that no label here has for its value, or for a hundredth of it, within any tolerance."""
    whole = rng.randint(20_000, 400_000)
    n, over = rng.choice([whole, -whole]), rng.choice([1009, 2003, 4001])
    forms = [f"{n}", f"{n:,}", f"{n}.{over}", f"{n}/{over}", f"\\frac{{{n}}}{{{over}}}", f"{n}\\sqrt{{{over}}}"]
    return rng.choice(forms)
