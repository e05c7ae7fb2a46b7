"""The canary on SGLang's real servers and Megatron's real trainer: each fault that it is there for is made, and found.

Two servers and one trainer serve all tests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from trainer_process import in_trainer, make_config

from sat_slime.config.schema import LabConfig
from sat_slime.lab.batch import canary_responses
from sat_slime.lab.engine import Engine
from sat_slime.rollout.canary import Canary, canary_sequences

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("forked"),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]

NAMES = ("v0", "v1", "v2")
STEP = 0.05
"""Relative change of the weights with each push: that of some steps of the tiny runs."""


def make_weights(trainer, root: str, sequences: list[tuple[int, ...]]) -> dict:
    """Writes three versions; returns the trainer's scores under each."""
    torch.manual_seed(11)
    folders = {name: Path(root) / name for name in NAMES}
    trainer.export_weights(folders["v0"])
    weights = load_file(folders["v0"] / "model.safetensors")
    # The random model's own weights are so small that its log-probs hardly depend on the input.
    weights = {k: v if v.dim() == 1 else v * 8 for k, v in weights.items()}
    versions = [weights]
    for _ in range(2):
        versions.append({k: v + STEP * v.std(correction=0) * torch.randn_like(v) for k, v in versions[-1].items()})
    for name, tensors in zip(NAMES, versions, strict=True):
        if name != "v0":
            shutil.copytree(folders["v0"], folders[name])
        save_file(
            {k: v.to(weights[k].dtype).contiguous() for k, v in tensors.items()},
            folders[name] / "model.safetensors",
            metadata={"format": "pt"},
        )
    scores = []
    for name in NAMES:
        trainer.load_initial(folders[name])
        scores.append(trainer.score(canary_responses(trainer.config, sequences), replay=False, temperature=1.0))
    return {"scores": torch.tensor(np.stack(scores))}


class Running:
    """Two engines, the trainer's scores of versions 0 to 2, and what the canary says of a push."""

    def __init__(self, config: LabConfig, root: Path) -> None:
        self.config, self.root, self.loop = config, root, asyncio.new_event_loop()
        self.sequences = canary_sequences(config.task.vocab_size, 32)
        told = in_trainer(make_weights, config, str(root), self.sequences)
        self.trainer = [row.numpy() for row in told["scores"]]
        logs = root / "logs"
        self.engines = [
            Engine(i, config.rollout, config.model, config.task.vocab_size, root / "v0", logs) for i in range(2)
        ]
        self(self._start())

    async def _start(self) -> None:
        await asyncio.gather(*(engine.start() for engine in self.engines))

    def __call__(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def load(self, engine: int, name: str, version: int) -> None:
        """Loads weights into one engine under a version."""
        self(self.engines[engine].update_weights(str(self.root / name), version))

    def scores(self) -> dict:
        return {str(i): self(engine.score(self.sequences)) for i, engine in enumerate(self.engines)}

    def pushed_twice(self) -> Canary:
        """A canary after the pushes of versions 0 and 1 to both engines, which pass."""
        canary = Canary(self.config.rollout.dtype)
        for version in (0, 1):
            for engine in range(2):
                self.load(engine, f"v{version}", version)
            verdict = canary.check(version, self.trainer[version], self.scores())
            assert not verdict.faults, verdict.message
        return canary

    def verdict(self, canary: Canary):
        """The verdict on the push of version 2."""
        return canary.check(2, self.trainer[2], self.scores())


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    config = make_config(rollout={"dtype": "bfloat16", "max_running_requests": 16, "startup_timeout_s": 600.0})
    running = Running(config, tmp_path_factory.mktemp("canary"))
    yield running
    for engine in running.engines:
        running(engine.stop())
    running.loop.close()


def test_a_push_that_all_took_passes(running):
    canary = running.pushed_twice()
    for engine in range(2):
        running.load(engine, "v2", 2)
    verdict = running.verdict(canary)
    assert not verdict.faults and 0 < verdict.metrics["canary/d"] < verdict.metrics["canary/limit"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("2", "holds the weights of version 1, and says 2"),  # it did not take the push
        (("v2", 7), "version 7, not 2"),
    ],
    ids=["a version that lies", "another version"],
)
def test_a_fault_of_one_engine(running, fault, said):
    """fault: the version that the second engine only tells, or the weights that it loads and their version."""
    canary = running.pushed_twice()
    running.load(0, "v2", 2)
    if isinstance(fault, str):
        running(running.engines[1].server.post("/update_weight_version", {"new_version": fault}))
    else:
        running.load(1, *fault)
    faults = running.verdict(canary).faults
    assert set(faults) == {"1"} and said in faults["1"]
