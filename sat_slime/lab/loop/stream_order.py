"""Mode streaming, the paper's full asynchrony: responses stream into a queue, and weights change meanwhile.

`rollout/stream.py` says which groups begin, wait and are trained; here engines generate them. A broadcast
interrupts the groups in generation, which go on under the new weights.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sat_slime.lab import checkpoint
from sat_slime.lab.engine.engine_group import faults_of, groups_in_flight
from sat_slime.lab.failures import result_of, wait_any
from sat_slime.lab.loop.pipeline import Pipeline
from sat_slime.lab.rollout_batch import RolloutBatch, StepResult, training_group
from sat_slime.rollout.stream import Group, StalenessBound, Stream
from sat_slime.tasks import Problem


class StreamingPipeline(Pipeline):
    """A run in mode streaming."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        pipeline, rollout = self.config.pipeline, self.config.rollout
        bound = StalenessBound(
            pipeline.max_staleness, pipeline.optimizer_steps_per_rollout, rollout.prompts_per_iteration
        )
        self.stream: Stream[int, RolloutBatch] = Stream(
            bound,
            pipeline.iterations,
            rollout.max_response_tokens,
            draw=lambda number: number,
            queue=pipeline.queue_prompts,
            over_age=pipeline.over_age,
        )
        """Groups by the number of their prompt, which follows from the run's seed; the result of each is a batch."""
        self.futures: dict[Any, tuple[Group[int, RolloutBatch], Problem]] = {}
        """Group and problem of each future of an engine."""
        self.faults = Counter(faults_of([]))
        """Counts of what went wrong with the responses completed since the last batch."""

    # --------------------------------------------------------------------------------------------- the stream

    def _begin_groups(self) -> None:
        """Begins as many groups as engines and stream have room for."""
        self.stream.version = self.versions[-1]
        while len(self.futures) < groups_in_flight(self.config) and (group := self.stream.begin()):
            problem, requests = training_group(self.config, group.prompt)
            self.futures[self.engines.stream(group.prompt, requests)] = group, problem
        self.log.status(engine="generating" if self.futures else "ready")

    def _take(self, done: list[Any]) -> None:
        """Moves complete groups into the queue."""
        for future in done:
            group, problem = self.futures.pop(future)
            result = result_of(future, f"rollout engine {group.prompt % self.config.rollout.engines}")
            batch = RolloutBatch(self.config.task, group.prompt, [problem], result.responses, result.stats["seconds"])
            self.faults.update(faults_of([result]))
            if result.stats["given_up"]:
                self.stream.abandon(group, self.config.rollout.samples_per_prompt)
            else:
                self.stream.complete(group, batch, batch.lengths.ravel().tolist(), batch.oldest)

    # ------------------------------------------------------------------------------------- what an order decides

    def _next_batch(self) -> RolloutBatch:
        """Takes the groups of the next rollout once they are complete."""
        self.log.status(phase="waiting for the rollout")
        with self._timing("wait"):
            self._take(wait_any(list(self.futures), timeout_s=0))
            self._begin_groups()
            while (groups := self.stream.take()) is None:
                self._take(wait_any(list(self.futures)))
                self._begin_groups()
        if self.stream.overdue():
            self.engines.give_up(self.stream.bound.oldest(self.stream.next_rollout))
        self._begin_groups()
        parts = [group.result for group in groups if group.result is not None]
        batch = RolloutBatch(
            self.config.task,
            self.iteration,
            [problem for part in parts for problem in part.problems],
            [response for part in parts for response in part.responses],
            seconds=max(part.seconds for part in parts),
            faults=dict(self.faults),
        )
        batch = self.grader.grade(batch)
        self._log_faults(batch)
        self.metrics, self.faults = self.stream.report(), Counter(faults_of([]))
        return batch

    def _train(self, batch: RolloutBatch, dump: bool) -> list[StepResult]:
        """Trains, and meanwhile begins new groups as others complete."""
        training = self.trainer.start_train(batch, dump)
        while not training.done():
            self._take([future for future in wait_any([training, *self.futures]) if future in self.futures])
            self._begin_groups()
        return training.result()

    def _settle(self) -> None:
        """Waits for nothing: weights may change under what is in generation."""

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _write_ahead(self, part: Path) -> None:
        """Writes the stream, and what went wrong that no row has reported yet."""
        state = self.stream.freeze(self.iteration - 1)
        checkpoint.write_queue(part, state, dict(self.faults))
        self.stream.thaw()

    def _read_ahead(self, saved: Path) -> None:
        state, faults = checkpoint.read_queue(saved, self.config)
        self.stream.restore(state, self.iteration)
        self.faults = Counter(faults)
