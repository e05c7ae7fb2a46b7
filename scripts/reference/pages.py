"""The pages that the code writes, by their paths below docs/reference."""

from __future__ import annotations

import functools
from collections.abc import Callable

from . import commands, methods, metrics, settings, slime_names

PAGES: dict[str, Callable[[], str]] = {
    "configuration/embedded.md": settings.embedded,
    "configuration/slime.md": settings.slime,
    "configuration/method.md": settings.method,
    "configuration/grid.md": settings.grid,
    "configuration/plugin.md": settings.plugin,
    "methods.md": methods.overview,
    **{f"methods/{room}.md": functools.partial(methods.room, room) for room in methods.ROOMS},
    "metrics.md": metrics.metrics,
    "commands.md": commands.commands,
    "slime-names.md": slime_names.slime_names,
}
