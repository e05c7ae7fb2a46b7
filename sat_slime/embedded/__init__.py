"""The laptop runtime: the asynchronous loop on real Megatron, SGLang and Ray with a tiny model.

Importing it needs no engine; `run` imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sat_slime.config.schema import EmbeddedConfig

if TYPE_CHECKING:
    from sat_slime.embedded.checkpoint import Checkpoint
    from sat_slime.embedded.loop.pipeline import RunLog


def run(
    config: EmbeddedConfig,
    folder: Path,
    log: RunLog,
    resume: Checkpoint | None = None,
    lost: Callable[[RuntimeError], None] | None = None,
) -> None:
    """Runs the pipeline to its end; see `entry.run`."""
    from sat_slime.embedded import entry

    entry.run(config, folder, log, resume, lost)
