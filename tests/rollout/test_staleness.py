"""The rule by which groups of a stream begin, and how drops are counted."""

from __future__ import annotations

import itertools

import pytest

from sat_slime.rollout.staleness import StalenessBound, drop_metrics, length_bins


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


def test_the_oldest_version_is_exactly_the_bound_at_the_last_step():
    bound = StalenessBound(max_staleness=3, steps=2, prompts=4)
    assert bound.oldest(5) == 11 - 3  # rollout 5 is trained on weights of 10 and of 11 updates


@pytest.mark.parametrize("lag", [1, 2, 5])
@pytest.mark.parametrize("steps", [1, 3])
def test_with_the_least_bound_that_is_accepted_a_whole_batch_may_always_begin(lag, steps):
    least = lag * steps - 1
    bound = StalenessBound(least, steps, prompts=4)
    for rollout in range(20):
        pushed = rollout // lag * lag * steps  # all rollouts before are trained, and what was due is pushed
        assert bound.room(rollout, pushed) >= 4
    tighter = StalenessBound(least - 1, steps, prompts=4)
    assert min(tighter.room(rollout, rollout // lag * lag * steps) for rollout in range(20)) == 0


def test_length_bins_hold_every_length_once():
    assert length_bins(24) == [(1, 6), (7, 12), (13, 18), (19, 24)]
    for longest in (1, 2, 3, 9, 25):
        covered = [n for low, high in length_bins(longest) for n in range(low, high + 1)]
        assert covered == list(range(1, longest + 1))


def test_drops_are_counted_in_all_and_by_length():
    metrics = drop_metrics([1, 2, 2, 7, 8], [2, 8], longest=8)
    assert metrics == {
        "rollout/dropped": 2,
        "rollout/dropped_length_mean": 5.0,
        "rollout/finished/1-2": 3,
        "rollout/dropped/1-2": 1,
        "rollout/finished/3-4": 0,
        "rollout/dropped/3-4": 0,
        "rollout/finished/5-6": 0,
        "rollout/dropped/5-6": 0,
        "rollout/finished/7-8": 2,
        "rollout/dropped/7-8": 1,
    }
    assert "rollout/dropped_length_mean" not in drop_metrics([3], [], longest=8)
    assert drop_metrics([9, 16], [], longest=8)["rollout/finished/7-8"] == 2, "longer ones are counted too"
