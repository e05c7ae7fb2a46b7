import json
import math

import numpy as np
import pytest
import torch

from sat_slime.config.jsonl import keep_rows, read_rows, to_json, write_atomically
from sat_slime.runs.rows import columns, read_metrics


def test_lines_are_valid_json_whatever_the_values():
    row = {
        "nan": math.nan,
        "inf": -math.inf,
        "numpy": np.float32(0.5),
        "array": np.array([1.0, math.nan]),
        "tensor": torch.tensor(2),
        "bool": True,
        "nested": {"x": [math.inf]},
        "text": "α\n",
    }
    line = to_json(row)
    assert "\n" not in line
    assert json.loads(line, parse_constant=lambda name: pytest.fail(name)) == {
        "nan": None,
        "inf": None,
        "numpy": 0.5,
        "array": [1.0, None],
        "tensor": 2,
        "bool": True,
        "nested": {"x": [None]},
        "text": "α\n",
    }


def test_torn_and_foreign_lines_are_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n[1]\n\n{"step": 2, "x": "\xff"}\n{"step": 3, "rew')
    assert [row["step"] for row in read_rows(path)] == [1, 2]
    assert read_rows(tmp_path / "none.jsonl") == []


def test_columns_have_nan_where_a_row_lacks_a_number():
    table = columns([{"step": 1, "x": None, "name": "a"}, {"step": 2, "y": 3}])
    assert table.keys() == {"step", "y"}
    assert table["step"].tolist() == [1, 2]
    np.testing.assert_equal(table["y"], [math.nan, 3])


def test_keep_rows_drops_the_torn_line_and_leaves_no_temporary(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    keep_rows(path, lambda row: row["step"] <= 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert list(tmp_path.iterdir()) == [path]
    assert read_metrics(path)["step"].tolist() == [1, 2]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
