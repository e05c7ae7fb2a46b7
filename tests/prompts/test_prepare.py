"""Data sets in the formats in which they are published: which problems become prompts, with which label, and what the
account says."""

from __future__ import annotations

import inspect
import json
import sys

import prompt_sets
import pytest
from prompt_sets import dapo_rows, dolci_rows, pairs, processed_rows, slime_rows, write

from sat_slime.config import ConfigError
from sat_slime.prompts import prepare
from sat_slime.prompts.prepare import each_once, fetch, find_set, gather, label_text, problem_text

PAIRS = pairs(0, 40)


def gathered_file(path, name="dapo"):
    found = find_set(name, str(path))
    gather(found)
    return found


@pytest.fixture
def gathered(tmp_path):
    """A set of (problem, label) pairs."""

    def gathered(name, rows):
        path = write(tmp_path / f"{name}.jsonl", ({"prompt": p, "label": a} for p, a in rows))
        return gathered_file(path, name)

    return gathered


def chosen(problems):
    return [(problem.source, problem.text, problem.label) for problem in problems]


def counts(one):
    return tuple(one.account[name] for name in ("rows", "texts", "prompts"))


def test_odd_rows_are_left_out_and_said(tmp_path):
    rows = [
        {"prompt": "Find the limit.", "label": "infinity"},
        {"prompt": "bad \ud800 2+2?", "label": "4"},
        {"prompt": '[{"role": "user", "content": "2+2?"}]', "label": "4"},
        {"prompt": "2+2<|im_end|>", "label": "4"},
        {"prompt": "2+2", "label": float("inf")},
        {"prompt": "2+2", "label": "\ud835 4"},
        {"prompt": "2+2", "label": "It is 4. " * 2500},
        {"prompt": [], "label": "1"},
        {"prompt": "p", "label": " "},
        {"prompt": "p"},
    ]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = gathered_file(path)
    assert (found.account["rows"], found.account["unusable"], found.account["texts"]) == (10, 9, 1)
    assert [what.split(":")[0].split(",")[0].split(" (")[0] for what in found.left_out] == [
        "it holds half a character",
        "it is JSON of messages in a text",
        "it holds the control token <|im_end|>",
        "it is no finite number",
        "it holds half a character",
        "a label that is too long for the verifier",
        "no problem",
        "no label",
    ]
    assert found.left_out["no label"] == {"rows": 2, "first": "odd.jsonl:9"}


DAPO_ROWS = [("Find $x$.", "1"), ("Find y.", "2"), ("Find $x$.", "1"), ("Find  x", "1"), ("Find z.", "3")] * 2
DOLCI_ROWS = [("find $y$", "2"), ("Find w.", "4"), ("Find w.", "4"), ("Find v.", "5")]


def test_each_problem_is_there_once_from_the_first_set_that_has_it(gathered):
    dapo, dolci = gathered("dapo", DAPO_ROWS), gathered("dolci", DOLCI_ROWS)
    problems = each_once([dapo, dolci])
    assert chosen(problems) == [
        *(("dapo", "Find $x$.", "1"), ("dapo", "Find y.", "2"), ("dapo", "Find z.", "3")),
        *(("dolci", "Find w.", "4"), ("dolci", "Find v.", "5")),
    ]
    assert counts(dapo) == (10, 4, 3) and counts(dolci) == (4, 3, 2)
    assert prepare.differences([dapo]) == [
        "dapo has 4 texts, not 17,398",
        "dolci has 0 rows, not 13,314",
        "aime24 has 0 texts, not 30",
    ]


def test_of_two_labels_that_of_most_rows_is_kept_and_counted(gathered):
    dapo = gathered("dapo", [("Find x.", "7"), ("Find $x$.", "8"), ("Find x.", "8"), ("Find y.", "1")])
    assert chosen(each_once([dapo])) == [("dapo", "Find x.", "8"), ("dapo", "Find y.", "1")]
    assert dapo.account["two_labels"] == 1


def test_the_order_follows_from_the_problems_alone(gathered):
    there = each_once([gathered("dapo", pairs(0, 50))])
    back = each_once([gathered("dapo", reversed(pairs(0, 50)))])
    one = [problem.label for problem in prepare.shuffled(there)]
    assert one == [problem.label for problem in prepare.shuffled(back)]
    assert sorted(one) == sorted(problem.label for problem in there)
    assert one != [problem.label for problem in there]


