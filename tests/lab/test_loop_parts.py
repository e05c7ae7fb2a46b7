"""The loop with stand-ins for trainer and engines: when weights are pushed, evaluated, saved, and what is said."""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from concurrent.futures import Future
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("httpx", reason="the lab runtime needs the engines: scripts/setup.sh")

from sat_slime import lab
from sat_slime.config.schema import LabConfig
from sat_slime.lab import loop
from sat_slime.lab.batch import lag_metrics
from sat_slime.lab.checkpoint import LoopState
from sat_slime.lab.loop import ACKNOWLEDGED, ONE_ACT_S, Interruption, Pipeline, StreamingPipeline
from sat_slime.lab.process import PartFailure
from sat_slime.lab.responses import Response
from sat_slime.rollout.canary import EngineScores
from sat_slime.runs.log import RunLog

# -------------------------------------------------------------------------------------------- pushes and evaluations


class World:
    """Trainer, engines and log as the loop sees them. `told` is what happened, in order, `rows` what was recorded."""

    def __init__(self, tmp_path, **pipeline) -> None:
        self.told: list[str] = []
        self.rows: list[dict] = []
        self.warned: list[str] = []
        self.trained, self.held, self.steps = 0, 0, 1
        self.config = LabConfig(
            pipeline={"lag": 2, "iterations": 6} | pipeline,
            rollout={"prompts_per_iteration": 2, "samples_per_prompt": 2},
            eval={"every_n_iterations": 2, "problems": 2, "samples_per_problem": 1},
            checkpoint={"every_n_iterations": 0},
            logging={"samples_every_n_iterations": 0},
        )
        self.pipeline = Pipeline(self.config, tmp_path, self, Interruption(self.told.append))
        self.pipeline.trainer = self.pipeline.engine = self

    def __getattr__(self, name):
        return lambda *args, **fields: None

    def step(self, row):
        self.rows.append(row)

    def eval(self, row):
        self.rows.append(row)
        self.told.append(f"evaluation {row['step']} of {row['weights_step']}")

    def message(self, text, level="info"):
        if level == "warning":
            self.warned.append(text)

    def call(self, method, *arguments):
        return self.start(method, *arguments).result()

    def start(self, what, *arguments):  # a method of the trainer, or the engine
        made = getattr(self, str(what))(*arguments)
        return SimpleNamespace(result=lambda: made)

    def export_weights(self, folder):
        folder.mkdir(parents=True)
        return self.pipeline.updates

    def train(self, responses, dump, every_step):
        self.trained += 1
        self.told.append(f"train {self.trained}")
        return [{"step": self.trained} for _ in range(self.steps)]

    def update_weights(self, folder, version):
        assert folder.is_dir()
        self.held = version
        self.told.append(f"push {version}")

    def generate(self, requests):
        version, ids = self.held, self.config.task.encode("1$")
        versions, nothing = np.full(len(ids), version), np.zeros(len(ids), np.float32)
        responses = [Response(r.request_id, r.prompt_ids, ids, nothing, None, "stop", versions) for r in requests]

        def result():
            assert self.held == version, "weights changed under a response"
            return responses, 1.0

        return SimpleNamespace(result=result)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_push_waits_for_responses_and_an_evaluation_is_of_the_weights_that_are_held(tmp_path, lag):
    world = World(tmp_path, lag=lag)
    world.pipeline._begin()
    world.pipeline._loop()
    expected, held = ["push 0", "evaluation 0 of 0"], 0
    for step in range(1, 7):
        expected.append(f"train {step}")
        if step == 6 or step % max(lag, 1) == 0:
            held = step
            expected.append(f"push {step}")
        if step % 2 == 0:
            expected.append(f"evaluation {step} of {held}")
    assert world.told == expected


