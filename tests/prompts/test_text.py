"""Problems without their instruction, their normal form, and the instruction template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prompt_sets import DAPO, SLIME

from sat_slime.prompts import PromptError
from sat_slime.prompts.text import TEMPLATES, fill, find_template, normalize, strip_instruction

SHARED = Path(__file__).parents[3] / "shared" / "data"
PROBLEM = "Let $a, b$ be such that $\\frac{a}{b} = 2$.\n\nFind {a}."


@pytest.mark.parametrize("name", ["slime", "dapo", "boxed"])
def test_an_instruction_is_taken_off_again(name):
    assert strip_instruction(fill(TEMPLATES[name], PROBLEM)) == PROBLEM


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
    ],
)  # fmt: skip
def test_copies_of_a_problem_have_one_normal_form(one, other):
    assert normalize(one) == normalize(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("x + 1", "x - 1"), ("1.5", "15"), ("1,2", "12"), ("5! + 3", "5 + 3"), ("f'(x)", "f(x)"), ("x^2", "x_2")],
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
    assert [fill(TEMPLATES["slime"], problem) for problem in bare] == dapo
    problems = [*aime, *bare]
    assert len({normalize(problem) for problem in problems}) == 38


def test_templates_come_by_name_from_a_file_or_as_they_are(tmp_path):
    file = tmp_path / "template.txt"
    file.write_text("Q: {problem}\nA:\n")
    assert find_template(str(file)) == "Q: {problem}\nA:"
    assert find_template("{problem} \\boxed{}") == "{problem} \\boxed{}"
    assert find_template("none") == "{problem}"
    assert fill(find_template(str(file)), "{x}") == "Q: {x}\nA:"


@pytest.mark.parametrize("template", ["nowhere.txt", "{problem} {problem}", "x" * 5000])
def test_a_template_without_one_place_for_the_problem_is_refused(template):
    with pytest.raises(PromptError, match="template"):
        find_template(template)
