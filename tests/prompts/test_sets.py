"""Data sets in the formats in which they are published, from this machine and from the hub."""

from __future__ import annotations

import inspect
import json
import sys

import pytest
from prompt_sets import dapo_rows, dolci_rows, pairs, processed_rows, slime_rows, write

from sat_slime.prompts import PromptError
from sat_slime.prompts.prepare import DAPO, DOLCI, gather
from sat_slime.prompts.sets import fetch, find_source, label_text, problem_text

PAIRS = pairs(0, 40)


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
    found = gather(DAPO, fetch(find_source(str(path))))
    problems = [*found.problems.values()]
    assert [(one.text, [*one.labels]) for one in problems] == [(p, [a]) for p, a in PAIRS]
    copies = 3 if name == "dapo-math-17k.parquet" else 1
    assert (found.account["rows"], found.account["unusable"], found.account["texts"]) == (40 * copies, 0, 40)
    assert problems[-1].row == f"{name}:40" and {*problems[-1].labels.values()} == {copies}


def test_a_folder_is_read_file_by_file_without_the_hubs_own_notes(tmp_path):
    write(tmp_path / "set/data/b.jsonl", slime_rows(PAIRS[:2]))
    write(tmp_path / "set/data/a.jsonl", slime_rows(PAIRS[2:4]))
    write(tmp_path / "set/.cache/huggingface/c.jsonl", slime_rows(PAIRS[4:]))
    found = gather(DAPO, fetch(find_source(str(tmp_path / "set"))))
    assert [one.row for one in found.problems.values()] == [
        f"data/{name}.jsonl:{row}" for name in "ab" for row in (1, 2)
    ]


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
    files = fetch(find_source("allenai/Dolci-RL-Zero-Math-7B@refs/pr/1"))
    asked = {"repo_id": "allenai/Dolci-RL-Zero-Math-7B", "repo_type": "dataset", "revision": "refs/pr/1"}
    assert hub == [asked | {"allow_patterns": ["*.parquet", "*.jsonl"]}]
    assert files.commit == "0123abc"
    found = gather(DOLCI, files)
    assert (found.account["rows"], next(iter(found.problems.values())).row) == (
        40,
        "data/train-00000-of-00001.parquet:1",
    )


def test_a_folder_of_a_repository_can_be_named(hub):
    files = fetch(find_source("allenai/Dolci-RL-Zero-Math-7B/data"))
    assert (hub[0]["revision"], hub[0]["allow_patterns"]) == ("main", ["data/*.parquet", "data/*.jsonl"])
    assert [files.name(path) for path in files.files] == ["train-00000-of-00001.parquet"]


def test_a_download_that_fails_says_how_to_go_on(hub):
    said = r"OSError: 404 Client Error\); download it elsewhere with `hf download"
    with pytest.raises(PromptError, match=said) as error:
        fetch(find_source("nobody/nothing"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", ["missing.parquet", "/nowhere", "a b/c", "x"])
def test_what_is_neither_here_nor_an_id_is_refused(given):
    with pytest.raises(PromptError, match="no such file"):
        find_source(given)


def test_files_that_are_not_read_are_refused(tmp_path):
    (tmp_path / "set.csv").write_text("problem,answer\n")
    with pytest.raises(PromptError, match="files are read: convert it"):
        find_source(str(tmp_path / "set.csv"))
    with pytest.raises(PromptError, match="holds no"):
        find_source(str(tmp_path))


@pytest.mark.parametrize(("given", "missing"), [("a/b", "huggingface_hub"), ("set.parquet", "pyarrow")])
def test_a_missing_library_is_told_with_its_extra(monkeypatch, tmp_path, given, missing):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else name)
    with pytest.raises(PromptError, match=rf"{missing} is not installed.*pip install '.\[data\]'"):
        find_source(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "p", "label": "1"}\n{"prompt": \n', "line 2 is not JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ("", "has no rows"),
        ('{"text": "p", "target": "1"}\n', "no row has both a problem and a label: a problem is looked for in problem"),
        ('{"prompt": "", "label": "1"}\n{"prompt": "p", "label": null}\n', "no row has both"),
        ("[" * 100_000 + "\n", "line 1 is not JSON"),
    ],
)
def test_a_broken_file_is_told_with_its_line(tmp_path, text, message):
    path = tmp_path / "set.jsonl"
    path.write_text(text)
    with pytest.raises(PromptError, match=message):
        gather(DAPO, fetch(find_source(str(path))))


def test_a_broken_parquet_file_is_told(tmp_path):
    pytest.importorskip("pyarrow", reason="needs pip install '.[data]'")
    (tmp_path / "set.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(PromptError, match="cannot be read as parquet"):
        gather(DAPO, fetch(find_source(str(tmp_path / "set.parquet"))))
    write(tmp_path / "other.parquet", [{"text": "p", "target": "1"}])
    with pytest.raises(PromptError, match="a label in label, ground_truth"):
        gather(DAPO, fetch(find_source(str(tmp_path / "other.parquet"))))


def test_rows_without_problem_or_label_are_counted_and_noted(tmp_path):
    rows = [*slime_rows(PAIRS[:3]), {"prompt": [], "label": "1"}, {"prompt": "p", "label": " "}, {"prompt": "p"}]
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = gather(DAPO, fetch(find_source(str(path))))
    assert (found.account["rows"], found.account["unusable"], found.account["texts"]) == (6, 3, 3)
    no_problem, no_label = {"rows": 1, "first": "set.jsonl:4"}, {"rows": 2, "first": "set.jsonl:5"}
    assert found.left_out == {"no problem": no_problem, "no label": no_label}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("34", "34"), (34, "34"), (34.0, "34"), (0.5, "0.5"), (" 025 ", "025"), (["7"], "7"), (r"\boxed{x}", "x"),
        ({"ground_truth": "3", "style": "rule"}, "3"), ({"ground_truth": ["3"]}, "3"),
        (None, None), ("", None), (True, None), (["1", "2"], None), ([], None), ({"style": "rule"}, None),
    ],
)  # fmt: skip
def test_labels_of_every_shape(value, text):
    assert label_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("p", "p"),
        ([{"role": "user", "content": "p"}], "p"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "p"}], "p"),
        ([{"role": "user", "content": "p"}, {"role": "user", "content": "q"}], None),
        ([{"role": "user", "content": [{"type": "image"}]}], None),
        (" ", None), (None, None), ([], None), (5, None),
    ],
)  # fmt: skip
def test_prompts_of_every_shape(value, text):
    assert problem_text(value) == text
