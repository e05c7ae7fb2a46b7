"""Who is blamed when a part of a run fails, and that nobody is waited for in vain."""

from concurrent.futures import Future

import pytest

from sat_slime.lab.failures import PartFailure, wait_all


def ended(result: object) -> Future:
    future: Future = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def test_the_first_failure_ends_the_wait_and_names_who_it_was():
    with pytest.raises(PartFailure, match=r"^rollout engine 1: OSError: no space left$"):
        wait_all([Future(), ended(OSError("no space left")), ended(2)], "rollout engine")
    assert wait_all([ended(1), ended(2)], "rollout engine") == [1, 2]


def test_a_part_that_names_itself_is_not_named_twice():
    with pytest.raises(PartFailure, match=r"^trainer \(process 7\) was killed by SIGKILL$"):
        wait_all([ended(PartFailure("trainer (process 7) was killed by SIGKILL"))], "part")
