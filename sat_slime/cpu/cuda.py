"""The torch that Megatron and slime see on a CPU: one in which CUDA is the CPU.

After their import their modules get this one under the name `torch`: there `torch.zeros(1, device="cuda")` is on the
CPU, streams and events do nothing, and memory is never short. torch itself, and with it SGLang, transformers and
torch's own files, stay as they are; only `.cuda()`, a method of tensors and modules, is replaced for everybody.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

CPU = torch.device("cpu")
FACTORIES = ("tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "empty_like")
"""Functions of torch that Megatron or slime call with a device."""
MEMORY = 2**34
"""Bytes that are shown as a device's memory, all of them free; nothing depends on it."""


class Stream:
    """A stream or an event on a device that does one thing after another."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or Stream()

    def elapsed_time(self, _: Any) -> float:
        return 0.0

    def wait(self, *_: Any) -> None: ...

    wait_stream = wait_event = synchronize = record = wait


class Shown(ModuleType):
    """A module that is like another one but for some of its names."""

    def __init__(self, module: ModuleType, **others: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(others)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __reduce__(self) -> Any:
        """Ray sends classes with the globals that they use, so this module has to be picklable: by its name."""
        return shown, (self.__name__,)


def shown(name: str) -> ModuleType:
    """Return the stand-in for torch, torch.cuda or torch.cuda.nvtx."""
    return functools.reduce(getattr, name.split(".")[1:], shown_torch())


def show_cpu_as_cuda(module: ModuleType) -> None:
    """Gives an imported module of Megatron or slime the torch in which CUDA is the CPU."""
    if module.__dict__.get("torch") is torch:
        module.torch = shown_torch()  # type: ignore[attr-defined]


@functools.cache
def shown_torch() -> ModuleType:
    """Return torch as Megatron and slime see it; all of them share it."""
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[assignment,method-assign]
    factories = {name: on_cpu(getattr(torch, name)) for name in FACTORIES}
    return Shown(torch, cuda=_cuda(), **factories)


def on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes tensors like `factory`, but on the CPU where it is told a GPU, by its number, its
    name or an object, and never pinned."""

    @functools.wraps(factory)
    def make(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Any:
        is_gpu = isinstance(device, int) or (device is not None and torch.device(device).type == "cuda")
        return factory(*args, device=CPU if is_gpu else device, **kwargs)

    return make


def _cuda() -> ModuleType:
    """Return the torch.cuda of the torch that is shown."""
    names = "set_device synchronize empty_cache ipc_collect manual_seed manual_seed_all set_stream"
    amounts = "memory_allocated memory_reserved max_memory_allocated max_memory_reserved"
    properties = SimpleNamespace(
        name="CPU", uuid="cpu", major=9, minor=0, total_memory=MEMORY, multi_processor_count=1, gcnArchName=""
    )
    stream = Stream()
    return Shown(
        torch.cuda,
        **{name: returning(None) for name in names.split()},  # torch.manual_seed has already seeded the CPU
        **{name: returning(0) for name in amounts.split()},
        current_device=returning(CPU),
        device_count=returning(1),
        Stream=Stream,
        Event=Stream,
        current_stream=returning(stream),
        default_stream=returning(stream),
        stream=lambda *_: contextlib.nullcontext(),
        get_rng_state=lambda *_, **__: torch.get_rng_state(),
        set_rng_state=lambda state, *_, **__: torch.set_rng_state(state),
        mem_get_info=returning((MEMORY, MEMORY)),
        memory_stats=returning({}),
        get_device_capability=returning((9, 0)),
        get_device_properties=returning(properties),
        nvtx=Shown(torch.cuda.nvtx, range_push=returning(None), range_pop=returning(None)),
    )


def returning(value: Any) -> Callable[..., Any]:
    """Return a function that answers so, whatever it is asked."""
    return lambda *_, **__: value
