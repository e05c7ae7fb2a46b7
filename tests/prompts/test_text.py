"""Problems without their instruction, their normal form, and slime's instruction around them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prompt_sets import DAPO, SLIME

from sat_slime.prompts.text import instructed, normalize, strip_instruction

SHARED = Path(__file__).parents[3] / "shared" / "data"
PROBLEM = "Let $a, b$ be such that $\\frac{a}{b} = 2$.\n\nFind {a}."


@pytest.mark.parametrize(
    "wording",
    [
        DAPO,
        SLIME,
        "user: Solve the following problem step by step. The last line of your response should be the answer to the "
        "problem in form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n{}\n"
        'Remember to put your answer on its own line after "Answer:"',
        "{}\nPlease reason step by step, and put your final answer within \\boxed{}.",
        "{} Let's think step by step and output the final answer within \\boxed{}.",
    ],
)
def test_the_instructions_of_the_known_copies_are_taken_off(wording):
    assert strip_instruction(wording.replace("{}", PROBLEM, 1)) == PROBLEM


@pytest.mark.parametrize("problem", [PROBLEM, "Remember Ann? She is twice as old.", "The answer is $Answer."])
def test_a_bare_problem_stays_as_it_is(problem):
    assert strip_instruction(problem) == problem


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Find $x$, if $x = 2$.", "Find  $x$\nif $x=2$"), (r"\left( \dfrac{1}{2} \right)", r"(\frac{1}{2})"),
        (r"Find \(x\).", "find $x$."), ("5 − 3", "5 - 3"), ("Ｆｉｎｄ x。", "Find x。"), (r"a\,b\quad c", "a b c"),
        ("gcd(12, 34)", "gcd(12,34)"),
    ],
)  # fmt: skip
def test_copies_of_a_problem_have_one_normal_form(one, other):
    assert normalize(one) == normalize(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x + 1", "x - 1"),
        ("1.5", "15"),
        ("1,2", "12"),
        ("5! + 3", "5 + 3"),
        ("f'(x)", "f(x)"),
        ("x^2", "x_2"),
        ("12, 34", "123, 4"),
        ("x = .5", "x = 5"),
        ("1 2", "12"),
    ],
)
def test_other_problems_have_another(one, other):
    assert normalize(one) != normalize(other)


def test_no_two_real_problems_have_one_normal_form():
    if not SHARED.is_dir():
        pytest.skip("needs ../shared/data")
    aime = [json.loads(line)["problem"] for line in (SHARED / "aime24.jsonl").read_text().splitlines()]
    rows = map(json.loads, (SHARED / "dapo-sample.jsonl").read_text().splitlines())
    dapo = [row["prompt"][0]["content"] for row in rows]
    bare = [strip_instruction(prompt) for prompt in dapo]
    assert [*map(instructed, bare)] == dapo
    assert len({normalize(problem) for problem in (*aime, *bare)}) == 38
