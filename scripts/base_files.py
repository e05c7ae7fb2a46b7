"""`python scripts/base_files.py [FOLDER]` writes configs/lab/base.yaml and configs/slime/base.yaml: every
setting with its default, under the docstring of its field or section."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from sat_slime.config.jsonl import write_atomically
from sat_slime.config.method_section import BESIDE, OF_BASES, MethodConfig
from sat_slime.config.schema import LabConfig, Section
from sat_slime.config.section import meanings
from sat_slime.config.slime_schema import SlimeConfig

WIDTH = 120
"""Columns of a line."""
INDENT = "  "
SMALL = 1e-3
"""Numbers below it are written with an exponent."""
HEADS: dict[type[Section], str] = {
    LabConfig: (
        "Every setting of the lab runtime with its default. A run's own file extends this one and names only what "
        "it changes; `--set section.key=value` changes one more. Units stand in the names or beside them; "
        '"the paper" is "Stale but Stable".'
    ),
    SlimeConfig: (
        "Every setting of ours of a run on slime with its default, and the flags of slime that a run has by default. A "
        "run's own file extends one of ../models, which describe a model, and names what it changes; "
        "`--set section.key=value` changes one more. The paper's own values, with their sources, are in ../paper. "
        "Defaults under `slime` are changed in this file. For all others:"
    ),
}
"""The text at the top of each file."""
MADE = "`scripts/base_files.py` writes this file from sat_slime/config: change the defaults there."
FILES: dict[str, type[Section]] = {"lab/base.yaml": LabConfig, "slime/base.yaml": SlimeConfig}
"""Files below configs/, and what each holds."""


def base_file(model: type[Section]) -> str:
    """Return the text of the file that holds every setting of `model`."""
    return "\n".join([*_comment(HEADS[model], ""), *_comment(MADE, ""), "", *_settings(model(), "")]) + "\n"


def _settings(values: Any, indent: str) -> Iterator[str]:
    """Yield the lines of a section's settings, in the order of the schema."""
    for name, meaning in meanings(type(values)).items():
        value = getattr(values, name)
        if isinstance(value, dict) and value:
            yield from ("", *_comment(meaning, indent), f"{indent}{name}:")
            yield from (f"{indent}{INDENT}{flag}: {as_yaml(given)}" for flag, given in value.items())
        elif isinstance(value, BaseModel) or is_dataclass(value):
            if not indent:
                yield ""
            yield from _comment(inspect.getdoc(type(value)) or "", indent)
            yield f"{indent}{name}:"
            yield from _settings(value, indent + INDENT)
        elif isinstance(values, MethodConfig) and name in BESIDE:
            yield from _setting(name, False, BESIDE[name], indent)
        elif not (isinstance(values, MethodConfig) and name in OF_BASES):
            yield from _setting(name, value, meaning, indent)


def _setting(name: str, value: Any, meaning: str, indent: str) -> Iterator[str]:
    """Yield a setting with its comment behind it, or above it where that is too long."""
    line, meaning = f"{indent}{name}: {as_yaml(value)}", " ".join(meaning.split())
    beside = f"{line}  # {meaning}"
    if len(beside) <= WIDTH:
        yield beside
    else:
        yield from _comment(meaning, indent)
        yield line


def _comment(text: str, indent: str) -> list[str]:
    start = f"{indent}# "
    words = " ".join(line.strip() for line in text.splitlines())
    return textwrap.wrap(
        words, WIDTH, initial_indent=start, subsequent_indent=start, break_long_words=False, break_on_hyphens=False
    )


def as_yaml(value: Any) -> str:
    """Return a value on one line, a small number as `5e-4`, which these files may write and plain YAML may not."""
    if isinstance(value, float) and 0 < abs(value) < SMALL:
        return f"{Decimal(repr(value)):e}"
    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True).removesuffix("...\n").strip()


def main(folder: Path) -> None:
    """Write the files below `folder`."""
    for name, model in FILES.items():
        write_atomically(folder / name, base_file(model))
        print(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "configs"))
