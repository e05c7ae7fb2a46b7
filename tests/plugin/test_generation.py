"""The stream on slime, with engines and a trainer that take virtual time: bound, pushes, failure, file of its state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_slime import Sample
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_slime.config.disk import write_checksums
from sat_slime.plugin import generation as generation_module
from sat_slime.plugin import versions
from sat_slime.plugin.generation import Generation, flat, read_queue, saved_group, write_queue
from sat_slime.rollout.stream import StalenessBound, Stream, StreamState

PROMPTS, SAMPLES, LONGEST, ROLLOUTS = 4, 2, 24, 12


Status = Sample.Status


@pytest.fixture(autouse=True, scope="module")
def looks_each_virtual_second():
    """As long as a token takes; the looks are most of what a run costs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation_module, "POLL_S", 1.0)
        yield


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to whatever is due next."""

    def __init__(self) -> None:
        super().__init__()
        self.now, select = 0.0, self._selector.select

        def jump(timeout):
            assert timeout is not None, "nothing will ever happen"
            self.now += timeout
            return select(0)

        self._selector.select = jump

    def time(self) -> float:
        return self.now


def simulate(coroutine):
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 1e6))
    finally:
        for task in (left := asyncio.all_tasks(loop)):
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()


class Engines:
    """Engines that take a second for a token of a sample, and a moment to answer, so that none ends as the stream
    looks. A push cuts off what they decode, and holds requests until it is over."""

    def __init__(self, slots=12, length=lambda index: 8) -> None:
        self.slots, self.length = slots, length
        self.held, self.interrupt, self.open = 0, asyncio.Event(), asyncio.Event()
        self.open.set()
        self.decoding = self.most = 0

    async def generate(self, group):
        await asyncio.gather(*(self.decode(sample) for sample in flat(group)))
        return group

    async def decode(self, sample):
        if sample.status == Status.COMPLETED:
            return
        await self.open.wait()
        version, started = self.held, asyncio.get_running_loop().time()
        rest = self.length(sample.index) - sample.response_length
        self.decoding += 1
        try:
            await asyncio.wait_for(self.interrupt.wait(), rest + 0.25)
        except asyncio.TimeoutError:
            self.most = max(self.most, self.decoding)  # what was cancelled meanwhile is gone by now
            tokens, sample.status = rest, Status.COMPLETED
        else:
            passed = int(asyncio.get_running_loop().time() - started)
            tokens, sample.status = min(passed, rest - 1), Status.ABORTED
        finally:
            self.decoding -= 1
        sample.response_length += tokens
        sample.weight_versions.append(str(version))
        if sample.status == Status.ABORTED:
            versions.note_interruption(sample)

    async def push(self, version):
        self.open.clear()
        self.interrupt.set()
        self.interrupt = asyncio.Event()
        await asyncio.sleep(2)
        self.held = version
        self.open.set()


def prompt(number):
    return [Sample(index=index) for index in range(number * SAMPLES, (number + 1) * SAMPLES)]


class Run:
    """A driver, which asks for rollouts, trains and pushes."""

    def __init__(self, engines, lag=1, steps=1, max_staleness=1, train=lambda: 10.0, over_age="drop") -> None:
        self.engines, self.lag, self.steps, self.max_staleness, self.train = engines, lag, steps, max_staleness, train
        self.stream = Stream(StalenessBound(max_staleness, steps, PROMPTS), ROLLOUTS, prompt, over_age=over_age)
        self.generation = Generation(self.stream, lag, engines)
        self.handed: list[Sample] = []
        self.metrics: list[dict] = []

    async def go(self) -> None:
        for rollout in range(ROLLOUTS):
            groups, metrics = await self.generation.next_batch(rollout)
            assert [len(group) for group in groups] == [SAMPLES] * PROMPTS
            self.handed += [sample for group in groups for sample in group]
            self.metrics.append(metrics)
            self.check(groups, rollout)
            await asyncio.sleep(self.train())
            if (rollout + 1) % self.lag == 0:
                await self.engines.push((rollout + 1) * self.steps)

    def check(self, groups, rollout) -> None:
        for sample in flat(groups):
            parts = versions.parts_of(sample)
            assert sum(tokens for tokens, _ in parts) == sample.response_length == self.engines.length(sample.index)
            oldest = (rollout + 1) * self.steps - 1 - self.max_staleness
            assert min(version for _, version in parts) >= oldest
        assert sum(1 for _ in flat(groups)) == PROMPTS * SAMPLES
        waiting = sum(1 for group in self.stream.waiting for _ in flat(group.result))
        inside = waiting + sum(1 for group in self.stream.running for _ in flat(group.result))
        aborted = self.stream.aborted + int(sum(metrics["rollout/aborted"] for metrics in self.metrics))
        gone = self.dropped() + len(self.stream.dropped) + self.stream.aborted
        assert self.stream.drawn * SAMPLES == len(self.handed) + gone + inside  # nothing is lost
        finished = sum(one["rollout/finished"] for one in self.metrics) + len(self.stream.finished)
        assert finished == len(self.handed) + gone - aborted + waiting  # or is counted twice

    def dropped(self) -> int:
        return int(sum(metrics["rollout/dropped"] for metrics in self.metrics))


@st.composite
def runs(draw):
    """A run's lag, steps and slack, its engines' slots, the lengths of responses, and the trainer's seconds."""
    longest = draw(st.sampled_from([1, 6, LONGEST]))
    lengths = draw(st.lists(st.integers(1, longest), min_size=7, max_size=40))
    seconds = draw(st.lists(st.sampled_from([0.1, 3.0, 40.0]), min_size=1, max_size=5))
    numbers = (draw(st.integers(low, high)) for low, high in ((1, 3), (1, 3), (0, 4), (1, 20)))
    return (*numbers, lambda index: lengths[index % len(lengths)], seconds, draw(st.sampled_from(["drop", "wait"])))


