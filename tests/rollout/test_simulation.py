"""Predictions of time and staleness: closed forms against the simulation, and what holds for every setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sat_slime.rollout.simulation import Setting, Workload, decoding_steps, predict


def batch_iteration_seconds(lag: int, generate: float, train: float, push: float, hand_over: float = 0.0) -> float:
    """Return the seconds of an iteration of mode batch, where each batch takes as long: generation beside training, and
    every `lag` iterations a push between two batches; at lag 0 all in turn."""
    if not lag:
        return generate + train + push + hand_over
    return max(generate, train + hand_over) + push / lag


def batch_lag(lag: int, steps: int) -> float:
    """Return the mean lag of mode batch in updates: rollouts are 1, 2, ..., `lag` rollouts old in turn, and the i-th of
    `steps` updates on a rollout adds i - 1."""
    return steps * ((lag + 1) / 2 if lag else 0.0) + (steps - 1) / 2


def generation_lag(running: float, responses: int, lengths: Sequence[int], steps: int) -> float:
    """Return the mean lag within responses of mode streaming in updates, by Little's law.

    With K `running` responses and R `responses` per rollout, each trained, a response of mean length takes K / R
    iterations to decode. A token waits for the rest of its response: E[L^2] / 2 E[L] tokens on average over tokens,
    which is E[L] (1 + c^2) / 2 with the coefficient of variation c. So it is steps * K / R * (1 + c^2) / 2. It holds
    where engines are the bottleneck; where the trainer is, groups begin in a burst after each push and have fewer
    pushes before them, so that it is an upper bound.

    That staleness follows from concurrency, batch and the tail of the lengths is shown in "Predicting and Controlling
    Staleness in Fully Asynchronous RL Training" (Applied Compute, July 2026); this derivation is our own.
    """
    lengths_ = np.asarray(lengths, dtype=float)
    tail = float((lengths_**2).mean() / lengths_.mean() ** 2)
    return steps * running / responses * tail / 2


def workload(lengths=(100, 100), **changes) -> Workload:
    values = {"prompts": 8, "samples": 2, "step_seconds": 0.01, "request_seconds": 0.001, "concurrency": 64}
    values |= {"train_seconds": 1e-3, "push_seconds": 0.5} | changes
    groups = np.asarray(lengths).reshape(-1, values["samples"]).tolist()
    return Workload(groups=groups, **values)


def spread(seed: int = 0, samples: int = 2) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).lognormal(4.5, 0.8, 400 * samples), 1, 1000).astype(int)


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
@pytest.mark.parametrize("train_seconds", [1e-4, 1e-2])
def test_batch_is_its_closed_form(lag, train_seconds):
    """16 responses of 100 tokens on two engines: 8 on each, so that a batch takes 100 steps of 0.018 s."""
    load = workload(train_seconds=train_seconds, hand_over_seconds=0.2)
    seen = predict(load, Setting(2, 1, lag), iterations=41, skip=11)
    expected = batch_iteration_seconds(lag, 1.8, 1600 * train_seconds, 0.5, 0.2)
    assert seen.iteration_seconds == pytest.approx(expected, rel=0.03)
    assert seen.lag_mean == pytest.approx(batch_lag(lag, 1), abs=1e-9)
    assert seen.generation_mean == 0
    assert seen.dropped == seen.masked == 0


@pytest.mark.parametrize(("concurrency", "engines", "steps"), [(64, 1, 100), (4, 1, 400), (4, 2, 200), (1, 1, 1600)])
def test_an_engine_decodes_in_waves_where_requests_wait(concurrency, engines, steps):
    assert decoding_steps(workload(concurrency=concurrency), engines) == pytest.approx(steps)


def test_batch_lag_counts_optimizer_steps():
    seen = predict(workload(steps=4), Setting(1, 1, 2), iterations=42, skip=2)
    assert seen.lag_mean == pytest.approx(batch_lag(2, 4)) == pytest.approx(4 * 1.5 + 1.5)
    assert seen.lag_max == 4 * 2 + 3


@pytest.mark.parametrize("queue", [40, 64])
def test_lag_within_responses_is_littles_law_where_engines_are_the_bottleneck(queue):
    """Within 12 %: a push comes between two iterations, and not at any moment."""
    load = workload(spread(), prompts=16, concurrency=16, push_seconds=0.0, train_seconds=1e-5)
    seen = predict(load, Setting(2, 1, 1, "streaming", 8, "wait", queue), iterations=200, skip=20)
    assert seen.trainer_idle > 0.9
    assert seen.generation_mean == pytest.approx(generation_lag(seen.running, 32, spread(), 1), rel=0.12)


def test_lag_within_responses_is_below_littles_law_where_the_trainer_is_the_bottleneck():
    load = workload(spread(), prompts=16, concurrency=16, push_seconds=0.0, train_seconds=1e-3)
    seen = predict(load, Setting(2, 1, 1, "streaming", 8, "wait", 40), iterations=200, skip=20)
    assert seen.trainer_idle < 0.1
    assert 0 < seen.generation_mean < generation_lag(seen.running, 32, spread(), 1)


def test_an_iteration_takes_the_longer_of_two_that_vary():
    """Both take 1.8 s times 0.5 or 1.5: in one of four iterations both times 0.5, else one or both times 1.5."""
    load = workload(train_seconds=1.8 / 1600, push_seconds=0, engine_factors=(0.5, 1.5), train_factors=(0.5, 1.5))
    seen = predict(load, Setting(2, 1, 1), iterations=600, skip=1)
    assert seen.iteration_seconds == pytest.approx(1.8 * (0.5 + 3 * 1.5) / 4, rel=0.05)


def test_where_both_take_as_long_chance_decides_what_a_push_meets():
    """Generation takes 1.8 s and training 2 s, so that at the bound 1 nothing is in generation at a push, until an
    iteration's training is faster."""
    setting = Setting(2, 1, 1, "streaming", 1)
    even = predict(workload(train_seconds=2 / 1600, push_seconds=0), setting, 100, 10)
    vary = predict(workload(train_seconds=2 / 1600, push_seconds=0, train_factors=(0.7, 1.3)), setting, 100, 10)
    assert even.generation_mean == 0 < 0.05 < vary.generation_mean


