"""The laptop runtime: the asynchronous loop on real Megatron, SGLang and Ray with a tiny model.

Importing it needs no engine; `run` imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sat_slime.config.schema import EmbeddedConfig

if TYPE_CHECKING:
    from sat_slime.embedded.loop import RunLog


def run(
    config: EmbeddedConfig,
    folder: Path,
    log: RunLog,
    resume: bool = False,
    lost: Callable[[RuntimeError], None] | None = None,
) -> None:
    """Runs the pipeline to its end; see `loop.run`."""
    from sat_slime.embedded.loop import run as run_loop

    run_loop(config, folder, log, resume, lost)
