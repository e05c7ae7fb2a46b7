"""Which problems become prompts, with which label, and what the account says."""

from __future__ import annotations

import json

import pytest
from prompt_sets import pairs, write

from sat_slime.prompts import PromptError, prepare
from sat_slime.prompts.prepare import AIME24, DAPO, DOLCI, choose, gather
from sat_slime.prompts.sets import fetch, find_source


@pytest.fixture
def gathered(tmp_path):
    """A set of (problem, label) pairs."""

    def gathered(data_set, rows):
        path = write(tmp_path / f"{data_set.name}.jsonl", ({"prompt": p, "label": a} for p, a in rows))
        return gather(data_set, fetch(find_source(str(path))))

    return gathered


def chosen(problems):
    return [(problem.source, problem.problem, problem.label) for problem in problems]


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
    prepare.jsonl(found.doubts).encode()
    assert (found.account["rows"], found.account["unusable"], found.account["texts"]) == (5, 4, 1)
    assert [doubt["what"].split(":")[0].split(",")[0].split(" (")[0] for doubt in found.doubts] == [
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
    problems = choose([dapo, dolci], "drop")
    assert chosen(problems) == [
        *(("dapo", "Find $x$.", "1"), ("dapo", "Find y.", "2"), ("dapo", "Find z.", "3")),
        *(("dolci", "Find w.", "4"), ("dolci", "Find v.", "5")),
    ]
    assert counts(dapo) == (10, 4, 3) and counts(dolci) == (4, 3, 2)
    assert not dapo.doubts and not dolci.doubts


def test_the_papers_sum_is_of_texts_and_of_rows(gathered):
    dapo, dolci = gathered(DAPO, DAPO_ROWS), gathered(DOLCI, DOLCI_ROWS)
    problems = choose([dapo, dolci], "keep")
    assert [problem.problem for problem in problems] == [
        *("Find $x$.", "Find  x", "Find y.", "Find z."),
        *("find $y$", "Find w.", "Find w.", "Find v."),
    ]
    assert prepare.differences([dapo, dolci]) == ["dapo has 4 texts, not 17,398", "dolci has 4 rows, not 13,314"]


def test_of_two_labels_that_of_most_rows_is_kept_and_told(gathered):
    rows = [("Find x.", "7"), ("Find $x$.", "8"), ("Find x.", "8"), ("Find y.", "1/2"), ("Find y.", "1/2")]
    dapo, dolci = gathered(DAPO, rows), gathered(DOLCI, [("Find y", "0.4")])
    assert chosen(choose([dapo, dolci], "drop")) == [("dapo", "Find x.", "8"), ("dapo", "Find y.", "1/2")]
    doubts = (*dapo.doubts, *dolci.doubts)
    assert [(doubt["row"], doubt["what"], doubt["label"], doubt["kept"]) for doubt in doubts] == [
        ("dapo.jsonl:1", "other labels too: '7'", "8", True),
        ("dolci.jsonl:1", "other labels too: '1/2'", "0.4", True),
    ]


def test_the_order_follows_from_the_problems_alone(gathered):
    there = choose([gathered(DAPO, pairs(0, 50))], "drop")
    back = choose([gathered(DAPO, reversed(pairs(0, 50)))], "drop")
    one = [problem.label for problem in prepare.shuffled(there)]
    assert one == [problem.label for problem in prepare.shuffled(back)]
    assert sorted(one) == sorted(problem.label for problem in there)
    assert one != [problem.label for problem in there]


def test_a_prompt_is_a_message_in_the_template(gathered):
    (problem,) = choose([gathered(DAPO, [("Find {x}.", "1")])], "drop")
    assert prepare.prompt_row(problem, "Q: {problem}") == {
        "prompt": [{"role": "user", "content": "Q: Find {x}."}],
        "label": "1",
        "metadata": {"source_name": "dapo", "row": "dapo.jsonl:1"},
    }


def test_labels_of_aime_are_integers_without_padding(gathered):
    rows = [("a", "025"), ("b", "0"), ("c", "999"), ("d", "000")]
    problems = choose([gathered(AIME24, rows)], "drop")
    assert [problem.label for problem in prepare.integer_labels(problems)] == ["25", "0", "999", "0"]
    for label in ("1000", "-1", "1/2"):
        (problem,) = choose([gathered(AIME24, [("a", label)])], "drop")
        with pytest.raises(PromptError, match="integers from 0 to 999"):
            prepare.integer_labels([problem])


def test_training_problems_of_the_evaluation_are_told(gathered):
    text = "Let the sequence begin with three ones"
    rows = [("Find y.", "1"), (text.upper() + ".", "2"), (f"{text}; find the tenth term.", "3")]
    train = choose([gathered(DAPO, rows)], "drop")
    evaluation = choose([gathered(AIME24, [(text, "5")])], "drop")
    (doubt,) = prepare.in_evaluation(train, evaluation)
    assert (doubt["row"], doubt["what"]) == ("dapo.jsonl:2", "is aime24's aime24.jsonl:1")


def test_memory_goes_with_the_texts_and_not_with_the_rows(gathered):
    one = gathered(DAPO, pairs(0, 10) * 300)
    assert one.account["rows"] == 3000 and len(one.texts) == 10
    assert json.dumps(next(iter(one.texts.values()))) == '{"1": 300}'
