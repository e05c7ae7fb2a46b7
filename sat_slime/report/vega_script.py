"""The script that draws a page's figures: Vega, Vega-Lite and Vega-Embed in one, made once and kept."""

from __future__ import annotations

import functools
import hashlib
import resource
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import vl_convert

from sat_slime.config.jsonl import write_atomically

KEPT = Path("~/.cache/sat_slime") / f"vega-{version('vl-convert-python')}.js"
"""Where the script is kept: its SHA-256 in the first line, then the script."""


V8_BYTES = 80 * 2**30
"""Address space, not memory, that V8 reserves as it starts, with what the process has already."""


def check_address_space() -> None:
    """Raise OSError where V8, which draws, could not start: it would end the process."""
    limit, hard = resource.getrlimit(resource.RLIMIT_AS)
    if resource.RLIM_INFINITY != limit < V8_BYTES:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            limit = hard
    if resource.RLIM_INFINITY != limit < V8_BYTES:
        raise OSError(
            f"figures cannot be drawn: `ulimit -v` allows {limit / 2**30:.0f} GiB of address space, and drawing "
            f"reserves {V8_BYTES / 2**30:.0f} (it uses far less): ulimit -v unlimited"
        )


@functools.cache
def vega_script() -> str:
    """Return the script, which takes a second or two to make. One that is kept but is not whole is made anew."""
    with suppress(OSError, ValueError, RuntimeError):  # the last: a user without a home
        digest, kept = KEPT.expanduser().read_text(encoding="utf-8").split("\n", 1)
        if digest == _digest(kept):
            return kept
    check_address_space()
    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
    with suppress(OSError, RuntimeError):  # a page needs the script, not that it is kept
        path = KEPT.expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{_digest(script)}\n{script}")
    return script


def _digest(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()
