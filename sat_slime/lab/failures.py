"""Results of a run's parts, and who is blamed when one of them fails."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any


class PartFailure(RuntimeError):
    """A part of the run died or raised; the message says which and why."""


def result_of(future: Future[Any], who: str) -> Any:
    """Return the result of a future, waited for. Raises PartFailure, which names `who` and the cause."""
    try:
        return future.result()
    except PartFailure:
        raise
    except Exception as error:
        raise PartFailure(f"{who}: {type(error).__name__}: {error}") from error


def wait_all(waiting: Sequence[Future[Any]], what: str) -> list[Any]:
    """Return the results in order; the first failure ends the wait. Raises PartFailure, which names `what`, the index
    and the cause."""
    done = futures.wait(waiting, return_when=futures.FIRST_EXCEPTION).done
    for index, future in enumerate(waiting):
        if future in done:
            result_of(future, f"{what} {index}")
    return [future.result() for future in waiting]


def wait_any(waiting: Sequence[Future[Any]], timeout_s: float | None = None) -> list[Future[Any]]:
    """Return the futures that have a result or failed, in their order: at least one, unless the time is up before.
    Default: no limit, and there must be something to wait for."""
    assert waiting or timeout_s is not None, "nobody would ever answer"
    done = futures.wait(waiting, timeout_s, futures.FIRST_COMPLETED).done
    return [future for future in waiting if future in done]
