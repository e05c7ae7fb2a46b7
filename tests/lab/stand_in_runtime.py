"""Stands for the lab runtime, without engines: logs steps, and saves checkpoints by the functions of the real one."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import save_file

import sat_slime.lab
from sat_slime.cli import lab_run
from sat_slime.config.disk import write_checksums
from sat_slime.lab import checkpoint
from sat_slime.runs.saved import set_aside

SAVED_EVERY = 2
"""Iterations between checkpoints."""


class FakeRuntime:
    """A runtime that ends as it is told."""

    def __init__(self):
        self.calls = []
        self.end = None
        self.at_end = lambda log: None
        self.stop_after = 10**9

    def stand_in(self, monkeypatch):
        """Takes the real runtime's place in this process, where its calls can be looked at."""
        monkeypatch.setattr(sat_slime.lab, "run", self.run)
        monkeypatch.setattr(lab_run, "missing_engines", lambda: [])

    def run(self, config, folder, log, resume=None):
        self.calls.append((config, folder, resume is not None))
        done = resume.state.iteration if resume else 0
        set_aside(checkpoint.numbered(folder / "checkpoints"), after=done)
        log.rewind(done if resume else -1)
        log.status(phase="training")
        for step in range(done + 1, min(config.pipeline.iterations, self.stop_after) + 1):
            log.step({"step": step, "iteration": step, "reward/mean": 0.1 * step})
            if step % SAVED_EVERY == 0:
                save(folder, step, config)
        self.at_end(log)
        if self.end is not None:
            raise self.end


def save(folder, step, config):
    """A checkpoint with the files of a real one: weights and AdamW's state of a rank, and broadcast weights."""
    (folder / "initial").mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (folder / "initial" / name).write_text("{}")
    write_checksums(folder / "initial")
    made_with = checkpoint.made_with(config, step)
    state = checkpoint.LoopState(step, step, weight_versions=[step], **made_with)
    with checkpoint.writing(folder / "checkpoints", state) as part:
        names = ("weight", "step", "exp_avg", "exp_avg_sq")
        save_file({f"layer/{name}": np.full(64, step, np.float32) for name in names}, part / "trainer.safetensors")
        weights = part / "weights" / f"v{step:06d}"
        weights.mkdir(parents=True)
        (weights / "config.json").write_text("{}")
        save_file({"layer": np.full(64, step, np.float32)}, weights / "model.safetensors")
