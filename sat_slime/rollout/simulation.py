"""Predicts a run of engines and a trainer before it starts: time, idle shares, staleness, drops and the queue.

Mode streaming is simulated by discrete events around `stream.Stream` itself, so that the pace, the bound and what
becomes of groups over age are the code that runs. Mode batch follows the order of embedded/loop/batch_order.py.
What has a closed form (docs/internals/what-was-run.md) is tested against it. All times are seconds.

An engine makes one token for each of its n requests in a + b n seconds: a is what a step takes whatever runs (reading
weights), b is the part of each request (its keys and values, its arithmetic). Engines and trainer are slower in some
iterations than in others, by factors that are drawn: where both take about as long, chance decides what a push meets.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sat_slime.rollout.stream import Group, OverAge, StalenessBound, Stream

SEED = 0
BATCHES = 8
"""Batches over which `decoding_steps` takes a mean."""


@dataclass(frozen=True)
class Workload:
    """The work of a run and its speeds: all that does not depend on the split of the GPUs or on the lag."""

    groups: Sequence[Sequence[int]]
    """Lengths in tokens of the responses to each of some prompts; a simulated prompt has one of these, drawn evenly."""
    prompts: int
    """Groups per rollout."""
    samples: int
    """Responses per group."""
    step_seconds: float
    """a: of a decoding step of an engine, whatever runs."""
    request_seconds: float
    """b: of a decoding step, for each request in it."""
    concurrency: int
    """Requests that an engine decodes at once; more wait in it."""
    train_seconds: float
    """Of training one response token on one GPU; GPUs are taken to scale."""
    push_seconds: float = 0.0
    """Of sending the weights; engines and trainer pause."""
    hand_over_seconds: float = 0.0
    """Per iteration, in which neither the trainer nor a push works: rewards, packing, records."""
    steps: int = 1
    """Optimizer steps per rollout."""
    engine_factors: Sequence[float] = (1.0,)
    """Of the time of a decoding step; one is drawn for all engines in each iteration."""
    train_factors: Sequence[float] = (1.0,)
    """Of the time of training; one is drawn for each batch."""
    bytes_per_token: float = 12.0
    """Of a token that waits in the queue: id, log-prob and version; with R3 its experts too."""


@dataclass(frozen=True)
class Setting:
    """One way to run it."""

    engines: int
    trainer_gpus: int
    lag: int
    """Iterations per push; in mode batch 0 is the synchronous loop."""
    mode: Literal["batch", "streaming"] = "batch"
    max_staleness: int = 0
    """Mode streaming, as the fields below."""
    over_age: OverAge = "drop"
    queue: int | None = None
    """The most groups that wait or are in generation."""
    paced: bool = True
    groups_in_flight: int | None = None
    """The most groups in generation; default: groups begin while fewer responses are unfinished than engines decode."""


@dataclass(frozen=True)
class Prediction:
    """The behavior to expect of a run of a setting. Lags are in optimizer updates, over trained tokens."""

    iteration_seconds: float
    engines_idle: float
    """Share of the time in which an engine decodes nothing, mean over engines."""
    trainer_idle: float
    """Share of the time in which the trainer does not train."""
    lag_mean: float
    lag_99: float
    generation_mean: float
    """The part of the lag from a token to the last one of its response."""
    generation_99: float
    queue_mean: float
    """The part of the lag from there until the token is trained."""
    queue_99: float
    lag_max: int
    dropped: float
    """Share of the responses that were completed or aborted."""
    masked: float
    """Share of the tokens of trained responses that are beyond the bound and are not trained."""
    queue_bytes: float
    """Of complete groups that wait, at most."""
    running: float
    """Responses in generation, mean over time."""
    begun: int
    """Groups, each of which is trained, dropped, waiting or unfinished at the end, as the four fields below."""
    trained_groups: int
    dropped_groups: int
    waiting_groups: int
    unfinished_groups: int


def decoding_steps(workload: Workload, engines: int) -> float:
    """Return how many steps an engine decodes for a batch of mode batch, mean over several: as many as the longest
    response has tokens where all are decoded at once, and more where some wait."""
    unit = replace(workload, step_seconds=1.0, request_seconds=0.0)
    run, end = _Run(unit, Setting(engines, 1, 1), BATCHES, 0, SEED), 0.0
    for _ in range(BATCHES):
        end = run.generate(end)[1]
    return end / BATCHES


def predict(workload: Workload, setting: Setting, iterations: int = 40, skip: int = 0, seed: int = SEED) -> Prediction:
    """Simulate the first `iterations` of a run, and measure all but the first `skip` of them.

    Raises ValueError where the setting cannot run: its bound is below the age of the newest weights, or its queue holds
    no batch."""
    if setting.mode == "streaming" and setting.max_staleness < setting.lag * workload.steps - 1:
        raise ValueError(
            f"max_staleness {setting.max_staleness} is below lag {setting.lag} x {workload.steps} optimizer steps - 1: "
            "no rollout could be generated"
        )
    if setting.mode == "streaming" and setting.queue is not None and setting.queue < workload.prompts:
        raise ValueError(
            f"a queue of {setting.queue} prompts holds no batch of {workload.prompts}: raise queue_prompts, or lower "
            "prompts_per_iteration"
        )
    run = _Run(workload, setting, iterations, skip, seed)
    if setting.mode == "batch":
        run.batches()
    else:
        run.stream_in()
    return run.prediction()


class _Engine:
    """Decodes its requests side by side. `done` counts the tokens that a request which is always there would have."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.now = self.done = self.busy = self.request_time = 0.0
        self.running: list[tuple[float, int, _Response]] = []
        self.waiting: deque[_Response] = deque()
        self.pushes: list[tuple[float, int]] = [(0.0, 0)]
        """`done` at each push, and the version from there on."""
        self.count = 0
        self.factor = 1.0

    def step(self) -> float:
        return self.factor * (self.workload.step_seconds + self.workload.request_seconds * len(self.running))

    def next(self) -> float:
        """Return when the next request is complete."""
        if not self.running:
            return math.inf
        left = self.running[0][0] - self.done
        return self.now + (left * self.step() if left > 0 else 0.0)

    def advance(self, time: float) -> None:
        if self.running:
            self.done += (time - self.now) / self.step()
            self.busy += time - self.now
            self.request_time += (time - self.now) * len(self.running)
        self.now = time

    def add(self, response: _Response) -> None:
        self.waiting.append(response)
        self._start()

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.workload.concurrency:
            response, self.count = self.waiting.popleft(), self.count + 1
            response.start = self.done
            heapq.heappush(self.running, (self.done + response.length, self.count, response))

    def pop(self) -> _Response:
        """Complete the next request, at its time."""
        end, _, response = heapq.heappop(self.running)
        self.done = max(self.done, end)
        response.versions = self._versions(response.start, end, response.length)
        self._start()
        return response

    def _versions(self, start: float, end: float, length: int) -> list[tuple[int, int]]:
        """Return (version, tokens) in order, for the tokens between two values of `done`."""
        spans: list[tuple[int, int]] = []
        upto, left = end, length
        for since, version in reversed(self.pushes):
            if since < upto:
                tokens = left if since <= start else min(left, round(upto - since))
                if tokens:
                    spans.append((version, tokens))
                left, upto = left - tokens, max(since, start)
            if since <= start:
                break
        return spans[::-1]

    def forget(self, group: _Generation) -> None:
        """Abort the requests of a group."""
        self.running = [entry for entry in self.running if entry[2].group is not group]
        heapq.heapify(self.running)
        self.waiting = deque(response for response in self.waiting if response.group is not group)
        self._start()


