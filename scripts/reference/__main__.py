"""Writes every page below a folder; default: docs/reference."""

from __future__ import annotations

import sys
from pathlib import Path

from .pages import PAGES

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
for name, text in PAGES.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(), encoding="utf-8")
    print(path)
