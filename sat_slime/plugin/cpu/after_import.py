"""Calls functions on a module right after it was imported."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """Finds modules as Python does, and patches them once they have been executed. It imports none itself: some code
    only asks whether a package is there, and a process that never imports a module never has it patched."""

    def __init__(self, of_modules: Mapping[str, Patch], of_packages: Mapping[str, Patch]) -> None:
        """of_modules: patches by a module's full name; of_packages: patches for every module of a package, by the
        package's name, which run before the patch of the module."""
        self.of_modules, self.of_packages = of_modules, of_packages

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        patches = (self.of_packages.get(fullname.partition(".")[0]), self.of_modules.get(fullname))
        wanted = [patch for patch in patches if patch is not None]
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if wanted else None
        if spec is None or spec.loader is None:
            return None  # it is not there, or a package of several folders, or has no patch
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            for patch in wanted:
                patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def patch_after_import(of_modules: Mapping[str, Patch], of_packages: Mapping[str, Patch]) -> None:
    """Patches these modules of this process from now on, each when it is imported."""
    sys.meta_path.insert(0, AfterImport(of_modules, of_packages))
