"""Which answers are which labels: the kinds of labels, and the pairs of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")

from answer_kinds import RIGHT, WRONG
from label_kinds import DIFFERENT, EQUAL, LABELS, rows

from sat_slime.reward import CORRECT
from sat_slime.reward import WRONG as WRONG_REASONS
from sat_slime.reward.comparison import compare, judge

PAIRS = Path(__file__).parent / "equivalence_pairs"


@pytest.mark.parametrize(("kind", "label", "answer"), rows(EQUAL))
def test_equal(kind, label, answer):
    assert compare(answer, label) in CORRECT


@pytest.mark.parametrize(("kind", "label", "answer"), rows(DIFFERENT))
def test_different(kind, label, answer):
    assert compare(answer, label) in WRONG_REASONS


@pytest.mark.parametrize(
    ("reward", "kind", "label", "response"), [(1.0, *row) for row in rows(RIGHT)] + [(0.0, *row) for row in rows(WRONG)]
)
def test_however_it_is_written(reward, kind, label, response):
    assert judge(response, label, "default").reward == reward


@pytest.mark.xfail(reason="not supported: equal only where the letters are positive, as docs/reward.md says")
@pytest.mark.parametrize(
    ("label", "answer"),
    [(r"\sqrt{1/n}", r"\frac1{\sqrt n}"), (r"\ln(ab)", r"\ln a+\ln b"), (r"\sqrt{ab}", r"\sqrt a\sqrt b")],
)
def test_roots_and_logarithms_of_letters(label, answer):
    assert compare(answer, label) in CORRECT


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_its_own_answer(label):
    verdict = judge(f"So it is $\\boxed{{{label}}}$.", label, "default")
    assert (verdict.reward, verdict.extracted) == (1.0, label.strip())


@pytest.mark.parametrize("name", ["hendrycks_equivalence", "nemo_skills_math_equal"])
def test_the_pairs_of_others_have_their_verdicts(name):
    for pair in json.loads((PAIRS / f"{name}.json").read_text()):
        verdict = judge(f"\\boxed{{{pair['pred']}}}", pair["gold"], "default")
        assert verdict.reward == pair["expected"], pair
        assert judge(f"\\boxed{{{pair['gold']}}}", pair["gold"], "default").reward == 1.0, pair


@pytest.mark.parametrize(
    ("reason", "answers"),
    [
        ("too_large", [r"9^{9^{9^9}}", r"100000000!", r"(x+1)^{10^9}", r"\binom{10^9}{5 \cdot 10^8}"]),
        ("too_large", ["(" * 500 + "1" + ")" * 500, "{" * 500 + "1" + "}" * 500]),
        ("too_long", ["1" * 100_000]),
        ("unevaluated", [r"\int_0^1 x^2 dx", r"\sum_{k=1}^{\infty} \frac{1}{k^2}", r"\lim_{x \to 0} \frac{\sin x}{x}"]),
        ("unparsed", [r"\frac{1}{", "}}}}{{{{", r"\zzz{\unknown"]),
    ],
)
def test_what_is_not_worked_out_says_why(reason, answers):
    assert [compare(answer, r"\sqrt{2}") for answer in answers] == [reason] * len(answers)


def test_a_label_that_cannot_be_parsed_is_told_from_a_wrong_answer():
    assert compare(r"\sqrt{3}", r"\frac{1}{") == "unparsed_label"


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
        (r"\gcd(10^{999},3)", "1", "symbolic"), (r"\gcd(10^{999},3)", "3", "different"),
        (r"\gcd(10^{999}, 2^{998})", "2^{998}", "symbolic"), (r"\gcd(\frac12, \frac13)", r"\frac16", "symbolic"),
        (r"\gcd(12, 18)", "6", "symbolic"), (r"\operatorname{lcm}(4, 6)", "12", "symbolic"),
        (r"\gcd(\sqrt{2}, 3)", "1", "different"), (r"\gcd(\pi, 3)", "1", "different"),
        (r"\gcd(m, n)", "1", "different"), (r"\gcd(m, n)", r"\gcd(n, m)", "symbolic"),
        (r"\gcd(9^{9^{9}}, 3)", "3", "too_large"),
    ],
)  # fmt: skip
def test_greatest_common_divisors_and_least_common_multiples(answer, label, reason):
    assert compare(answer, label) == reason