@pytest.mark.parametrize(("canary", "steps"), [("warn", 1), ("warn", 2), ("stop", 1)])
def test_a_push_that_an_engine_did_not_take_is_told_or_ends_the_run(tmp_path, canary, steps):
    """The second push is not taken, at the third the engine cannot be asked: each is a fault of the step before it."""
    world = World(tmp_path, iterations=3, lag=1, canary=canary)
    world.steps, log_probs, says = steps, np.linspace(-4, -1, 128), iter("01?3")
    world.score_canary = lambda sequences: log_probs

    def score(sequences):
        if (version := next(says)) == "?":
            raise PartFailure("its answer cannot be read")
        return EngineScores(log_probs + 1e-4, "0" if version == "1" else str(int(version) * steps))

    world.score = score
    world.pipeline._begin()
    if canary == "stop":
        with pytest.raises(PartFailure, match=r"the engine says .* version 0, not 1.*; go on with --resume"):
            world.pipeline._loop()
        assert world.pipeline.canary.levels == [pytest.approx(1e-4)]
    else:
        world.pipeline._loop()
        assert world.warned[0].startswith(f"canary: the engine says that it holds version 0, not {steps}")
        assert world.warned[1:] == ["canary: its answer cannot be read"]
        rows = [row for row in world.rows if "iteration" in row and "accuracy" not in row]
        assert [row.get("canary/faults") for row in rows] == [x for n in (1, 1, 0) for x in [*[None] * (steps - 1), n]]


# --------------------------------------------------------------------------------------------------------- interruption


def test_in_the_loop_the_first_signal_asks_and_the_second_ends(monkeypatch):
    now, answered = [1000.0], queue.Queue()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    interruption = Interruption(answered.put, looping=True)
    interruption.handle(signal.SIGTERM, None)
    assert interruption.asked and answered.get() == ACKNOWLEDGED
    interruption.handle(signal.SIGTERM, None)  # the same wish, by another way
    now[0] += ONE_ACT_S
    with pytest.raises(KeyboardInterrupt):
        interruption.handle(signal.SIGTERM, None)


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

    monkeypatch.setattr(loop, "Pipeline", Run)
    before, log = signal.getsignal(number), SimpleNamespace(message=lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        lab.run(LabConfig(), tmp_path, log)
    lab.run(LabConfig(), tmp_path, log)
    assert steps == ["began", "began", "ran"]
    assert signal.getsignal(number) is before


# --------------------------------------------------------------------------------------------------------------- saving


@pytest.fixture
def pipeline(tmp_path):
    pipeline = Pipeline(LabConfig(), tmp_path, mock.Mock(spec=RunLog), None)
    pipeline.versions, pipeline.trainer = [0], mock.Mock()
    (tmp_path / "weights" / "v000000").mkdir(parents=True)
    (tmp_path / "weights" / "v000000" / "model.safetensors").write_bytes(b"x" * 10_000)
    return pipeline


DIED = "trainer (process 7) was killed by SIGKILL"
SAID = "trainer: SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)"
FULL = "[Errno 28] No space left on device"


@pytest.mark.parametrize("saved", [4, 0])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PartFailure(DIED), f"{DIED}; so the checkpoint of iteration 8 is not saved, WHOLE: go on with --resume"),
        (PartFailure(SAID), "of iteration 8 not saved: FULL; WHOLE: free space and go on with --resume"),
        (OSError(28, FULL[11:]), "of iteration 8 not saved: FULL; WHOLE: free space and go on with --resume"),
    ],
)
def test_a_checkpoint_that_cannot_be_saved_says_why_and_which_one_is_whole(pipeline, saved, error, told):
    if saved:
        pipeline.iteration = saved
        pipeline._save()
    pipeline.iteration, pipeline.trainer.call.side_effect = 8, error
    with pytest.raises(PartFailure if DIED in told else OSError) as failure:
        pipeline._save()
    assert [path.name for path in pipeline.checkpoints.iterdir()] == (["iteration-000004"] if saved else [])
    whole = "iteration-000004 is whole" if saved else "there is no earlier one"
    expected = told.replace("WHOLE", whole).replace("FULL", f"{FULL}: '{pipeline.checkpoints}'")
    assert str(failure.value).endswith(expected)


def test_a_signal_in_the_last_checkpoint_does_not_cost_it(pipeline):
    interruption = pipeline.interruption = Interruption(print)
    last, saved = pipeline.config.pipeline.iterations, []
    pipeline.iteration = last - 1

    def save():
        interruption.handle(signal.SIGINT, None)
        saved.append(pipeline.iteration)

    for name in ("_next_batch", "_settle", "_broadcast", "_record", "_evaluate"):
        setattr(pipeline, name, lambda *_: None)
    pipeline._train, pipeline._save = lambda *_: [], save
    pipeline._loop()
    interruption.handle(signal.SIGINT, None)
    assert saved == [last]


# --------------------------------------------------------------------------------------------------------- streaming

PROMPTS, SAMPLES, LONGEST = 4, 2, 8


