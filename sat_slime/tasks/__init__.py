"""The tasks of the lab runtime: this package's own, and those of a module anywhere, given by its dotted path."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
from types import ModuleType

from sat_slime import outside
from sat_slime.tasks.running_sums import RunningSums
from sat_slime.tasks.task import Problem, Task

TASKS: dict[str, type[Task]] = {"running_sums": RunningSums}
"""The tasks of this package, by name."""


def _task_in(module: ModuleType) -> type[Task]:
    """Return the task that a module defines. Raises ValueError where it defines none, or several."""
    kinds = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Task) and value.__module__ == module.__name__
    ]
    if len(kinds) != 1:
        names = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise ValueError(
            f"{module.__name__} defines {names}: a task's module defines one subclass of sat_slime.tasks.Task, or give "
            "the dotted path of the class"
        )
    return kinds[0]


def find(name: str) -> type[Task]:
    """Return the task of that name, or at that dotted path: of a module that defines one, or of the class itself.

    Raises:
        ValueError: there is none, it cannot be imported, or it lacks something; says what to do.
    """
    if name in TASKS:
        return TASKS[name]
    if "." not in name:
        close = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.5)
        raise ValueError(
            f"{name!r} is no task: choose {' or '.join(TASKS)}, or give the dotted path of your own"
            + (f"; did you mean '{close[0]}'?" if close else "")
        )
    outside.importing(name)
    try:
        target = pkgutil.resolve_name(name)
    except Exception as error:  # whatever a module does as it is imported, such as a SyntaxError
        what = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{name} cannot be imported ({what}): name a module that Python finds, on every machine of the run"
        ) from error
    kind = _task_in(target) if isinstance(target, ModuleType) else target
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise ValueError(f"{name} is no task: let it be a subclass of sat_slime.tasks.Task")
    if fault := _fault(kind):
        raise ValueError(f"{name}: {kind.__name__}{fault}")
    return kind


def _fault(kind: type[Task]) -> str:
    """Return what keeps a class from being a task, with the remedy; empty where nothing does."""
    if inspect.isabstract(kind):
        return f" does not define {', '.join(sorted(kind.__abstractmethods__))}: see docs/extend.md"
    alphabet = getattr(kind, "alphabet", "")
    if len(alphabet) < 2 or len(set(alphabet)) != len(alphabet):
        return f".alphabet is {alphabet!r}: give it every character of prompts and answers once"
    if len(kind.eos) != 1 or kind.eos not in alphabet:
        return f".eos is {kind.eos!r}, no character of its alphabet: add it there"
    if unset := [key for key, field in kind.model_fields.items() if field.is_required()]:
        return f".{unset[0]} has no default: give every setting one"
    return ""


__all__ = ["TASKS", "Problem", "Task", "find"]
