"""Brings up the parts of the lab pipeline for a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sat_slime.config.schema import LabConfig
from sat_slime.lab.batch import RolloutBatch, training_requests
from sat_slime.lab.engine import Engines
from sat_slime.lab.initial_model import cached_model, is_model
from sat_slime.lab.process import TrainerProcess, warm_up_model
from sat_slime.tasks import Problem


@contextmanager
def running(config: LabConfig) -> Iterator[tuple[TrainerProcess, Engines]]:
    """Brings up trainer and engines at equal weights: the warmed-up initial model is version 0."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        logs = scratch / "logs"
        initial = cached_model(config)
        if not is_model(initial):
            initial.parent.mkdir(parents=True, exist_ok=True)
            warm_up_model(config, initial, logs, lambda steps: None)
        trainer = TrainerProcess(config, logs / "trainer.log")
        engines = Engines(config, initial, logs)
        loading = trainer.start("load_initial", initial)
        try:
            engines.start()
            loading.result()
            weights = scratch / "v0"
            engines.update_weights(weights, trainer.call("export_weights", weights))
            yield trainer, engines
        finally:
            engines.stop()
            trainer.close()


def generate(config: LabConfig, engines: Engines, iteration: int) -> RolloutBatch:
    """Generates one batch and waits for it."""
    problems, requests = training_requests(config, iteration)
    return collect(engines, engines.generate(requests, config.rollout.samples_per_prompt), iteration, problems)


def collect(engines: Engines, flight: list[Any], iteration: int, problems: list[Problem]) -> RolloutBatch:
    """Waits for a batch in flight and grades it by the task's own check."""
    return engines.collect(flight, iteration, problems).judged()