class _Response:
    def __init__(self, group: _Generation, length: int) -> None:
        self.group, self.length = group, length
        self.start = math.inf
        """`done` of its engine when it began; infinite before."""
        self.versions: list[tuple[int, int]] = []


class _Generation:
    """A group in the simulation."""

    def __init__(self, lengths: Iterable[int]) -> None:
        self.responses = [_Response(self, length) for length in lengths]
        self.left = len(self.responses)
        self.tokens = sum(response.length for response in self.responses)


class _Run:
    def __init__(self, workload: Workload, setting: Setting, iterations: int, skip: int, seed: int) -> None:
        self.workload, self.setting, self.iterations, self.skip = workload, setting, iterations, skip
        self.random = np.random.default_rng(seed)
        self.engines = [_Engine(workload) for _ in range(setting.engines)]
        self.turn = 0
        self.time = self.trained_time = self.measured_from = 0.0
        self.base = (0.0, 0.0, 0.0)
        """Time of training, of busy engines and of requests when the measurement began."""
        self.lags: tuple[Counter[int], Counter[int], Counter[int]] = (Counter(), Counter(), Counter())
        """Tokens by lag: in all, within the response, in the queue."""
        self.masked = self.completed = self.lost = self.lost_ever = 0
        self.begun = self.trained = self.waiting_groups = self.unfinished_groups = self.queue_tokens = 0

    # ------------------------------------------------------------------------------------------------------ batch

    def draw(self) -> _Generation:
        lengths = self.workload.groups[int(self.random.integers(len(self.workload.groups)))]
        self.begun += 1
        return _Generation(lengths[: self.workload.samples])

    def assign(self, group: _Generation) -> None:
        for response in group.responses:
            self.engines[self.turn % len(self.engines)].add(response)
            self.turn += 1

    def change_speed(self) -> None:
        factor = float(self.random.choice(self.workload.engine_factors))
        for engine in self.engines:
            engine.factor = factor

    def generate(self, start: float) -> tuple[list[_Generation], float]:
        """Generate a batch on engines that do nothing else. Returns when it is complete."""
        self.change_speed()
        batch = [self.draw() for _ in range(self.workload.prompts)]
        for engine in self.engines:
            engine.advance(max(engine.now, start))
        for group in batch:
            self.assign(group)
        for engine in self.engines:
            while engine.running:
                engine.advance(engine.next())
                engine.pop()
        return batch, max(engine.now for engine in self.engines)

    def batches(self) -> None:
        version, ahead, every = 0, None, max(1, self.setting.lag)
        for rollout in range(self.iterations):
            self.measure(rollout)
            batch, complete = ahead or self.generate(self.time)
            self.time = max(self.time, complete)
            ahead = None
            if self.setting.lag and rollout + 1 < self.iterations:
                ahead = self.generate(self.time)
            self.train(batch, rollout)
            self.completed += sum(len(group.responses) for group in batch) if rollout >= self.skip else 0
            if (rollout + 1) % every == 0 or rollout + 1 == self.iterations:
                self.time = max(self.time, ahead[1] if ahead else 0.0) + self.workload.push_seconds
                version = (rollout + 1) * self.workload.steps
                for engine in self.engines:
                    # The batch ahead is complete: what is decoded from here on has these weights.
                    engine.pushes = [(engine.done, version)]

    # -------------------------------------------------------------------------------------------------- streaming

    def stream_in(self) -> None:
        workload, setting = self.workload, self.setting
        bound = StalenessBound(setting.max_staleness, workload.steps, workload.prompts)
        longest = max(map(max, workload.groups))
        self.stream: Stream[int, _Generation] = Stream(
            bound,
            self.iterations + 1 + setting.max_staleness,  # a run that goes on: its queue is not emptied at the end
            longest,
            draw=lambda number: number,
            queue=setting.queue,
            paced=setting.paced,
            over_age=setting.over_age,
        )
        self.stream.version = 0
        self.groups: dict[int, Group[int, _Generation]] = {}
        self.unfinished = 0
        rollout, until, news = 0, math.inf, True
        self.measure(0)
        while rollout < self.iterations:
            self.begin()
            if news and until == math.inf and (taken := self.stream.take()) is not None:
                self.end_overdue()
                self.begin()
                until = self.time + self.train([group.result for group in taken if group.result], rollout, now=False)
            at, engine = min(((engine.next(), engine) for engine in self.engines), key=lambda pair: pair[0])
            if at == until == math.inf:
                raise RuntimeError("the simulated run waits for itself")
            if news := until <= at:
                self.time, until, rollout = until, math.inf, rollout + 1
                for engine in self.engines:
                    engine.advance(self.time)
                self.change_speed()
                self.pushed(rollout)
                if rollout < self.iterations:
                    self.measure(rollout)
            else:
                self.time = at
                engine.advance(at)
                news = self.complete(engine.pop())
        self.measure(rollout)
        self.waiting_groups, self.unfinished_groups = len(self.stream.waiting), len(self.stream.running)

    def begin(self) -> None:
        slots = len(self.engines) * self.workload.concurrency
        most = self.setting.groups_in_flight
        while (self.unfinished < slots if most is None else len(self.stream.running) < most) and (
            group := self.stream.begin()
        ):
            group.result = self.draw()
            self.groups[id(group.result)] = group
            self.unfinished += len(group.result.responses)
            for engine in self.engines:
                engine.advance(self.time)
            self.assign(group.result)

    def complete(self, response: _Response) -> bool:
        """Take a complete response. Returns whether its group is complete."""
        generation = response.group
        generation.left -= 1
        self.unfinished -= 1
        if generation.left:
            return False
        group = self.groups.pop(id(generation))
        spans = [version for each in generation.responses for version, _ in each.versions]
        lengths = [each.length for each in generation.responses]
        self.stream.complete(group, generation, lengths, (min(spans), max(spans)))
        self.queue_tokens = max(
            self.queue_tokens, sum(waits.result.tokens for waits in self.stream.waiting if waits.result)
        )
        return True

    def end_overdue(self) -> None:
        """End the groups that no rollout can train, as a host does: those that have a token of the old weights."""
        for group in self.stream.overdue():
            generation = group.result
            assert generation is not None
            for engine in self.engines:
                engine.advance(self.time)
            oldest = self.stream.bound.oldest(self.stream.next_rollout)
            if not any(self._is_old(response, oldest) for response in generation.responses):
                continue
            self.groups.pop(id(generation))
            self.unfinished -= generation.left
            for engine in self.engines:
                engine.forget(generation)
            self.stream.abandon(group, len(generation.responses))

    def _is_old(self, response: _Response, oldest: int) -> bool:
        if response.versions:
            return response.versions[0][0] < oldest
        for engine in self.engines:
            if any(entry[2] is response for entry in engine.running):
                at_start = max(version for since, version in engine.pushes if since <= response.start)
                return engine.done - response.start >= 1 and at_start < oldest  # it has a token
        return False

    def pushed(self, rollout: int) -> None:
        if rollout % self.setting.lag:
            return
        for engine in self.engines:
            engine.advance(self.time)
            engine.pushes.append((engine.done, rollout * self.workload.steps))
            engine.now += self.workload.push_seconds
        self.time += self.workload.push_seconds
        self.stream.version = rollout * self.workload.steps

    # ------------------------------------------------------------------------------------------------ measurement

    def measure(self, rollout: int) -> None:
        """Begin to measure, where it is due; the stream reports what it lost in each rollout."""
        if self.setting.mode == "streaming":
            report = self.stream.report()
            self.lost_ever += int(report["rollout/dropped"])
            if rollout > self.skip:
                finished = sum(count for name, count in report.items() if name.startswith("rollout/finished/"))
                self.completed += int(finished + report["rollout/aborted"])
                self.lost += int(report["rollout/dropped"])
        if rollout == self.skip:
            for engine in self.engines:
                if engine.now < self.time:
                    engine.advance(self.time)
            self.measured_from = self.time
            self.base = (self.trained_time, *self._engine_times())

    def _engine_times(self) -> tuple[float, float]:
        busy = sum(engine.busy for engine in self.engines)
        return busy, sum(engine.request_time for engine in self.engines)

    def train(self, batch: Sequence[_Generation], rollout: int, now: bool = True) -> float:
        """Count the lags of a batch and return how long its training takes; with `now` the time passes."""
        tokens = sum(group.tokens for group in batch)
        train = tokens * self.workload.train_seconds / self.setting.trainer_gpus
        train *= float(self.random.choice(self.workload.train_factors))
        self.trained_time += train
        self.trained += len(batch)
        if rollout >= self.skip:
            self._count(batch, rollout)
        seconds = train + self.workload.hand_over_seconds
        if now:
            self.time += seconds
        return seconds

    def _count(self, batch: Sequence[_Generation], rollout: int) -> None:
        steps, streams = self.workload.steps, self.setting.mode == "streaming"
        oldest = self.stream.bound.oldest(rollout) if streams and self.setting.over_age == "mask" else None
        for place, group in enumerate(batch):
            updates = rollout * steps + place * steps // len(batch)  # a rollout is split into its optimizer steps
            for response in group.responses:
                last = response.versions[-1][0]
                for version, tokens in response.versions:
                    if oldest is not None and version < oldest:
                        self.masked += tokens
                        continue
                    for counter, value in zip(
                        self.lags, (updates - version, last - version, updates - last), strict=True
                    ):
                        counter[value] += tokens

    def prediction(self) -> Prediction:
        seconds = self.time - self.measured_from
        for engine in self.engines:
            if engine.now < self.time:
                engine.advance(self.time)
        busy, request_time = self._engine_times()
        means = [_mean(counter) for counter in self.lags]
        tails = [_quantile(counter, 0.99) for counter in self.lags]
        trained = sum(self.lags[0].values())
        return Prediction(
            iteration_seconds=seconds / (self.iterations - self.skip),
            engines_idle=max(0.0, 1 - (busy - self.base[1]) / len(self.engines) / seconds),
            trainer_idle=max(0.0, 1 - (self.trained_time - self.base[0]) / seconds),
            lag_mean=means[0],
            lag_99=tails[0],
            generation_mean=means[1],
            generation_99=tails[1],
            queue_mean=means[2],
            queue_99=tails[2],
            lag_max=max(self.lags[0], default=0),
            dropped=self.lost / self.completed if self.completed else 0.0,
            masked=self.masked / (self.masked + trained) if trained else 0.0,
            queue_bytes=self.queue_tokens * self.workload.bytes_per_token,
            running=(request_time - self.base[2]) / seconds,
            begun=self.begun,
            trained_groups=self.trained,
            dropped_groups=self.lost_ever // self.workload.samples,
            waiting_groups=self.waiting_groups,
            unfinished_groups=self.unfinished_groups,
        )


def _mean(counter: Counter[int]) -> float:
    return sum(value * count for value, count in counter.items()) / max(1, sum(counter.values()))


def _quantile(counter: Counter[int], share: float) -> float:
    """Return the least value that `share` of the counts do not exceed."""
    left = share * sum(counter.values())
    for value in sorted(counter):
        left -= counter[value]
        if left <= 0:
            return float(value)
    return 0.0
