"""Whom a failure among several actors is blamed on."""

from unittest import mock

import pytest

ray = pytest.importorskip("ray", reason="the embedded runtime needs the engines: scripts/setup.sh")

from sat_slime.embedded.cluster import results  # noqa: E402
from sat_slime.embedded.cluster.results import ActorDied, ActorFailure, result_among  # noqa: E402


@pytest.mark.parametrize("dead, blamed", [(1, "rank 1 died"), (None, "rank 0: Connection closed")])
def test_a_rank_that_died_is_blamed_and_not_who_talked_to_it(monkeypatch, dead, blamed):
    """Rank 0 fails first, since its connection to another rank is closed."""

    def result_of(future, who):
        raise ActorDied(f"{who} died") if future == dead else ActorFailure(f"{who}: Connection closed")

    monkeypatch.setattr(results, "result_of", mock.create_autospec(results.result_of, side_effect=result_of))
    first = mock.create_autospec(ray.wait, side_effect=lambda waiting, **_: (waiting[:1], waiting[1:]))
    monkeypatch.setattr(ray, "wait", first)
    with pytest.raises(ActorFailure, match=blamed):
        result_among(0, [0, 1, 2], "rank")


def test_those_that_hang_are_not_waited_for(monkeypatch):
    def result_of(future, who):
        raise ActorFailure(f"{who}: no space left")

    monkeypatch.setattr(results, "result_of", result_of)
    monkeypatch.setattr(ray, "wait", lambda waiting, **_: ([], waiting))
    with pytest.raises(ActorFailure, match="rank 0: no space left"):
        result_among(0, [0, 1], "rank")
