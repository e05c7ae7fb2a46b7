"""The stream of a fully asynchronous run on slime: when each prompt begins, and what the trainer is given.

A *group* is all samples of one prompt. Groups begin while the engines have room and a new one can still be trained
within the bound (rollout/staleness.py); they go on through pushes of weights, which abort what the engines decode. The
trainer is given the oldest complete groups first. A group that was overtaken and breaks the bound all the same is
dropped.

Everything here runs on one event loop, slime's own, so the state changes only while a coroutine awaits.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from sat_slime.plugin.inside import versions
from sat_slime.rollout.staleness import StalenessBound, drop_metrics

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two looks at what changes without notice: finished samples of a group, the engines' version."""
PATIENCE_S = 600.0
"""Seconds without a version of the engines' weights after which the run fails."""
PROGRESS_EVERY_S = 30.0
"""Seconds between two lines in the log while a batch is not complete."""
MAX_ATTEMPTS = 3
"""Attempts to generate a group; the run fails when the last one fails."""

Samples = list[Any]
"""A group's samples; an element is a list where a generate function made several samples of one."""
Unreported = dict[str, list[int]]
"""Lengths of the responses that were `finished` since the last batch, and of the responses that were `dropped`."""


class Engines(Protocol):
    """The engines behind slime's functions."""

    @property
    def slots(self) -> int:
        """The number of samples that the engines decode side by side."""

    async def generate(self, group: Samples) -> Samples:
        """Generates and rewards a group; samples that a push cut off come back aborted."""

    async def version(self) -> int | None:
        """Return the oldest version of weights that an engine holds, in optimizer steps; None while it is not known."""


@dataclass(eq=False)
class Begun:
    """A group in generation."""

    prompts: Samples
    """The samples as they were drawn, before generation."""
    samples: Samples
    attempt: int
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True)
class Complete:
    """A group that waits for the trainer."""

    samples: Samples
    oldest: int | None
    """Version of the oldest weights that generated a token of the group; None where that is not known."""


