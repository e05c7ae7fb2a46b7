"""Verdicts on the responses of a batch: by the task's own check, or by the verifier's worker processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from sat_slime.config.schema import VerifierConfig
from sat_slime.embedded import task
from sat_slime.embedded.batch import RolloutBatch
from sat_slime.embedded.task import Problem
from sat_slime.rollout.reward import Limits, Verdict, VerifierPool
from sat_slime.rollout.types import Response


class Grader:
    """Grades responses; close it, since a verifier has processes."""

    def __init__(self, config: VerifierConfig) -> None:
        """Raises ModuleNotFoundError: the verifier is asked for and math-verify is not installed."""
        self.mode = config.mode
        self._pool: VerifierPool | None = None
        if config.mode != "exact":
            workers = config.workers or max(1, min(8, (os.cpu_count() or 2) // 2))
            self._pool = VerifierPool(workers, Limits(config.cpu_s, config.wall_s, config.memory_mb))

    def grade(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with its verdicts, and with what the verifier counted."""
        group = len(batch.responses) // len(batch.problems)
        problems = [problem for problem in batch.problems for _ in range(group)]
        verdicts = self.verdicts(problems, batch.responses)
        return replace(batch, verdicts=verdicts, verifier={} if self._pool is None else self._pool.drain_metrics())

    def verdicts(self, problems: Sequence[Problem], responses: Sequence[Response]) -> list[Verdict]:
        """One for each response, in order; problems has the problem of each."""
        graded = zip(problems, responses, strict=True)
        if self.mode == "exact" or self._pool is None:
            return [task.verdict(problem, response.output_ids) for problem, response in graded]
        pairs = [(task.wording(response.output_ids), problem.label) for problem, response in graded]
        return self._pool.verify_batch(pairs, self.mode)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
