"""Marks for tests that need the real slime: such tests skip, with the reason, where it is not on the path.

    PYTHONPATH=SLIME pytest tests/plugin                the loss, the hooks, the rollout: `needs_slime`
    PYTHONPATH=SLIME:MEGATRON pytest tests/plugin       its argument parser too: `needs_slime_arguments`

SLIME is a checkout of slime, MEGATRON one of Megatron-LM at the commit that slime's Dockerfile pins, with its patch.
"""

from __future__ import annotations

import fake_slime
import pytest
from fake_slime import MISSING, NEEDS

from sat_slime.plugin import rollout_hooks, step


def pytest_configure(config):
    for mark, modules in NEEDS.items():
        config.addinivalue_line("markers", f"{mark}: skipped where one of {', '.join(modules)} is not importable")


def pytest_runtest_setup(item):
    for mark in NEEDS:
        if item.get_closest_marker(mark) and (missing := MISSING[mark]):
            pytest.skip(f"needs the real slime: {', '.join(missing)} not importable")


@pytest.fixture(autouse=True)
def nothing_of_another_test(monkeypatch):
    """Clears what the trainer keeps of a step in its process: all tests share one process."""
    monkeypatch.setattr(step, "_current", step.TrainerState())


@pytest.fixture(scope="module")
def slimes_loss():
    """Puts the real slime in place, or the stand-in for the few functions of it that a loss needs."""
    pytest.importorskip("megatron.core", reason="slime's loss reads Megatron's parallel state")
    fake_slime.install_where_missing()
    yield
    fake_slime.remove()


@pytest.fixture
def sample_class():
    """slime's Sample, or what stands in for it."""
    return fake_slime.slimes_sample()


@pytest.fixture
def rollout_process(monkeypatch):
    """A process in which no hook of a rollout has run."""
    monkeypatch.setattr(rollout_hooks, "_generated", -1)
    rollout_hooks._eval_file.cache_clear()
    rollout_hooks._told.clear()