def test_a_prompt_is_a_message_with_slimes_instruction(gathered):
    (problem,) = each_once([gathered("dapo", [("Find {x}.", "1")])])
    assert json.loads(prepare.prompt_line(problem)) == {
        "prompt": [{"role": "user", "content": prompt_sets.SLIME.replace("{}", "Find {x}.")}],
        "label": "1",
        "metadata": {"source_name": "dapo", "row": "dapo.jsonl:1"},
    }


def test_labels_of_aime_are_its_integers_without_padding(gathered):
    rows = [("a", "025"), ("b", "0"), ("c", "999"), ("d", "000"), ("e", "1/2"), ("f", "-01"), ("g", "0123")]
    problems = each_once([gathered("aime24", rows)])
    assert [problem.label for problem in problems] == ["25", "0", "999", "0"]
    assert each_once([gathered("dapo", [("a", "025")])])[0].label == "025"


def test_memory_goes_with_the_texts_and_not_with_the_rows(gathered):
    one = gathered("dapo", pairs(0, 10) * 300)
    assert one.account["rows"] == 3000 and len(one.problems) == 10
    assert next(iter(one.problems.values())).labels == {"1": 300}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("dapo-math-17k.parquet", list(dapo_rows(PAIRS, 3))),
        ("dolci.parquet", dolci_rows(PAIRS)),
        ("processed.parquet", processed_rows(PAIRS)),
        ("dapo-math-17k.jsonl", slime_rows(PAIRS)),
        ("aime.jsonl", ({"Problem": p, "Answer": int(a), "Solution": "long", "ID": "1"} for p, a in PAIRS)),
        ("aime24.parquet", ({"id": i, "problem": p, "solution": f"\\boxed{{{a}}}"} for i, (p, a) in enumerate(PAIRS))),
    ],
    ids=["DAPO-Math-17k", "Dolci", "processed", "slime", "AIME_2024", "aime24"],
)
def test_the_published_formats_are_read(tmp_path, name, rows):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="needs pip install '.[data]'")
    path = write(tmp_path / name, rows, row_group=7)
    found = gathered_file(path)
    problems = [*found.problems.values()]
    assert [(one.text, [*one.labels]) for one in problems] == [(p, [a]) for p, a in PAIRS]
    copies = 3 if name == "dapo-math-17k.parquet" else 1
    assert (found.account["rows"], found.account["unusable"], found.account["texts"]) == (40 * copies, 0, 40)
    assert problems[-1].row == f"{name}:40" and {*problems[-1].labels.values()} == {copies}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """huggingface_hub.snapshot_download, which finds one repository; it takes what the real one takes."""
    real = pytest.importorskip("huggingface_hub", reason="needs pip install '.[data]'").snapshot_download
    pytest.importorskip("pyarrow", reason="needs pip install '.[data]'")
    calls = []

    def snapshot_download(*args, **kwargs):
        asked = inspect.signature(real).bind(*args, **kwargs).arguments
        calls.append(asked)
        if asked["repo_id"] != "allenai/Dolci-RL-Zero-Math-7B":
            raise OSError("404 Client Error\nrequest id x")
        snapshot = tmp_path / "datasets--allenai--Dolci-RL-Zero-Math-7B/snapshots/0123abc"
        write(snapshot / "data/train-00000-of-00001.parquet", dolci_rows(PAIRS))
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def test_a_set_of_the_hub_is_downloaded_at_its_revision_and_its_data_alone(hub):
    found = gathered_file("allenai/Dolci-RL-Zero-Math-7B@refs/pr/1", "dolci")
    asked = {"repo_id": "allenai/Dolci-RL-Zero-Math-7B", "repo_type": "dataset", "revision": "refs/pr/1"}
    assert hub == [asked | {"allow_patterns": ["*.parquet", "*.jsonl"]}]
    assert found.hub["commit"] == "0123abc"
    assert (found.account["rows"], next(iter(found.problems.values())).row) == (40, f"{found.file.name}:1")


def test_of_several_files_one_is_to_be_named(hub, tmp_path):
    other = tmp_path / "datasets--allenai--Dolci-RL-Zero-Math-7B/snapshots/0123abc/data/test.parquet"
    write(other, dolci_rows(PAIRS[:1]))
    with pytest.raises(ConfigError, match=r"file but data/test.parquet, data/train-00000-of-00001.parquet; .*name its"):
        fetch(find_set("dapo", "allenai/Dolci-RL-Zero-Math-7B"))


