"""The loop of a run: its trainer, its engine, and where it stands.

An iteration takes a batch, trains on it and, where they are due, broadcasts weights, evaluates and saves. `Pipeline` is
the loop of mode batch; in `StreamingPipeline` a batch comes out of a stream, and groups complete beside training.
"""

from __future__ import annotations

import _thread
import math
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sat_slime.config.disk import disk_is_full, naming, written_whole
from sat_slime.config.schema import LabConfig
from sat_slime.lab import checkpoint
from sat_slime.lab.batch import (
    RolloutBatch,
    evaluation_requests,
    evaluation_row,
    is_due,
    sample_rows,
    training_group,
    training_requests,
)
from sat_slime.lab.checkpoint import Checkpoint
from sat_slime.lab.engine import Engine, Generation
from sat_slime.lab.initial_model import cached_model, is_model
from sat_slime.lab.process import PartFailure, TrainerProcess
from sat_slime.rollout.canary import Canary, canary_sequences
from sat_slime.rollout.stream import Group, StalenessBound, Stream, StreamState
from sat_slime.runs.saved import set_aside
from sat_slime.tasks.running_sums import Problem

if TYPE_CHECKING:
    from sat_slime.runs.log import RunLog

CANARY_TOKENS = 32
"""Tokens of a canary's sequence."""
ONE_ACT_S = 1.0
"""Signals within these seconds are one wish to end: `pkill` reaches the driver directly and through the launcher."""
ACKNOWLEDGED = "stopping after this iteration and a checkpoint; a second Ctrl-C stops at once, without one"


@dataclass
class Interruption:
    """What Ctrl-C, SIGTERM and SIGHUP have asked for.

    While the loop runs, the first signal asks for an end after the iteration, which saves. Before the loop any signal
    ends the run at once, and so does a second one. After the loop they change nothing.
    """

    acknowledge: Callable[[str], object]
    """Is given the answer to the signal that asks for an end after the iteration."""
    asked: bool = False
    """The run is to end after the iteration."""
    looping: bool = False
    over: bool = False
    _asked_at: float = -math.inf

    def handle(self, number: int, frame: Any) -> None:
        """Be the handler of these signals."""
        now = time.monotonic()
        if self.over or now - self._asked_at < ONE_ACT_S:
            return
        self._asked_at = now
        again, self.asked = self.asked, True
        if again or not self.looping:
            raise KeyboardInterrupt
        # From a thread: what this handler has interrupted may hold the log's lock.
        _thread.start_new_thread(self.acknowledge, (ACKNOWLEDGED,))


