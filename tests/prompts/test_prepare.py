"""Which problems become prompts, with which label, and what the account says."""

from __future__ import annotations

import json

import prompt_sets
import pytest
from prompt_sets import pairs, write

from sat_slime.prompts import PromptError, prepare
from sat_slime.prompts.prepare import AIME24, DAPO, DOLCI, each_once, gather
from sat_slime.prompts.sets import fetch, find_source


@pytest.fixture
def gathered(tmp_path):
    """A set of (problem, label) pairs."""

    def gathered(data_set, rows):
        path = write(tmp_path / f"{data_set.name}.jsonl", ({"prompt": p, "label": a} for p, a in rows))
        return gather(data_set, fetch(find_source(str(path))))

    return gathered


def chosen(problems):
    return [(problem.source, problem.text, problem.label) for problem in problems]


def counts(one):
    return tuple(one.account[name] for name in ("rows", "texts", "prompts"))


def test_odd_rows_are_left_out_and_said(tmp_path):
    rows = [
        ("Find x.", "1"),
        ("bad \ud800 2+2?", "4"),
        ('[{"role": "user", "content": "2+2?"}]', "4"),
        ("2+2<|im_end|>", "4"),
        ("2+2", float("inf")),
    ]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt, "label": label}) + "\n" for prompt, label in rows))
    found = gather(DAPO, fetch(find_source(str(path))))
    assert (found.account["rows"], found.account["unusable"], found.account["texts"]) == (5, 4, 1)
    assert [what.split(":")[0].split(",")[0].split(" (")[0] for what in found.left_out] == [
        "it holds half a character",
        "it is JSON of messages in a text",
        "it holds the control token <|im_end|>",
        "it is no finite number",
    ]


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"\x1f\x8b\x08\0"])
def test_a_file_that_is_not_its_data_is_told(tmp_path, content):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(PromptError, match=r"git lfs pull|gunzip"):
        gather(DAPO, fetch(find_source(str(path))))


DAPO_ROWS = [("Find $x$.", "1"), ("Find y.", "2"), ("Find $x$.", "1"), ("Find  x", "1"), ("Find z.", "3")] * 2
DOLCI_ROWS = [("find $y$", "2"), ("Find w.", "4"), ("Find w.", "4"), ("Find v.", "5")]


def test_each_problem_is_there_once_from_the_first_set_that_has_it(gathered):
    dapo, dolci = gathered(DAPO, DAPO_ROWS), gathered(DOLCI, DOLCI_ROWS)
    problems = each_once([dapo, dolci])
    assert chosen(problems) == [
        *(("dapo", "Find $x$.", "1"), ("dapo", "Find y.", "2"), ("dapo", "Find z.", "3")),
        *(("dolci", "Find w.", "4"), ("dolci", "Find v.", "5")),
    ]
    assert counts(dapo) == (10, 4, 3) and counts(dolci) == (4, 3, 2)
    assert prepare.differences([dapo, dolci]) == ["dapo has 4 texts, not 17,398", "dolci has 4 rows, not 13,314"]


def test_of_two_labels_that_of_most_rows_is_kept_and_counted(gathered):
    dapo = gathered(DAPO, [("Find x.", "7"), ("Find $x$.", "8"), ("Find x.", "8"), ("Find y.", "1"), ("Find y.", "1")])
    assert chosen(each_once([dapo])) == [("dapo", "Find x.", "8"), ("dapo", "Find y.", "1")]
    assert dapo.account["two_labels"] == 1


def test_the_order_follows_from_the_problems_alone(gathered):
    there = each_once([gathered(DAPO, pairs(0, 50))])
    back = each_once([gathered(DAPO, reversed(pairs(0, 50)))])
    one = [problem.label for problem in prepare.shuffled(there)]
    assert one == [problem.label for problem in prepare.shuffled(back)]
    assert sorted(one) == sorted(problem.label for problem in there)
    assert one != [problem.label for problem in there]


def test_a_prompt_is_a_message_with_slimes_instruction(gathered):
    (problem,) = each_once([gathered(DAPO, [("Find {x}.", "1")])])
    assert json.loads(prepare.prompt_line(problem)) == {
        "prompt": [{"role": "user", "content": prompt_sets.SLIME.replace("{}", "Find {x}.")}],
        "label": "1",
        "metadata": {"source_name": "dapo", "row": "dapo.jsonl:1"},
    }


def test_labels_of_aime_are_integers_without_padding(gathered):
    rows = [("a", "025"), ("b", "0"), ("c", "999"), ("d", "000")]
    problems = each_once([gathered(AIME24, rows)])
    assert [problem.label for problem in prepare.integer_labels(problems)] == ["25", "0", "999", "0"]
    for label in ("1000", "-1", "1/2"):
        (problem,) = each_once([gathered(AIME24, [("a", label)])])
        with pytest.raises(PromptError, match="integers from 0 to 999"):
            prepare.integer_labels([problem])


def test_training_problems_of_the_evaluation_are_told(gathered):
    text = "Let the sequence begin with three ones"
    rows = [("Find y.", "1"), (text.upper() + ".", "2"), (f"{text}; find the tenth term.", "3")]
    train = each_once([gathered(DAPO, rows)])
    evaluation = each_once([gathered(AIME24, [(text, "5")])])
    assert prepare.in_evaluation(train, evaluation) == ["dapo dapo.jsonl:2"]


def test_memory_goes_with_the_texts_and_not_with_the_rows(gathered):
    one = gathered(DAPO, pairs(0, 10) * 300)
    assert one.account["rows"] == 3000 and len(one.problems) == 10
    assert next(iter(one.problems.values())).labels == {"1": 300}
