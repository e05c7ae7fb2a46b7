"""The hooks by which the plugin's file (`sat-slime init plugin`) acts in slime's trainer, in the process of every rank.

slime calls `install` (--custom-megatron-init-path) before it builds the model, and `postprocess`
(--rollout-data-postprocess-path) between its forward passes over a batch and the training on it. Under our own driver,
whose trainer is actor.py, they have nothing to do.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from sat_slime.config.plugin_file import KEY
from sat_slime.config.source import ConfigError
from sat_slime.plugin import step
from sat_slime.plugin.compat import probe_slime
from sat_slime.plugin.settings import DRIVEN, plugin_config, settle_flags
from sat_slime.plugin.step import TrainerState, prepare


def install(args: Namespace) -> None:
    """Judges the settings before anything is built, sets those of slime's flags that follow from the method, and wraps
    what the method needs. Rank 0 logs the method. Raises ConfigError with a line for every fault of `args.sat_slime`
    and of what it needs of the script's flags, RuntimeError with a line for every difference from a known slime."""
    if getattr(args, DRIVEN, False):
        return
    settle_flags(args)
    if "driver" in plugin_config(args).model_fields_set:
        raise ConfigError(
            f"{KEY}.driver is set, and slime's own training script runs, which reads none of it: start `-m "
            "sat_slime.plugin.driver` in its place, or leave driver out of the file"
        )
    if problems := probe_slime(own_script=True):
        raise RuntimeError("\n".join(problems))
    prepare(args, TrainerState())


def postprocess(args: Namespace, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Takes the batch's numbers for the metrics, and its threshold for the loss."""
    if getattr(args, DRIVEN, False):
        return
    state = step.current()
    state.begin(rollout_data)
    state.scored(args, rollout_data)
    state.steps += len(rollout_data["num_microbatches"])
