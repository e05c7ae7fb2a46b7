"""Checkpoints whose arguments have this package's settings pickled in them, under names of modules that are gone.

Megatron keeps its arguments in every checkpoint, and unpickles them as it loads one. Nothing reads our settings there:
those of a resumed run come from its own section. Checkpoints that are written now name no class of ours (`settings`).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_STABILIZERS = ("SAT", "TIS", "DPPO", "IcePop", "KPop", "SeqClip", "SPO", "DRPO", "TRPO", "Clip")
_NAMED = {
    "sat_slime.config.plugin": ("PluginConfig", "HooksConfig", "DriverConfig"),
    "sat_slime.config.schema": ("MethodConfig", "ScoresConfig", *(f"{name}Config" for name in _STABILIZERS)),
    "sat_slime.objective.method": ("Method", *_STABILIZERS),
}
"""The classes that such a checkpoint names, by module."""


def make_loadable() -> None:
    """Puts an empty class wherever such a checkpoint names one that is gone."""
    for path, names in _NAMED.items():
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError:
            module = sys.modules[path] = ModuleType(path)
        for name in names:
            if not hasattr(module, name):
                setattr(module, name, type(name, (), {}))
