"""The notebooks run from their first cell to their last; each claim in them is an assert."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from sat_slime.rollout.token_dump import read_dump

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 300_000
"""Bytes of a file of data."""

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def run(notebook, folder):
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()


@notebooks
def test_it_runs(path, tmp_path):
    shutil.copytree(FOLDER / "data", tmp_path / "data")
    notebook = read(path)
    run(notebook, tmp_path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)


def test_a_claim_that_is_false_fails(tmp_path):
    with pytest.raises(CellExecutionError, match="AssertionError"):
        run(new_notebook(cells=[new_code_cell("assert 1 == 2")]), tmp_path)


@notebooks
def test_it_is_kept_without_outputs(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)
    assert any("assert" in cell.source for cell in cells)


@notebooks
def test_it_is_linked_and_its_links_lead_somewhere(path):
    name = path.relative_to(ROOT).as_posix()
    assert f"({name})" in (ROOT / "README.md").read_text()
    assert f"(../{name})" in (ROOT / "docs" / "README.md").read_text()
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (FOLDER / target).exists(), target


def test_the_data_are_small_and_whole():
    (file,) = (FOLDER / "data").glob("*.safetensors")
    assert file.stat().st_size < LARGEST
    assert read_dump(file).metadata["lag"] == "8"
