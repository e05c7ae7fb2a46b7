"""Verdicts on the responses of a batch: by the task's own check, or by the verifier's worker processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from sat_slime.config.schema import VerifierConfig
from sat_slime.lab.rollout_batch import RolloutBatch
from sat_slime.reward import Limits, Verdict, VerifierPool
from sat_slime.tasks import Task


class Grader:
    """Grades responses; close it, since a verifier has processes."""

    def __init__(self, config: VerifierConfig, task: Task) -> None:
        """Raises ModuleNotFoundError: the verifier is asked for and math-verify is not installed."""
        self.task = task
        self.mode = config.mode
        self._pool: VerifierPool | None = None
        if config.mode != "exact":
            workers = config.workers or max(1, min(8, (os.cpu_count() or 2) // 2))
            self._pool = VerifierPool(workers, Limits(config.cpu_s, config.wall_s, config.memory_mb))

    def grade(self, batch: RolloutBatch) -> RolloutBatch:
        """Return the batch with its verdicts, and with what the verifier counted."""
        group = len(batch.responses) // len(batch.problems)
        labels = [problem.label for problem in batch.problems for _ in range(group)]
        graded = zip(labels, (response.output_ids for response in batch.responses), strict=True)
        if self._pool is None or self.mode == "exact":
            return replace(batch, verdicts=[self.task.verdict(label, ids) for label, ids in graded])
        verdicts = self._pool.verify_batch([(self._wording(ids), label) for label, ids in graded], self.mode)
        return replace(batch, verdicts=verdicts, verifier=self._pool.drain_metrics())

    async def verdict(self, label: str, output_ids: Sequence[int]) -> Verdict:
        """Return the verdict on one response."""
        if self._pool is None or self.mode == "exact":
            return self.task.verdict(label, output_ids)
        return await self._pool.verify_async(self._wording(output_ids), label, self.mode)

    def _wording(self, output_ids: Sequence[int]) -> str:
        return self.task.wording(self.task.decode(output_ids))

    def close(self) -> None:
        """Ends the verifier's processes, if there are any."""
        if self._pool is not None:
            self._pool.close()
