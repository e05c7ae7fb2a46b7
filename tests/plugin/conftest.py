"""Marks for tests that need the real slime: such tests skip, with the reason, where it is not on the path.

    PYTHONPATH=SLIME pytest tests/plugin                the loss, the hooks, the rollout: `needs_slime`
    PYTHONPATH=SLIME:MEGATRON pytest tests/plugin       its argument parser too: `needs_slime_arguments`

SLIME is a checkout of slime, MEGATRON one of Megatron-LM at the commit that slime's Dockerfile pins, with its patch.
"""

from __future__ import annotations

import pytest
from hook_samples import StandIn
from real_slime import MISSING, NEEDS

from sat_slime.plugin import rollout_hooks, step


def pytest_configure(config):
    for mark, modules in NEEDS.items():
        config.addinivalue_line("markers", f"{mark}: skipped where one of {', '.join(modules)} is not importable")


def pytest_runtest_setup(item):
    for mark in NEEDS:
        if item.get_closest_marker(mark):
            skip_without(mark)


def skip_without(mark):
    if missing := MISSING[mark]:
        pytest.skip(f"needs the real slime: {', '.join(missing)} not importable")


@pytest.fixture(autouse=True)
def nothing_of_another_test(monkeypatch):
    """Clears what the trainer keeps of a step in its process: all tests share one process."""
    monkeypatch.setattr(step, "_current", step.TrainerState())


@pytest.fixture(params=["stand-in", "slime"])
def sample_class(request):
    """slime's Sample, where it is installed, and what stands in for it."""
    if request.param == "stand-in":
        return StandIn
    skip_without("needs_slime")
    from slime.utils.types import Sample

    return Sample


@pytest.fixture
def rollout_process(monkeypatch):
    """A process in which no hook of a rollout has run."""
    monkeypatch.setattr(rollout_hooks, "_generated", -1)
    rollout_hooks._eval_file.cache_clear()
    rollout_hooks._told.clear()
