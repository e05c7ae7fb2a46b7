"""Says whether the real slime can be imported, with all that its modules import in turn."""

from __future__ import annotations

import importlib.util

NEEDS = {
    "needs_slime": ("slime.backends.megatron_utils", "megatron.core", "ray", "httpx", "wandb"),
    "needs_slime_arguments": ("slime.backends.megatron_utils", "megatron.training", "sglang", "transformers"),
}
"""Modules that a test with that mark must be able to import. PyPI has another slime, which lacks `backends`."""


def missing_modules(mark: str) -> list[str]:
    return [name for name in NEEDS[mark] if not _importable(name)]


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package is missing, or a module has no spec
        return False


MISSING = {mark: missing_modules(mark) for mark in NEEDS}
"""The modules that are missing, by mark. They are looked up before any test puts a stand-in for slime in place."""
