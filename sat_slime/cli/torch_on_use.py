"""torch is imported where something of it is first used: it takes half of the time in which a typo is answered."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from threading import RLock
from types import ModuleType
from typing import Any


def import_torch_on_use() -> None:
    """Let `import torch` cost nothing until something of it is used. No effect where it is there already."""
    if "torch" in sys.modules or (spec := importlib.util.find_spec("torch")) is None:
        return
    module = _Later("torch")
    for key, value in vars(importlib.util.module_from_spec(spec)).items():
        setattr(module, key, value)
    sys.modules["torch"] = module
    sys.meta_path.insert(0, _Submodules(module))


class _Later(ModuleType):
    """A module that runs when something is asked for that it does not have yet.

    importlib.util.LazyLoader runs it at any attribute, and `inspect`, which pydantic uses, asks every module for its
    file.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__.update(_lock=RLock(), _runs=False)

    def run(self) -> None:
        """Run it once; another thread waits until all of it is there."""
        with self._lock:
            if type(self) is _Later and not self._runs:
                self.__dict__["_runs"] = True
                spec = self.__spec__
                assert spec and spec.loader
                spec.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.run()
        return ModuleType.__getattribute__(self, name)


class _Submodules(importlib.abc.MetaPathFinder):
    """`import torch.nn` runs torch first, which may import torch.nn itself: then it is not to be run once more."""

    def __init__(self, module: _Later) -> None:
        self.module = module

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(f"{self.module.__name__}."):
            return None
        _Later.run(self.module)
        if (there := sys.modules.get(name)) is None:
            return None
        # The import takes the spec of a module that has come meanwhile, whatever it is given.
        there.__spec__ = importlib.util.spec_from_loader(name, _There(there))
        return there.__spec__


class _There(importlib.abc.Loader):
    """Gives a module that has run."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
