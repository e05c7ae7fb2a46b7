"""Mode batch: one batch is generated ahead, and weights are broadcast every n-th iteration.

The order is that of slime's train_async.py. Batch r + 1 is being generated while batch r is trained; before a broadcast
the generation in flight is awaited, so weights never change under a response. With n = `pipeline.lag`, batch r comes
from the weights of the last broadcast before the training of r - 1 began: its lag cycles 1, 2, ..., n. Lag 0 is the
synchronous loop: generate, train, broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sat_slime.lab import checkpoint
from sat_slime.lab.loop.pipeline import Pipeline
from sat_slime.lab.rollout_batch import RolloutBatch, StepResult, training_requests
from sat_slime.tasks import Problem


@dataclass
class Flight:
    """A batch that is being generated, or has been."""

    iteration: int
    problems: list[Problem]
    futures: list[Any]
    batch: RolloutBatch | None = None
    """The graded batch, once it was collected."""


class BatchPipeline(Pipeline):
    """A run in mode batch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ahead: Flight | None = None
        """The batch generated ahead."""

    def _next_batch(self) -> RolloutBatch:
        """Collects batch r, and launches r + 1 where the run has one."""
        batch = self._collect(self.ahead or self._launch(self.iteration))
        follows = self.config.pipeline.lag and self.iteration + 1 < self.config.pipeline.iterations
        self.ahead = self._launch(self.iteration + 1) if follows else None
        return batch

    def _train(self, batch: RolloutBatch, dump: bool) -> list[StepResult]:
        return self.trainer.start_train(batch, dump).result()

    def _settle(self) -> None:
        """Waits for the batch in flight: weights never change under a response."""
        if self.ahead:
            self._collect(self.ahead)

    def _launch(self, iteration: int) -> Flight:
        problems, requests = training_requests(self.config, iteration)
        self.log.status(engine="generating")
        return Flight(iteration, problems, self.engines.generate(requests, self.config.rollout.samples_per_prompt))

    def _collect(self, flight: Flight) -> RolloutBatch:
        if flight.batch is None:
            self.log.status(phase="waiting for the rollout")
            with self._timing("wait"):
                generated = self.engines.collect(flight.futures, flight.iteration, flight.problems)
            flight.batch = self.grader.grade(generated)
            self.log.status(engine="ready")
            self._log_faults(flight.batch)
        return flight.batch

    def _write_ahead(self, part: Path) -> None:
        if self.ahead and self.ahead.batch:
            checkpoint.write_batch(part, self.ahead.batch)

    def _read_ahead(self, saved: Path) -> None:
        if batch := checkpoint.read_batch(saved, self.config):
            self.ahead = Flight(batch.iteration, batch.problems, [], self.grader.grade(batch))
