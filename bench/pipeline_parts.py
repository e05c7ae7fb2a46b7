"""Brings up the parts of the lab pipeline for a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sat_slime.config.schema import LabConfig
from sat_slime.lab.batch import RolloutBatch, training_requests
from sat_slime.lab.engine import Engine, Generation
from sat_slime.lab.initial_model import cached_model, is_model
from sat_slime.lab.process import TrainerProcess
from sat_slime.tasks.running_sums import Problem


@contextmanager
def running(config: LabConfig) -> Iterator[tuple[TrainerProcess, Engine]]:
    """Brings up trainer and engine at equal weights: the warmed-up initial model is version 0."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        logs = scratch / "logs"
        initial = cached_model(config)
        if not is_model(initial):
            initial.parent.mkdir(parents=True, exist_ok=True)
            with closing(TrainerProcess(config, logs / "warm-up.log")) as process:
                while process.call("warm_up", initial) is not None:
                    pass
        with (
            closing(TrainerProcess(config, logs / "trainer.log")) as trainer,
            closing(Engine(config, logs)) as engine,
        ):
            loading = trainer.start("load_initial", initial)
            engine.start(initial)
            loading.result()
            weights = scratch / "v0"
            engine.update_weights(weights, trainer.call("export_weights", weights))
            yield trainer, engine


def generate(config: LabConfig, engine: Engine, iteration: int) -> RolloutBatch:
    """Generates one batch and waits for it."""
    problems, requests = training_requests(config, iteration)
    return collect(config, engine.generate(requests), iteration, problems)


def collect(config: LabConfig, flight: Future[Generation], iteration: int, problems: list[Problem]) -> RolloutBatch:
    """Waits for a batch in flight and grades it by the task's own check."""
    made = flight.result()
    return RolloutBatch(config.task, iteration, problems, made.responses, made.seconds).judged()
