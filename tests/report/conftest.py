"""How the tests of reports draw: no more than they look at."""

import importlib

import pytest
from altair.utils.schemapi import debug_mode

PAGES = (
    "run.run_report",
    "write_reports",
    "comparison.grid_report",
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