class Pipeline:
    """One run: its trainer, its engine, and where it stands. In mode batch one batch is generated ahead, and weights
    are broadcast every n-th iteration.

    The order is that of slime's train_async.py. Batch r + 1 is being generated while batch r is trained; before a
    broadcast the generation in flight is awaited, so weights never change under a response. With n = `pipeline.lag`,
    batch r comes from the weights of the last broadcast before the training of r - 1 began: its lag cycles 1, 2, ...,
    n. Lag 0 is the synchronous loop: generate, train, broadcast.
    """

    def __init__(self, config: LabConfig, folder: Path, log: RunLog, interruption: Interruption) -> None:
        self.config = config
        self.folder = folder
        self.log = log
        self.interruption = interruption
        self.checkpoints = folder / "checkpoints"
        self.initial = folder / "initial"
        self.weights = folder / "weights"
        self.log_dir = folder / "logs"
        self.iteration = 0
        """Iterations trained."""
        self.updates = 0
        """Optimizer updates made."""
        self.versions: list[int] = []
        """Versions of the broadcast weights that are still in use; the engine holds the last."""
        self.seconds = dict.fromkeys(("wait", "train", "sync"), 0.0)
        """How long the parts of the current iteration took; `wait` adds up all waits for a rollout."""
        self.metrics: dict[str, float] = {}
        """What the current iteration reports besides its batch and its steps."""
        self.flight: tuple[int, list[Problem], Future[Generation]] | None = None
        """Mode batch: the iteration and the problems of the batch that is being generated."""
        self.ahead: RolloutBatch | None = None
        """Mode batch: the graded batch that was generated and is not trained yet."""
        exact = config.train.dtype == config.rollout.dtype == "float32"
        self.canary = Canary("float32" if exact else "bfloat16")
        """The check of each push."""
        self.canary_metrics: dict[str, float] = {}
        """Its numbers that no row has told yet."""

    def run(self, saved: Checkpoint | None) -> None:
        """Brings up the trainer and the engine, runs the loop to its end, and ends them, however it ends. saved: the
        checkpoint to go on from; None: the run begins. Raises as `lab.run`."""
        if saved is None:
            self._provide_initial_model()
        self.log.status(phase="starting")
        with ExitStack() as parts:
            self.trainer = parts.enter_context(closing(TrainerProcess(self.config, self.log_dir / "trainer.log")))
            self.engine = parts.enter_context(closing(Engine(self.config, self.log_dir)))
            parts.callback(self.log.status, phase="stopping")
            if saved:
                self._restore(saved)
            else:
                self._begin()
            self._loop()

    # ------------------------------------------------------------------------------------------------ start

    def _provide_initial_model(self) -> None:
        """Copies the initial model, the KL's reference too, into the run: a cache may go away. Raises OSError."""
        cached = cached_model(self.config)
        try:
            if not is_model(cached):
                self._warm_up(cached)
            with naming(self.initial), written_whole(self.initial) as part:
                shutil.copytree(cached, part, dirs_exist_ok=True)
        except OSError as error:
            raise OSError(
                f"the initial model cannot be made in cache_dir {self.config.cache_dir} or copied to {self.initial}: "
                f"{error}"
            ) from error

    def _warm_up(self, cached: Path) -> None:
        self.log.status(phase="warm-up")
        self.log.message(f"warming up the initial model, once for this model and task ({cached})")
        started = time.monotonic()
        cached.parent.mkdir(parents=True, exist_ok=True)
        with naming(cached), closing(TrainerProcess(self.config, self.log_dir / "warm-up.log", "warm-up")) as process:
            while (steps := process.call("warm_up", cached)) is not None:
                self.log.status(phase="warm-up", done=steps, of=self.config.warmup.steps)
        self.log.message(f"warm-up took {time.monotonic() - started:.0f} s")

    def _begin(self) -> None:
        self._forget_after(0, updates=-1)
        loading = self.trainer.start("load_initial", self.initial)
        self.engine.start(self.initial)
        loading.result()
        self._broadcast()
        self._evaluate()

    def _restore(self, saved: Checkpoint) -> None:
        state, path = saved.state, saved.path.resolve()
        self.log.message(f"resuming from {path.name}: {state.iteration} iterations, {state.updates} optimizer steps")
        self._forget_after(state.iteration, state.updates)
        with naming(self.weights):
            shutil.copytree(path / "weights", self.weights)
        generating = {version: self._weights_folder(version) for version in state.weight_versions}
        loading = self.trainer.start("load", path, state.updates, self.initial, generating)
        self.engine.start(self.initial)
        loading.result()
        self.iteration, self.updates, self.versions = state.iteration, state.updates, state.weight_versions
        self.canary.levels = state.canary
        self._take_up(state)
        self.engine.update_weights(self._weights_folder(self.versions[-1]), self.versions[-1])
        if self.config.pipeline.canary != "none" and self.versions[-1] == self.updates:
            self._check_engine(self.updates)  # the trainer has no other weights to score with

    def _forget_after(self, iteration: int, updates: int) -> None:
        """Drops what the run wrote after `iteration`, from which it goes on."""
        # Newer checkpoints first: if the rest is interrupted, the next resume still does not take them.
        for path in set_aside(checkpoint.numbered(self.checkpoints), after=iteration):
            self.log.message(f"a checkpoint that is not gone on from is now {path}", "warning")
        self.log.rewind(updates, iteration)
        shutil.rmtree(self.weights, ignore_errors=True)

    def _loop(self) -> None:
        """Iterates until the run is complete or interrupted."""
        config = self.config
        lag, total = config.pipeline.lag, config.pipeline.iterations
        saved = self.iteration
        self.interruption.looping = True
        while self.iteration < total and not self.interruption.asked:
            self.seconds = dict.fromkeys(("wait", "train", "sync"), 0.0)
            started = time.monotonic()
            batch = self._next_batch()
            self.log.status(phase="training", iteration=self.iteration + 1)
            with self._timing("train"):
                steps = self._train(batch)
            self.iteration += 1
            self.updates += len(steps)

            ends = self.iteration == total
            broadcasts = ends or self.iteration % max(lag, 1) == 0
            evaluates = ends or is_due(self.iteration, config.eval.every_n_iterations)
            saves = is_due(self.iteration, config.checkpoint.every_n_iterations)
            if broadcasts or saves or evaluates:
                self._settle()
            if broadcasts:
                with self._timing("sync"):
                    self._broadcast()
            self.seconds["step"] = time.monotonic() - started
            self._record(batch, steps)
            if evaluates:
                self._evaluate()
            if saves:
                self._save()
                saved = self.iteration
        if saved != self.iteration:
            self._save()
        self.interruption.over = True  # not before: a signal in the last evaluation must not cost the checkpoint

    @contextmanager
    def _timing(self, part: str) -> Iterator[None]:
        """Adds the time that the block takes to a part of the iteration's seconds."""
        started = time.monotonic()
        yield
        self.seconds[part] += time.monotonic() - started

    def _weights_folder(self, version: int) -> Path:
        return self.weights / f"v{version:06d}"

    def _broadcast(self) -> None:
        """Gives the current weights to the engine; their version is the number of optimizer updates."""
        self.log.status(phase="broadcasting weights")
        folder = self._weights_folder(self.updates)
        with naming(folder):
            version = self.trainer.call("export_weights", folder)
        self.engine.update_weights(folder, version)
        if self.config.pipeline.canary != "none":
            self._check_engine(version)
        self.versions = [*self.versions, version][-self.config.pipeline.weights_in_use :]
        in_use = {self._weights_folder(version).name for version in self.versions}
        for path in self.weights.iterdir():
            if path.name not in in_use:
                shutil.rmtree(path, ignore_errors=True)

    def _check_engine(self, version: int) -> None:
        """Has the engine and the trainer, which has the weights that were just pushed, score the canary's sequences.
        Raises PartFailure where the engine does not hold them or cannot be asked, and `pipeline.canary` is stop."""
        config = self.config
        sequences = canary_sequences(config.task.vocab_size, min(CANARY_TOKENS, config.model.max_positions))
        trainer = self.trainer.start("score_canary", sequences)
        try:
            scores = self.engine.score(sequences)
        except PartFailure as error:
            trainer.result()
            fault, metrics = f"canary: {error}", {"canary/faults": 1.0}
        else:
            verdict = self.canary.check(version, trainer.result(), {"the engine": scores})
            fault, metrics = verdict.message if verdict.faults else "", verdict.metrics
        if fault and config.pipeline.canary == "stop":
            raise PartFailure(f"{fault} (pipeline.canary is stop; go on with --resume)")
        if fault:
            self.log.message(fault, "warning")
        untold = self.canary_metrics.get("canary/faults", 0.0)
        self.canary_metrics = metrics | {"canary/faults": metrics["canary/faults"] + untold}

    # ------------------------------------------------------------------------------------- record, measure, save

    def _record(self, batch: RolloutBatch, steps: list[dict[str, float]]) -> None:
        of_all = {
            "rollout_id": batch.iteration,
            "iteration": self.iteration,
            **batch.metrics(),
            "time/rollout": batch.seconds,
            **{f"time/{part}": value for part, value in self.seconds.items()},
            **self.metrics,
        }
        for metrics in steps:
            pushed = self.canary_metrics if metrics is steps[-1] else {}  # the push was after the last
            self.log.step(metrics | of_all | pushed)
        self.canary_metrics = {}
        if is_due(self.iteration, self.config.logging.samples_every_n_iterations):
            self.log.samples(self.iteration, sample_rows(batch))

    def _evaluate(self) -> None:
        """Measures the weights that the engine holds, which may lag the trainer, on held-out problems."""
        config = self.config
        if not config.eval.every_n_iterations:
            return
        self.log.status(phase="evaluating")
        scores = config.eval.final if self.iteration == config.pipeline.iterations else config.eval
        problems, requests = evaluation_requests(config, self.updates, scores.repeats)
        batch = self._generated(self.iteration, problems, self.engine.generate(requests).result())
        self.log.eval(evaluation_row(batch, scores, self.updates, self.iteration))

    def _save(self) -> None:
        """Saves a checkpoint between two iterations, with what is generated ahead."""
        self._settle()
        self.log.status(phase="saving a checkpoint")
        state = checkpoint.LoopState(
            self.iteration,
            self.updates,
            self.versions,
            canary=self.canary.levels,
            **self._on_the_way(),
            **checkpoint.made_with(self.config, self.iteration),
        )
        try:
            with naming(self.checkpoints), checkpoint.writing(self.checkpoints, state) as part:
                for version in self.versions:
                    source = self._weights_folder(version)
                    shutil.copytree(source, part / "weights" / source.name)
                self.trainer.call("save", part)
        except Exception as error:
            raise self._not_saved(error) from error
        checkpoint.prune(self.checkpoints, self.config.checkpoint.keep)
        self.log.message(f"checkpoint of iteration {self.iteration} saved")

    def _not_saved(self, error: Exception) -> Exception:
        """Return the error of a checkpoint that could not be written, with the one that the run can go on from."""
        kept = checkpoint.newest(self.checkpoints)
        whole = f"{kept.name} is whole" if kept else "there is no earlier one"
        if isinstance(error, PartFailure):
            return PartFailure(
                f"{error}; so the checkpoint of iteration {self.iteration} is not saved, {whole}: go on with --resume"
            )
        remedy = "free space and go on" if disk_is_full(error) else "go on"
        return OSError(f"checkpoint of iteration {self.iteration} not saved: {error}; {whole}: {remedy} with --resume")

    # ---------------------------------------------------------------------------- what mode streaming does otherwise

    def _next_batch(self) -> RolloutBatch:
        """Collects batch r, and launches r + 1 where the run has one."""
        if self.ahead is None and self.flight is None:
            self._launch(self.iteration)
        self._settle()
        batch, self.ahead = self.ahead, None
        assert batch is not None, "the flight brought it"
        if self.config.pipeline.lag and self.iteration + 1 < self.config.pipeline.iterations:
            self._launch(self.iteration + 1)
        return batch

    def _train(self, batch: RolloutBatch) -> list[dict[str, float]]:
        """Trains on the batch; returns the metrics of each step."""
        iteration = self.iteration + 1
        every_step = is_due(iteration, self.config.dump.every_n_iterations)
        dump = self.folder / "dumps" / f"{iteration}.pt"
        training = self.trainer.start("train", batch.graded(), dump, every_step)
        self._meanwhile(training)
        return training.result()

    def _meanwhile(self, training: Future[Any]) -> None:
        """Does what is done beside training: nothing."""

    def _settle(self) -> None:
        """Waits for the batch in flight before weights change, are measured or are saved."""
        if self.flight is None:
            return
        iteration, problems, generating = self.flight
        self.log.status(phase="waiting for the rollout")
        with self._timing("wait"):
            generation = generating.result()
        self.flight, self.ahead = None, self._generated(iteration, problems, generation)

    def _launch(self, iteration: int) -> None:
        problems, requests = training_requests(self.config, iteration)
        self.flight = iteration, problems, self.engine.generate(requests)

    def _generated(self, iteration: int, problems: list[Problem], generation: Generation) -> RolloutBatch:
        """Return the graded batch of a generation that has ended."""
        return RolloutBatch(self.config.task, iteration, problems, *generation).judged()

    def _on_the_way(self) -> dict[str, Any]:
        """Return what a checkpoint tells of the responses that were generated ahead: a resume generates them again."""
        return {"ahead": self.ahead.oldest if self.ahead else None}

    def _take_up(self, state: checkpoint.LoopState) -> None:
        """Generates again what was generated ahead, before the engine has its newest weights."""
        if state.ahead is not None:
            self.engine.update_weights(self._weights_folder(state.ahead), state.ahead)
            self._launch(self.iteration)
            self._settle()


