"""The laptop runtime: the asynchronous loop on real Megatron and SGLang with a tiny model.

Importing it needs no engine; `run` imports what it needs of them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sat_slime.config.exits import signals_handled
from sat_slime.config.schema import LabConfig

if TYPE_CHECKING:
    from sat_slime.lab.checkpoint import Checkpoint
    from sat_slime.runs.log import RunLog


def run(config: LabConfig, folder: Path, log: RunLog, resume: Checkpoint | None = None) -> None:
    """Runs the whole pipeline to its end, in the order that `pipeline.mode` asks for.

    Args:
        folder: the run folder.
        log: is told everything that is to be recorded or shown.
        resume: the checkpoint of the folder to go on from; newer ones are set aside. None: from the beginning.

    Raises:
        PartFailure: the trainer or the engine failed; the run can be resumed.
        KeyboardInterrupt: after Ctrl-C, SIGTERM or SIGHUP, once a checkpoint is saved.
        OSError: a checkpoint or weights could not be written; the previous checkpoint is whole.
    """
    from sat_slime.lab.loop import Interruption, Pipeline, StreamingPipeline

    order = Pipeline if config.pipeline.mode == "batch" else StreamingPipeline
    interruption = Interruption(partial(log.message, level="warning"))
    with signals_handled(interruption.handle):
        pipeline = order(config, folder.resolve(), log, interruption)
        try:
            pipeline.run(resume)
        finally:
            interruption.over = True
    if interruption.asked and pipeline.iteration < config.pipeline.iterations:
        raise KeyboardInterrupt
