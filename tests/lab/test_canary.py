"""The canary on SGLang's real servers and Megatron's real trainer: each fault that it is there for is made, and found.

Two servers and one trainer rank serve all tests. The second server keeps a prefix cache, which those of a run do not.
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
from sat_slime.lab.engine import Engine, Server
from sat_slime.rollout.canary import Canary, canary_sequences
from sat_slime.runs.health import HealthWatch

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("sglang", "megatron")),
        reason="the lab runtime needs the engines: scripts/setup.sh",
    ),
]

NAMES = ("v0", "v1", "v2", "other", "half")
STEP = 0.05
"""Relative change of the weights with each push: that of some steps of the tiny runs."""


class CachingServer(Server):
    """A server with SGLang's prefix cache."""

    def arguments(self, model_path: str, version: int) -> list[str]:
        none = ("--disable-radix-cache", "--enable-deterministic-inference")  # the second disables it on a CPU too
        return [word for word in super().arguments(model_path, version) if word not in none]


def make_weights(trainer, root: str, sequences: list[tuple[int, ...]]) -> dict:
    """Writes three versions, another model, and version 2 whose second tensor-parallel half is still that of version 1;
    returns the trainer's scores under each version."""
    torch.manual_seed(11)
    folders = {name: Path(root) / name for name in NAMES}
    trainer.export_weights(folders["v0"])
    weights = load_file(folders["v0"] / "model.safetensors")
    # The random model's own weights are so small that its log-probs hardly depend on the input.
    weights = {k: v if v.dim() == 1 else v * 8 for k, v in weights.items()}
    versions = [weights]
    for _ in range(2):
        versions.append({k: v + STEP * v.std(correction=0) * torch.randn_like(v) for k, v in versions[-1].items()})
    other = {k: v if v.dim() == 1 else v.std() * torch.randn_like(v) for k, v in weights.items()}
    half = {k: stale_half(k, versions[1][k], versions[2][k]) for k in weights}
    for name, tensors in zip(NAMES, [*versions, other, half], strict=True):
        if name != "v0":
            shutil.copytree(folders["v0"], folders[name])
        save_file(
            {k: v.to(weights[k].dtype).contiguous() for k, v in tensors.items()},
            folders[name] / "model.safetensors",
            metadata={"format": "pt"},
        )
    scores = []
    for name in NAMES[:3]:
        trainer.load_initial(folders[name])
        scores.append(trainer.score(canary_responses(trainer.config, sequences), replay=False, temperature=1.0))
    return {"scores": torch.tensor(np.stack(scores))}


def stale_half(name: str, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return a weight of which a second tensor-parallel rank kept its old half: rows of what is split by rows, columns
    of the output projections; norms and routers are on both ranks."""
    if new.dim() == 1 or name.endswith("mlp.gate.weight"):
        return new
    merged, by_columns = new.clone(), name.endswith(("o_proj.weight", "down_proj.weight"))
    middle = new.shape[1 if by_columns else 0] // 2
    if by_columns:
        merged[:, middle:] = old[:, middle:]
    else:
        merged[middle:] = old[middle:]
    return merged


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
        self.engines[1].server = CachingServer(1, config.rollout, config.model, logs)
        self(self._start())

    async def _start(self) -> None:
        await asyncio.gather(*(engine.start() for engine in self.engines))

    def __call__(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def load(self, engine: int, name: str, version: int, flush: bool = True) -> None:
        """Loads weights into one engine under a version. flush: its prefix cache too, as SGLang does by itself."""
        server = self.engines[engine].server
        # A scheduler that has answered may not be idle yet, and ends itself when it cannot flush with the weights.
        while flush and self(server._client.post("/flush_cache")).status_code != 200:
            pass
        body = {"model_path": str(self.root / name), "weight_version": str(version), "flush_cache": flush}
        self(server.post("/update_weights_from_disk", body))

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
        (None, "holds the weights of version 1, as it says"),  # it did not take the push
        ("2", "holds the weights of version 1, and says 2"),
        (("v2", 7), "version 7, not 2"),
        (("half", 2), "tensor-parallel"),
        (("other", 2), "another model"),
    ],
    ids=["not taken", "a version that lies", "another version", "one tensor-parallel rank", "another model"],
)
def test_a_fault_of_one_engine(running, fault, said):
    """fault: the version that the second engine only tells, or the weights that it loads and their version."""
    canary = running.pushed_twice()
    running.load(0, "v2", 2)
    if isinstance(fault, str):
        running(running.engines[1].server.post("/update_weight_version", {"new_version": fault}))
    elif fault:
        running.load(1, *fault)
    faults = running.verdict(canary).faults
    assert set(faults) == {"1"} and said in faults["1"]


def test_keys_and_values_of_before_the_push_in_a_prefix_cache(running):
    canary = running.pushed_twice()
    running.load(0, "v2", 2)
    running.load(1, "v2", 2, flush=False)
    faults = running.verdict(canary).faults
    assert set(faults) == {"1"} and "keys and values of before the push" in faults["1"]
    running.load(1, "v2", 2)
    assert not running.verdict(canary).faults


def test_an_engine_that_gets_the_initial_weights_between_pushes_is_unhealthy(running):
    """Half of a step's tokens are of an engine with the initial weights, under the version of the others'."""

    def part() -> float:
        """The implementation part over what both engines score."""
        return float(np.mean([np.abs(found.log_probs - running.trainer[2]) for found in running.scores().values()]))

    for engine in range(2):
        running.load(engine, "v2", 2)
    watch, healthy = HealthWatch.of({}), part()
    assert not any(watch.step({"step": step, "mismatch/implementation": healthy}) for step in range(1, 17))
    running.load(1, "v0", 2)
    (advisory,) = watch.step({"step": 17, "mismatch/implementation": part()})
    assert advisory.name == "engine"
