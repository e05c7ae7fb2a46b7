"""Which answers are which labels: the kinds of labels, and the pairs of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("math_verify", reason="needs pip install 'sat-slime[reward]'")

from label_kinds import DIFFERENT, EQUAL, LABELS, rows

from sat_slime.rollout.reward.comparison import compare
from sat_slime.rollout.reward.modes import judge
from sat_slime.rollout.reward.verdict import CORRECT, WRONG

PAIRS = Path(__file__).parent / "equivalence_pairs"


def pairs_of_others(name: str) -> list[dict]:
    return json.loads((PAIRS / f"{name}.json").read_text())


@pytest.mark.parametrize(("kind", "label", "answer"), rows(EQUAL))
def test_equal(kind, label, answer):
    assert compare(answer, label) in CORRECT


@pytest.mark.parametrize(("kind", "label", "answer"), rows(DIFFERENT))
def test_different(kind, label, answer):
    assert compare(answer, label) in WRONG


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_its_own_answer(label):
    verdict = judge(f"So it is $\\boxed{{{label}}}$.", label, "default")
    assert (verdict.reward, verdict.extracted) == (1.0, label.strip())


@pytest.mark.parametrize("name", ["hendrycks_equivalence", "nemo_skills_math_equal"])
def test_the_pairs_of_others_have_their_verdicts(name):
    for pair in pairs_of_others(name):
        verdict = judge(f"\\boxed{{{pair['pred']}}}", pair["gold"], "default")
        assert verdict.reward == pair["expected"], pair
        assert judge(f"\\boxed{{{pair['gold']}}}", pair["gold"], "default").reward == 1.0, pair


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (r"9^{9^{9^9}}", "too_large"),
        (r"100000000!", "too_large"),
        (r"(x+1)^{10^9}", "too_large"),
        (r"\binom{10^9}{5 \cdot 10^8}", "too_large"),
        ("(" * 500 + "1" + ")" * 500, "too_large"),
        ("{" * 500 + "1" + "}" * 500, "too_large"),
        ("1" * 100_000, "too_long"),
        (r"\int_0^1 x^2 dx", "unevaluated"),
        (r"\sum_{k=1}^{\infty} \frac{1}{k^2}", "unevaluated"),
        (r"\lim_{x \to 0} \frac{\sin x}{x}", "unevaluated"),
        (r"\frac{1}{", "unparsed"),
        ("}}}}{{{{", "unparsed"),
        (r"\zzz{\unknown", "unparsed"),
    ],
)
def test_what_is_not_worked_out_says_why(answer, reason):
    assert compare(answer, r"\sqrt{2}") == reason


def test_a_label_that_cannot_be_parsed_is_told_from_a_wrong_answer():
    assert compare(r"\sqrt{3}", r"\frac{1}{") == "unparsed_label"


def test_numbers_are_read_without_evaluation(monkeypatch):
    """sympy would read `12.5` by `eval`."""
    import builtins

    from sat_slime.rollout.reward import symbolic

    symbolic._parse.cache_clear()
    monkeypatch.setattr(builtins, "eval", None)
    for text in ("12.5 x + 1,000", "x^{0.5}", r"50\% x", "3 x E"):
        symbolic._parse(text)
