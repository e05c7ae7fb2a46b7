"""A hook for --custom-megatron-init-path under which the second engine of a run does not take its pushes as it should.

FAULTY_PUSHES says how, from the push of version FIRST on: `dropped`: what is sent to it goes under names that it does
not know, so that it keeps its weights, and says the new version; `silent`: the same, and it says its old version;
`lies`: it takes the weights and says another version. The engine, its weights and what it says are SGLang's own.
"""

from __future__ import annotations

import os
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

FIRST = 2
ENGINE = 1
LIE = 77


class FaultyEngine:
    """Stands for slime's handle of an engine, and passes on all but what the fault is about."""

    def __init__(self, engine: Any, fault: str) -> None:
        self._engine, self._fault = engine, fault

    def __getattr__(self, name: str) -> Any:
        is_push = name == "update_weights_from_distributed"
        return SimpleNamespace(remote=self._update) if is_push else getattr(self._engine, name)

    def _update(self, names: Any, weight_version: str, **rest: Any) -> Any:
        begun = int(weight_version) >= FIRST
        if begun and self._fault in ("dropped", "silent"):
            names = [f"unknown.{name}" for name in names]
        if begun and self._fault in ("silent", "lies"):
            weight_version = str(LIE) if self._fault == "lies" else "0"
        return self._engine.update_weights_from_distributed.remote(names=names, weight_version=weight_version, **rest)


def install(args: Namespace) -> None:
    """Puts a faulty engine in the place of the second in this process's pushes."""
    from slime.backends.megatron_utils.update_weight.update_weight_from_distributed import UpdateWeightFromDistributed

    fault, connect = os.environ["FAULTY_PUSHES"], UpdateWeightFromDistributed.connect_rollout_engines

    def connect_faulty(self: Any, rollout_engines: Any, *positional: Any, **keywords: Any) -> None:
        engines = list(rollout_engines)
        engines[ENGINE] = FaultyEngine(engines[ENGINE], fault)
        connect(self, engines, *positional, **keywords)

    UpdateWeightFromDistributed.connect_rollout_engines = connect_faulty
