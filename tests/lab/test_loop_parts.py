"""The loop with stand-ins for trainer and engines: when weights are pushed, evaluated, saved, and what is said."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("httpx", reason="the lab runtime needs the engines: scripts/setup.sh")

from made_up_batch import CONFIG, make_batch

from sat_slime import lab
from sat_slime.config.jsonl import to_json
from sat_slime.config.schema import LabConfig
from sat_slime.lab import checkpoint, loop
from sat_slime.lab.batch import Grader, RolloutBatch, StepResult
from sat_slime.lab.failures import PartFailure
from sat_slime.lab.initial_model import cached_model, initial_faults, model_checksums
from sat_slime.lab.loop import ACKNOWLEDGED, ONE_ACT_S, BatchPipeline, Flight, Interruption, interruptible
from sat_slime.rollout.canary import EngineScores
from sat_slime.rollout.types import Response
from sat_slime.runs.log import RunLog

# ---------------------------------------------------------------------------------------------------------- evaluations


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
        monkeypatch.setattr(loop.Evaluation, "answered", answered)
        monkeypatch.setattr(loop, "step_row", lambda *args: {})
        monkeypatch.setattr(loop, "histogram_row", lambda *args: {})
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
@pytest.mark.parametrize("turns", [0, 2])
@pytest.mark.parametrize("lag", [0, 1, 3])
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


# -------------------------------------------------------------------------------------------------- faults and restarts


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
def logged(tmp_path):
    pipeline = BatchPipeline(CONFIG, tmp_path, Log(), None)
    pipeline.seconds, pipeline.versions = {"wait": 0.0}, [0]
    pipeline.grader = Grader(CONFIG.verifier, CONFIG.task)
    return pipeline


def engines(restarts, stats):
    """What the loop sees of engines: new restarts, one number each time that it asks, and responses with faults."""
    told = iter(restarts)
    faults = {"rejected": 0, "lost": 0, "resent": 0, **stats}
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


def test_a_restart_around_an_evaluation_is_in_its_row_and_in_the_log(logged):
    logged.iteration, logged.updates = 6, 6
    logged.engines = engines([1], {"lost": 64, "resent": 65, "rejected": 1, "rejected/nan": 1})
    logged._evaluate()
    ((kind, row),) = logged.log.rows
    assert kind == "eval" and counts(row) == [1, 1, 64, 65, 1] and (row["step"], row["n_samples"]) == (6, 12)
    assert logged.log.told == [
        (
            "warning",
            "evaluation after iteration 6: rollout faults, all responses asked for again: rejected 1, lost 64, "
            "resent 65, rejected/nan 1",
        ),
        ("warning", "evaluation after iteration 6: 1 server restart"),
    ]


def test_without_faults_the_counts_are_there_and_nothing_is_told(logged):
    logged.engines = engines([0, 0], {})
    logged._evaluate()
    batch = logged._collect(Flight(3, [], []))
    logged._record(batch, [StepResult({"step": 1, "lag/mean": 0}, {})])
    assert [counts(row) for _, row in logged.log.rows] == [[0, None, 0, 0, 0]] * 2
    assert logged.log.told == []


def test_restarts_between_rows_are_in_the_next_one(logged):
    logged.engines = engines([2, 0], {"lost": 3, "resent": 3})
    batch = logged._collect(Flight(3, [], []))
    logged.iteration = 4
    logged._record(batch, [StepResult({"step": 4, "lag/mean": 0}, {})])
    logged._evaluate()
    assert [(kind, counts(row)[2:]) for kind, row in logged.log.rows] == [("step", [3, 3, 2]), ("eval", [3, 3, 0])]
    assert ("warning", "iteration 4: 2 server restarts") in logged.log.told


# ---------------------------------------------------------------------------------------------------- the initial model


def write(folder, weights):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(weights)


@pytest.fixture
def fresh(tmp_path):
    return BatchPipeline(LabConfig(cache_dir=str(tmp_path / "cache")), tmp_path / "run", None, None)


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a run that began with the weights `first`."""
    write(tmp_path / "first", "first")
    initial = model_checksums(tmp_path / "first")
    state = checkpoint.LoopState(2, 2, weight_versions=[2], initial=initial)
    return checkpoint.Checkpoint(tmp_path, state)


