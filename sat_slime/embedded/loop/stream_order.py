"""Mode streaming, the paper's full asynchrony: responses stream into a queue, and weights change meanwhile.

A *group*, all responses to one prompt, is what is generated, queued and trained. Groups are begun while the engines
have room and a new one can still be trained within `pipeline.max_staleness`, also while a batch is trained. A broadcast
interrupts the groups in generation, which go on under the new weights. A batch is made of the oldest complete groups. A
group whose oldest token would be trained with more lag than the bound is dropped. docs/asynchrony.md says what follows.
"""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import Any

from sat_slime.embedded import checkpoint
from sat_slime.embedded.cluster.engine_group import faults_of, groups_in_flight
from sat_slime.embedded.cluster.results import result_among, result_of, wait_any
from sat_slime.embedded.loop.pipeline import Pipeline
from sat_slime.embedded.rollout_batch import RolloutBatch, StepResult, training_group
from sat_slime.rollout.staleness import StalenessBound, drop_metrics
from sat_slime.tasks import Problem


class StreamingPipeline(Pipeline):
    """A run in mode streaming."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        pipeline, rollout = self.config.pipeline, self.config.rollout
        self.bound = StalenessBound(
            pipeline.max_staleness, pipeline.optimizer_steps_per_rollout, rollout.prompts_per_iteration
        )
        self.queue: deque[RolloutBatch] = deque()
        """Complete groups, a batch each, the first complete first."""
        self.streams: dict[Any, tuple[int, Problem]] = {}
        """Number and problem of each group in generation, by its future."""
        self.unfinished: deque[int] = deque()
        """Numbers of groups that were in generation at the checkpoint: the first to be begun again."""
        self.next_number = 0
        self.left = pipeline.iterations * rollout.prompts_per_iteration
        """Groups that the run still has to take from the queue."""
        self.finished: list[int] = []
        """Lengths in tokens of the responses completed since the last batch."""
        self.dropped: list[int] = []
        """Lengths in tokens of the responses dropped since the last batch."""
        self.faults = Counter(faults_of([]))
        """Counts of what went wrong with the responses completed since the last batch."""

    # --------------------------------------------------------------------------------------------- the stream

    def _begin_groups(self) -> None:
        """Begins as many groups as engines, queue, the bound and the rest of the run have room for."""
        pipeline = self.config.pipeline
        room = min(pipeline.queue_prompts, self.left)
        if pipeline.pacing:
            rollout = pipeline.iterations - self.left // self.bound.prompts
            room = min(room, self.bound.room(rollout, self.versions[-1]))
        while len(self.streams) < groups_in_flight(self.config) and len(self.streams) + len(self.queue) < room:
            if self.unfinished:
                number = self.unfinished.popleft()
            else:
                number, self.next_number = self.next_number, self.next_number + 1
            problem, requests = training_group(self.config, number)
            self.streams[self.engines.stream(number, requests)] = number, problem
        self.log.status(engine="generating" if self.streams else "ready")

    def _take(self, done: list[Any]) -> None:
        """Moves complete groups into the queue."""
        for future in done:
            number, problem = self.streams.pop(future)
            result = result_of(future, f"rollout engine {number % self.config.rollout.engines}")
            group = RolloutBatch(self.config.task, number, [problem], result.responses, result.stats["seconds"])
            self.queue.append(group)
            self.finished += group.lengths.ravel().tolist()
            self.faults.update(faults_of([result]))

    def _drop_stale(self) -> None:
        """Drops the groups that would exceed the bound at the last optimizer step of the next batch."""
        oldest = self.bound.oldest(self.iteration)
        for group in self.queue:
            self.dropped += group.lengths.ravel().tolist() if group.oldest < oldest else []
        self.queue = deque(group for group in self.queue if group.oldest >= oldest)

    # ------------------------------------------------------------------------------------- what an order decides

    def _next_batch(self) -> RolloutBatch:
        """Takes the oldest complete groups once there are enough; without pacing, those that were complete first."""
        size = self.bound.prompts
        self.log.status(phase="waiting for the rollout")
        with self._timing("wait"):
            self._take(wait_any(list(self.streams), timeout_s=0))
            while True:
                self._drop_stale()
                self._begin_groups()
                if len(self.queue) >= size:
                    break
                self._take(wait_any(list(self.streams)))
        if self.config.pipeline.pacing:  # long answers come late, and have the least time left
            self.queue = deque(sorted(self.queue, key=lambda group: group.oldest))
        groups = [self.queue.popleft() for _ in range(size)]
        self.left -= size
        self._begin_groups()
        batch = RolloutBatch(
            self.config.task,
            self.iteration,
            [problem for group in groups for problem in group.problems],
            [response for group in groups for response in group.responses],
            seconds=max(group.seconds for group in groups),
            faults=dict(self.faults),
        )
        batch = self.grader.grade(batch)
        self._log_faults(batch)
        self.metrics = self._stream_metrics()
        self.finished, self.dropped, self.faults = [], [], Counter(faults_of([]))
        return batch

    def _train(self, batch: RolloutBatch, dump: bool) -> list[StepResult]:
        """Trains, and meanwhile begins new groups as others complete."""
        futures = self.trainer.start_train(batch, dump)
        waiting = list(futures)
        while waiting:
            for future in wait_any([*waiting, *self.streams]):
                if future in self.streams:
                    self._take([future])
                else:
                    result_among(future, futures, "trainer rank")
                    waiting.remove(future)
            self._begin_groups()
        return self.trainer.wait(futures)

    def _settle(self) -> None:
        """Waits for nothing: weights may change under what is in generation."""

    def _stream_metrics(self) -> dict[str, float]:
        """Return queue/* and rollout/* of the run folder: what the stream did since the batch before."""
        return {
            "queue/length": len(self.queue),
            "queue/in_generation": len(self.streams),
            **drop_metrics(self.finished, self.dropped, self.config.rollout.max_response_tokens),
        }

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _write_ahead(self, part: Path) -> None:
        """Writes the queue, the numbers of the groups in generation, which a resume generates anew, and what no row has
        reported yet."""
        unfinished = sorted([*self.unfinished, *(number for number, _ in self.streams.values())])
        unreported = checkpoint.Unreported(self.finished, self.dropped, dict(self.faults))
        checkpoint.write_queue(part, list(self.queue), unfinished, self.next_number, unreported)

    def _read_ahead(self, saved: Path) -> None:
        groups, unfinished, self.next_number, unreported = checkpoint.read_queue(saved, self.config)
        self.queue, self.unfinished = deque(groups), deque(unfinished)
        self.finished, self.dropped, self.faults = unreported.finished, unreported.dropped, Counter(unreported.faults)
        self.left -= self.iteration * self.config.rollout.prompts_per_iteration
