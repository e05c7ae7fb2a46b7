"""The stream's bookkeeping with stand-ins for engines and trainer: what is begun, taken, dropped and saved."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from sat_slime.config.schema import LabConfig
from sat_slime.lab import loop
from sat_slime.lab.batch import StepResult, lag_metrics, training_group, training_requests
from sat_slime.lab.checkpoint import LoopState
from sat_slime.lab.loop import StreamingPipeline
from sat_slime.lab.responses import Response

PROMPTS, SAMPLES, LONGEST = 4, 2, 8


def make_config(**pipeline) -> LabConfig:
    settings = {"mode": "streaming", "lag": 1, "iterations": 6, "max_staleness": 2, "queue_prompts": 8}
    rollout = {"prompts_per_iteration": PROMPTS, "samples_per_prompt": SAMPLES, "max_response_tokens": LONGEST}
    return LabConfig(pipeline=settings | pipeline, rollout=rollout)


class World:
    """Engine and trainer as the pipeline sees them. A group takes as many turns as its number says, or one."""

    def __init__(self, monkeypatch, turns=lambda number: 1) -> None:
        self.turns, self.now, self.version = turns, 0, 0
        self.due: dict[Future, tuple] = {}
        monkeypatch.setattr(loop, "wait_any", self.wait_any)

    def generate(self, requests):
        future, (_, iteration, place, _) = Future(), requests[0].request_id.split("-")
        number = int(iteration) * PROMPTS + int(place)
        self.due[future] = (self.now + self.turns(number), number, requests, self.version)
        return future

    def wait_any(self, futures, timeout_s=None):
        assert futures or timeout_s is not None, "nobody would ever answer"
        if timeout_s is None and futures:
            self.now = max(self.now, min(self.due[f][0] for f in futures if f in self.due))
        return [self.finish(f) for f in futures if f in self.due and self.due[f][0] <= self.now]

    def finish(self, future):
        _, number, requests, begun = self.due[future]
        length = 1 + number % LONGEST
        # The first half under the weights at the start, the second under those at the end.
        versions = np.array([begun] * -(-length // 2) + [self.version] * (length // 2))
        responses = [
            Response(r.request_id, r.prompt_ids, (0,) * length, np.zeros(length, np.float32), None, "length", versions)
            for r in requests
        ]
        if not future.done():
            future.set_result((responses, 1.0))
        return future


def make_pipeline(world, config, tmp_path) -> StreamingPipeline:
    log = SimpleNamespace(status=lambda **fields: None, message=lambda text, level="info": None)
    pipeline = StreamingPipeline(config, tmp_path, log, None)
    pipeline.seconds = {"wait": 0.0}
    pipeline.engine = world
    pipeline.versions = [world.version]
    return pipeline


def train(world, pipeline, config) -> None:
    """An optimizer step and a broadcast, with time going by for the engines."""
    pipeline.iteration += 1
    pipeline.updates += config.pipeline.optimizer_steps_per_rollout
    world.now += 1
    if pipeline.iteration % config.pipeline.lag == 0:
        world.version = pipeline.updates
        pipeline.versions.append(world.version)


def test_groups_are_the_problems_of_the_batches_in_order():
    config = make_config()
    for iteration in (0, 3):
        problems, requests = training_requests(config, iteration)
        groups = [training_group(config, iteration * PROMPTS + place) for place in range(PROMPTS)]
        assert [problem for (problem,), _ in groups] == problems
        assert [request for _, group in groups for request in group] == requests


@pytest.mark.parametrize("over_age", ["drop", "wait"])
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_holds_and_nothing_is_lost_or_counted_twice_over_any_resumes(monkeypatch, tmp_path, seed, over_age):
    """The laws of docs/asynchrony.md, by what the rows tell."""
    rng = np.random.default_rng([7, seed])
    lag, steps = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    staleness = lag * steps - 1 + int(rng.integers(0, 4))  # the least that is accepted, and more
    settings = {"lag": lag, "optimizer_steps_per_rollout": steps, "max_staleness": staleness, "over_age": over_age}
    config = make_config(**settings, iterations=20, queue_prompts=int(rng.integers(PROMPTS, 4 * PROMPTS)))
    durations = rng.integers(1, 2 + rng.integers(1, 9), size=1000)
    world = World(monkeypatch, turns=lambda number: int(durations[number]))
    pipeline, trained, told, again = make_pipeline(world, config, tmp_path), 0, Counter(), 0

    def balance(again=0):
        """again: responses that a resume generates for the second time."""
        stream = pipeline.stream
        dropped = told["rollout/dropped"] + len(stream.dropped) + stream.aborted
        waiting, unfinished = len(stream.waiting) * SAMPLES, (len(stream.running) + len(stream.again)) * SAMPLES
        assert stream.drawn * SAMPLES == trained + dropped + waiting + unfinished
        aborted = told["rollout/aborted"] + stream.aborted
        assert told["rollout/finished"] + len(stream.finished) == trained + dropped - aborted + waiting + again
        assert over_age != "wait" or not dropped

    for _ in range(20):
        batch = pipeline._next_batch()
        assert lag_metrics(batch.responses, pipeline.updates + steps - 1)["lag/max"] <= staleness
        trained += len(batch.responses)
        told.update(pipeline.metrics)
        balance(again)
        train(world, pipeline, config)
        pipeline._take(world.wait_any(list(pipeline.futures), timeout_s=0))  # as training does beside
        balance(again)
        if rng.random() < 0.4:
            saved = json.loads(json.dumps(pipeline._on_the_way()))
            before, pipeline = pipeline, make_pipeline(world, config, tmp_path)
            pipeline.iteration, pipeline.updates = before.iteration, before.updates
            pipeline._take_up(LoopState(before.iteration, before.updates, before.versions, **saved))
            again += len(before.stream.waiting) * SAMPLES
            balance(again)
    assert trained == 20 * PROMPTS * SAMPLES


def test_training_goes_on_while_groups_complete_and_begin(monkeypatch, tmp_path):
    config = make_config(queue_prompts=6)
    world = World(monkeypatch)
    pipeline = make_pipeline(world, config, tmp_path)
    batch = pipeline._next_batch()
    began = pipeline.stream.drawn
    trainer: Future = Future()

    def wait_any(futures, timeout_s=None):
        world.now += 1
        if world.now > 6:
            trainer.set_result([StepResult({})])
        return World.wait_any(world, futures, 0)

    monkeypatch.setattr(loop, "wait_any", wait_any)
    pipeline.trainer = SimpleNamespace(start=lambda *_: trainer)
    assert pipeline._train(batch, dump=False) == trainer.result()
    assert pipeline.stream.drawn == began and len(pipeline.stream.waiting) == 6 and not pipeline.stream.running
