"""Faults of responses and restarts of servers: each is in one row of steps or evaluations, and in the log."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

pytest.importorskip("httpx", reason="the lab runtime needs the engines: scripts/setup.sh")

from made_up_batch import CONFIG, make_batch

from sat_slime.lab.engine.engine_group import faults_of
from sat_slime.lab.engine.rollout_engine import GenerationResult
from sat_slime.lab.grading import Grader
from sat_slime.lab.loop.batch_order import BatchPipeline, Flight
from sat_slime.lab.rollout_batch import StepResult

ANSWERS = ["14$"] * 12


class Log:
    def __init__(self) -> None:
        self.rows, self.told = [], []

    def __getattr__(self, name):
        return lambda *args, **fields: None

    def step(self, metrics) -> None:
        self.rows.append(("step", metrics))

    def eval(self, metrics) -> None:
        self.rows.append(("eval", metrics))

    def message(self, text, level="info") -> None:
        self.told.append((level, text))


@pytest.fixture
def pipeline(tmp_path):
    pipeline = BatchPipeline(CONFIG, tmp_path, Log(), None)
    pipeline.seconds, pipeline.versions = {"wait": 0.0}, [0]
    pipeline.grader = Grader(CONFIG.verifier, CONFIG.task)
    return pipeline


def engines(restarts, stats):
    """What the loop sees of engines: new restarts, one number each time that it asks, and responses with faults."""
    told = iter(restarts)
    faults = faults_of([GenerationResult([], {"rejected": {}, "lost": 0, "resent": 0, **stats})])
    return SimpleNamespace(
        new_restarts=lambda: next(told),
        new_deaths=lambda: [],
        states=lambda: "ready",
        evaluate=lambda requests, group, folder, version: [],
        collect=lambda futures, iteration, problems, of="": dataclasses.replace(
            make_batch(ANSWERS), iteration=iteration, faults=faults
        ),
    )


COUNTS = ("rollout/rejected", "rollout/rejected/nan", "rollout/lost", "rollout/resent", "rollout/restarts")


def counts(row):
    return [row.get(name) for name in COUNTS]


def test_a_restart_around_an_evaluation_is_in_its_row_and_in_the_log(pipeline):
    pipeline.iteration, pipeline.updates = 6, 6
    pipeline.engines = engines([1], {"lost": 64, "resent": 65, "rejected": {"nan": 1}})
    pipeline._evaluate()
    ((kind, row),) = pipeline.log.rows
    assert kind == "eval" and counts(row) == [1, 1, 64, 65, 1] and (row["step"], row["n_samples"]) == (6, 12)
    assert pipeline.log.told == [
        (
            "warning",
            "evaluation after iteration 6: rollout faults, all responses asked for again: rejected 1, lost 64, "
            "resent 65, rejected/nan 1",
        ),
        ("warning", "evaluation after iteration 6: 1 server restart"),
    ]


def test_without_faults_the_counts_are_there_and_nothing_is_told(pipeline):
    pipeline.engines = engines([0, 0], {})
    pipeline._evaluate()
    batch = pipeline._collect(Flight(3, [], []))
    pipeline._record(batch, [StepResult({"step": 1, "lag/mean": 0}, {})])
    assert [counts(row) for _, row in pipeline.log.rows] == [[0, None, 0, 0, 0]] * 2
    assert pipeline.log.told == []


def test_restarts_between_rows_are_in_the_next_one(pipeline):
    pipeline.engines = engines([2, 0], {"lost": 3, "resent": 3})
    batch = pipeline._collect(Flight(3, [], []))
    pipeline.iteration = 4
    pipeline._record(batch, [StepResult({"step": 4, "lag/mean": 0}, {})])
    pipeline._evaluate()
    assert [(kind, counts(row)[2:]) for kind, row in pipeline.log.rows] == [("step", [3, 3, 2]), ("eval", [3, 3, 0])]
    assert ("warning", "iteration 4: 2 server restarts") in pipeline.log.told


def test_restarts_are_in_the_first_row_of_an_iteration_of_several_steps(pipeline):
    pipeline.engines = engines([2], {})
    batch = pipeline._collect(Flight(3, [], []))
    pipeline._record(batch, [StepResult({"step": step, "lag/mean": 0}, {}) for step in (7, 8, 9)])
    assert [row["rollout/restarts"] for _, row in pipeline.log.rows] == [2, 0, 0]
