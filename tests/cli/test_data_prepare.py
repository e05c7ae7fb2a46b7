"""`sat-slime data` as it is typed, from published formats to files and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import PAPER, sat_slime_command

pytest.importorskip("pyarrow", reason="needs pip install '.[data]'")

from prompt_sets import dapo_rows, dolci_rows, pairs, write

from sat_slime.config import load_config
from sat_slime.launch.machine import data_problem
from sat_slime.prompts import prepare

AIME = [(f"Aime problem {i}: find the value of $x_{{{i}}}$.", f"{i:03}") for i in range(30)]


def data(*arguments):
    return sat_slime_command("data", *arguments)


def sources(**sets):
    return [word for name, place in sets.items() for word in ("--source", f"{name}={place}")]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """Small sets in the original formats, which pass for the paper's; the options that name them."""
    for name, expected in (("dapo", 60), ("dolci", 25), ("aime24", 30)):
        monkeypatch.setitem(prepare.PAPER, name, prepare.PAPER[name]._replace(expected=expected))
    dapo = write(tmp_path / "dapo/data/dapo-math-17k.parquet", dapo_rows(pairs(0, 60), 4), row_group=37)
    dolci = write(tmp_path / "dolci/data/train-00000-of-00001.parquet", dolci_rows(pairs(50, 75)))
    aime = write(tmp_path / "aime-2024.parquet", dapo_rows(AIME, 32))
    return sources(dapo=dapo, dolci=dolci, aime24=aime)


def test_the_folder_is_whole_and_its_account_complete(sets, tmp_path):
    """Readable by others as the umask says; brackets in its name are no markup; the same input gives the same bytes."""
    out = tmp_path / "a[bold]b" / "paper"
    mask = os.umask(0o027)
    try:
        result = data("prepare", "--out", out, *sets)
    finally:
        os.umask(mask)
    assert result.exit_code == 0 and f"{out / 'train.jsonl'}: 75 rows" in result.output, result.output
    assert (out.stat().st_mode & 0o777, (out / "train.jsonl").stat().st_mode & 0o777) == (0o750, 0o640)
    assert "75 training prompts; the paper has 85" in result.output
    assert "dolci: 25 rows, 0 unusable, 25 texts, 0 two labels, 15 prompts" in result.output
    assert sorted(path.name for path in out.iterdir()) == [*("aime24.jsonl", "manifest.json", "train.jsonl")]
    assert [path.name for path in out.parent.iterdir()] == ["paper"]
    train, evaluation = rows(out / "train.jsonl"), rows(out / "aime24.jsonl")
    assert sorted(int(row["label"]) for row in train) == list(range(1, 76))
    assert [row["label"] for row in evaluation] == [str(i) for i in range(30)]
    assert {row["metadata"]["source_name"] for row in train} == {"dapo", "dolci"}
    contents = [message["content"] for row in [*train, *evaluation] for message in row["prompt"]]
    assert all(text.startswith("Solve the following math") and "\\boxed{$Answer}" in text for text in contents)
    assert not any("without quotes" in text for text in contents)

    manifest = json.loads((out / "manifest.json").read_text())
    assert [source["name"] for source in manifest["sources"]] == ["dapo", "dolci", "aime24"]
    dapo, dolci, aime = (source["counts"] for source in manifest["sources"])
    assert (dapo["rows"], dapo["texts"], dapo["prompts"]) == (240, 60, 60)
    assert (dolci["rows"], dolci["prompts"]) == (25, 15)
    assert (aime["rows"], aime["prompts"]) == (960, 30)
    file = manifest["sources"][0]["file"]
    assert file["name"] == "dapo-math-17k.parquet" and len(file["sha256"]) == 64
    assert manifest["differs_from_paper"] == []
    for name in ("train.jsonl", "aime24.jsonl"):
        assert data_problem(str(out / name), "", "prompt", "label", load_config(PAPER)) is None, "the launcher takes it"
    before = {path: path.read_bytes() for path in out.iterdir()}
    assert data("prepare", "--out", out, *sets, "--overwrite").exit_code == 0
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_training_problems_of_the_evaluation_are_told(sets, tmp_path):
    problem = AIME[0][0].upper().replace("X_{0}", "x_{0}")
    leaking = write(tmp_path / "leaking.jsonl", dapo_rows([*pairs(0, 2), (problem + ".", "7")], 1))
    result = data("prepare", "--out", tmp_path / "out", *sets, *sources(dapo=leaking))
    assert "warning: 1 training prompts are problems of aime24: dapo leaking.jsonl:3" in result.output, result.output


def test_an_earlier_folder_is_replaced_when_asked_to_alone(sets, tmp_path):
    out = tmp_path / "out"
    assert data("prepare", "--out", out, *sets, *sources(dolci="none")).exit_code == 0
    (out / "notes.txt").write_text("mine")
    before = (out / "train.jsonl").read_bytes()
    result = data("prepare", "--out", out, *sets)
    assert result.exit_code == 2 and "give --overwrite" in result.output
    assert (out / "train.jsonl").read_bytes() == before
    assert data("prepare", "--out", out, *sets, "--overwrite").exit_code == 0
    assert (out / "train.jsonl").read_bytes() != before and (out / "notes.txt").read_text() == "mine"


def test_after_a_full_disk_the_same_command_goes_on(sets, tmp_path, monkeypatch):
    """Also in a folder that an earlier one has filled: what breaks off leaves none that looks whole."""
    out = tmp_path / "out"
    assert data("prepare", "--out", out, *sets).exit_code == 0
    with monkeypatch.context() as patched:
        write = prepare.write_atomically
        first = iter([write])

        def full(path, text):
            next(first, lambda *_: Path("/dev/full").write_text(text))(path, text)

        patched.setattr(prepare, "write_atomically", full)
        assert data("prepare", "--out", out, *sets, "--overwrite").exit_code != 0
    assert len(list(out.iterdir())) == 2 and not (out / "manifest.json").exists()
    (out / ".train.jsonl.4711.tmp").write_text("{")  # as a kill leaves it
    result = data("prepare", "--out", out, *sets, "--overwrite")
    assert result.exit_code == 0, result.output
    assert (out / "manifest.json").exists()


def test_slime_reads_what_was_prepared(sets, tmp_path):
    reader = pytest.importorskip("slime.utils.data", reason="needs a checkout of slime on the path")
    assert data("prepare", "--out", tmp_path / "out", *sets).exit_code == 0
    for name, count in (("train.jsonl", 75), ("aime24.jsonl", 30)):
        keys = {"prompt_key": "prompt", "label_key": "label", "metadata_key": "metadata"}
        prompts = reader.Dataset(str(tmp_path / "out" / name), None, None, None, **keys)
        assert [(sample.prompt, sample.label, sample.metadata) for sample in prompts.samples] == [
            (row["prompt"], row["label"], row["metadata"]) for row in rows(tmp_path / "out" / name)
        ]
        assert len(prompts) == count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (sources(dapo="none", dolci="none"), "name at least one set to train on"),
        (sources(dapo="nowhere.parquet"), "nowhere.parquet: there is no such file"),
        (["--out", "models", "--overwrite"], "holds no prepared prompts: name another --out"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_read(sets, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(prepare, "gather", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/model.safetensors").write_text("weights")
    result = data("prepare", "--out", tmp_path / "out", *sets, *arguments)
    assert result.exit_code == 2 and message in result.output
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["model.safetensors"]