def test_a_trainer_that_is_slower_is_never_idle():
    seen = predict(workload(spread(), train_seconds=0.1, push_seconds=0.0), Setting(2, 1, 1, "streaming", 4), 60, 10)
    assert seen.trainer_idle < 0.01 < 0.5 < seen.engines_idle


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("over_age", ["drop", "wait", "mask"])
def test_no_token_is_beyond_the_bound_and_no_group_is_lost(over_age, seed):
    random = np.random.default_rng(seed)
    steps, lag = int(random.integers(1, 3)), int(random.integers(1, 3))
    bound = lag * steps - 1 + int(random.integers(0, 4))
    factors = {"engine_factors": random.uniform(0.5, 2, 9), "train_factors": random.uniform(0.5, 2, 9)}
    load = workload(spread(seed), steps=steps, concurrency=int(random.integers(2, 20)), **factors)
    engines, queue = int(random.integers(1, 4)), random.choice([None, 20])
    setting = Setting(engines, 1, lag, "streaming", bound, over_age, queue)
    seen = predict(load, setting, iterations=30, seed=seed)
    assert seen.lag_max <= bound
    ends = seen.trained_groups + seen.dropped_groups + seen.waiting_groups + seen.unfinished_groups
    assert seen.begun == ends
    assert seen.trained_groups == 30 * 8
    assert seen.lag_mean == pytest.approx(seen.generation_mean + seen.queue_mean)
    if over_age == "wait":
        assert seen.dropped == seen.masked == 0


def test_equal_seeds_are_equal():
    runs = [predict(workload(spread()), Setting(2, 1, 1, "streaming", 2), 20, seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_a_bound_below_the_newest_weights_is_refused():
    with pytest.raises(ValueError, match="max_staleness 1 is below lag 3 x 1"):
        predict(workload(), Setting(1, 1, 3, "streaming", 1))
    with pytest.raises(ValueError, match="a queue of 7 prompts holds no batch of 8"):
        predict(workload(), Setting(1, 1, 1, "streaming", 1, queue=7))
