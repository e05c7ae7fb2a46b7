"""The asynchronous loop: generate one batch ahead, train, broadcast every n-th iteration.

The order is that of slime's train_async.py. Batch r + 1 is being generated while batch r is trained; before a broadcast
the generation in flight is awaited, so weights never change under a response. With n = `pipeline.lag`, batch r comes
from the weights of the last broadcast before the training of r - 1 began: its lag cycles 1, 2, ..., n. Lag 0 is the
synchronous loop: generate, train, broadcast.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sat_slime.config.disk import disk_is_full, naming
from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded import checkpoint, task
from sat_slime.embedded.batch import RolloutBatch, StepResult, evaluation_requests, training_requests
from sat_slime.embedded.checkpoint import Checkpoint
from sat_slime.embedded.cluster import ActorFailure, EngineGroup, TrainerGroup, local_ray, warm_up_model
from sat_slime.embedded.grading import Grader
from sat_slime.embedded.initial_model import cached_model, is_model
from sat_slime.embedded.recording import evaluation_row, histogram_row, sample_rows, step_row, token_dump
from sat_slime.rollout.token_dump import dump_path, forget_dumps, write_dump


class RunLog(Protocol):
    """What the loop tells while it runs; see experiment.run_log for the one that writes the run folder."""

    def step(self, metrics: dict[str, Any]) -> None: ...
    def eval(self, metrics: dict[str, Any]) -> None: ...
    def histogram(self, row: dict[str, Any]) -> None: ...
    def samples(self, iteration: int, rows: list[dict[str, Any]]) -> None: ...
    def status(self, **fields: Any) -> None: ...
    def message(self, text: str, level: str = "info") -> None: ...
    def rewind(self, step: int) -> None: ...
    def stop_reason(self) -> str | None: ...


@dataclass
class Flight:
    """A batch being generated, or generated already."""

    iteration: int
    problems: list[task.Problem]
    futures: list[Any]
    batch: RolloutBatch | None = None


def run(
    config: EmbeddedConfig,
    folder: Path,
    log: RunLog,
    resume: Checkpoint | None = None,
    lost: Callable[[RuntimeError], None] | None = None,
) -> None:
    """Runs the whole pipeline to its end.

    Args:
        folder: the run folder.
        log: is told everything that is to be recorded or shown.
        resume: the checkpoint of the folder to go on from; newer ones are set aside. None: from the beginning.
        lost: ends this process; told when a process of Ray's own died, see cluster.local_ray.

    Raises:
        RayNotStarted: before anything was done.
        ActorFailure: a trainer rank or an engine failed beyond recovery; the run can be resumed.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is saved.
        OSError: a checkpoint or weights could not be written; the previous checkpoint is whole.
        ValueError: the initial model is not the one that the run began with.
    """
    with _interruptible() as interruption, local_ray(folder.resolve() / "logs", lost) as scratch:
        pipeline = _pipeline_class(config)(config, folder.resolve(), scratch, log, interruption)
        try:
            pipeline.run(resume)
        finally:
            interruption.over = True
    if interruption.asked and pipeline.iteration < config.pipeline.iterations:
        raise KeyboardInterrupt


def _pipeline_class(config: EmbeddedConfig) -> type[Pipeline]:
    if config.pipeline.mode == "batch":
        return Pipeline
    from sat_slime.embedded.streaming import StreamingPipeline  # which stands on this module

    return StreamingPipeline


ONE_ACT_S = 1.0
"""Signals within it are one wish to end: `pkill` reaches the driver twice, by itself and through the launcher."""


@dataclass
class Interruption:
    """Ctrl-C and SIGTERM: while the loop runs the first one asks for an end after the iteration, which saves; before
    that, and the second time, they end the run at once. After the loop they change nothing."""

    asked: bool = False
    looping: bool = False
    over: bool = False
    _asked_at: float = -math.inf

    def handle(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.over or now - self._asked_at < ONE_ACT_S:
            return
        self._asked_at = now
        if self.asked or not self.looping:
            self.asked = True
            raise KeyboardInterrupt
        self.asked = True
        # Not through the log: a signal may come while that holds a lock.
        os.write(2, b"\nending after this iteration and a checkpoint; once more to end at once\n")


@contextmanager
def _interruptible() -> Iterator[Interruption]:
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # only the main thread may handle signals
        return
    previous = {number: signal.signal(number, interruption.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_due(iteration: int, every: int) -> bool:
    return every > 0 and iteration % every == 0


class Pipeline:
    """One run: its trainer, its engines, and where it stands. What mode streaming does otherwise it overrides: where a
    batch comes from, and what goes on beside training."""

    def __init__(
        self, config: EmbeddedConfig, folder: Path, scratch: Path, log: RunLog, interruption: Interruption
    ) -> None:
        self.config = config
        self.folder = folder
        self.scratch = scratch
        self.log = log
        self.interruption = interruption
        self.checkpoints = folder / "checkpoints"
        self.initial = folder / "initial"
        self.weights = folder / "weights"
        self.log_dir = folder / "logs"
        self.iteration = 0
        """Iterations trained."""
        self.updates = 0
        self.versions: list[int] = []
        """Broadcast versions still in use, the last one on the engines."""
        self.seconds: dict[str, float] = {}
        """Parts of the current iteration's time; `wait` is every wait for a rollout."""
        self.metrics: dict[str, float] = {}
        """What the current iteration reports besides its batch and its steps."""
        self.initial_checksums: dict[str, str] = {}
        """Of the initial model's files."""
        self.ahead: Flight | None = None
        """The batch generated ahead."""

    def run(self, saved: Checkpoint | None) -> None:
        self._provide_initial_model(saved)
        if saved:
            checkpoint.check_layout(saved, self.config)
            checkpoint.check_initial(saved, self.initial)
        self.initial_checksums = checkpoint.model_checksums(self.initial)
        self.log.status(phase="starting", engine="starting")
        self.trainer = TrainerGroup(self.config, self.scratch, self.log_dir)
        self.engines = EngineGroup(self.config, self.initial, self.log_dir)
        self.grader = Grader(self.config.verifier)
        try:
            if saved:
                self._restore(saved)
            else:
                self._begin()
            self._loop()
        finally:
            self.log.status(phase="stopping")
            self._stop_engines()
            self.grader.close()

    def _stop_engines(self) -> None:
        try:
            self.engines.stop()
        except ActorFailure as failure:
            self.log.message(f"while stopping: {failure}", "warning")

    # ------------------------------------------------------------------------------------------------ start

    def _provide_initial_model(self, saved: Checkpoint | None) -> None:
        """The run's own copy of the initial model, which is its reference model too: a cache may change or go away.
        Raises ValueError where a resumed run has lost it."""
        if saved and is_model(self.initial):
            return
        cached = cached_model(self.config)
        try:
            if not is_model(cached):
                self._warm_up(cached)
            if saved and checkpoint.initial_faults(saved, cached):
                raise ValueError(checkpoint.lost_initial(self.initial, cached))
            shutil.rmtree(self.initial, ignore_errors=True)
            with naming(self.initial):
                shutil.copytree(cached, self.initial)
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
        shutil.rmtree(cached, ignore_errors=True)  # whatever half of a model is there
        with naming(cached):
            warm_up_model(self.config, cached, self.scratch, self.log_dir)
        self.log.message(f"warm-up took {time.monotonic() - started:.0f} s")

    def _begin(self) -> None:
        self._forget_after(0, updates=-1)
        shutil.rmtree(self.weights, ignore_errors=True)
        loading = self.trainer.start("load_initial", self.initial)
        self.engines.start()
        self.trainer.wait(loading)
        self._broadcast()
        self._evaluate()

    def _restore(self, saved: Checkpoint) -> None:
        state, path = saved.state, saved.path.resolve()
        self.log.message(f"resuming from {path.name}: {state.iteration} iterations, {state.updates} optimizer steps")
        self._forget_after(state.iteration, state.updates)
        loading = [self.trainer.start("load_reference", self.initial), self.trainer.start("load", path, state.updates)]
        self.engines.start()
        for futures in loading:
            self.trainer.wait(futures)
        shutil.rmtree(self.weights, ignore_errors=True)
        with naming(self.weights):
            shutil.copytree(path / "weights", self.weights)
        for version in state.weight_versions:
            self.trainer.call("remember_weights", self._weights_folder(version), version)
        self.iteration, self.updates, self.versions = state.iteration, state.updates, state.weight_versions
        self.engines.update_weights(self._weights_folder(self.versions[-1]), self.versions[-1])
        self._read_ahead(path)

    def _forget_after(self, iteration: int, updates: int) -> None:
        """Drops what the run left after the iteration from which it goes on. Checkpoints go first, and aside: where the
        rest is interrupted, the next resume does not take one of them up."""
        for path in checkpoint.set_aside(self.checkpoints, after=iteration):
            self.log.message(f"a checkpoint that is not gone on from is now {path}", "warning")
        self.log.rewind(updates)
        forget_dumps(self.folder, after=iteration)

    # ------------------------------------------------------------------------------------------------- loop

    def _loop(self) -> None:
        """slime's order: collect batch r, launch r + 1, train r, broadcast if due."""
        config = self.config
        lag, total = config.pipeline.lag, config.pipeline.iterations
        saved = self.iteration
        self.interruption.looping = True
        while self.iteration < total and not self.interruption.asked:
            if reason := self.log.stop_reason():
                self.log.message(f"ending after iteration {self.iteration} of {total}: {reason}", "warning")
                break
            self.seconds = dict.fromkeys(("wait", "train", "sync"), 0.0)
            started = time.monotonic()
            batch = self._next_batch()
            self.log.status(phase="training", iteration=self.iteration + 1)
            with self._timing("train"):
                dumps = _is_due(self.iteration + 1, config.dump.every_n_iterations)
                results = self._train(batch, dumps)
            self.iteration += 1
            self.updates += len(results)

            ends = self.iteration == total
            broadcasts = ends or self.iteration % max(lag, 1) == 0
            evaluates = ends or _is_due(self.iteration, config.eval.every_n_iterations)
            saves = _is_due(self.iteration, config.checkpoint.every_n_iterations)
            if broadcasts or evaluates or saves:
                self._settle()
            if broadcasts:
                with self._timing("sync"):
                    self._broadcast()
            self.seconds["step"] = time.monotonic() - started
            self._record(batch, results)
            if evaluates:
                self._evaluate()
            if saves:
                self._save()
                saved = self.iteration
        self.interruption.looping = False
        if saved != self.iteration:
            self._save()

    def _next_batch(self) -> RolloutBatch:
        """Batch r, with r + 1 launched."""
        batch = self._collect(self.ahead or self._launch(self.iteration))
        follows = self.config.pipeline.lag and self.iteration + 1 < self.config.pipeline.iterations
        self.ahead = self._launch(self.iteration + 1) if follows else None
        return batch

    def _train(self, batch: RolloutBatch, dump: bool) -> list[StepResult]:
        return self.trainer.train(batch, dump)

    def _settle(self) -> None:
        """Waits for what must be complete before weights change, are measured or are saved."""
        if self.ahead:
            self._collect(self.ahead)

    def _launch(self, iteration: int) -> Flight:
        problems, requests = training_requests(self.config, iteration)
        self.log.status(engine="generating")
        return Flight(iteration, problems, self.engines.generate(requests, self.config.rollout.samples_per_prompt))

    @contextmanager
    def _timing(self, part: str) -> Iterator[None]:
        """Adds what is inside to a part of this iteration's time."""
        started = time.monotonic()
        yield
        self.seconds[part] += time.monotonic() - started

    def _collect(self, flight: Flight) -> RolloutBatch:
        if flight.batch is None:
            self.log.status(phase="waiting for the rollout")
            with self._timing("wait"):
                generated = self.engines.collect(flight.futures, flight.iteration, flight.problems)
            flight.batch = self.grader.grade(generated)
            self.log.status(engine="ready")
            self._tell_faults(flight.batch)
        return flight.batch

    def _tell_faults(self, batch: RolloutBatch, of: str = "") -> None:
        """of: what the responses are for, where it is not the batch's own iteration."""
        happened = {name: count for name, count in batch.faults.items() if count}
        if happened:
            self.log.message(
                f"{of or f'iteration {batch.iteration + 1}'}: rollout faults, all responses asked for again: "
                + ", ".join(f"{name} {count}" for name, count in happened.items()),
                "warning",
            )

    def _restarts(self, during: str) -> dict[str, int]:
        """rollout/restarts of a row: those since the row before, of steps and evaluations together."""
        restarts = self.engines.new_restarts()
        if restarts:
            deaths = "; ".join(self.engines.new_deaths())
            count = f"{restarts} server restart{'s' * (restarts > 1)}"
            self.log.message(f"{during}: {count}{': ' * bool(deaths)}{deaths}", "warning")
        return {"rollout/restarts": restarts}

    def _weights_folder(self, version: int) -> Path:
        return self.weights / f"v{version:06d}"

    def _broadcast(self) -> None:
        """Current weights to all engines, with the number of optimizer updates as their version."""
        self.log.status(phase="broadcasting weights")
        folder = self._weights_folder(self.updates)
        with naming(folder):
            version = self.trainer.call("export_weights", folder)
        self.engines.update_weights(folder, version)
        if version not in self.versions:
            self.versions.append(version)
        kept = self.config.pipeline.weights_in_use
        for old in self.versions[:-kept]:
            shutil.rmtree(self._weights_folder(old), ignore_errors=True)
        self.versions = self.versions[-kept:]

    # ------------------------------------------------------------------------------------- record, measure, save

    def _record(self, batch: RolloutBatch, results: list[StepResult]) -> None:
        restarts = self._restarts(f"iteration {self.iteration}")
        for result in results:
            self.log.step(step_row(batch, result, self.iteration, self.seconds) | self.metrics | restarts)
            self.log.histogram(histogram_row(result))
            restarts = dict.fromkeys(restarts, 0)  # since the row before
        for part, result in enumerate(results):
            if result.tokens is not None:
                dump = token_dump(self.config, batch, result, self.iteration, part)
                write_dump(dump_path(self.folder, self.iteration, part), dump)
        every = self.config.logging.samples_every_n_iterations
        if every and self.iteration % every == 0:
            self.log.samples(self.iteration, sample_rows(batch))
        self.log.status(engine=self.engines.states())

    def _evaluate(self) -> None:
        """Accuracy on held-out problems with the weights that the engines hold, which may lag the trainer."""
        if not self.config.eval.every_n_iterations:
            return
        self.log.status(phase="evaluating")
        problems, requests = evaluation_requests(self.config, self.updates)
        futures = self.engines.generate(requests, len(requests) // len(problems))
        batch = self.grader.grade(self.engines.collect(futures, self.iteration, problems))
        during = f"evaluation after iteration {self.iteration}"
        self._tell_faults(batch, during)
        row = evaluation_row(batch, self.config.eval, self.updates, self.iteration)
        self.log.eval(row | self._restarts(during))

    def _write_ahead(self, part: Path) -> None:
        if self.ahead and self.ahead.batch:
            checkpoint.write_batch(part, self.ahead.batch)

    def _read_ahead(self, saved: Path) -> None:
        if batch := checkpoint.read_batch(saved, self.config):
            self.ahead = Flight(batch.iteration, batch.problems, [], self.grader.grade(batch))

    def _save(self) -> None:
        """A checkpoint between two iterations, with what is generated ahead."""
        self._settle()
        self.log.status(phase="saving a checkpoint")
        state = checkpoint.LoopState(
            self.iteration,
            self.updates,
            self.versions,
            checkpoint.parallel_layout(self.config),
            self.initial_checksums,
        )
        try:
            with naming(self.checkpoints), checkpoint.writing(self.checkpoints, state) as part:
                self._write_ahead(part)
                for version in self.versions:
                    source = self._weights_folder(version)
                    shutil.copytree(source, part / "weights" / source.name)
                self.trainer.call("save", part)
        except Exception as error:
            raise self._not_saved(error) from error
        checkpoint.prune(self.checkpoints, self.config.checkpoint.keep)
        self.log.message(f"checkpoint of iteration {self.iteration} saved")

    def _not_saved(self, error: Exception) -> Exception:
        """What happened while a checkpoint was written, and what is left to go on from."""
        kept = checkpoint.newest(self.checkpoints)
        whole = f"{kept.name} is whole" if kept else "there is no earlier one"
        if isinstance(error, ActorFailure):
            return ActorFailure(
                f"{error}; so the checkpoint of iteration {self.iteration} is not saved, {whole}: go on with --resume"
            )
        remedy = "free space and go on" if disk_is_full(error) else "go on"
        return OSError(f"checkpoint of iteration {self.iteration} not saved: {error}; {whole}: {remedy} with --resume")