@given(runs())
@settings(max_examples=40, deadline=None)
def test_whatever_engines_and_trainer_take_the_bound_holds_and_nothing_is_lost(of):
    lag, steps, slack, slots, length, seconds, over_age = of

    async def whole():
        train = iter(seconds * ROLLOUTS)
        run = Run(
            Engines(slots=slots, length=length),
            lag,
            steps,
            max_staleness=lag * steps - 1 + slack,  # the least that is accepted, or more
            train=lambda: next(train),
            over_age=over_age,
        )
        await run.go()
        return run

    run = simulate(whole())
    assert len({sample.index for sample in run.handed}) == ROLLOUTS * PROMPTS * SAMPLES
    assert over_age == "drop" or run.dropped() == 0
    assert run.engines.most < run.engines.slots + SAMPLES
    assert not run.stream.running and not run.stream.waiting  # no group is generated that the run cannot train


def test_an_overtaken_group_is_aborted_as_soon_as_it_is_doomed():
    """The sixth prompt takes so long that later ones overtake it."""

    async def whole():
        lengths = {5: LONGEST}
        run = Run(Engines(length=lambda i: lengths.get(i // SAMPLES, 2)), train=lambda: 4.0)
        await run.go()
        return run

    run = simulate(whole())
    assert 5 * SAMPLES not in {sample.index for sample in run.handed} and not run.generation.tasks
    (metrics,) = [metrics for metrics in run.metrics if metrics["rollout/dropped"]]
    assert metrics["rollout/dropped"] == metrics["rollout/aborted"] == SAMPLES
    assert "rollout/dropped_length_mean" not in metrics, "what was aborted has no length"
    assert max(m.get("rollout/finished_length_mean", 0) for m in run.metrics) < LONGEST / 2


def test_a_group_that_fails_ends_the_run():
    async def whole():
        engines = Engines()
        engines.generate = unreachable
        await Run(engines).go()

    async def unreachable(group):
        raise OSError("no route to host")

    with pytest.raises(RuntimeError, match="prompt 0 could not be generated and rewarded: OSError: no route to host"):
        simulate(whole())


def test_what_came_without_a_version_has_none_and_is_dropped(caplog):
    assert saved_group([Sample(6, weight_versions=["3"]), Sample(7, weight_versions=["default"])]).oldest is None
    assert "prompt 6 is dropped: an engine answered without a version" in caplog.text


def test_samples_made_of_one_begin_anew_after_a_push():
    """slime cannot go on with a group in which one element is a list."""
    seen = []

    async def whole():
        engines = Engines(length=lambda index: 20)
        generate = engines.generate

        async def several(group):
            seen.append([part if isinstance(part, list) else part.response_length for part in group])
            return [[sample] for sample in flat(await generate(group))]

        engines.generate = several
        run = Run(engines, max_staleness=8, train=lambda: 3.0)
        groups, _ = await run.generation.next_batch(0)
        await engines.push(1)
        return [groups, (await run.generation.next_batch(1))[0]]

    batches = simulate(whole())
    assert all(group == [0, 0] for group in seen)
    assert all(len(sample.weight_versions) == 1 for batch in batches for sample in flat(batch))


UNREPORTED = {"finished": [5, 9], "dropped": [9], "aborted": 2}


def saved(folder):
    """A folder with a group that waits, whose second sample was made into two, and a prompt."""
    routes = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
    first = Sample(0, status=Status.COMPLETED, response_length=3, weight_versions=["8"], tokens=[1, 2, 3])
    first.metadata = {"score": 1.0, "routes": routes, "cuts": (1, 2)}
    waiting, prompts = [[first, [Sample(1), Sample(2)]]], [[Sample(3), Sample(4)]]
    write_queue(folder, StreamState([*map(saved_group, waiting)], prompts, **UNREPORTED))
    return waiting, prompts


def test_a_queue_is_read_as_it_was_written(tmp_path):
    ((before, _),), prompts = saved(tmp_path / "queue_6")
    state = read_queue(tmp_path / "queue_6", Sample)
    (first, several), unreported = state.waiting[0].result, {name: getattr(state, name) for name in UNREPORTED}
    routes, expected = first.metadata.pop("routes"), before.metadata.pop("routes")
    assert torch.equal(routes, expected) and routes.dtype == torch.uint8
    assert (first, several, state.unfinished, unreported) == (before, [Sample(1), Sample(2)], prompts, UNREPORTED)


def test_numbers_of_numpy_are_read_as_pythons(tmp_path):
    """As a reward function may return them, and Parquet has them."""
    numbers = {"scores": [np.float32(0.5), (np.int64(2),)], "row": np.array([{"of": np.array([1, 2])}])}
    sample = Sample(0, reward=np.float64(1), weight_versions=["8"], tokens=[1, 2], metadata=numbers)
    write_queue(tmp_path / "queue_0", StreamState([saved_group([sample])]))
    (read,) = read_queue(tmp_path / "queue_0", Sample).waiting[0].result
    assert (read.reward, read.tokens, read.metadata) == (1.0, [1, 2], {"scores": [0.5, (2,)], "row": [{"of": [1, 2]}]})


def test_damage_is_a_line_with_the_remedy_and_runs_no_code(tmp_path):
    def torn(file):
        file.write_bytes(file.read_bytes()[:-40])

    def names_code(file):
        torch.save({"waiting": [Status.COMPLETED]}, file)
        write_checksums(file.parent)

    def without_sums(file):
        (file.parent / "SHA256SUMS").unlink()

    for damage in (torn, Path.unlink, without_sums, names_code):
        saved(folder := tmp_path / damage.__name__)
        damage(folder / "queue.pt")
        said = rf"{folder.name} is damaged \(.+\): go on from .+ or delete the folder[^\n]+$"
        with pytest.raises(ValueError, match=said):
            read_queue(folder, Sample)


def test_what_cannot_be_read_back_is_not_written(tmp_path):
    with pytest.raises(TypeError, match=r"the queue cannot be saved: its samples hold .*Sample.*: let rewards"):
        write_queue(tmp_path / "queue_0", StreamState(unfinished=[[Sample(0, metadata={"kind": Status.PENDING})]]))
    assert list(tmp_path.iterdir()) == []
