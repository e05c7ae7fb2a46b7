"""Full asynchrony (the paper's appendix on it): rollouts stream into a queue, and weights change in their midst.

A *group*, all responses to one prompt, is what is generated, queued and trained. Groups are begun whenever the engines
have room, also while a batch is trained; a broadcast interrupts those in generation, which go on under the new weights.
A batch is the groups that were complete first. One whose oldest token would be trained with more than
`pipeline.max_staleness` updates of lag is dropped. docs/asynchrony.md says what follows from that.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sat_slime.embedded import checkpoint
from sat_slime.embedded.batch import Group, RolloutBatch, StepResult, training_group
from sat_slime.embedded.cluster import faults_of, groups_in_flight, result_of, wait_any
from sat_slime.embedded.loop import Pipeline
from sat_slime.embedded.task import Problem

LENGTH_BINS = 4
"""Parts into which finished and dropped responses are counted by length."""


@dataclass(frozen=True)
class Stream:
    """A group in generation."""

    number: int
    problem: Problem


class StreamingPipeline(Pipeline):
    """A run in mode streaming."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.queue: deque[Group] = deque()
        """Complete groups, the first complete first."""
        self.streams: dict[Any, Stream] = {}
        """Groups in generation, by their futures."""
        self.unfinished: deque[int] = deque()
        """Numbers of groups that were in generation at the checkpoint: the first to be begun again."""
        self.next_number = 0
        self.left = self.config.pipeline.iterations * self.config.rollout.prompts_per_iteration
        """Groups that the run still has to take from the queue."""
        self.finished: list[Group] = []
        """Groups completed since the last batch."""
        self.dropped: list[Group] = []
        """Groups dropped since the last batch."""

    # --------------------------------------------------------------------------------------------- the stream

    def _begin_groups(self) -> None:
        """Begins as many groups as engines, queue and the rest of the run have room for."""
        room = self.config.pipeline.queue_prompts
        while len(self.streams) < groups_in_flight(self.config) and len(self.streams) + len(self.queue) < min(
            room, self.left
        ):
            if self.unfinished:
                number = self.unfinished.popleft()
            else:
                number, self.next_number = self.next_number, self.next_number + 1
            problem, requests = training_group(self.config, number)
            self.streams[self.engines.stream(number, requests)] = Stream(number, problem)
        self.log.status(engine="generating" if self.streams else "ready")

    def _take(self, done: list[Any]) -> None:
        """Moves complete groups into the queue."""
        for future in done:
            stream = self.streams.pop(future)
            result = result_of(future, f"rollout engine {stream.number % self.config.rollout.engines}")
            group = Group(stream.number, stream.problem, result.responses, result.stats["seconds"], faults_of([result]))
            self.queue.append(group)
            self.finished.append(group)

    def _drop_stale(self) -> None:
        """Drops what would exceed the bound at the last optimizer step of the next batch."""
        pipeline = self.config.pipeline
        oldest = self.updates + pipeline.optimizer_steps_per_rollout - 1 - pipeline.max_staleness
        self.dropped += [group for group in self.queue if group.oldest < oldest]
        self.queue = deque(group for group in self.queue if group.oldest >= oldest)

    # ------------------------------------------------------------------------------------- in place of the batch's

    def _next_batch(self) -> RolloutBatch:
        """The groups that were complete first, waited for."""
        size = self.config.rollout.prompts_per_iteration
        self.log.status(phase="waiting for the rollout")
        with self._timing("wait"):
            self._take(wait_any(list(self.streams), timeout_s=0))
            while True:
                self._drop_stale()
                self._begin_groups()
                if len(self.queue) >= size:
                    break
                self._take(wait_any(list(self.streams)))
        groups = [self.queue.popleft() for _ in range(size)]
        self.left -= size
        self._begin_groups()
        faults: Counter[str] = Counter()
        for group in self.finished:
            faults.update(group.faults)
        batch = RolloutBatch(
            self.iteration,
            [group.problem for group in groups],
            [response for group in groups for response in group.responses],
            seconds=max(group.seconds for group in groups),
            faults={**faults},
        )
        batch = self.grader.grade(batch)
        self._tell_faults(batch)
        self.metrics = self._stream_metrics()
        self.finished, self.dropped = [], []
        return batch

    def _train(self, batch: RolloutBatch, dump: bool) -> list[StepResult]:
        """Trains, and meanwhile begins groups for those that complete."""
        futures = self.trainer.start_train(batch, dump)
        waiting = list(futures)
        while waiting:
            for future in wait_any([*waiting, *self.streams]):
                if future in self.streams:
                    self._take([future])
                else:
                    result_of(future, f"trainer rank {futures.index(future)}")
                    waiting.remove(future)
            self._begin_groups()
        return self.trainer.wait(futures)

    def _settle(self) -> None:
        """Nothing has to be complete: weights change under what is in generation."""

    def _stream_metrics(self) -> dict[str, float]:
        """queue/* and rollout/* of the run folder: what the stream did since the batch before."""
        dropped, finished = (
            np.array([len(r.output_ids) for group in groups for r in group.responses], int)
            for groups in (self.dropped, self.finished)
        )
        metrics: dict[str, float] = {
            "queue/length": len(self.queue),
            "queue/in_generation": len(self.streams),
            "rollout/dropped": len(dropped),
        }
        if len(dropped):
            metrics["rollout/dropped_length_mean"] = float(dropped.mean())
        for low, high in length_bins(self.config.rollout.max_response_tokens):
            for name, lengths in (("finished", finished), ("dropped", dropped)):
                metrics[f"rollout/{name}/{low}-{high}"] = int(((lengths >= low) & (lengths <= high)).sum())
        return metrics

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _write_ahead(self, part: Path) -> None:
        """The queue, and which groups are in generation: after a resume those are generated anew."""
        unfinished = sorted([*self.unfinished, *(stream.number for stream in self.streams.values())])
        checkpoint.write_queue(part, list(self.queue), unfinished, self.next_number)

    def _read_ahead(self, saved: Path) -> None:
        groups, unfinished, self.next_number = checkpoint.read_queue(saved, self.config)
        self.queue, self.unfinished = deque(groups), deque(unfinished)
        self.left -= self.iteration * self.config.rollout.prompts_per_iteration


def length_bins(longest: int) -> list[tuple[int, int]]:
    """First and last length of each bin, in tokens."""
    edges = [round(i * longest / LENGTH_BINS) for i in range(LENGTH_BINS + 1)]
    return [(low + 1, high) for low, high in itertools.pairwise(edges) if high > low]
