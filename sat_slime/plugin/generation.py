"""A fully asynchronous run's stream: groups are generated while batches are waited for and saved.

`rollout/stream.py` says which groups begin, wait and are trained; here slime's functions generate them. Groups go on
through pushes of weights, which abort what the engines decode. Everything runs on slime's event loop, so the state
changes only while a coroutine awaits. A checkpoint has the groups in a folder `queue_ROLLOUT`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sat_slime.config.disk import checksum_faults, in_words, written_whole
from sat_slime.plugin import versions
from sat_slime.rollout.stream import Group, Stream, StreamState

logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Seconds between two looks at what has changed: groups complete, engines with room."""
PROGRESS_EVERY_S = 30.0
"""Seconds between two lines in the log while a batch is not complete."""

Samples = list[Any]
"""A group's samples; an element is a list where a generate function made several samples of one."""


class Generation:
    """Generates the groups of a stream, whose prompts and results are slime's samples."""

    def __init__(self, stream: Stream[Samples, Samples], lag: int, engines: Any) -> None:
        """lag: rollouts between two pushes. engines: their `slots`, read when generation has begun, and `generate`."""
        self.stream, self.lag, self.engines = stream, lag, engines
        self.tasks: dict[Group[Samples, Samples], asyncio.Task[None]] = {}
        self.failure: BaseException | None = None
        self._tending: asyncio.Task[None] | None = None

    async def next_batch(self, rollout: int) -> tuple[list[Samples], dict[str, float]]:
        """Waits for the groups of a rollout; see `Stream.take` for when it may be called. Returns them in the order of
        the prompts, with the metrics queue/* and rollout/* of the run folder. Raises RuntimeError where a group could
        not be generated or rewarded."""
        self.stream.seek(rollout)
        if self.stream.version is None or rollout % self.lag == 0:  # the driver has pushed since the rollout before
            self.stream.version = rollout * self.stream.bound.steps
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend())
        clock = asyncio.get_running_loop().time
        told = clock()
        while self.failure is None and (groups := self.stream.take()) is None:
            await asyncio.sleep(POLL_S)
            if clock() - told > PROGRESS_EVERY_S:
                told, stream = clock(), self.stream
                logger.info(
                    "sat_slime: rollout %d: %d of %d prompts complete, %d in generation; the engines hold version %s",
                    *(rollout, len(stream.waiting), stream.bound.prompts, len(stream.running), stream.version),
                )
        if self.failure is not None:
            raise self.failure
        for group in self.stream.overdue():
            if self._is_doomed(group):
                self.stream.abandon(group, len(list(flat(group.result or []))))
                self.tasks[group].cancel()  # its connections close, by which SGLang ends its requests
        samples = [group.result for group in groups or [] if group.result is not None]
        return sorted(samples, key=_place), self.stream.report()

    async def _tend(self) -> None:
        """Begins groups whenever there is room for them, until one has failed."""
        try:
            while self.failure is None:
                while self._unfinished() < self.engines.slots and (group := self.stream.begin()) is not None:
                    group.result = copy.deepcopy(group.prompt)
                    self.tasks[group] = asyncio.create_task(self._generate(group))
                await asyncio.sleep(POLL_S)
        except Exception as error:
            self.failure = error

    async def _generate(self, group: Group[Samples, Samples]) -> None:
        """Generates a group; any number of pushes may interrupt it."""
        samples = group.result or []
        try:
            while True:
                length = sum(_lengths(samples))
                group.result = samples = await self.engines.generate(samples)
                if not any(_is(sample, "aborted") for sample in flat(samples)):
                    break
                if group in self.stream.overdue() and self._is_doomed(group):
                    self.stream.abandon(group, len(list(flat(samples))))
                    return
                if any(isinstance(element, list) for element in samples):  # slime cannot go on with lists
                    group.result = samples = copy.deepcopy(group.prompt)
                if sum(_lengths(samples)) == length:  # the engine aborted at once: do not press it
                    await asyncio.sleep(POLL_S)
        except Exception as error:
            if self.failure is None:
                prompt = f"prompt {_place(group.prompt)} could not be generated and rewarded"
                self.failure = RuntimeError(f"{prompt}: {type(error).__name__}: {error}")
                self.failure.__cause__ = error
        else:
            self.stream.complete(group, samples, _lengths(samples), _oldest(samples))
        finally:
            del self.tasks[group]

    def _is_doomed(self, group: Group[Samples, Samples]) -> bool:
        """Return whether a group in generation has a token that cannot be trained within the bound any more."""
        known = [sample for sample in flat(group.result or []) if sample.response_length]
        oldest = _oldest(known) if known else None
        return oldest is not None and oldest < self.stream.bound.oldest(self.stream.next_rollout)

    def _unfinished(self) -> int:
        """Return how many samples the engines decode now, or still will."""
        return sum(
            _is(sample, "pending") or _is(sample, "aborted")
            for group in self.stream.running
            for sample in flat(group.result or [])
        )

    async def freeze(self, rollout: int) -> StreamState[Samples, Samples]:
        """Return the stream's state, on the event loop; nothing begins until its `thaw`. Raises as `Stream.freeze`."""
        return self.stream.freeze(rollout)