class StreamingPipeline(Pipeline):
    """Mode streaming, the paper's full asynchrony: responses stream into a queue, and weights change meanwhile.

    `Stream` says which groups begin, wait and are trained; here the engine generates them. A broadcast interrupts the
    groups in generation, which go on under the new weights.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        pipeline, rollout = self.config.pipeline, self.config.rollout
        self.stream: Stream[int, RolloutBatch] = Stream(
            StalenessBound(pipeline.max_staleness, pipeline.optimizer_steps_per_rollout, rollout.prompts_per_iteration),
            pipeline.iterations,
            draw=lambda number: number,
            queue=pipeline.queue_prompts,
            over_age=pipeline.over_age,
        )
        """Groups by the number of their prompt, which follows from the run's seed; the result of each is a batch."""
        self.futures: dict[Future[Any], tuple[Group[int, RolloutBatch], list[Problem]]] = {}
        """Group and problem of each generation."""

    def _begin_groups(self) -> None:
        """Begins as many groups as engine and stream have room for."""
        self.stream.version = self.versions[-1]
        # The server decodes as much as it can side by side even when all groups lack a single response.
        most = min(self.config.rollout.max_running_requests, self.config.pipeline.queue_prompts)
        while len(self.futures) < most and (group := self.stream.begin()):
            problems, requests = training_group(self.config, group.prompt)
            self.futures[self.engine.generate(requests)] = group, problems

    def _take(self) -> None:
        """Moves complete groups into the queue, and begins others."""
        for future in [future for future in self.futures if future.done()]:
            group, problems = self.futures.pop(future)
            batch = RolloutBatch(self.config.task, group.prompt, problems, *future.result())
            self.stream.complete(group, batch, batch.lengths.ravel().tolist(), batch.oldest)
        self._begin_groups()

    # ------------------------------------------------------------------------ what it does otherwise than mode batch

    def _next_batch(self) -> RolloutBatch:
        """Takes the groups of the next rollout once they are complete."""
        self.log.status(phase="waiting for the rollout")
        with self._timing("wait"):
            self._take()
            while (groups := self.stream.take()) is None:
                assert self.futures, "nothing is waited for, for good"
                futures.wait(self.futures, return_when=futures.FIRST_COMPLETED)
                self._take()
        self._begin_groups()
        parts = [group.result for group in groups if group.result is not None]
        batch = RolloutBatch(
            self.config.task,
            self.iteration,
            [problem for part in parts for problem in part.problems],
            [response for part in parts for response in part.responses],
            max(part.seconds for part in parts),
        ).judged()
        self.metrics = self.stream.report()
        return batch

    def _meanwhile(self, training: Future[Any]) -> None:
        """Begins new groups as others complete."""
        while not training.done():
            futures.wait([training, *self.futures], return_when=futures.FIRST_COMPLETED)
            self._take()

    def _settle(self) -> None:
        """Waits for nothing: weights may change under what is in generation."""

    def _on_the_way(self) -> dict[str, Any]:
        state = self.stream.freeze(self.iteration - 1)
        self.stream.thaw()
        prompts = [*(group.prompt for group in state.waiting), *state.unfinished]
        counts = {name: getattr(state, name) for name in ("drawn", "finished", "dropped", "aborted")}
        return {"stream": {"unfinished": prompts, **counts}}

    def _take_up(self, state: checkpoint.LoopState) -> None:
        self.stream.restore(StreamState(**state.stream), self.iteration)
