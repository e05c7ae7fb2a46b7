"""Tests that need the real slime skip where it is not on the path, as those of the plugin do."""

import pytest
from fake_slime import MISSING, NEEDS


def pytest_configure(config):
    for mark, modules in NEEDS.items():
        config.addinivalue_line("markers", f"{mark}: skipped where one of {', '.join(modules)} is not importable")


def pytest_runtest_setup(item):
    for mark in NEEDS:
        if item.get_closest_marker(mark) and MISSING[mark]:
            pytest.skip(f"needs the real slime: {', '.join(MISSING[mark])} not importable")
