"""The site of the documents: it builds without a warning, makes its reference from the code, and loads nothing from
elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sat_slime import objective
from sat_slime.objective.method import STABILIZERS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site. Strict: a link or an anchor that leads nowhere, a page outside the menu, or an odd
    docstring ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # material's word on mkdocs 2, on every build
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


def test_the_reference_has_what_the_code_has(built):
    def page(name):
        return (built / "reference" / name / "index.html").read_text()

    methods, python, commands = page("methods"), page("python"), page("commands")
    assert not {kind.__name__ for kind in STABILIZERS.values()} - set(re.findall(r'id="[\w.]*\.(\w+)"', methods))
    assert not set(objective.__all__) - set(re.findall(r'id="sat_slime\.objective\.(?:\w+\.)?(\w+)"', python))
    assert "sat-slime prepare laptop" in commands and "--dry-run" in commands
    assert "mismatch/d_pi" in page("metrics") and "eps_low" in page("laptop-settings")


def test_mathematics_is_typeset_and_links_to_code_lead_to_the_reference_or_the_repository(built):
    page, runs = ((built / name / "index.html").read_text() for name in ("objective", "runs"))
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML"') > 10
    assert "arithmatex" not in page and "$" not in page
    assert '/blob/main/sat_slime/runs/health.py"' in runs and 'href="../reference/metrics/' in runs


ADDRESS = re.compile(r"""(?:\bsrc|\bsrcset|url\(|@import|<link[^>]*\bhref)[\s=('"]*((?:https?:)?//[^'")\s]+)""")


def test_nothing_is_loaded_from_elsewhere(built):
    for path in [*built.rglob("*.html"), *built.rglob("*.css")]:
        text = re.sub(r'<link rel="(?:canonical|edit|next|prev)"[^>]*>', "", path.read_text())
        assert not ADDRESS.findall(text), path
        # Material's script would fetch mermaid for a diagram, and the stars of a repository that the site names.
        assert not re.search(r'class="mermaid"|data-md-component="source"', text), path