def test_a_resumed_run_that_lost_its_model_takes_the_same_one_out_of_the_cache(fresh, saved):
    write(cached_model(fresh.config), "first")
    fresh._provide_initial_model(saved)
    assert initial_faults(saved, fresh.initial) == {}


@pytest.mark.parametrize("is_there", [True, False])
def test_another_one_is_not_taken(fresh, saved, is_there):
    """The other model is what another version of torch makes, now or when the cache was warmed up again."""
    cached = cached_model(fresh.config)
    if is_there:
        write(cached, "other")
    fresh._warm_up = lambda folder: write(folder, "other")
    told = f"the reference model that this run started with is lost: {cached} holds another one"
    with pytest.raises(ValueError) as error:
        fresh._provide_initial_model(saved)
    assert str(error.value) == f"{told}; put the old one back into {fresh.initial}, or start another run (--name X)"
    assert not fresh.initial.exists(), "so that a resume is told the same"


# --------------------------------------------------------------------------------------------------------- interruption


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_in_the_loop_the_first_one_asks_and_the_second_ends(clock, capfd):
    told = []
    with interruptible(told.append) as interruption:
        interruption.looping = True
        interruption.handle(signal.SIGTERM, None)
        clock[0] += ONE_ACT_S
        with pytest.raises(KeyboardInterrupt):
            interruption.handle(signal.SIGTERM, None)
    assert interruption.asked and told == [ACKNOWLEDGED]
    assert capfd.readouterr() == ("", ""), "a live view is on the screen"


