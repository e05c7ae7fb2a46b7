"""slime's .straw.json. recorded/straw/ was written by straw-queue 0.1.6 with slime's codec of its main at 5dcf67cd."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from sat_slime.report.dumps.rollout_dump import read_samples
from sat_slime.report.dumps.step_batch import DumpFault
from sat_slime.report.dumps.straw_archive import read_index

RECORDED = Path(__file__).parent / "recorded" / "straw"
needs_straw = pytest.mark.skipif(importlib.util.find_spec("straw") is None, reason="needs the package straw-queue")


@pytest.fixture
def archive(tmp_path):
    """A copy: straw notes its readers in the pool."""
    return Path(shutil.copytree(RECORDED, tmp_path / "straw")) / "7.straw.json"


def test_the_index_tells_the_rollout(archive):
    index = read_index(archive)
    assert (index["rollout_id"], index["evaluation"]) == (7, False)


@needs_straw
def test_samples_of_a_pool_that_was_copied_with_its_index(archive):
    rollout, samples = read_samples(archive)
    assert (rollout, len(samples)) == (7, 8)
    assert [one.group for one in samples] == [0] * 4 + [1] * 4
    assert [one.reward for one in samples] == [0.0, 1.0] * 4
    assert [one.versions for one in samples] == [(3,), (4,)] * 4
    assert [one.status for one in samples] == ["completed"] * 5 + ["truncated"] + ["completed"] * 2
    assert all(one.log_probs for one in samples)


@needs_straw
def test_a_missing_or_damaged_pool_is_said(archive):
    (pack,) = (archive.parent / "straw-data" / "raw").rglob("*.pack")
    pack.write_bytes(b"x" * pack.stat().st_size)
    with pytest.raises(DumpFault, match=r"its straw pool .* cannot be read .*export_pt"):
        read_samples(archive)
    shutil.rmtree(archive.parent / "straw-data")
    with pytest.raises(DumpFault, match="the index alone holds none of them"):
        read_samples(archive)


def test_without_straw_the_package_and_slimes_own_export_are_named(archive, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "straw.errors", None)
    with pytest.raises(DumpFault, match=r"pip install straw-queue, or export it .*export_pt"):
        read_samples(archive)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no whole JSON file"),
        ("[]", "no .straw.json of slime in format"),
        (json.dumps({"format": "slime.straw-debug", "version": 2}), "version 1, the only one known here"),
    ],
)
def test_other_files_are_refused(text, said, tmp_path):
    path = tmp_path / "0.straw.json"
    path.write_text(text)
    with pytest.raises(DumpFault, match=said):
        read_samples(path)
