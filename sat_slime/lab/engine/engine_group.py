"""All rollout engines, on an event loop in a thread of their own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sat_slime.config.schema import LabConfig
from sat_slime.lab.engine.rollout_engine import GenerationResult, RolloutEngine
from sat_slime.lab.failures import wait_all
from sat_slime.lab.rollout_batch import RolloutBatch
from sat_slime.rollout.canary import EngineScores
from sat_slime.rollout.types import GenerationRequest
from sat_slime.tasks import Problem


def faults_of(results: Sequence[GenerationResult]) -> dict[str, int]:
    """Counts of rejected, lost and resent responses."""
    faults = Counter({"rejected": 0, "lost": 0, "resent": 0})
    for result in results:
        faults.update({name: result.stats[name] for name in ("lost", "resent")})
        faults["rejected"] += sum(result.stats["rejected"].values())
        faults.update({f"rejected/{reason}": count for reason, count in result.stats["rejected"].items()})
    return dict(faults)


def groups_in_flight(config: LabConfig) -> int:
    """Return the most groups that a stream has in generation: so many that the servers decode as much as they can side
    by side even when all groups lack a single response; what is more waits in the servers. 0 in mode batch."""
    if config.pipeline.mode != "streaming":
        return 0
    return min(config.rollout.engines * config.rollout.max_running_requests, config.pipeline.queue_prompts)


class EngineGroup:
    """All rollout engines, which share each batch by whole problems; with `eval.beside: engine` one more, which only
    evaluates."""

    def __init__(self, config: LabConfig, model_path: Path, log_dir: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engines", daemon=True)
        self._thread.start()
        self._all = [
            RolloutEngine(
                index,
                config.rollout,
                config.model,
                config.task.vocab_size,
                str(model_path),
                str(log_dir),
                tool=config.task.called_tool,
            )
            for index in range(config.servers)
        ]
        self.engines = self._all[: config.rollout.engines]
        self.evaluator = self._all[-1] if config.evaluation_engine else None
        self.task = config.task
        self._restarts_reported = 0

    def start(self) -> None:
        """Starts all servers and waits until they are healthy. Raises PartFailure, as all that waits here."""
        self._call("start")

    def update_weights(self, folder: Path, version: int) -> None:
        """Gives all rollout engines new weights, which wait for calls of `generate` and interrupt those of `stream`."""
        wait_all(
            [self._begin(engine.update_weights(str(folder), version)) for engine in self.engines], "rollout engine"
        )

    def start_score(self, sequences: Sequence[Sequence[int]]) -> list[Future[Any]]:
        """Starts scoring the canary's sequences on every rollout engine; `scores` takes what this returns."""
        return [self._begin(engine.score(sequences)) for engine in self.engines]

    def scores(self, futures: list[Future[Any]]) -> dict[str, EngineScores]:
        """Waits for the engines' scores, which stand by the engine's name."""
        results = wait_all(futures, "rollout engine")
        return {f"rollout engine {index}": scores for index, scores in enumerate(results)}

    def stop(self) -> None:
        """Stops all servers and what is in flight."""
        try:
            self._call("stop")
        finally:
            self._begin(_cancel_all()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def states(self) -> str:
        """Return the states of the engines, in words."""
        states = [engine.status() for engine in self._all]
        return ", ".join(
            state["state"] + (f" ({state['restarts']} restarts)" if state["restarts"] else "") for state in states
        )

    def new_restarts(self) -> int:
        """Restarts of servers since this was asked last.

        They are counted by server, not by call: each of the calls that a server answers side by side would count them,
        and a server is restarted between calls too.
        """
        restarts = sum(engine.status()["restarts"] for engine in self._all)
        new, self._restarts_reported = restarts - self._restarts_reported, restarts
        return new

    def new_deaths(self) -> list[str]:
        """Returns why servers were restarted since the last call, a sentence each."""
        return [death for engine in self._all for death in engine.new_deaths()]

    def generate(self, requests: list[GenerationRequest], group: int) -> list[Future[Any]]:
        """Starts generation; `collect` takes what this returns.

        Args:
            group: requests of one problem, which stand in a row and stay on one engine.
        """
        problems, engines = len(requests) // group, len(self.engines)
        ends = [group * (i * problems // engines) for i in range(engines + 1)]
        return [
            self._begin(engine.generate(requests[start:end]))
            for engine, (start, end) in zip(self.engines, itertools.pairwise(ends), strict=True)
        ]

    def evaluate(self, requests: list[GenerationRequest], group: int, folder: Path, version: int) -> list[Future[Any]]:
        """Starts an evaluation of the weights in `folder`, which the rollout engines hold, on the engine for it, if
        there is one. `collect` takes what this returns. group: as in `generate`."""
        if self.evaluator is None:
            return self.generate(requests, group)
        return [self._begin(self.evaluator.evaluate(str(folder), version, requests))]

    def stream(self, index: int, requests: list[GenerationRequest]) -> Future[GenerationResult]:
        """Starts generation of one problem's responses, which new weights do not wait for; its result is a
        GenerationResult. `index` numbers the groups, which the engines take in turn."""
        return self._begin(self.engines[index % len(self.engines)].stream(requests))

    def give_up(self, oldest: int) -> None:
        """Ends the groups in generation that have a token of weights before version `oldest`; waits for nothing."""
        for engine in self.engines:
            self._begin(engine.give_up(oldest))

    def collect(
        self, futures: list[Future[Any]], iteration: int, problems: list[Problem], of: str = "rollout engine"
    ) -> RolloutBatch:
        """Waits for a batch. of: who is blamed when a future failed."""
        results = wait_all(futures, of)
        return RolloutBatch(
            self.task,
            iteration,
            problems,
            [response for result in results for response in result.responses],
            seconds=max(result.stats["seconds"] for result in results),
            faults=faults_of(results),
        )

    def _call(self, method: str) -> list[Any]:
        futures = [self._begin(getattr(engine, method)()) for engine in self._all]
        rollout, evaluation = futures[: len(self.engines)], futures[len(self.engines) :]
        return [*wait_all(rollout, "rollout engine"), *wait_all(evaluation, "evaluation engine")]

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
