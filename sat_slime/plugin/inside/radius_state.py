"""The state of a method's RadiusControl in slime's trainer: kept from step to step, and in slime's checkpoints."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from sat_slime.objective import Method
from sat_slime.plugin.inside.settings import plugin_method
from sat_slime.runs.rows import write_atomically

FILE = "sat_slime_radius.json"
"""Beside Megatron's files in the folder of an iteration, iter_0000031."""


class RadiusState:
    """The state of the radii, the same on all ranks that compute the loss; nothing for a method without such radii."""

    def __init__(self, method: Method | None = None):
        self._control = method.radius_control if method else None
        self._values = self._control.start() if self._control else {}

    @property
    def scale(self) -> float:
        """Factor on the clip radii in the next optimizer step."""
        return self._values.get("scale", 1.0)

    def end_step(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Advance the state by the metrics of an optimizer step, and return its own metrics.

        A step at lag 0, or without a response, leaves it as it is.
        """
        if self._control is None:
            return {}
        if measured.get("lag/max", 0.0) > 0:
            self._values = self._control.advance(self._values, measured)
        return self._control.told(self._values)

    def save(self, args: Namespace, rollout_id: int) -> None:
        """Write the state into slime's checkpoint of a rollout. Every rank calls it."""
        if self._control is not None and _is_writer():
            folder = checkpoint_folder(args.save, rollout_id)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / FILE, json.dumps(self._values))

    def load(self, args: Namespace, rollout_id: int) -> None:
        """Restore what `save` wrote.

        Raises:
            RuntimeError: the checkpoint was saved without it.
        """
        if self._control is None:
            return
        file = checkpoint_folder(args.load, rollout_id) / FILE
        try:
            self._values = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RuntimeError(
                f"{file} is missing: the clip radii of {plugin_method(args).name} depend on the steps before, and this "
                "checkpoint was saved by a run of another method: resume with that method, or start a new run from "
                "these weights"
            ) from None


def checkpoint_folder(folder: str, rollout_id: int) -> Path:
    """Return the folder of Megatron's checkpoint of a rollout."""
    return Path(folder) / f"iter_{rollout_id:07d}"


def _is_writer() -> bool:
    """Return whether this is the one rank that writes: the first of those that compute the loss."""
    from megatron.core import mpu

    return bool(
        mpu.is_pipeline_last_stage()
        and mpu.get_tensor_model_parallel_rank() == 0
        and mpu.get_data_parallel_rank(with_context_parallel=True) == 0
    )
