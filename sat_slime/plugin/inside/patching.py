"""A function of slime is replaced by one around it, and only once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "of_sat_slime"


def wrap_once(owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts `around(original)` in the place of `owner.name`; later calls do nothing.

    Args:
        owner: a module, a class, an object, or the dict of a module's names.
    """
    original = owner[name] if isinstance(owner, dict) else getattr(owner, name)
    if getattr(original, _MARK, False):
        return
    replacement = functools.wraps(original)(around(original))
    setattr(replacement, _MARK, True)
    if isinstance(owner, dict):
        owner[name] = replacement
    else:
        setattr(owner, name, replacement)
