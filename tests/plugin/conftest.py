"""Fixtures of the plugin's tests."""

from __future__ import annotations

import fake_slime
import pytest
from slime_marks import MISSING

from sat_slime.plugin import rollout_hooks, step


@pytest.fixture(autouse=True)
def nothing_of_another_test(monkeypatch):
    """Clears what the trainer keeps of a step in its process: all tests share one process."""
    monkeypatch.setattr(step, "_current", step.TrainerState())


@pytest.fixture(scope="module")
def slimes_loss():
    """The real slime, importable; skips where it is not installed."""
    if missing := MISSING["needs_slime"]:
        pytest.skip(f"needs the real slime: {', '.join(missing)} not importable")
    fake_slime.prepare()


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
