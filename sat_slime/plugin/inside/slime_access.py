"""Finds slime's functions where its version has them, by the table of its names, and replaces one by a function around
it, once."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sat_slime.plugin.slime_names import NAMES

_MARK = "of_sat_slime"


@functools.cache
def locate(name: str) -> tuple[ModuleType, str]:
    """Return the module in which this slime looks up a function or class, with its name there.

    Args:
        name: as plugin/slime_names.py has it.

    Raises:
        RuntimeError: slime has it in none of the places of the table.
    """
    forms = [form for row in NAMES for form in row.forms if form.name == name]
    for form in forms:
        try:
            module = importlib.import_module(f"slime.{form.looked_up_in}")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("slime"):
                raise
            continue
        if hasattr(module, name):
            return module, name
    raise RuntimeError(
        f"slime has no {name} where it is known to be ({', '.join(f'slime.{form.looked_up_in}' for form in forms)}): "
        "this plugin supports v0.3.1 and newer"
    )


def slime_function(name: str) -> Any:
    """Return slime's function or class of that name. Raises RuntimeError as `locate` does."""
    module, name = locate(name)
    return getattr(module, name)


def wrap_once(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Puts `around` in the place of `owner.name`, which it gets before the arguments of each call; later calls of this
    do nothing.

    Args:
        owner: a module, a class, an object, or the dict of a module's names.
    """
    original = owner[name] if isinstance(owner, dict) else getattr(owner, name)
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(replacement, _MARK, True)
    if isinstance(owner, dict):
        owner[name] = replacement
    else:
        setattr(owner, name, replacement)
