"""Whether the real slime can be imported, with all that its modules import in turn."""

from __future__ import annotations

import importlib.util

NEEDS = {
    "needs_slime": ("slime.backends.megatron_utils", "megatron.core", "ray", "httpx", "wandb"),
    "needs_slime_arguments": ("slime.backends.megatron_utils", "megatron.training", "sglang", "transformers"),
}
"""What must be importable for a test with that mark. PyPI has another slime, without `backends`."""


def missing_modules(mark: str) -> list[str]:
    return [name for name in NEEDS[mark] if not _importable(name)]


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # of a parent package; in sys.modules without a spec
        return False


MISSING = {mark: missing_modules(mark) for mark in NEEDS}
"""Looked up before any test puts a stand-in for slime in place."""
