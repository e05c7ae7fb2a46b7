"""The notebooks run from their first cell to their last; each claim in them is an assert. They are kept with their
outputs, which those of a fresh run equal but for the last digits:

    PYTHONPATH=. .venv/bin/python tests/test_notebooks.py        # runs them and keeps what they show
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_output

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def run(notebook, folder):
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(folder)}}).execute()


def run_alone(path, folder):
    """The notebook of `path` after a run in an empty folder beside its data: what a cell prints is one output, and
    nothing tells when or how often it ran."""
    shutil.copytree(FOLDER / "data", folder / "data")
    notebook = read(path)
    run(notebook, folder)
    for cell in code_cells(notebook):
        printed = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        lines = [line.rstrip() for line in printed.splitlines()]
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stdout"]
        if printed:
            cell.outputs.insert(0, new_output("stream", name="stdout", text="\n".join(lines) + "\n"))
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = None
        cell.execution_count = None
        cell.metadata.pop("execution", None)
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell):
    """What a cell prints, and what the marks of its charts say: another font moves a chart's labels."""
    texts = [IMPORTING.sub("", output.text) for output in cell.outputs if output.output_type == "stream"]
    texts = [text for text in texts if text]
    charts = [output.data["image/svg+xml"] for output in cell.outputs if "image/svg+xml" in output.get("data", {})]
    return texts + [label for chart in charts for label in re.findall(r'aria-label="([^"]*)"', chart)]


NUMBER = re.compile(r"-?\d+\.\d+")
IMPORTING = re.compile(r"importing \S+, which the settings name\n")
"""What a command says on stderr before it imports a stabilizer of one's own."""


def assert_alike(fresh, kept):
    """Texts are equal but for their decimals, which another processor rounds elsewhere: by one unit of the last digit
    that is shown, or a hundred-thousandth."""
    assert [NUMBER.sub("#", text).split() for text in fresh] == [NUMBER.sub("#", text).split() for text in kept]
    for a, b in zip(NUMBER.findall(" ".join(fresh)), NUMBER.findall(" ".join(kept)), strict=True):
        last = 10.0 ** -max(len(number.partition(".")[2]) for number in (a, b))
        assert math.isclose(float(a), float(b), rel_tol=1e-5, abs_tol=1.01 * last), (a, b)


@notebooks
def test_it_runs_and_shows_what_is_kept(path, tmp_path):
    notebook = run_alone(path, tmp_path)
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert not IMPORTING.sub("", said), said
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    for fresh, kept in zip(code_cells(notebook), code_cells(read(path)), strict=True):
        assert_alike(shown(fresh), shown(kept))


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run_alone(path, Path(folder)), path)
