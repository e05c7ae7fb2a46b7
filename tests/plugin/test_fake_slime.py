"""The stand-in for slime has the signatures of the real one."""

from __future__ import annotations

import importlib
import inspect

import fake_slime
import pytest


@pytest.mark.needs_slime
@pytest.mark.parametrize("name", [name for name, functions in fake_slime.MODULES.items() if functions])
def test_the_stand_in_has_slimes_signatures(name: str) -> None:
    pytest.importorskip("megatron.core")
    if name.startswith("slime.observability") and importlib.util.find_spec("slime.observability") is None:
        name = "slime.backends.megatron_utils.cp_utils"  # v0.3.1
    real = importlib.import_module(name)
    for function in fake_slime.MODULES.get(name, fake_slime.MODULES["slime.observability.train_metric_utils"]):
        theirs = getattr(real, function.__name__)
        theirs = getattr(theirs, "_torchdynamo_orig_callable", theirs)
        assert list(inspect.signature(inspect.unwrap(theirs)).parameters) == list(
            inspect.signature(function).parameters
        )
