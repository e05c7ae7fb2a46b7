"""The checkpoints of a run on disk, a numbered folder each, of either runtime."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path


def numbered(folder: Path, name: re.Pattern[str]) -> dict[int, Path]:
    """Return the checkpoints in a folder by their number, the oldest first; they may be damaged.

    Args:
        name: pattern of a checkpoint's name, whose first group is its number.
    """
    paths = folder.iterdir() if folder.is_dir() else ()
    named = ((name.fullmatch(path.name), path) for path in paths)
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def set_aside(checkpoints: Mapping[int, Path], after: int) -> list[Path]:
    """Renames the checkpoints numbered above `after` to NAME.aside, where no resume takes them for the run's own;
    returns the new names."""
    aside = {path: path.with_name(f"{path.name}.aside") for number, path in checkpoints.items() if number > after}
    for path, new in aside.items():
        shutil.rmtree(new, ignore_errors=True)
        os.replace(path, new)
    return list(aside.values())
