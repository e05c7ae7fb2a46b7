"""A stream of groups: its rule, and its books over random schedules."""

from __future__ import annotations

import itertools
import random

import pytest

from sat_slime.rollout.stream import StalenessBound, Stream


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("max_staleness", [0, 1, 4, 7])
def test_room_is_the_last_place_from_which_a_group_is_trained_within_the_bound(max_staleness, steps):
    bound = StalenessBound(max_staleness, steps, prompts=4)
    for rollout, version in itertools.product(range(6), range(0, 12)):
        room = bound.room(rollout, version)
        for before in range(60):
            trained = rollout + before // 4
            last_step_on = (trained + 1) * steps - 1  # updates of the weights at its last optimizer step
            assert (before < room) == (last_step_on - version <= max_staleness), (rollout, version, before)


LONGEST = 20


class Host:
    """A run without engines: groups complete and are pushed under in a random order, and books are kept of it."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.lag, steps, prompts = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 6)
        staleness = self.lag * steps - 1 + rng.randint(0, 4)  # the least that is accepted, or more
        self.bound = StalenessBound(staleness, steps, prompts)
        self.rollouts, self.slots = 15, rng.randint(1, 4 * prompts)
        self.settings = {"queue": rng.choice([None, prompts, 3 * prompts]), "over_age": rng.choice(["drop", "wait"])}
        self.version = 0
        self.versions: dict[int, set[int]] = {}
        """Versions of the weights that generated tokens of a group in generation, by its prompt."""
        self.trained: list[int] = []
        self.finished = self.dropped = self.aborted = 0
        self.stream = self.new_stream()

    def new_stream(self) -> Stream:
        return Stream(self.bound, self.rollouts, lambda number: number, **self.settings)

    def begin(self) -> None:
        self.stream.version = self.version
        while len(self.stream.running) < self.slots and (group := self.stream.begin()):
            self.versions[group.prompt] = {self.version}

    def end_one(self) -> None:
        """A group in generation completes; seldom nothing is known of its weights."""
        stream, rng = self.stream, self.rng
        if not stream.running:
            return
        group = rng.choice(stream.running)
        lengths = [rng.randint(1, LONGEST) for _ in range(2)]
        known = self.settings["over_age"] == "wait" or rng.random() < 0.98
        stream.complete(group, f"answer {group.prompt}", lengths, min(self.versions[group.prompt]) if known else None)

    def push(self) -> None:
        self.version = self.stream.next_rollout * self.bound.steps
        for group in self.stream.running:
            if self.rng.random() < 0.8:  # the others have no token yet
                self.versions[group.prompt].add(self.version)

    def train(self) -> None:
        """Takes a batch as soon as there is one, reports, and makes the push that is due."""
        rollout = self.stream.next_rollout
        for _ in range(10_000):
            if (groups := self.stream.take()) is not None:
                break
            self.begin()
            assert self.stream.running, "the stream waits for nothing"
            self.end_one()
        else:
            raise AssertionError("no batch")
        last_step_on = (rollout + 1) * self.bound.steps - 1
        for group in groups:
            assert last_step_on - min(self.versions[group.prompt]) <= self.bound.max_staleness
            assert group.result == f"answer {group.prompt}"
        oldest = last_step_on + self.bound.steps - self.bound.max_staleness  # of those that the next rollout trains
        late = [group for group in self.stream.running if min(self.versions[group.prompt]) < oldest]
        assert self.stream.overdue() == late
        for group in late:
            self.stream.abandon(group, 2)
        self.trained += [group.prompt for group in groups]
        report = self.stream.report()
        self.dropped += report["rollout/dropped"]
        self.aborted += report["rollout/aborted"]
        self.finished += report["rollout/finished"]
        assert report["queue/length"] == len(self.stream.waiting)
        if (rollout + 1) % self.lag == 0:
            self.push()

    def resume(self) -> None:
        """Saves and goes on in another process, with the weights of the checkpoint or those of the last push."""
        state = self.stream.freeze(self.stream.next_rollout - 1)
        assert self.stream.begin() is None, "nothing begins while the state is saved"
        begun = [group.prompt for group in self.stream.running] + [*self.stream.again]
        assert state.unfinished == begun
        rollout, self.stream = self.stream.next_rollout, self.new_stream()
        self.stream.restore(state, rollout)

    def balance(self) -> None:
        """Asserts that what began is trained, dropped, waiting or unfinished, and what ended one of the first three."""
        stream = self.stream
        dropped, waiting = self.dropped + len(stream.dropped) + stream.aborted, 2 * len(stream.waiting)
        unfinished = 2 * (len(stream.running) + len(stream.again))
        assert 2 * stream.drawn == 2 * len(self.trained) + dropped + waiting + unfinished
        completed = self.finished + len(stream.finished) + self.aborted + stream.aborted
        assert completed == 2 * len(self.trained) + dropped + waiting
        if self.settings["over_age"] == "wait":
            assert dropped == 0 and not self.aborted, "nothing is lost"
        assert len(set(self.trained)) == len(self.trained)
        if (queue := self.settings["queue"]) is not None:
            assert len(stream.waiting) + len(stream.running) <= queue


@pytest.mark.parametrize("seed", range(300))
def test_over_any_schedule_the_bound_holds_and_nothing_is_lost_or_counted_twice(seed):
    host = Host(seed)
    while host.stream.next_rollout < host.rollouts:
        action = host.rng.choice([host.begin, host.end_one, host.end_one, host.train, host.resume])
        if action is not host.resume or host.rng.random() < 0.2:
            action()
        host.balance()
    assert len(host.trained) == host.rollouts * host.bound.prompts
    assert not host.stream.waiting and not host.stream.running, "no group is generated that the run cannot train"


def test_nothing_begins_before_the_engines_told_their_version_nor_without_prompts():
    stream = Stream(StalenessBound(1, 1, 2), 10, lambda number: number)
    assert stream.begin() is None
    stream.version = 0
    assert [stream.begin().prompt for _ in range(4)] == [0, 1, 2, 3]
    assert stream.begin() is None, "more would be too old"
    stream.version = 1
    assert stream.begin().prompt == 4
    empty = Stream(StalenessBound(1, 1, 2), 10, lambda _: None)
    empty.version = 0
    assert empty.begin() is None and empty.drawn == 0
