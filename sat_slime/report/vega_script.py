"""The script that draws a page's figures: Vega, Vega-Lite and Vega-Embed in one, made once and kept."""

from __future__ import annotations

import functools
import hashlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import vl_convert

from sat_slime.runs.rows import write_atomically

KEPT = Path("~/.cache/sat_slime") / f"vega-{version('vl-convert-python')}.js"
"""Where the script is kept: its SHA-256 in the first line, then the script."""


@functools.cache
def vega_script() -> str:
    """Return the script, which takes a second or two to make. One that is kept but is not whole is made anew."""
    with suppress(OSError, ValueError, RuntimeError):  # the last: a user without a home
        digest, kept = KEPT.expanduser().read_text(encoding="utf-8").split("\n", 1)
        if digest == _digest(kept):
            return kept
    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
    with suppress(OSError, RuntimeError):  # a page needs the script, not that it is kept
        path = KEPT.expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{_digest(script)}\n{script}")
    return script


def _digest(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()
