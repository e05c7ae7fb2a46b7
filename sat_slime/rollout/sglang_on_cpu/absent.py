"""Stand-ins for packages that SGLang imports at the top of its files and that a text model on a CPU never runs: Triton
is 1 GB, IPython is there for a notebook's HTML, and PyPI's torchvision is a CUDA build, which CPU torch cannot import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Absent(ModuleType):
    """A module whose every attribute is such a stand-in. As a decorator it returns what it decorates: a Triton kernel
    is then a plain function, and launching it raises a TypeError instead of doing nothing."""

    __version__ = "0.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package, so that `import triton.language` works

    def __getattr__(self, name: str) -> Any:
        # `triton.runtime.driver.active` asks for a device: its failure is how callers learn that there is none.
        if name.startswith("__") or name == "active":
            raise AttributeError(f"{self.__name__}.{name} is a stand-in")
        value = Absent(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return ()


class _Finder(MetaPathFinder, Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = tuple(f"{name}." for name in packages)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        return ModuleSpec(fullname, self, is_package=True) if f"{fullname}.".startswith(self.packages) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in_for(*packages: str) -> None:
    """Has every later import of these packages yield a stand-in, whether they are installed or not."""
    sys.meta_path.insert(0, _Finder(packages))


def not_compiled(model: Any = None, **_: Any) -> Any:
    """Stands in for torch.compile, as a call and as a decorator with or without arguments: nothing is compiled."""
    return model if model is not None else lambda function: function
