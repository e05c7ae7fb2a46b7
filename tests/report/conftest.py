"""What the tests of reports share: how they draw, no more than they look at, and a made-up grid."""

import importlib

import pytest
from altair.utils.schemapi import debug_mode
from synthetic import write_grid

from sat_slime.report.compared_runs import collect
from sat_slime.report.comparison import write_comparison
from sat_slime.report.stats import Comparison

PAGES = (
    "run",
    "checkup",
    "comparison",
    "diagnosis",
    "replay",
)
"""Modules that list the figures of a page."""


@pytest.fixture(autouse=True, scope="session")
def unvalidated():
    """Altair holds each part of a figure against its schema, row after row, which takes longer than the drawing;
    test_clipped does it once for the figures of a run and a comparison."""
    with debug_mode(False):
        yield


@pytest.fixture
def draw_only(monkeypatch):
    """A function after which pages have the figures of these names alone. Whole pages are drawn in tests of theirs."""

    def draw_only(*names):
        for name in PAGES:
            module = importlib.import_module(f"sat_slime.report.{name}")

            def figures(*args, every=module.figures):
                return [figure for figure in every(*args) if figure.name in names]

            monkeypatch.setattr(module, "figures", figures)

    return draw_only


METHODS = ("grpo", "gspo", "grpo-tis", "dppo", "sat-grpo", "sat-gspo", "sat-gspo-r3")


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """Seven methods x 2 lags x 3 seeds: a collapsed run, a failed one, a missing one, a cell with one seed."""
    return write_grid(tmp_path_factory.mktemp("grids") / "demo", METHODS)


@pytest.fixture(scope="session")
def comparison(grid):
    return Comparison(collect([grid]), paper=True)


@pytest.fixture(scope="session")
def page(grid):
    written = write_comparison([grid], paper=True)
    return written.read_text()
