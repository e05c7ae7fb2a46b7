"""Results of Ray's actors, and who is blamed when one of them fails."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from sat_slime.embedded.cluster.ray_environment import ray


class ActorFailure(RuntimeError):
    """A part of the run died or raised; the message says which and why."""


class ActorDied(ActorFailure):
    """The process of a part of the run ended."""


class RayDied(ActorFailure):
    """A process of Ray's own ended, and with it the run."""


PEERS_S = 5.0
"""Seconds to wait after an actor failed, since the cause may be another's death: who talks to a dead actor may fail
before Ray tells of its death."""


def wait_all(futures: Sequence[Any], what: str) -> list[Any]:
    """Return the results of the futures in order; the first failure ends the wait, also while others would wait forever
    for the one that died.

    Raises:
        ActorFailure: names `what`, the index and the cause.
    """
    waiting = list(futures)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        result_among(done[0], futures, what)
    return ray.get(list(futures))


def result_among(future: Any, futures: Sequence[Any], what: str) -> Any:
    """Return the result of one of the futures. If it failed because another's process died, the error names that one.

    Raises:
        ActorFailure: as `wait_all`.
    """
    try:
        return result_of(future, f"{what} {futures.index(future)}")
    except ActorDied:
        raise
    except ActorFailure:
        _blame_the_dead([other for other in futures if other is not future], futures, what)
        raise


def _blame_the_dead(waiting: list[Any], futures: Sequence[Any], what: str) -> None:
    """Raises ActorDied where one of the futures that are waited for died."""
    deadline = time.monotonic() + PEERS_S
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            return
        try:
            result_of(done[0], f"{what} {futures.index(done[0])}")
        except ActorDied:
            raise
        except ActorFailure:
            continue


def wait_any(futures: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
    """Return the futures that have a result or failed: at least one, unless the time is up before. Default: no
    limit."""
    return ray.wait(list(futures), num_returns=1, timeout=timeout_s)[0] if futures else []


def all_done(futures: Sequence[Any]) -> bool:
    """Return whether every future has a result or failed."""
    return not futures or len(ray.wait(list(futures), num_returns=len(futures), timeout=0)[0]) == len(futures)


def result_of(future: Any, who: str) -> Any:
    """Return the result of a future, waited for.

    Raises:
        ActorFailure: names `who` and the cause.
    """
    try:
        return ray.get(future)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        raise ActorFailure(f"{who}: {type(cause).__name__}: {cause}") from error
    except ray.exceptions.ActorDiedError as error:
        raise _end_of(who, error) from error
    except ray.exceptions.RayError as error:
        raise ActorDied(f"{who} died: {first_lines(error)}") from error


def _end_of(who: str, error: ray.exceptions.ActorDiedError) -> ActorFailure:
    """Return the error for an actor's end, in one sentence; Ray tells it at length."""
    text = str(error)
    if error.actor_init_failed:
        return ActorFailure(f"{who} did not start: {text.strip().splitlines()[-1]}")
    if low := re.search(r".*running low on memory.*", text):
        return ActorDied(f"{who} died: {low[0].strip()}")
    process = re.search(r"\tpid: (\d+)", text)
    return ActorDied(f"{who} died: its process{f' {process[1]}' if process else ''} was killed or crashed")


def first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])
