"""What is found in a file of prompts, with its row."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")

from prompt_sets import pairs, slime_rows, write

from sat_slime.prompts import PromptError
from sat_slime.prompts.check import KINDS, Settings, check_file
from sat_slime.prompts.labels import new_pool


@pytest.fixture(scope="module")
def pool():
    with new_pool(1) as pool:
        yield pool


class Words:
    """A tokenizer of words, with one word around a message."""

    def chat(self, messages):
        return f"<user> {messages[0]['content']}"

    def lengths(self, texts):
        return [len(text.split()) for text in texts]


def user(content):
    return [{"role": "user", "content": content}]


def found(path, pool, evaluation=None, **settings):
    faults = check_file(path, Settings(**settings), pool, evaluation).faults
    return [(fault.kind, fault.row, fault.detail) for fault in faults]


def lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_nothing_is_found_in_a_sound_file(tmp_path, pool):
    train = write(tmp_path / "train.jsonl", slime_rows(pairs(0, 700)))
    evaluation = write(tmp_path / "eval.jsonl", slime_rows([("Let me see how often a die shows its own number", "1")]))
    result = check_file(train, Settings(tokenizer=Words(), max_tokens=60), pool, evaluation)
    assert (result.rows, result.faults) == (700, [])


def test_every_kind_is_found_with_its_line(tmp_path, pool):
    text = "Let the sequence begin with three ones and let each later term be the sum of the three before it"
    train = lines(
        tmp_path / "train.jsonl",
        {"prompt": user("Find $x$."), "label": "1"},
        "",  # slime passes over blank lines, too
        '{"prompt": "Find',
        "[1]",
        {"prompt": user("find x"), "label": "1.0"},
        {"prompt": "Find x.", "label": "2"},
        {"prompt": user("Find z.")},
        {"question": "Find w.", "label": "1"},
        {"prompt": user(" "), "label": "1"},
        {"prompt": "", "label": "1"},
        {"prompt": ["Find v."], "label": "1"},
        {"prompt": user("Find u."), "label": None},
        {"prompt": user("one two three four five"), "label": "3"},
        {"prompt": user("Find t."), "label": "\\frac{1"},
        {"prompt": user(text), "label": "4"},
        {"prompt": user(f"{text}; find the tenth."), "label": "5"},
        {"prompt": [{"role": "system", "content": "s"}, *user("Find s."), *user("Find r.")], "label": 6},
    )
    evaluation = lines(tmp_path / "eval.jsonl", {"prompt": user(text.upper()), "label": "9"})
    faults = found(train, pool, evaluation, tokenizer=Words(), max_tokens=5)
    assert [(kind, row) for kind, row, _ in faults] == [
        ("not JSON", 3), ("not JSON", 4), ("missing key", 7), ("missing key", 8), ("empty prompt", 9),
        ("empty prompt", 10), ("no prompt", 11), ("no label", 12), ("duplicate", 5), ("two labels", 6),
        ("too long", 13), ("too long", 15), ("too long", 16), ("label", 14), ("in eval", 15), ("near eval", 16),
    ]  # fmt: skip
    details = {(kind, row): detail for kind, row, detail in faults}
    assert details["duplicate", 5] == "of 1"
    assert details["two labels", 6] == "'2'; '1' in 1"
    assert details["missing key", 7] == "'label'; it has 'prompt'"
    assert details["missing key", 8] == "'prompt'; it has 'question', 'label'"
    assert details["too long", 13] == "6 tokens, above 5"
    assert details["in eval", 15] == "row 1 of it"
    assert details["label", 14].startswith("'\\\\frac{1': ")
    assert {kind for kind, *_ in faults} == set(KINDS)


def test_keys_and_verifier_are_the_runs(tmp_path, pool):
    path = lines(tmp_path / "x.jsonl", {"question": "Find x.", "answer": "x + y = 2"})
    assert found(path, pool, input_key="question", label_key="answer", mode="default") == []
    ((kind, row, detail),) = found(path, pool, input_key="question", label_key="answer", mode="prime_math")
    assert (kind, row) == ("label", 1) and "not rewarded as its own answer by prime_math" in detail
    assert [kind for kind, *_ in found(path, pool)] == ["missing key"]


@pytest.mark.parametrize("mode", ["default", "prime_math", "math_dapo", "strict_integer"])
def test_labels_without_a_value_are_named(tmp_path, pool, mode):
    labels = ["1/0", "5:0", "(2, 0/0)", "nan", "12:00", "3"]
    rows = ({"prompt": f"Find {name}.", "label": label} for name, label in zip("abcdef", labels, strict=True))
    path = lines(tmp_path / "x.jsonl", *rows)
    faults = [fault for fault in found(path, pool, mode=mode) if fault[0] == "label"]
    assert [row for _, row, _ in faults] == [1, 2, 3, 4, 5]
    assert all("it has no value" in detail for _, _, detail in faults[:4])
    assert "no value" not in faults[4][2]


def test_a_parquet_file_is_checked_alike(tmp_path, pool):
    pytest.importorskip("pyarrow", reason="needs pip install '.[data]'")
    path = write(tmp_path / "x.parquet", slime_rows([*pairs(0, 3), *pairs(1, 2)]))
    assert found(path, pool) == [("duplicate", 4, "of 2")]


def test_what_a_browser_of_latin_1_wrote_is_told(tmp_path, pool):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"prompt": "p", "label": "1"}\n{"prompt": "caf\xe9", "label": "1"}\n')
    assert [(kind, row) for kind, row, _ in found(path, pool)] == [("not JSON", 2)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("no.jsonl", None, "no such file"), ("x.csv", "a", "convert it"), ("x.jsonl", "\n", "no rows")],
)
def test_files_that_cannot_be_checked_are_refused(tmp_path, pool, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(PromptError, match=message):
        check_file(tmp_path / name, Settings(), pool)