def streaming_config(**pipeline) -> LabConfig:
    settings = {"mode": "streaming", "lag": 1, "iterations": 6, "max_staleness": 2, "queue_prompts": 8}
    rollout = {"prompts_per_iteration": PROMPTS, "samples_per_prompt": SAMPLES, "max_response_tokens": LONGEST}
    return LabConfig(pipeline=settings | pipeline, rollout=rollout)


class Streamed:
    """Engine and trainer as the pipeline sees them. A group takes as many turns as its number says, training one."""

    def __init__(self, monkeypatch, turns) -> None:
        self.turns, self.now, self.version = turns, 0, 0
        self.due: dict[Future, tuple[int, tuple]] = {}
        monkeypatch.setattr(loop.futures, "wait", self.wait)

    def generate(self, requests):
        _, iteration, place, _ = requests[0].request_id.split("-")
        number = int(iteration) * PROMPTS + int(place)
        return self.after(int(self.turns[number]), number, requests, self.version)

    def start(self, *_):
        return self.after(1)

    def after(self, turns, *of):
        self.due[future := Future()] = self.now + turns, of
        return future

    def wait(self, waiting, return_when):
        self.now = max(self.now, min(self.due[future][0] for future in waiting))
        for future in waiting:
            if self.due[future][0] <= self.now and not future.done():
                future.set_result(self.result(*self.due[future][1]))

    def result(self, number=0, requests=(), begun=0):
        """Of a group: the first half under the weights at its start, the second under those at its end."""
        length = 1 + number % LONGEST
        versions = np.array([begun] * -(-length // 2) + [self.version] * (length // 2))
        zeros = np.zeros(length, np.float32)
        responses = [
            Response(r.request_id, r.prompt_ids, (0,) * length, zeros, None, "length", versions) for r in requests
        ]
        return (responses, 1.0) if requests else [{}]


def make_pipeline(world, config, tmp_path) -> StreamingPipeline:
    log = SimpleNamespace(status=lambda **fields: None, message=lambda text, level="info": None)
    pipeline = StreamingPipeline(config, tmp_path, log, None)
    pipeline.seconds = {"wait": 0.0}
    pipeline.engine = pipeline.trainer = world
    pipeline.versions = [world.version]
    return pipeline


@pytest.mark.parametrize("over_age", ["drop", "wait"])
@pytest.mark.parametrize("seed", range(12))
def test_the_bound_holds_and_nothing_is_lost_over_any_resumes(monkeypatch, tmp_path, seed, over_age):
    """What the stream counts is in tests/rollout."""
    rng = np.random.default_rng([7, seed])
    lag, steps = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    staleness = lag * steps - 1 + int(rng.integers(0, 4))  # the least that is accepted, and more
    settings = {"lag": lag, "optimizer_steps_per_rollout": steps, "max_staleness": staleness, "over_age": over_age}
    config = streaming_config(**settings, iterations=20, queue_prompts=int(rng.integers(PROMPTS, 4 * PROMPTS)))
    world = Streamed(monkeypatch, turns=rng.integers(1, 2 + rng.integers(1, 9), size=1000))
    pipeline, trained, dropped, beside = make_pipeline(world, config, tmp_path), set(), 0, 0
    for _ in range(20):
        batch = pipeline._next_batch()
        assert lag_metrics(batch.responses, pipeline.updates + steps - 1)["lag/max"] <= staleness
        trained |= {response.request_id for response in batch.responses}
        dropped += int(pipeline.metrics["rollout/dropped"])
        beside -= len(pipeline.stream.waiting)
        assert pipeline._train(batch) == [{}]
        beside += len(pipeline.stream.waiting)
        pipeline.iteration += 1
        pipeline.updates += steps
        if pipeline.iteration % lag == 0:
            world.version = pipeline.updates
            pipeline.versions.append(world.version)
        if rng.random() < 0.4:
            saved = json.loads(json.dumps(pipeline._on_the_way()))
            before, pipeline = pipeline, make_pipeline(world, config, tmp_path)
            pipeline.iteration, pipeline.updates = before.iteration, before.updates
            pipeline._take_up(LoopState(before.iteration, before.updates, before.versions, **saved))
    assert len(trained) == 20 * PROMPTS * SAMPLES
    assert pipeline.stream.drawn * SAMPLES == len(trained) + dropped + len(pipeline.stream.dropped)
    assert beside or not staleness, "groups complete while a step is trained"
    assert over_age == "drop" or not dropped