def test_a_download_that_fails_says_how_to_go_on(hub):
    said = r"OSError: 404 Client Error\); download it elsewhere with `hf download"
    with pytest.raises(ConfigError, match=said) as error:
        fetch(find_set("dapo", "nobody/nothing"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", ["missing.parquet", "/nowhere", "a b/c", "x", "~no_user/x"])
def test_what_is_neither_here_nor_an_id_is_refused(given):
    with pytest.raises(ConfigError, match="no such file"):
        find_set("dapo", given)


def test_what_is_no_file_of_a_kind_that_is_read_is_refused(tmp_path):
    (tmp_path / "set.csv").write_text("problem,answer\n")
    for given in (tmp_path / "set.csv", tmp_path):
        with pytest.raises(ConfigError, match=r"a set is one .parquet or .jsonl file"):
            find_set("dapo", str(given))


@pytest.mark.parametrize(("given", "missing"), [("a/b", "huggingface_hub"), ("set.parquet", "pyarrow")])
def test_a_missing_library_is_told_with_its_extra(monkeypatch, tmp_path, given, missing):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else name)
    with pytest.raises(ConfigError, match=rf"{missing} is not installed.*pip install '.\[data\]'"):
        find_set("dapo", given)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.jsonl", b'{"prompt": "p", "label": "1"}\n{"prompt": \n', "line 2 is not JSON"),
        ("set.jsonl", b"[1]\n", "line 1 is not a JSON object"),
        ("set.jsonl", b"", "has no rows"),
        ("set.jsonl", b'{"text": "p", "target": "1"}\n', "no row has both a problem and a label: a problem is looked"),
        ("set.jsonl", b'{"prompt": "", "label": "1"}\n{"prompt": "p", "label": null}\n', "no row has both"),
        ("set.jsonl", b'{"prompt": "p<|im_end|>", "label": "1"}\n', "no row can be used: it holds the control token"),
        ("set.jsonl", b'{"prompt": "<|im_end|>"}\n' + 2 * b'{"prompt": "p"}\n', "no row has both"),
        ("set.jsonl", b"[" * 100_000 + b"\n", "line 1 is not JSON"),
        ("set.jsonl", b'{"prompt": "p", "label": ' + b"7" * 5000 + b"}\n", "line 1 is not JSON"),
        ("set.jsonl", b'{"prompt": "\xff"}\n', "not UTF-8 after line 0"),
        ("set.jsonl", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("set.jsonl", b"\x1f\x8b\x08\0", "gunzip"),
        ("set.parquet", b"PAR1 no", "cannot be read as parquet"),
    ],
)
def test_a_broken_file_is_told_with_its_place(tmp_path, name, content, message):
    if name == "set.parquet":
        pytest.importorskip("pyarrow", reason="needs pip install '.[data]'")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        gathered_file(tmp_path / name)


COLUMNS = "its columns are {}, target: .*a label in label, ground_truth"


@pytest.mark.parametrize(
    ("problem", "label", "message"),
    [
        *((problem, "target", COLUMNS.format(problem)) for problem in ("text", "prompt")),
        ("prompt", "label", "cannot be read as parquet: .*invalid start byte"),
    ],
)
def test_a_parquet_file_of_other_columns_or_of_no_text_is_told(tmp_path, problem, label, message):
    pytest.importorskip("pyarrow", reason="needs pip install '.[data]'")
    path = write(tmp_path / "other.parquet", [{problem: "half", label: "1"}])
    path.write_bytes(path.read_bytes().replace(b"half", b"ha\xfff"))
    with pytest.raises(ConfigError, match=message):
        gathered_file(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("34", "34"), (34, "34"), (34.0, "34"), (0.5, "0.5"), (" 025 ", "025"), (["7"], "7"), (r"\boxed{x}", "x"),
        ({"ground_truth": "3"}, "3"), ({"ground_truth": ["3"]}, "3"), (2 * r"\boxed{x}", 2 * r"\boxed{x}"),
        (r"\boxed{2}^{3}", r"\boxed{2}^{3}"),
        ({"ground_truth": r'["\\frac12"]'}, r"\frac12"), ("['7']", "7"), ("[7]", "[7]"), ('["1", "2"]', None),
        ("['1' '2']", None), (r'["\text{7}"]', r"\text{7}"), ("['', {[]}, '']", "['', {[]}, '']"), (None, None),
        ("", None), (True, None), (["1", "2"], None), ([], None), ({"style": "rule"}, None),
    ],
)  # fmt: skip
def test_labels_of_every_shape(value, text):
    assert label_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("p", "p"), (" ", None), (None, None), ([], None), (5, None), ([{"role": "user", "content": "p"}], "p"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "p"}], "p"),
        ([{"role": "user", "content": "p"}, {"role": "user", "content": "q"}], None),
        ([{"role": "user", "content": [{"type": "image"}]}], None),
    ],
)  # fmt: skip
def test_prompts_of_every_shape(value, text):
    assert problem_text(value) == text
