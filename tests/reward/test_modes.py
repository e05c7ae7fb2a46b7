"""The modes beside the default: what they accept as their models do, and where they differ on purpose."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")

from label_kinds import DIFFERENT, EQUAL, LABELS, TIMES, UNDEFINED, rows

from sat_slime.reward import MODES
from sat_slime.reward.comparison import judge

PAIRS = Path(__file__).parent / "equivalence_pairs"


@pytest.mark.parametrize(("name", "expected"), [("hendrycks_equivalence", 16), ("nemo_skills_math_equal", 27)])
def test_prime_math_gives_the_verdicts_of_prime(name, expected):
    """16 of 16 and 27 of 30 are what verl's prime_math gets, run on the same pairs."""
    pairs = json.loads((PAIRS / f"{name}.json").read_text())
    hits = [judge(f"\\boxed{{{p['pred']}}}", p["gold"], "prime_math").reward == p["expected"] for p in pairs]
    assert sum(hits) == expected


@pytest.mark.parametrize(("answer", "label", "reward"), [("1,2", "(1,2)", 1.0), ("2,1", "1,2", 0.0), ("3", "4", 0.0)])
def test_prime_math_judges_lists_and_numbers(answer, label, reward):
    assert judge(f"\\boxed{{{answer}}}", label, "prime_math").reward == reward


def test_a_box_around_the_label_is_taken_off():
    assert judge("\\boxed{34}", "\\boxed{34}", "default").reward == 1.0


DIFFERENCES = [
    ("\\boxed{200}", "2", 1.0, 0.0),
    ("\\boxed{10000}", "9999", 1.0, 0.0),
    ("\\boxed{0.33335}", "1/3", 1.0, 0.0),
    ("\\boxed{6.28}", r"2\pi", 1.0, 0.0),
    ("\\boxed{x + y = 2}", "x + y = 2", 0.0, 1.0),
    ("Answer: 34\n\nSince x is odd, y = 2", "34", 0.0, 1.0),
    ("First x = 3. Then y is 7.", "7", 0.0, 1.0),
    ("**Answer:** 34", "34", 0.0, 1.0),
    ("\\boxed{7}. The answer is clear", "7", 0.0, 1.0),
    ("\\boxed{101_2}", "101_3", 1.0, 0.0),
    ("\\boxed{[1, 2]}", "1, 2", 1.0, 0.0),
    (r"\boxed{\{3, 1\}}", r"\{1, 3\}", 0.0, 1.0),
    ("\\boxed{y + x = 2}", "x + y = 2", 0.0, 1.0),
]
"""docs/reward.md: response, label, reward of prime_math, of default. verl's own gives the former, run on the same."""


@pytest.mark.parametrize(("response", "label", "prime", "default"), DIFFERENCES)
def test_the_deliberate_differences_to_prime_math(response, label, prime, default):
    assert judge(response, label, "prime_math").reward == prime
    assert judge(response, label, "default").reward == default


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
    return rng.choice(
        [f"{n}", f"{n:,}", f"{n}.{over}", f"{n}/{over}", f"\\frac{{{n}}}{{{over}}}", f"{n}\\sqrt{{{over}}}"]
    )