def test_before_the_loop_one_ends_the_run_and_after_it_none_does(clock):
    with pytest.raises(KeyboardInterrupt):
        Interruption().handle(signal.SIGINT, None)
    Interruption(over=True).handle(signal.SIGINT, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_the_loop_interrupts_and_one_at_the_end_does_not(monkeypatch, tmp_path, number):
    steps = []

    class Run:
        iteration = 0

        def __init__(self, config, folder, log, interruption):
            self.interruption = interruption

        def run(self, resume):
            steps.append("began")
            if len(steps) == 1:
                os.kill(os.getpid(), number)
            self.interruption.over = True
            os.kill(os.getpid(), number)
            steps.append("ran")

    monkeypatch.setattr(loop, "BatchPipeline", Run)
    before, log = signal.getsignal(number), SimpleNamespace(message=lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        lab.run(LabConfig(), tmp_path, log)
    lab.run(LabConfig(), tmp_path, log)
    assert steps == ["began", "began", "ran"]
    assert signal.getsignal(number) is before


# ------------------------------------------------------------------------------------------------- the canary's verdict


TRAINER = np.linspace(-4, -1, 128)


def pushed(tmp_path, canary: str, version: str = "0") -> BatchPipeline:
    """A loop after the push of version 0, which its one engine took, and reports as `version`."""
    config = LabConfig.model_validate({"pipeline": {"canary": canary}})
    pipeline = BatchPipeline(config, tmp_path, mock.Mock(spec=RunLog), None)
    scores = {"rollout engine 0": EngineScores(TRAINER + 1e-4, version)}
    pipeline.engines = SimpleNamespace(start_score=mock.Mock(), scores=lambda futures: scores)
    pipeline.trainer = SimpleNamespace(score=lambda responses: TRAINER)
    pipeline._check_engines(0)
    return pipeline


def test_warn_logs_the_engine_and_goes_on(tmp_path):
    pipeline = pushed(tmp_path, "warn", version="3")
    text, level = pipeline.log.message.call_args.args
    assert level == "warning" and text.startswith("canary: rollout engine 0 ")
    assert pipeline.canary_metrics["canary/faults"] == 1


def test_stop_ends_the_run_and_names_the_setting(tmp_path):
    with pytest.raises(PartFailure, match=r"rollout engine 0 says .*pipeline\.canary is stop; go on with --resume"):
        pushed(tmp_path, "stop", version="3")


@pytest.mark.parametrize("canary", ["warn", "stop"])
def test_a_push_that_passes_is_only_measured(canary, tmp_path):
    pipeline = pushed(tmp_path, canary)
    pipeline.log.message.assert_not_called()
    assert pipeline.canary_metrics["canary/d"] == pytest.approx(1e-4)
    assert pipeline.canary.levels == [pytest.approx(1e-4)]


def test_weights_that_an_engine_lost_are_found_before_the_next_push(tmp_path):
    pipeline = pushed(tmp_path, "warn")
    pipeline.engines.scores = lambda futures: {"rollout engine 0": EngineScores(TRAINER - 1, "0")}
    pipeline._check_engines_again()
    text, level = pipeline.log.message.call_args.args
    assert level == "warning" and "rollout engine 0 differs from the trainer by 1 nats" in text
    pipeline.engines.scores = lambda futures: {"rollout engine 0": EngineScores(TRAINER, "1")}
    pipeline._check_engines(1)
    assert pipeline.canary_metrics["canary/faults"] == 1


# --------------------------------------------------------------------------------------------------------------- saving


FULL = "SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)"


@pytest.fixture
def pipeline(tmp_path):
    log = mock.Mock(spec=RunLog)
    pipeline = BatchPipeline(LabConfig(), tmp_path, log, None)
    pipeline.versions = [0]
    (tmp_path / "weights" / "v000000").mkdir(parents=True)
    (tmp_path / "weights" / "v000000" / "model.safetensors").write_bytes(b"x" * 10_000)
    return pipeline


def save(pipeline, iteration, error=None) -> str:
    def call(method, *arguments):
        if error:
            raise error

    pipeline.iteration, pipeline.trainer = iteration, SimpleNamespace(call=call)
    if error is None:
        pipeline._save()
        return ""
    with pytest.raises(PartFailure if "killed" in str(error) else OSError) as caught:
        pipeline._save()
    assert [path.name for path in pipeline.checkpoints.iterdir()] == (["iteration-000004"] if iteration > 4 else [])
    return str(caught.value)


def test_a_trainer_that_died_is_not_a_full_disk(pipeline):
    died = PartFailure("trainer (process 7) was killed by SIGKILL")
    told = save(pipeline, 4, died)
    assert (
        told == f"{died}; so the checkpoint of iteration 4 is not saved, there is no earlier one: go on with --resume"
    )
    save(pipeline, 4)
    told = save(pipeline, 8, died)
    assert told.endswith(
        "; so the checkpoint of iteration 8 is not saved, iteration-000004 is whole: go on with --resume"
    )
    assert "space" not in told


@pytest.mark.parametrize("error", [PartFailure(f"trainer: {FULL}"), OSError(28, "No space left on device")])
def test_a_full_disk_is_said_with_its_path_and_remedy(pipeline, error):
    save(pipeline, 4)
    assert save(pipeline, 8, error) == (
        f"checkpoint of iteration 8 not saved: [Errno 28] No space left on device: '{pipeline.checkpoints}'; "
        "iteration-000004 is whole: free space and go on with --resume"
    )


def test_a_signal_in_the_last_checkpoint_does_not_cost_it(pipeline):
    interruption = pipeline.interruption = Interruption()
    pipeline.iteration = pipeline.config.pipeline.iterations - 1
    pipeline.log.stop_reason.return_value = "the score fell"
    saved = []

    def save():
        interruption.handle(signal.SIGINT, None)
        saved.append(pipeline.iteration)

    pipeline._save = save
    began = pipeline.iteration
    pipeline._finish_evaluation = lambda: setattr(pipeline, "iteration", began + 1)  # so that a checkpoint is due
    pipeline._loop()
    interruption.handle(signal.SIGINT, None)
    assert saved == [began + 1]


def no_room_for_copies(monkeypatch):
    def copytree(source, target):
        raise shutil.Error(
            [(str(source), str(target), f"[Errno 28] No space left on device: '{source}' -> '{target}'")]
        )

    monkeypatch.setattr(shutil, "copytree", mock.create_autospec(shutil.copytree, side_effect=copytree))


def test_an_initial_model_that_does_not_fit_names_its_folder(pipeline, monkeypatch):
    monkeypatch.setattr(loop, "is_model", lambda folder: True)
    no_room_for_copies(monkeypatch)
    with pytest.raises(OSError, match=rf"\[Errno 28\] No space left on device: '{pipeline.initial}'$"):
        pipeline._provide_initial_model(None)
