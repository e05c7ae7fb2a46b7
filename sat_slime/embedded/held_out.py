"""Evaluating a run of the embedded runtime afterwards: its own problems, seeds and engine, and weights that it left."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded import checkpoint
from sat_slime.embedded.engine.rollout_engine import RolloutEngine
from sat_slime.embedded.initial_model import check_initial, is_model
from sat_slime.embedded.rollout_batch import evaluation_requests
from sat_slime.evaluation.questions import Answer, Question, Wanted

_VERSION = re.compile(r"v(\d{6,})")


@dataclass(frozen=True)
class Weights:
    """A Hugging Face folder of a run, and the optimizer updates that it has had."""

    folder: Path
    step: int


def newest_weights(run: Path) -> Weights | None:
    """Return the newest weights that the engines of a run held, as its newest checkpoint has them; before the first
    checkpoint its initial model. Raises DamagedCheckpoint."""
    saved = checkpoint.newest(run / "checkpoints")
    return initial_weights(run) if saved is None else weights_of(saved)


def weights_of(saved: Path) -> Weights | None:
    """Return the weights of one checkpoint, held against their checksums, or None where it has none; no other file is
    read.

    Raises:
        DamagedCheckpoint: a file of the weights is not what was saved.
    """
    if not saved.is_dir():
        return None
    checkpoint.check_files(saved, below="weights/")
    named = ((_VERSION.fullmatch(folder.name), folder) for folder in (saved / "weights").glob("v*"))
    known = [Weights(folder, int(match[1])) for match, folder in named if match and is_model(folder)]
    return max(known, key=lambda weights: weights.step, default=None)


def initial_weights(run: Path) -> Weights | None:
    """Return the initial model, held against the checksums that the newest whole checkpoint has of it, if there is one.

    Raises:
        DamagedCheckpoint: it is not the model that the run began with.
    """
    if not is_model(run / "initial"):
        return None
    saved = checkpoint.newest_whole(run / "checkpoints")
    if saved:
        check_initial(saved, run / "initial")
    return Weights(run / "initial", 0)


def questions(config: EmbeddedConfig) -> list[Question]:
    """Return the held-out problems of the run, as it asks them itself."""
    problems, _ = evaluation_requests(config, 0)
    return [Question(problem.prompt, problem.prompt, problem.label) for problem in problems]


class HeldOutEngine:
    """An engine as the run has it, which is asked what the run would ask at `weights.step`.

    The seeds are the same, and so, in deterministic mode, are the responses. Use it as an asynchronous context.
    """

    def __init__(self, config: EmbeddedConfig, weights: Weights, log_dir: Path) -> None:
        self.config, self.weights = config, weights
        self._engine = RolloutEngine(
            0,
            config.rollout,
            config.model,
            config.task.vocab_size,
            str(weights.folder.resolve()),
            str(log_dir),
            tool=config.task.called_tool,
        )

    async def __aenter__(self) -> HeldOutEngine:
        """Raises ServerFailed."""
        await self._engine.start()
        await self._engine.update_weights(str(self.weights.folder.resolve()), self.weights.step)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.stop()

    async def answers(self, wanted: Wanted) -> AsyncIterator[tuple[int, Answer]]:
        """Raises EngineFailed, ServerFailed."""
        problems, requests = evaluation_requests(self.config, self.weights.step)
        task, samples = self.config.task, len(requests) // len(problems)
        first = {problem.prompt: index * samples for index, problem in enumerate(problems)}
        chosen = [requests[first[question.id] + sample] for question, sample in wanted]
        # As many at a time as the server takes: these are the run's own parts, on which the last bits depend.
        size = self.config.rollout.max_running_requests
        for start in range(0, len(chosen), size):
            result = await self._engine.generate(chosen[start : start + size])
            for index, response in enumerate(result.responses, start):
                ids = response.output_ids
                version = str(response.weight_version)
                yield index, Answer(task.decode(ids), len(ids), ids[-1] != task.eos_id, version, ids)


def asked(config: EmbeddedConfig, changes: dict[str, object]) -> EmbeddedConfig:
    """Return the run's settings with another evaluation. Raises ValueError."""
    scores = type(config.eval).model_validate(config.eval.model_dump() | changes)
    return config.model_copy(update={"eval": scores})
