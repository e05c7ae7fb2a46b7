"""Marks of tests that need the real slime: such tests skip, with the reason, where it is not on the path.

    PYTHONPATH=SLIME pytest tests/plugin                the loss, the hooks, the rollout: `needs_slime`
    PYTHONPATH=SLIME:MEGATRON pytest tests/plugin       its argument parser too: `needs_slime_arguments`

SLIME is a checkout of slime, MEGATRON one of Megatron-LM at the commit that slime's Dockerfile pins, with its patch.
"""

from __future__ import annotations

import importlib.util

import pytest

NEEDS = {
    "needs_slime": ("slime.backends.megatron_utils", "megatron.core", "ray", "httpx", "wandb"),
    "needs_slime_arguments": ("slime.backends.megatron_utils", "megatron.training", "sglang", "transformers"),
}
"""Modules that a test with that mark must be able to import. PyPI has another slime, which lacks `backends`."""


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package is missing, or a module has no spec
        return False


MISSING = {mark: [name for name in names if not _importable(name)] for mark, names in NEEDS.items()}
"""The modules that are missing, by mark. They are looked up before any test puts the stand-in in place."""


def pytest_configure(config):
    for mark, modules in NEEDS.items():
        config.addinivalue_line("markers", f"{mark}: skipped where one of {', '.join(modules)} is not importable")


def pytest_runtest_setup(item):
    for mark in NEEDS:
        if item.get_closest_marker(mark) and (missing := MISSING[mark]):
            pytest.skip(f"needs the real slime: {', '.join(missing)} not importable")