class Stream:
    """Begins groups, holds them in generation and while they wait, and hands them out as batches."""

    def __init__(
        self,
        bound: StalenessBound,
        engines: Callable[[], Engines],
        draw: Callable[[], Samples | None],
        rollouts: int,
        longest: int,
    ) -> None:
        """
        Args:
            engines: makes the engines; called when the stream starts.
            draw: gives the samples of the next prompt; None while there is none.
            rollouts: number of rollouts of the whole run; no more is generated than they take.
            longest: the most tokens that a response may have.
        """
        self.bound, self.rollouts, self.longest = bound, rollouts, longest
        self._make_engines, self._draw = engines, draw
        self.waiting: list[Complete] = []
        self.begun: list[Begun] = []
        self.again: deque[tuple[Samples, int]] = deque()
        """Prompts to begin before new ones, each with the number of its attempt: those that were in generation at the
        checkpoint, and those that failed."""
        self.next_rollout = 0
        self.held = False
        """Whether nothing may begin, since the state is being saved."""
        self.failure: BaseException | None = None
        self._finished: list[int] = []
        """Lengths of the responses that were completed since the last batch."""
        self._dropped: list[int] = []
        """Lengths of the responses that were dropped since the last batch."""
        self._version: int | None = None
        self._unknown_since: float | None = None
        self._news = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------- handing out

    async def next_batch(self, rollout: int) -> tuple[list[Samples], dict[str, float]]:
        """Waits for the groups of a rollout. Returns them in the order of the prompts, with the metrics queue/* and
        rollout/* of the run folder.

        It may be called when all rollouts before are trained and the push that was due is made, since it takes the
        trainer's weights and those of the last push to stay the same while it waits.

        Raises:
            RuntimeError: a group failed too often, or the engines do not tell their version.
        """
        self.next_rollout = rollout
        if self._tending is None:
            self.engines = self._make_engines()
            self._tending = asyncio.create_task(self._tend())
        self._drop_stale()
        self._notify()
        while self.failure is None and len(self.waiting) < self.bound.prompts:
            if not await _wait(self._news, PROGRESS_EVERY_S):
                self._log_progress()
        if self.failure is not None:
            raise self.failure
        self.waiting.sort(key=_age)
        batch, self.waiting = self.waiting[: self.bound.prompts], self.waiting[self.bound.prompts :]
        self.next_rollout += 1
        metrics = {
            "queue/length": len(self.waiting),
            "queue/in_generation": len(self.begun),
            **drop_metrics(self._finished, self._dropped, self.longest),
        }
        self._finished, self._dropped = [], []
        self._drop_stale()
        self._notify()
        return sorted((group.samples for group in batch), key=_place), metrics

    def _drop_stale(self) -> None:
        waiting, self.waiting = self.waiting, []
        for group in waiting:
            if group.oldest is not None and group.oldest >= self.bound.oldest(self.next_rollout):
                self.waiting.append(group)
            else:
                self._dropped += _lengths(group.samples)

    def _log_progress(self) -> None:
        logger.info(
            "sat_slime: rollout %d: %d of %d prompts complete, %d in generation; the engines hold version %s",
            *(self.next_rollout, len(self.waiting), self.bound.prompts, len(self.begun), self._version),
        )

    # -------------------------------------------------------------------------------------------------- generation

    async def _tend(self) -> None:
        """Begins groups whenever there is room for them, until one has failed too often."""
        try:
            while self.failure is None:
                news = self._news
                await self._begin()
                await _wait(news, POLL_S)
        except Exception as error:
            self.failure = error
            self._notify()

    async def _begin(self) -> None:
        left = (self.rollouts - self.next_rollout) * self.bound.prompts
        while not self.held and self.failure is None and self._unfinished() < self.engines.slots:
            line = len(self.waiting) + len(self.begun)
            if line >= left:
                return
            if self._version is None or line >= self.bound.room(self.next_rollout, self._version):
                if not await self._learn_version():
                    return
                continue
            prompts, attempt = self.again.popleft() if self.again else (self._draw(), 1)
            if prompts is None:
                return
            begun = Begun(prompts, copy.deepcopy(prompts), attempt)
            self.begun.append(begun)
            begun.task = asyncio.create_task(self._generate(begun))

    async def _learn_version(self) -> bool:
        """Asks the engines for their version. Returns whether it is another one than was known."""
        version, now = await self.engines.version(), asyncio.get_running_loop().time()
        if version is not None or self._unknown_since is None:
            self._unknown_since = now if version is None else None
        elif now - self._unknown_since > PATIENCE_S:
            raise RuntimeError(
                f"no engine has told the version of its weights for {PATIENCE_S:.0f} s, without which no prompt may "
                "begin: see the engines' logs"
            )
        changed = version is not None and version != self._version
        if changed:
            self._version = version
        return changed

    async def _generate(self, begun: Begun) -> None:
        """Generates a group; any number of pushes may interrupt it."""
        try:
            while True:
                length = sum(_lengths(begun.samples))
                begun.samples = await self.engines.generate(begun.samples)
                if not any(_is(sample, "aborted") for sample in flat(begun.samples)):
                    break
                self._notify()
                if any(isinstance(element, list) for element in begun.samples):  # slime cannot go on with lists
                    begun.samples = copy.deepcopy(begun.prompts)
                if sum(_lengths(begun.samples)) == length:  # the engine aborted at once: do not press it
                    await asyncio.sleep(POLL_S)
        except Exception as error:
            self._failed(begun, error)
        else:
            self.waiting.append(Complete(begun.samples, _oldest(begun.samples)))
            self._finished += _lengths(begun.samples)
            self._drop_stale()
        finally:
            self.begun.remove(begun)
            self._notify()

    def _failed(self, begun: Begun, error: Exception) -> None:
        name = f"prompt {_place(begun.prompts)}"
        logger.warning("sat_slime: %s failed, attempt %d of %d", name, begun.attempt, MAX_ATTEMPTS, exc_info=error)
        if begun.attempt < MAX_ATTEMPTS:
            self.again.append((begun.prompts, begun.attempt + 1))
            return
        self.failure = RuntimeError(
            f"{name} could not be generated and rewarded in {MAX_ATTEMPTS} attempts, last: "
            f"{type(error).__name__}: {error}"
        )
        self.failure.__cause__ = error

    def _unfinished(self) -> int:
        """Return how many samples the engines decode now, or still will."""
        return sum(
            _is(sample, "pending") or _is(sample, "aborted") for begun in self.begun for sample in flat(begun.samples)
        )

    # ------------------------------------------------------------------------------------------------------- state

    async def freeze(self, rollout: int) -> tuple[list[Samples], list[Samples], Unreported]:
        """Return the samples of the groups that wait, the prompts of the groups in generation in the order in which
        they began, and the lengths that no batch has reported yet. Nothing begins until `thaw`.

        Raises:
            RuntimeError: a later rollout than this one is handed out already, and would be lost.
        """
        if self.next_rollout > rollout + 1:
            raise RuntimeError(
                f"the state after rollout {rollout} is to be saved, but rollout {self.next_rollout - 1} is handed out "
                "already: in mode streaming a rollout is asked for when all before it are trained and saved"
            )
        self.held = True
        prompts = [begun.prompts for begun in self.begun] + [prompts for prompts, _ in self.again]
        unreported: Unreported = {"finished": list(self._finished), "dropped": list(self._dropped)}
        return [group.samples for group in self.waiting], prompts, unreported

    async def thaw(self) -> None:
        self.held = False
        self._notify()

    def restore(self, waiting: list[Samples], prompts: list[Samples], unreported: Unreported) -> None:
        """Takes back what `freeze` returned; called before the first batch."""
        self._finished, self._dropped = list(unreported["finished"]), list(unreported["dropped"])
        self.waiting = [Complete(samples, _oldest(samples)) for samples in waiting]
        self.again = deque((group, 1) for group in prompts)

    # -------------------------------------------------------------------------------------------------------- news

    def _notify(self) -> None:
        """Wakes all who wait for a change."""
        self._news.set()
        self._news = asyncio.Event()


async def _wait(news: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(news.wait(), seconds)
    except asyncio.TimeoutError:
        return False
    return True


def flat(group: Samples) -> Iterator[Any]:
    """Yield the samples of a group one by one, out of any nested lists."""
    for element in group:
        if isinstance(element, list):
            yield from flat(element)
        else:
            yield element


def _is(sample: Any, status: str) -> bool:
    return sample.status.value == status


def _lengths(group: Samples) -> list[int]:
    return [sample.response_length for sample in flat(group)]


def _place(group: Samples) -> int:
    """Return the number, among all samples of the run, of a group's first sample."""
    return next((int(sample.index) for sample in flat(group) if sample.index is not None), 0)


def _age(group: Complete) -> int:
    assert group.oldest is not None  # a group without a version is dropped and never waits
    return group.oldest


def _oldest(group: Samples) -> int | None:
    try:
        return min(versions.oldest(sample) for sample in flat(group))
    except ValueError:
        logger.warning("sat_slime: prompt %d is dropped: an engine answered without a version", _place(group))
        return None
