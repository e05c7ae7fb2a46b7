"""The model families: a module for each, named after it, which holds all that is its own.

That is its weights in Megatron's and in Hugging Face's format, its config.json, its decoder layer without Transformer
Engine, what SGLang serves, and the elements that memory is counted by. Both runtimes read it. A new family is a module
here and a line in MODULES. One that is not ours is a module anywhere, given by its dotted path in `model.family`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from sat_slime import outside
from sat_slime.models.family import ModelFamily, ModelSizes, Weight

MODULES = ("qwen3_moe", "qwen3", "qwen2")
FAMILIES: dict[str, ModelFamily] = {name: importlib.import_module(f"{__name__}.{name}").FAMILY for name in MODULES}
"""The families of this package, by name."""

__all__ = [
    "FAMILIES",
    "ModelFamily",
    "ModelSizes",
    "Weight",
    "family_by_flags",
    "family_environment",
    "find_family",
    "module_of",
    "served_modules",
]


FAMILY_VARIABLE = "SAT_SLIME_MODEL_FAMILY"
"""Environment variable with the dotted path of a family outside this package, which SGLang on a CPU is to know."""


def find_family(name: str) -> ModelFamily:
    """Return the family of that name, or at that dotted path.

    Raises:
        ValueError: there is none; says what one file would have to hold.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    needed = (
        "a module whose FAMILY is a sat_slime.models.ModelFamily: its weights in both formats, its config.json, its "
        "layers and what SGLang serves (docs/extend.md)"
    )
    if "." not in name:
        raise ValueError(
            f"there is no family {name}: choose one of {', '.join(FAMILIES)}, or the dotted path of {needed}"
        )
    outside.importing(name)
    try:
        family = importlib.import_module(name).FAMILY
    except Exception as error:  # whatever a module does as it is imported, such as a SyntaxError
        raise ValueError(f"{name} cannot be read ({type(error).__name__}: {error}): name {needed}") from error
    if not isinstance(family, ModelFamily) or module_of(family) != name:
        raise ValueError(f"FAMILY of {name} is no ModelFamily that this module defines: name {needed}")
    return family


def module_of(family: ModelFamily) -> str:
    """Return the dotted path of the module that has the family as FAMILY."""
    return type(family).__module__


def family_environment(name: str | None) -> dict[str, str]:
    """Returns what an engine's environment needs, so that SGLang on a CPU knows the family; name: `model.family`."""
    return {FAMILY_VARIABLE: name} if name and "." in name else {}


def served_modules() -> set[str]:
    """Return the modules of sglang.srt.models that SGLang on a CPU imports: those of every family that this process
    knows of."""
    outside = os.environ.get(FAMILY_VARIABLE)
    families = [*FAMILIES.values(), *([find_family(outside)] if outside else [])]
    return {module for family in families for module in family.sglang_modules}


def family_by_flags(flags: Mapping[str, Any]) -> ModelFamily | None:
    """Return the family of this package that Megatron's flags of an architecture describe; None where they fit none."""
    return next((family for family in FAMILIES.values() if family.fits(flags)), None)
