"""Evaluations beside training, with stand-ins for ranks and engines: when each is asked, waited for and written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("httpx", reason="the lab runtime needs the engines: scripts/setup.sh")

import numpy as np

from sat_slime.config.jsonl import to_json
from sat_slime.config.schema import LabConfig
from sat_slime.lab import checkpoint
from sat_slime.lab.grading import Grader
from sat_slime.lab.loop import pipeline as shared
from sat_slime.lab.loop.batch_order import BatchPipeline
from sat_slime.lab.loop.interruption import Interruption
from sat_slime.lab.rollout_batch import RolloutBatch, StepResult
from sat_slime.rollout.types import Response

ALL = ["none", "gaps", "engine"]
EVERY = 2


class World:
    """Ranks and engines as the loop sees them. An evaluation takes `turns` training steps, or ends when it is waited
    for. `told` is what happened, in order."""

    def __init__(self, tmp_path, monkeypatch, beside: str, turns: int = 1, **pipeline) -> None:
        self.told: list[str] = []
        self.turns, self.trained, self.held = turns, 0, 0
        self.config = LabConfig(
            pipeline={"lag": 2, "iterations": 6} | pipeline,
            rollout={"prompts_per_iteration": 2, "samples_per_prompt": 2},
            eval={"every_n_iterations": EVERY, "problems": 2, "samples_per_problem": 1, "beside": beside},
            checkpoint={"every_n_iterations": 0},
            logging={"samples_every_n_iterations": 0},
        )
        self.interruption = Interruption()
        self.rows: list[dict] = []
        answered = property(lambda due: bool(due.futures) and all(f.due <= self.trained for f in due.futures))
        monkeypatch.setattr(shared.Evaluation, "answered", answered)
        monkeypatch.setattr(shared, "step_row", lambda *args: {})
        monkeypatch.setattr(shared, "histogram_row", lambda *args: {})
        self.pipeline = BatchPipeline(self.config, tmp_path, self, self.interruption)
        self.pipeline.trainer = self.pipeline.engines = self
        self.pipeline.grader = Grader(self.config.verifier, self.config.task)

    # ------------------------------------------------------------------------------------------------ the run's log

    def __getattr__(self, name):
        return lambda *args, **fields: None

    def eval(self, row):
        self.rows.append(row)
        self.told.append(f"row {row['step']}")
        with (self.pipeline.folder / "eval.jsonl").open("a") as file:
            file.write(to_json(row) + "\n")

    def stop_reason(self):
        return None

    def message(self, text, level="info"):
        if "again" in text:
            self.told.append(text)

    # ---------------------------------------------------------------------------------------------------- the ranks

    def call(self, method, folder, *arguments):
        if method == "export_weights":
            folder.mkdir(parents=True)
        return self.pipeline.updates

    def start(self, method=None, *arguments):
        return SimpleNamespace(result=lambda: None)

    def start_train(self, batch, dump):
        self.trained += 1
        self.told.append(f"train {self.trained}")
        results = [StepResult({"step": self.trained}, {})]
        return SimpleNamespace(result=lambda: results)

    # -------------------------------------------------------------------------------------------------- the engines

    def update_weights(self, folder, version):
        assert folder.is_dir()
        self.held = version
        self.told.append(f"push {version}")

    def new_restarts(self):
        return 0

    def generate(self, requests, group):
        return [SimpleNamespace(requests=requests, version=self.held, due=0)]

    def evaluate(self, requests, group, folder, version):
        assert folder.is_dir()
        if self.config.eval.beside != "engine":
            assert version == self.held
        self.told.append(f"ask {version}")
        due = self.trained + self.turns
        return [SimpleNamespace(requests=requests, version=version, due=due, folder=folder, held=self.held)]

    def collect(self, futures, iteration, problems, of="rollout engine"):
        (future,) = futures
        if hasattr(future, "folder"):
            assert future.folder.is_dir(), "a restart of the server would read it"
            assert of == ("evaluation engine" if self.config.eval.beside == "engine" else "rollout engine")
            if of == "rollout engine":
                assert self.held == future.version, "weights changed under an evaluation"
        ids = self.config.task.encode("1$")
        versions, nothing = np.full(len(ids), future.version), np.zeros(len(ids), np.float32)
        responses = [
            Response(r.request_id, r.prompt_ids, ids, nothing, None, "stop", versions) for r in future.requests
        ]
        return RolloutBatch(self.config.task, iteration, problems, responses)

    # ------------------------------------------------------------------------------------------------------ the run

    def run(self) -> list[str]:
        self.pipeline._begin()
        self.pipeline._loop()
        return self.told


@pytest.mark.parametrize("beside", ALL)
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_every_evaluation_has_one_row_of_the_weights_that_were_held_whatever_it_takes(
    tmp_path, monkeypatch, beside, turns, lag
):
    world = World(tmp_path, monkeypatch, beside, turns, lag=lag)
    world.run()
    pushed = [0, *(step for step in range(1, 7) if step == 6 or step % max(lag, 1) == 0)]
    held = {step: max(version for version in pushed if version <= step) for step in (0, 2, 4, 6)}
    assert [(row["step"], row["iteration"], row["weights_step"]) for row in world.rows] == [
        (step, step, version) for step, version in held.items()
    ]
    assert world.pipeline.evaluation is None
    assert ("delay" in world.rows[0]) == (beside != "none")


def test_none_waits_before_it_trains(tmp_path, monkeypatch):
    told = World(tmp_path, monkeypatch, "none").run()
    assert told[:6] == ["push 0", "ask 0", "row 0", "train 1", "train 2", "push 2"]


def test_an_engine_of_its_own_answers_while_the_others_take_new_weights(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch, "engine", turns=2, lag=1, iterations=5)
    told = world.run()
    assert told[:7] == ["push 0", "ask 0", "train 1", "push 1", "train 2", "push 2", "row 0"]
    assert told[-5:] == ["train 5", "push 5", "row 4", "ask 5", "row 5"]
    assert [row["delay"] for row in world.rows] == [2, 2, 1, 0]


def test_gaps_are_behind_the_next_batch_and_a_push_waits(tmp_path, monkeypatch):
    """An evaluation that takes long would last over the push, which it must not."""
    world = World(tmp_path, monkeypatch, "gaps", turns=100, lag=2)
    told = world.run()
    assert told[:7] == ["push 0", "ask 0", "train 1", "train 2", "row 0", "push 2", "ask 2"]
    assert [row["delay"] for row in world.rows] == [2, 2, 2, 0]


@pytest.mark.parametrize("beside, again", [("engine", "engine"), ("engine", "none"), ("gaps", "gaps")])
@pytest.mark.parametrize("written", [False, True], ids=["unwritten", "written"])
def test_a_checkpoint_keeps_an_evaluation_that_goes_on_and_its_weights(tmp_path, monkeypatch, beside, again, written):
    world = World(tmp_path, monkeypatch, beside, turns=100, lag=1 if beside == "engine" else 3, iterations=9)
    original = world.start_train

    def interrupted(batch, dump):
        world.interruption.asked = world.trained == 3 - 1
        return original(batch, dump)

    world.start_train = interrupted
    world.run()
    assert world.told[-1] in ("train 3", "push 3")
    assert world.pipeline.iteration == 3, "it does not wait for what goes on"
    if beside == "gaps":  # the push after iteration 3 has waited for it
        assert world.rows[-1]["step"] == 2 and checkpoint.newest_whole(tmp_path / "checkpoints").state.evaluation == []
        return
    saved = checkpoint.newest_whole(tmp_path / "checkpoints")
    assert saved.state.evaluation == [2, 2, 2]
    assert (saved.path / "weights" / "v000002").is_dir()
    if written:
        world.pipeline._finish_evaluation()
    resumed = World(tmp_path, monkeypatch, again, turns=100, lag=1, iterations=9)
    resumed.pipeline._restore(saved)
    begins = "the evaluation after iteration 2, which had not finished, begins again"
    first = {True: [], False: [begins, "ask 2"] if again == "engine" else [begins, "push 2", "ask 2", "row 2"]}
    assert resumed.told == [*first[written], "push 3"]
    resumed.trained = resumed.pipeline.updates
    resumed.pipeline._loop()
    steps = [row["step"] for row in [*world.rows, *resumed.rows]]
    assert steps == [0, 2, 4, 6, 8, 9]


@pytest.mark.parametrize("beside", ALL)
def test_a_signal_in_the_last_evaluation_costs_neither_its_row_nor_the_checkpoint(tmp_path, monkeypatch, beside):
    world = World(tmp_path, monkeypatch, beside, turns=100)
    original = world.collect

    def interrupted(futures, iteration, *arguments):
        if world.trained == 6 and not world.interruption.asked:
            world.interruption.handle(2, None)
        return original(futures, iteration, *arguments)

    world.collect = interrupted
    world.run()
    assert world.interruption.asked and world.rows[-1]["step"] == 6
    assert checkpoint.newest_whole(tmp_path / "checkpoints").state.iteration == 6