def saved_group(samples: Samples) -> Group[Samples, Samples]:
    """Return a complete group of a checkpoint; its prompt is not needed any more."""
    return Group([], result=samples, oldest=_oldest(samples), lengths=_lengths(samples))


QUEUE = "queue.pt"
"""A torch file of dicts, lists, numbers, texts and tensors, which is read without running anything that it names."""


def write_queue(folder: Path, state: StreamState[Samples, Samples]) -> None:
    """Writes a stream's state, the folder at once or not at all. Raises TypeError where a sample holds something that
    cannot be read back, and OSError."""
    groups = {"waiting": [group.result for group in state.waiting], "prompts": [*state.unfinished]}
    values = {name: _each(lambda sample: _plain(sample.to_dict()), samples) for name, samples in groups.items()}
    unreported = {"finished": state.finished, "dropped": state.dropped, "aborted": state.aborted}
    with written_whole(folder) as unfinished:
        torch.save(values | {"unreported": unreported}, unfinished / QUEUE)
        if odd := torch.serialization.get_unsafe_globals_in_checkpoint(unfinished / QUEUE):
            raise TypeError(
                f"the queue cannot be saved: its samples hold {', '.join(sorted(odd))}: let rewards and metadata be of "
                "numbers, texts, lists, dicts and tensors alone"
            )


def _plain(value: Any) -> Any:
    """Return a sample's value with numpy's numbers and arrays as Python's numbers and lists, which alone can be read
    back; rewards of the user's own and data of Parquet files have them."""
    if isinstance(value, np.generic):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())  # one of objects holds further arrays
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    is_plain = type(value) not in (list, tuple) or {*map(type, value)} <= {int, float}  # of tokens, which are many
    return value if is_plain else type(value)(map(_plain, value))


def _each(convert: Callable[[Any], Any], samples: Any) -> Any:
    return [_each(convert, item) for item in samples] if isinstance(samples, list) else convert(samples)


def read_queue(folder: Path, sample_class: Any) -> StreamState[Samples, Samples]:
    """Reads what `write_queue` wrote, for slime's Sample. Raises ValueError where the files are damaged or not of this
    kind, one line that names the folder and the remedy."""
    try:
        if faults := checksum_faults(folder):
            raise ValueError(in_words(faults))
        values = torch.load(folder / QUEUE, weights_only=True)
        waiting, prompts = (_each(sample_class.from_dict, values[name]) for name in ("waiting", "prompts"))
        return StreamState([saved_group(samples) for samples in waiting], prompts, **values["unreported"])
    except Exception as error:  # damage may raise anything
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{folder} is damaged ({why}): go on from an earlier checkpoint (sat-slime launch RUN --resume-from "
            "ITERATION), or delete the folder, and the prompts that waited or were in generation are skipped"
        ) from error


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


def _oldest(group: Samples) -> int | None:
    """Return the version of the oldest weights that generated a token of a group; None where it is not known."""
    try:
        return min(version for sample in flat(group) for _, version in versions.parts_of(sample))
    except ValueError:
        logger.warning("sat_slime: prompt %d is dropped: an engine answered without a version", _place(group))
        return None
