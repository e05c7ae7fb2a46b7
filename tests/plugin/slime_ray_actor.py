"""Runs the stand-in for slime's trainer as an actor of Ray, in a worker process."""

from __future__ import annotations

from typing import Any

import pytest
import slime_trainer_stand_in as stand_in
import torch
from slime_host import REFERENCE, Recorder

from sat_slime.plugin import train_hooks


class RayTrainer(stand_in.Trainer):
    def __init__(self, args: Any, rollout_id: int):
        patch = pytest.MonkeyPatch()
        stand_in.serve_as_slime(patch)
        stand_in.initialize_model_and_optimizer = lambda *_: (None, None, None, rollout_id - 1)
        stand_in.UpdateWeightFromDistributed.update_weights = stand_in.push
        weights = torch.tensor(float(rollout_id))
        super().__init__(Recorder(args, weights), {"actor": weights.item(), "reference": REFERENCE})

    def generate(self, rollout_id: int) -> dict[str, Any]:
        return self.recorder.generate(rollout_id, 1)

    def pushes(self) -> list[tuple[str, float]]:
        return self.recorder.pushes

    def facts(self) -> dict[str, float]:
        return train_hooks.rollout_facts()
